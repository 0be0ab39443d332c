// Checks that the ring contains only whole records after a producer died or stopped at any access,
// and that a producer can continue after its consumer died at any access.  The child runs the real
// ring code with a memory class that counts accesses, and kills or stops the child at one access.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "ring/ring.h"

namespace verbena::ring {
namespace {

constexpr std::uint64_t kRecords = 12;
constexpr std::size_t kRingBytes = 512;

int accesses_until_signal = 0;
int signal_at_access = SIGKILL;

// Accesses memory as SharedMemory does, and sends the process a signal at one access.
struct SignalingMemory {
  static void access() {
    if (--accesses_until_signal == 0) kill(getpid(), signal_at_access);
  }
  template <class Word>
  static Word load_relaxed(const Word& word) {
    access();
    return SharedMemory::load_relaxed(word);
  }
  template <class Word>
  static Word load_acquire(const Word& word) {
    access();
    return SharedMemory::load_acquire(word);
  }
  template <class Word>
  static void store_relaxed(Word& word, Word value) {
    access();
    SharedMemory::store_relaxed(word, value);
  }
  template <class Word>
  static void store_release(Word& word, Word value) {
    access();
    SharedMemory::store_release(word, value);
  }
  template <class Word>
  static Word exchange(Word& word, Word value) {
    access();
    return SharedMemory::exchange(word, value);
  }
  template <class Word>
  static Word fetch_or(Word& word, Word bits) {
    access();
    return SharedMemory::fetch_or(word, bits);
  }
  static void fence() {
    access();
    SharedMemory::fence();
  }
};

struct RingMemory {
  Control control;
  alignas(64) std::array<std::byte, kRingBytes> data;
};

class RingProcesses : public testing::Test {
 protected:
  void SetUp() override {
    void* memory = mmap(nullptr, sizeof(RingMemory), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    ring_memory_ = static_cast<RingMemory*>(memory);
  }
  void TearDown() override { munmap(ring_memory_, sizeof(RingMemory)); }

  void clear() { std::memset(static_cast<void*>(ring_memory_), 0, sizeof(RingMemory)); }

  // Forks a child that calls body().  The child gets the signal at the access with the number
  // `access`.
  template <class Body>
  pid_t fork_child(int access, int signal, Body body) {
    const pid_t pid = fork();
    if (pid == 0) {
      accesses_until_signal = access;
      signal_at_access = signal;
      body();
      _exit(0);
    }
    return pid;
  }

  // Writes the records from `number` on, until all are written or the ring is full.
  template <class Memory>
  static void produce(RingMemory& ring_memory, std::uint64_t& number) {
    auto producer = *BasicProducer<Memory>::attach(&ring_memory.control, ring_memory.data, 0);
    for (; number < kRecords; ++number) {
      const std::size_t bytes = 8 + number * 16;
      const auto memory = *producer.prepare(bytes);
      if (!memory) break;
      std::memset(memory->data(), static_cast<int>(number), bytes);
      producer.commit(bytes, static_cast<std::uint16_t>(number));
      producer.flush();
    }
  }

  // Reads and checks all records in the ring, and returns how many there were.  The first record
  // has the number `first_number`.
  static std::uint64_t read_all(Consumer& consumer, std::uint64_t first_number) {
    std::uint64_t number = first_number;
    for (;;) {
      const auto record = consumer.peek();
      EXPECT_TRUE(record.has_value());
      if (!record.has_value() || !record->has_value()) break;
      EXPECT_EQ((*record)->kind, number);
      EXPECT_EQ((*record)->payload.size(), 8 + number * 16);
      for (const std::byte byte : (*record)->payload) {
        EXPECT_EQ(byte, static_cast<std::byte>(number));
      }
      consumer.consume();
      ++number;
    }
    consumer.finish();
    return number - first_number;
  }

  RingMemory* ring_memory_ = nullptr;
};

TEST_F(RingProcesses, ConsumerReadsOnlyWholeRecordsOfAKilledProducer) {
  bool has_exited = false;
  std::uint64_t most_records = 0;
  for (int access = 1; !has_exited; ++access) {
    clear();
    const pid_t pid = fork_child(access, SIGKILL, [&] {
      std::uint64_t number = 0;
      produce<SignalingMemory>(*ring_memory_, number);
    });
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    has_exited = WIFEXITED(status);
    auto consumer = *Consumer::attach(&ring_memory_->control, ring_memory_->data);
    const std::uint64_t record_count = read_all(consumer, 0);
    EXPECT_GE(record_count, most_records) << "the process died later but wrote fewer records";
    most_records = record_count;
  }
  EXPECT_GE(most_records, 3U);
}

TEST_F(RingProcesses, ProducerStoppedAtAnyAccessCanContinue) {
  bool has_exited = false;
  for (int access = 1; !has_exited; ++access) {
    clear();
    const pid_t pid = fork_child(access, SIGSTOP, [&] {
      std::uint64_t number = 0;
      produce<SignalingMemory>(*ring_memory_, number);
    });
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, WUNTRACED), pid);
    auto consumer = *Consumer::attach(&ring_memory_->control, ring_memory_->data);
    const std::uint64_t count_before = read_all(consumer, 0);
    if (WIFSTOPPED(status)) {
      ASSERT_EQ(kill(pid, SIGCONT), 0);
      ASSERT_EQ(waitpid(pid, &status, 0), pid);
    } else {
      has_exited = true;
    }
    EXPECT_TRUE(WIFEXITED(status));
    const std::uint64_t count_after = read_all(consumer, count_before);
    EXPECT_GE(count_before + count_after, 3U);
  }
}

TEST_F(RingProcesses, ProducerWorksAfterItsConsumerWasKilledAtAnyAccess) {
  bool has_exited = false;
  for (int access = 1; !has_exited; ++access) {
    clear();
    auto producer = *Producer::attach(&ring_memory_->control, ring_memory_->data);
    const auto write = [&] {
      const auto memory = producer.prepare(40);
      EXPECT_TRUE(memory.has_value());
      if (!memory.has_value() || !memory->has_value()) return false;
      producer.commit(40, 1);
      return true;
    };
    while (write()) {
    }
    const pid_t pid = fork_child(access, SIGKILL, [&] {
      auto consumer =
          *BasicConsumer<SignalingMemory>::attach(&ring_memory_->control, ring_memory_->data);
      while ((*consumer.peek()).has_value()) consumer.consume();
      consumer.finish();
      consumer.park();
    });
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    has_exited = WIFEXITED(status);
    write();
    producer.flush();
    EXPECT_TRUE(producer.request_wake_for_space(40).has_value());
  }
}

}  // namespace
}  // namespace verbena::ring
