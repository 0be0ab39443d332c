// Fuzzes a ring.  The input describes calls of this side, and writes of a hostile peer to the
// shared memory.  Checks that each call returns, and that no call accesses or returns memory
// outside of the ring.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "ring/ring.h"
#include "sim/fuzz_input.h"

namespace verbena::ring {
namespace {

struct RingMemory {
  Control control{};
  alignas(64) std::array<std::byte, 512> data{};
};

bool is_inside(const RingMemory& ring_memory, std::span<const std::byte> bytes) {
  return bytes.data() >= ring_memory.data.data() &&
         bytes.data() + bytes.size() <= ring_memory.data.data() + ring_memory.data.size();
}

void run(sim::FuzzInput input) {
  RingMemory ring_memory;
  auto producer = *Producer::attach(&ring_memory.control, ring_memory.data);
  auto consumer = *Consumer::attach(&ring_memory.control, ring_memory.data);
  while (!input.empty()) {
    switch (input.take<std::uint8_t>() % 8) {
      case 0: {
        // 248 is record_bytes_max() of this ring.
        const auto memory = producer.prepare(input.take<std::uint8_t>() % 249);
        if (!memory.has_value() || !memory->has_value()) break;
        VB_CHECK(is_inside(ring_memory, **memory));
        std::ranges::fill(**memory, std::byte{0x5a});
        producer.commit((*memory)->size(), 1);
        break;
      }
      case 1: {
        const auto record = consumer.peek();
        if (!record.has_value() || !record->has_value()) break;
        VB_CHECK(is_inside(ring_memory, (*record)->payload));
        consumer.consume();
        break;
      }
      case 2: producer.flush(); break;
      case 3: (void)producer.request_wake_for_space(input.take<std::uint8_t>() % 249); break;
      case 4: consumer.park(); break;
      case 5: consumer.finish(); break;
      case 6: {
        const std::size_t word = input.take<std::uint8_t>() % (ring_memory.data.size() / 8);
        const auto value = input.take<std::uint64_t>();
        std::memcpy(std::span(ring_memory.data).subspan(word * 8).data(), &value, sizeof value);
        break;
      }
      default: {
        const auto which = input.take<std::uint8_t>() % 3;
        const auto value = input.take<std::uint64_t>();
        if (which == 0) ring_memory.control.head = value;
        if (which == 1) ring_memory.control.parked = static_cast<std::uint32_t>(value);
        if (which == 2) ring_memory.control.producer_waits = static_cast<std::uint32_t>(value);
      }
    }
  }
}

}  // namespace
}  // namespace verbena::ring

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  verbena::ring::run(verbena::sim::FuzzInput(std::span(data, size)));
  return 0;
}
