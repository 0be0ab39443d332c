#pragma once

#include <cstdint>

#include "base/error.h"
#include "hca/types.h"

namespace verbena::hca {

// The transitions of a QP that a program may ask for, and which attributes each needs or takes
// (vol1 11.2.5.2, figure 124):
//
//   RESET --> INIT --> RTR --> RTS <--> SQD      any --> ERROR, RESET
//              |__^             ^___ SQE (UC, UD: from RTS by a failed send)
//
// Checks everything that does not depend on what else the engine holds; changes nothing.
Result<void> check_transition(QpType type, const QpAttributes& now, const QpAttributes& wanted,
                              std::uint32_t mask, const Limits& limits);

}  // namespace verbena::hca
