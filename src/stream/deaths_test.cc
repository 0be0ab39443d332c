// Makes a process die at each of its accesses to the memory.  Checks that another process of the
// same end continues without an error, or finds that the stream is lost.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>

#include "stream/receiver.h"
#include "stream/sender.h"

namespace verbena::stream {
namespace {

constexpr std::size_t kRing = 16;

struct Death {};
int accesses_left = 0;

// Ends the "process" at one of its accesses.
struct MortalMemory {
  static void access() {
    if (--accesses_left == 0) throw Death();
  }
  template <class Word>
  static Word load_relaxed(const Word& word) {
    access();
    return ring::SharedMemory::load_relaxed(word);
  }
  template <class Word>
  static Word load_acquire(const Word& word) {
    access();
    return ring::SharedMemory::load_acquire(word);
  }
  template <class Word>
  static Word load_seq_cst(const Word& word) {
    access();
    return ring::SharedMemory::load_seq_cst(word);
  }
  template <class Word>
  static void store_relaxed(Word& word, Word value) {
    access();
    ring::SharedMemory::store_relaxed(word, value);
  }
  template <class Word>
  static void store_release(Word& word, Word value) {
    access();
    ring::SharedMemory::store_release(word, value);
  }
  template <class Word>
  static Word fetch_add(Word& word, Word value) {
    access();
    return ring::SharedMemory::fetch_add(word, value);
  }
  template <class Word>
  static Word fetch_and(Word& word, Word value) {
    access();
    return ring::SharedMemory::fetch_and(word, value);
  }
  template <class Word>
  static bool compare_exchange(Word& word, Word& expected, Word desired) {
    access();
    return ring::SharedMemory::compare_exchange(word, expected, desired);
  }
  static void fence() { access(); }
};

// Plays the programs of both sides, over one memory and a TCP that delivers at once.
struct Scene {
  alignas(64) std::array<std::byte, memory_bytes(kRing)> memory{};
  Place place = *place_of(memory, 0);
  std::string tcp;
  std::string read;
  bool lost = false;

  template <class Memory>
  void write(BasicSender<Memory>& sender, std::string_view text) {
    while (!text.empty() && !lost) {
      Result<WriteStep> step = sender.write(std::as_bytes(std::span(text)));
      if (step.has_value() && step->kind == WriteStep::Kind::kFull) {
        step = sender.write_by_tcp(text.size());
      }
      ASSERT_TRUE(step.has_value()) << step.error().context;
      if (step->kind == WriteStep::Kind::kTcp) {
        tcp += text.substr(0, step->bytes);
        sender.sent(step->bytes);
      }
      text.remove_prefix(step->bytes);
    }
  }
  template <class Memory>
  void receive(BasicReceiver<Memory>& receiver) {
    while (true) {
      std::array<std::byte, 5> buffer{};
      const Result<ReadStep> step = receiver.read(buffer);
      ASSERT_TRUE(step.has_value()) << step.error().context;
      std::size_t n = step->bytes;
      if (step->kind == ReadStep::Kind::kCopied) {
        for (std::size_t i = 0; i < n; ++i) read += std::to_integer<char>(buffer[i]);
        continue;
      }
      if (step->kind == ReadStep::Kind::kOpen) {
        n = std::min(*receiver.queued_bound(tcp.size()), buffer.size());
        if (n == 0) return;
      }
      const std::string piece = tcp.substr(0, n);
      tcp.erase(0, n);
      receiver.received(piece.size());
      read += piece;
    }
  }
  // Writes by the ring, then by TCP because the receiver may sleep, then by the ring again.
  template <class Memory>
  void write_by_both_ways(BasicSender<Memory>& sender) {
    Receiver receiver(place);
    write(sender, "abcdefgh");
    ASSERT_TRUE(*receiver.withdraw(receiver.look().tail));
    write(sender, "ijk");
    receiver.promise();
    write(sender, "lmnop");
  }
};

TEST(StreamDeaths, AnotherProcessContinuesWhereADeadSenderStopped) {
  int continued = 0;
  int lost = 0;
  for (int death = 1; death < 1000; ++death) {
    Scene scene;
    Sender(scene.place).start(0);
    Receiver reader(scene.place);
    reader.start(0, 0);
    accesses_left = death;
    bool died = false;
    try {
      BasicSender<MortalMemory> mortal(scene.place);
      scene.write_by_both_ways(mortal);
    } catch (const Death&) {
      died = true;
    }
    if (!died) break;
    // The receiver may have been asleep at the death; it wakes now.
    reader.promise();
    Sender successor(scene.place);
    if (const auto recovered = successor.recover(); !recovered.has_value()) {
      EXPECT_EQ(recovered.error().detail, static_cast<std::uint16_t>(Fault::kOwnerDied));
      ++lost;
      continue;
    }
    const Counters before = counters_of(*scene.place.direction);
    const std::size_t written = before.by_ring + before.by_tcp;
    scene.write(successor, "more");
    scene.receive(reader);
    EXPECT_EQ(scene.read, std::string("abcdefghijklmnop").substr(0, written) + "more");
    ++continued;
  }
  EXPECT_GT(continued, 10);
  EXPECT_GT(lost, 0);
}

TEST(StreamDeaths, AnotherProcessReadsWhatADeadReceiverDidNotCommit) {
  int continued = 0;
  int lost = 0;
  for (int death = 1; death < 1000; ++death) {
    Scene scene;
    Sender sender(scene.place);
    sender.start(0);
    Receiver successor(scene.place);
    successor.start(0, 0);
    scene.write_by_both_ways(sender);
    accesses_left = death;
    bool died = false;
    try {
      BasicReceiver<MortalMemory> mortal(scene.place);
      scene.receive(mortal);
    } catch (const Death&) {
      died = true;
    }
    if (!died) break;
    if (!successor.recover().has_value()) {
      ++lost;
      continue;
    }
    const std::uint64_t read_bytes =
        scene.place.direction->head + scene.place.direction->tcp_received;
    const std::string before = std::string("abcdefghijklmnop").substr(0, read_bytes);
    scene.read.clear();
    scene.receive(successor);
    EXPECT_EQ(before + scene.read, "abcdefghijklmnop");
    ++continued;
  }
  EXPECT_GT(continued, 10);
  EXPECT_GT(lost, 0);
}

}  // namespace
}  // namespace verbena::stream
