#include "sockets/pair_memory.h"

#include <utility>

#include "stream/memory.h"

namespace verbena::sockets {
namespace {

// The end of a direction is not a way back to TCP.
bool went_back(stream::Reason left) {
  return left != stream::Reason::kNone && left != stream::Reason::kEnd;
}

}  // namespace

Result<PairMemory> PairMemory::create(std::size_t ring_bytes) {
  return PairMemory(
      VB_TRY(os::create_shared_memory("verbena-stream", stream::memory_bytes(ring_bytes))));
}

bool PairMemory::is_large() const { return bytes() > stream::memory_bytes(kRingBytes); }

broker::Traffic PairMemory::traffic(std::uint32_t side) const {
  const auto place = stream::place_of(memory_.mapping.bytes(), side);
  if (!place) return {};
  const stream::Counters counters = stream::counters_of(*place->direction);
  const auto left = went_back(counters.sender_left) ? counters.sender_left : counters.receiver_left;
  return {.by_ring = counters.by_ring,
          .by_tcp = counters.by_tcp,
          .wakes = counters.wakes,
          .times_back = went_back(left) ? 1U : 0U,
          .reason_back = went_back(left) ? static_cast<std::uint32_t>(left) : 0};
}

}  // namespace verbena::sockets
