#pragma once

#include "base/random.h"

namespace verbena::os {

// Reads 256 random bits from the kernel to seed a Random in production, so that nobody can guess
// R_Keys, QPNs and PSNs.  Read a new key in each process and after each fork.  Ends the process if
// the kernel returns no random bits.
Random::Key random_key();

}  // namespace verbena::os
