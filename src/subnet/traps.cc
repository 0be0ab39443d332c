#include "subnet/traps.h"

#include <algorithm>

namespace verbena::subnet {

void Traps::add(const wire::Notice& notice, std::uint8_t port, Time now) {
  const bool is_waiting = std::ranges::any_of(waiting_traps_, [&](const Trap& trap) {
    return trap.port == port && trap.notice.trap_number == notice.trap_number &&
           trap.notice.details == notice.details;
  });
  if (is_waiting || waiting_traps_.size() >= kTrapsMax) return;
  waiting_traps_.push_back({next_transaction_id_++, port, notice, now});
}

void Traps::repress(std::uint64_t transaction_id) {
  std::erase_if(waiting_traps_,
                [&](const Trap& trap) { return trap.transaction_id == transaction_id; });
}

Traps::Trap* Traps::due(Time now) {
  const auto found =
      std::ranges::find_if(waiting_traps_, [&](const Trap& trap) { return trap.next_send <= now; });
  return found == waiting_traps_.end() ? nullptr : &*found;
}

Time Traps::next_deadline() const {
  Time next = kNever;
  for (const Trap& trap : waiting_traps_) next = std::min(next, trap.next_send);
  return next;
}

}  // namespace verbena::subnet
