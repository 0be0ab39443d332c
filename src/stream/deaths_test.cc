// Simulates the death of a process at each of its accesses to the memory.  Checks that another
// process of the same end continues without an error, or that its recover() reports a lost offset.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>

#include "stream/receiver.h"
#include "stream/sender.h"

namespace verbena::stream {
namespace {

constexpr std::size_t kRingBytes = 16;

struct SimulatedDeath {};
int accesses_until_death = 0;

// Accesses memory as SharedMemory does, and ends the simulated process by an exception at one
// access.
struct CrashingMemory {
  static void access() {
    if (--accesses_until_death == 0) throw SimulatedDeath();
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

// Simulates the programs of both sides, with one memory and a TCP that delivers bytes at once.
struct SimulatedConnection {
  alignas(64) std::array<std::byte, memory_bytes(kRingBytes)> memory{};
  DirectionMemory mapped = *direction_memory(memory, 0);
  std::string tcp;        // bytes that TCP has accepted and that were not received yet
  std::string read_text;  // bytes that were read so far

  template <class Memory>
  void write(BasicSender<Memory>& sender, std::string_view text) {
    while (!text.empty()) {
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
        for (std::size_t i = 0; i < n; ++i) read_text += std::to_integer<char>(buffer[i]);
        continue;
      }
      if (step->kind == ReadStep::Kind::kRingEmpty) {
        n = std::min(*receiver.begin_queued_read(tcp.size()), buffer.size());
        if (n == 0) return;
      }
      const std::string piece = tcp.substr(0, n);
      tcp.erase(0, n);
      receiver.received(piece.size());
      read_text += piece;
    }
  }
  // Writes by the ring, then by TCP because the receiver may sleep, then by the ring again.
  template <class Memory>
  void write_by_ring_and_tcp(BasicSender<Memory>& sender) {
    Receiver receiver(mapped);
    write(sender, "abcdefgh");
    ASSERT_TRUE(*receiver.withdraw(receiver.ring_status().tail));
    write(sender, "ijk");
    receiver.promise();
    write(sender, "lmnop");
  }
};

TEST(StreamDeaths, NewSenderContinuesAfterADeadSender) {
  int continued_count = 0;
  int lost_count = 0;
  for (int fatal_access = 1; fatal_access < 1000; ++fatal_access) {
    SimulatedConnection connection;
    Sender(connection.mapped).start(0);
    Receiver reader(connection.mapped);
    reader.start(0, 0);
    accesses_until_death = fatal_access;
    bool died = false;
    try {
      BasicSender<CrashingMemory> crashing(connection.mapped);
      connection.write_by_ring_and_tcp(crashing);
    } catch (const SimulatedDeath&) {
      died = true;
    }
    if (!died) break;
    // If the receiver was asleep when the sender died, it wakes now.
    reader.promise();
    Sender successor(connection.mapped);
    if (const auto recovered = successor.recover(); !recovered.has_value()) {
      EXPECT_EQ(recovered.error().detail, static_cast<std::uint16_t>(Fault::kOwnerDied));
      ++lost_count;
      continue;
    }
    const Counters before = counters_of(*connection.mapped.direction);
    const std::size_t written = before.by_ring + before.by_tcp;
    connection.write(successor, "more");
    connection.receive(reader);
    EXPECT_EQ(connection.read_text, std::string("abcdefghijklmnop").substr(0, written) + "more");
    ++continued_count;
  }
  EXPECT_GT(continued_count, 10);
  EXPECT_GT(lost_count, 0);
}

TEST(StreamDeaths, NewReceiverReadsAllBytesThatADeadReceiverDidNotRead) {
  int continued_count = 0;
  int lost_count = 0;
  for (int fatal_access = 1; fatal_access < 1000; ++fatal_access) {
    SimulatedConnection connection;
    Sender sender(connection.mapped);
    sender.start(0);
    Receiver successor(connection.mapped);
    successor.start(0, 0);
    connection.write_by_ring_and_tcp(sender);
    accesses_until_death = fatal_access;
    bool died = false;
    try {
      BasicReceiver<CrashingMemory> crashing(connection.mapped);
      connection.receive(crashing);
    } catch (const SimulatedDeath&) {
      died = true;
    }
    if (!died) break;
    if (!successor.recover().has_value()) {
      ++lost_count;
      continue;
    }
    const std::uint64_t read_bytes =
        connection.mapped.direction->head + connection.mapped.direction->tcp_received;
    const std::string before = std::string("abcdefghijklmnop").substr(0, read_bytes);
    connection.read_text.clear();
    connection.receive(successor);
    EXPECT_EQ(before + connection.read_text, "abcdefghijklmnop");
    ++continued_count;
  }
  EXPECT_GT(continued_count, 10);
  EXPECT_GT(lost_count, 0);
}

}  // namespace
}  // namespace verbena::stream
