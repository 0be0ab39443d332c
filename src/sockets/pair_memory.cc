#include "sockets/pair_memory.h"

#include <algorithm>
#include <array>
#include <utility>

namespace verbena::sockets {
namespace {

// Returns true if the reason says that a direction went back to TCP before its end.
bool is_return_to_tcp(stream::Reason reason) {
  return reason != stream::Reason::kNone && reason != stream::Reason::kEnd;
}

}  // namespace

Result<PairMemory> PairMemory::create(std::size_t ring_bytes, Time now) {
  os::SharedMemory streams = VB_TRY(os::create_partly_mapped_memory(
      "verbena-stream", stream::memory_bytes(ring_bytes), stream::kControlBytes));
  std::array<os::SharedMemory, 2> ends;
  for (os::SharedMemory& end : ends) {
    end = VB_TRY(os::create_shared_memory("verbena-end", stream::kEndBytes));
  }
  return PairMemory(std::move(streams), std::move(ends), ring_bytes, now);
}

std::size_t PairMemory::resident_bytes() const {
  std::size_t bytes = ring_resident_bytes();
  for (const os::SharedMemory& end : ends_) bytes += os::resident_bytes(end.fd);
  return bytes;
}

broker::Traffic PairMemory::traffic(std::uint32_t side, Time now) {
  const stream::Counters counters = this->counters(side);
  const auto reason = is_return_to_tcp(counters.sender_leave_reason)
                          ? counters.sender_leave_reason
                          : counters.receiver_leave_reason;
  SentBy& sent = sent_by_[side];
  sent.by_ring.update(counters.by_ring, now);
  sent.by_tcp.update(counters.by_tcp, now);
  sent.wakes.update(counters.wakes, now);
  sent.overflows.update(counters.overflows, now);
  const std::uint64_t implausible = sent.by_ring.implausible() + sent.by_tcp.implausible() +
                                    sent.wakes.implausible() + sent.overflows.implausible();
  return {
      .by_ring = sent.by_ring.value(),
      .by_tcp = sent.by_tcp.value(),
      .wakes = sent.wakes.value(),
      .overflows = sent.overflows.value(),
      .returns_to_tcp = is_return_to_tcp(reason) ? 1U : 0U,
      .return_reason = is_return_to_tcp(reason) ? static_cast<std::uint32_t>(reason) : 0,
      .implausible = static_cast<std::uint32_t>(std::min<std::uint64_t>(implausible, UINT32_MAX))};
}

PairMemory::ReleaseResult PairMemory::release_idle_rings() {
  ReleaseResult result;
  std::array<bool, 2> is_idle{};
  for (const std::uint32_t side : {0U, 1U}) {
    const std::uint64_t position = idle_ring(side).position();
    is_idle[side] = std::exchange(last_positions_[side], position) == position;
    if (!is_idle[side]) ++result.active_rings;
  }
  const std::size_t before = ring_resident_bytes();
  if (before <= stream::kControlBytes) return result;
  for (const std::uint32_t side : {0U, 1U}) {
    stream::IdleRing ring = idle_ring(side);
    if (!is_idle[side] || !ring.begin()) continue;
    (void)os::release_pages(streams_.fd, stream::kControlBytes + side * ring_bytes_, ring_bytes_)
        .has_value();  // if this fails, a later call tries again
    ring.end();
  }
  result.released_bytes = before - std::min(before, ring_resident_bytes());
  return result;
}

}  // namespace verbena::sockets
