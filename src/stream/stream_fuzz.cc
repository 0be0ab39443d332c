// Fuzzes both ends of a stream.  The input describes calls of both ends, and writes of a hostile
// peer to the shared memory.  Checks that no call accesses memory outside of the ring and the
// Direction, loops for ever, or returns more bytes than were requested.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "sim/fuzz_input.h"
#include "stream/idle_ring.h"
#include "stream/receiver.h"
#include "stream/sender.h"

namespace verbena::stream {
namespace {

constexpr std::size_t kRingBytes = 64;

// Puts guard bytes around the ring and the Direction.  The destructor checks that no guard byte has
// changed.
struct GuardedMemory {
  static constexpr std::byte kGuard{0xa5};
  GuardedMemory() {
    before.fill(kGuard);
    after.fill(kGuard);
    ring_before.fill(kGuard);
  }
  ~GuardedMemory() {
    const auto is_intact = [](const auto& guard) {
      return std::ranges::all_of(guard, [](std::byte byte) { return byte == kGuard; });
    };
    VB_CHECK(is_intact(before) && is_intact(ring_before) && is_intact(after));
  }
  alignas(64) std::array<std::byte, 64> before{};
  Direction direction{};
  std::array<std::byte, 64> ring_before{};
  std::array<std::byte, kRingBytes> ring{};
  std::array<std::byte, 64> after{};
};

class Ends {
 public:
  void run(sim::FuzzInput input) {
    while (!input.empty()) {
      const auto call = input.take<std::uint8_t>();
      switch (call % 8) {
        case 0:
        case 1: send(1 + input.take<std::uint8_t>() % 128U, call >= 128); break;
        case 2:
        case 3: receive(1 + input.take<std::uint8_t>() % 128U, call >= 128, input); break;
        case 4: receiver_call(input); break;
        case 5: sender_call(input); break;
        default: corrupt(input);
      }
    }
  }

 private:
  void send(std::size_t bytes, bool by_tcp) {
    const std::span requested = std::span(buffer_).first(bytes);
    std::ranges::fill(requested, std::byte{0x5a});
    const Result<WriteStep> step = by_tcp ? sender_.write_by_tcp(bytes) : sender_.write(requested);
    if (!step.has_value()) return;
    VB_CHECK(step->bytes <= bytes);
    VB_CHECK(step->kind != WriteStep::Kind::kCopied || step->bytes > 0);
    if (step->kind == WriteStep::Kind::kTcp) sender_.sent(step->bytes / 2);
  }
  void receive(std::size_t bytes, bool peek, sim::FuzzInput& input) {
    const Result<ReadStep> step = receiver_.read(std::span(buffer_).first(bytes), peek);
    if (!step.has_value()) return;
    VB_CHECK(step->bytes <= bytes);
    VB_CHECK(step->kind != ReadStep::Kind::kCopied || step->bytes > 0);
    if (step->kind == ReadStep::Kind::kTcp) {
      receiver_.received(input.take<std::uint8_t>() % (step->bytes + 1));
      (void)receiver_.check_end();
    }
    if (step->kind == ReadStep::Kind::kRingEmpty) {
      const std::size_t queued = input.take<std::uint8_t>();
      const Result<std::size_t> allowed = receiver_.begin_queued_read(queued);
      VB_CHECK(!allowed.has_value() || *allowed <= queued);
      if (allowed.has_value() && *allowed != 0) receiver_.received(*allowed);
      (void)receiver_.withdraw(step->tail);
    }
  }
  void receiver_call(sim::FuzzInput& input) {
    switch (input.take<std::uint8_t>() % 8) {
      case 0: receiver_.promise(); break;
      case 1: receiver_.received_while_withdrawn(input.take<std::uint32_t>()); break;
      case 2: (void)receiver_.prepare_futex_wait(receiver_.ring_status().tail); break;
      case 3: VB_CHECK(receiver_.ring_status().bytes <= kRingBytes); break;
      case 4: (void)receiver_.withdraw(receiver_.ring_status().tail); break;
      case 5: (void)receiver_.recover(); break;
      case 6: (void)receiver_.leave(Reason::kExec); break;
      default: receiver_.start(input.take<std::uint64_t>(), input.take<std::uint8_t>());
    }
  }
  void sender_call(sim::FuzzInput& input) {
    switch (input.take<std::uint8_t>() % 8) {
      case 0: sender_.wake_needed(); break;
      case 1: (void)sender_.is_writable(); break;
      case 2: VB_CHECK(sender_.unread() <= kRingBytes); break;
      case 3: (void)sender_.recover(); break;
      case 4: (void)sender_.leave(Reason::kOther); break;
      case 5: (void)counters_of(guarded_.direction); break;
      case 6:
        if (IdleRing ring(guarded_.direction, sender_end_); ring.begin()) ring.end();
        break;
      default: sender_.start(input.take<std::uint64_t>());
    }
  }
  // Changes a word of the Direction.  In half of the cases, adds a small positive or negative
  // number, because the result is then more often valid.
  void corrupt(sim::FuzzInput& input) {
    const std::span words(reinterpret_cast<std::uint32_t*>(&guarded_.direction),
                          sizeof(Direction) / sizeof(std::uint32_t));
    std::uint32_t& word = words[input.take<std::uint8_t>() % words.size()];
    const auto how = input.take<std::uint8_t>();
    if (how < 128) {
      word += how - 64U;
    } else {
      word = input.take<std::uint32_t>();
    }
  }

  GuardedMemory guarded_;
  EndState sender_end_{};
  std::array<std::byte, 128> buffer_{};
  Sender sender_{DirectionMemory{&guarded_.direction, guarded_.ring}};
  Receiver receiver_{DirectionMemory{&guarded_.direction, guarded_.ring}};
};

}  // namespace
}  // namespace verbena::stream

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  verbena::stream::Ends().run(verbena::sim::FuzzInput(std::span(data, size)));
  return 0;
}
