#pragma once

#include "base/random.h"

namespace verbena::os {

// 256 bits of the kernel for a Random of users: R_Keys, QPNs and PSNs must not be guessed.  A new
// one in each process and after each fork.  Cannot fail but on a broken kernel, which ends us.
Random::Key random_key();

}  // namespace verbena::os
