#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/time.h"
#include "wire/notice.h"

namespace verbena::subnet {

// Limits the traps of a node that wait for a TrapRepress.  Further traps are lost.
inline constexpr std::size_t kTrapsMax = 32;

// Repeats the traps of a node until the manager represses them (vol1 13.4.9, 14.3.1).  A trap that
// is already pending is not added again.
class Traps {
 public:
  struct Trap {
    std::uint64_t transaction_id = 0;
    std::uint8_t port = 0;  // the port whose manager gets the trap
    wire::Notice notice{};
    Time next_send{};
  };

  // Adds a trap, which is due at once.
  void add(const wire::Notice& notice, std::uint8_t port, Time now);
  // Removes the trap that a TrapRepress names.
  void repress(std::uint64_t transaction_id);
  // Returns a trap that is due, or null.  The caller sends it and sets its next_send.
  Trap* due(Time now);
  Time next_deadline() const;

 private:
  std::vector<Trap> waiting_traps_{};
  std::uint64_t next_transaction_id_ = 1;
};

}  // namespace verbena::subnet
