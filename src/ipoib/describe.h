#pragma once

#include <string>

#include "ipoib/types.h"

namespace verbena::ipoib {

// Describes an entry in one line, for `verbena sa`:
//   10.0.0.2  reachable  12 s  fe80::2:c903:0:22  QPN 0x00004b
//   10.0.0.3  incomplete  2 s  3 wait, 2 requests without an answer
std::string describe(const Row& row);

}  // namespace verbena::ipoib
