// The input contains writes of a hostile peer to the shared memory, and calls of this side.  Checks
// that each call ends, and that no call touches or returns memory outside of the ring.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "ring/doorbell.h"
#include "ring/ring.h"
#include "sim/fuzz_input.h"

namespace verbena::ring {
namespace {

struct Place {
  Control control{};
  DoorbellMemory bell{};
  alignas(64) std::array<std::byte, 512> data{};
};

bool inside(const Place& place, std::span<const std::byte> bytes) {
  return bytes.data() >= place.data.data() &&
         bytes.data() + bytes.size() <= place.data.data() + place.data.size();
}

void run(sim::FuzzInput input) {
  Place place;
  auto producer = *Producer::attach(&place.control, place.data);
  auto consumer = *Consumer::attach(&place.control, place.data);
  Doorbell bell(&place.bell);
  while (!input.empty()) {
    switch (input.take<std::uint8_t>() % 8) {
      case 0: {
        // 248 is record_bytes_max() of this ring.
        const auto memory = producer.prepare(input.take<std::uint8_t>() % 249);
        if (!memory.has_value() || !memory->has_value()) break;
        VB_CHECK(inside(place, **memory));
        std::ranges::fill(**memory, std::byte{0x5a});
        producer.commit((*memory)->size(), 1);
        break;
      }
      case 1: {
        const auto record = consumer.peek();
        if (!record.has_value() || !record->has_value()) break;
        VB_CHECK(inside(place, (*record)->payload));
        consumer.consume();
        break;
      }
      case 2: producer.flush(); break;
      case 3: (void)producer.want_room(input.take<std::uint8_t>() % 249); break;
      case 4: consumer.park(); break;
      case 5: {
        consumer.finish();
        if (bell.arm()) bell.disarm();
        bell.take([](std::size_t ring) { VB_CHECK(ring < DoorbellMemory::kRingsMax); });
        break;
      }
      case 6: {
        const std::size_t word = input.take<std::uint8_t>() % (place.data.size() / 8);
        const auto value = input.take<std::uint64_t>();
        std::memcpy(std::span(place.data).subspan(word * 8).data(), &value, sizeof value);
        break;
      }
      default: {
        const auto which = input.take<std::uint8_t>() % 4;
        const auto value = input.take<std::uint64_t>();
        if (which == 0) place.control.head = value;
        if (which == 1) place.control.parked = static_cast<std::uint32_t>(value);
        if (which == 2) place.control.wants_room = static_cast<std::uint32_t>(value);
        if (which == 3) place.bell.ready[value % 16] = value;
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
