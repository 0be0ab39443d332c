#pragma once

#include <cstdint>

#include "base/error.h"
#include "hca/ports.h"
#include "hca/types.h"

namespace verbena::hca {

// Checks a transition that a program requests against the specification's table of transitions and
// their required and optional attributes (vol1 11.2.5.2, figure 124):
//
//   RESET --> INIT --> RTR --> RTS <--> SQD      any --> ERROR, RESET
//              |__^             ^___ SQE (UC, UD: from RTS by a failed send)
//
// Ports and paths must belong to the device of the QP.
Result<void> check_transition(QpType type, const QpAttributes& current, const QpAttributes& target,
                              std::uint32_t mask, const Limits& limits, const Ports& ports,
                              std::uint8_t device = 0);

}  // namespace verbena::hca
