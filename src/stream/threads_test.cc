// Runs each end of a stream in its own thread, so that ThreadSanitizer can check the accesses.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/random.h"
#include "stream/idle_ring.h"
#include "stream/receiver.h"
#include "stream/sender.h"
#include "stream/test_bytes.h"

namespace verbena::stream {
namespace {

constexpr std::size_t kRingBytes = 4096;
constexpr std::size_t kTcpBuffer = 8192;
constexpr std::uint64_t kBytes = 4 << 20;

// Simulates the kernel's TCP of one direction.
class Tcp {
 public:
  std::size_t send(std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    const std::size_t n = std::min(bytes.size(), kTcpBuffer - queue_.size());
    queue_.insert(queue_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    changed_.notify_all();
    return n;
  }
  std::size_t receive(std::span<std::byte> buffer) {
    const std::lock_guard lock(mutex_);
    const std::size_t n = std::min(buffer.size(), queue_.size());
    std::copy_n(queue_.begin(), n, buffer.begin());
    queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(n));
    changed_.notify_all();
    return n;
  }
  void wait_readable() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !queue_.empty(); });
  }
  void wait_writable() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queue_.size() < kTcpBuffer; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::byte> queue_;
};

struct Shared {
  alignas(64) std::array<std::byte, memory_bytes(kRingBytes)> memory{};
  EndState sender_end{};
  Tcp tcp;
};

std::atomic_ref<std::uint32_t> send_lock(Shared& shared) {
  return std::atomic_ref(const_cast<std::uint32_t&>(send_lock_of(shared.sender_end)));
}

void write_all(Shared& shared, std::uint64_t seed) {
  Random random(seed);
  Sender sender(*direction_memory(shared.memory, 0));
  sender.start(0);
  std::vector<std::byte> bytes;
  for (std::uint64_t sent = 0; sent < kBytes;) {
    bytes.resize(std::min(1 + random.below(3000), kBytes - sent));
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = byte_at(sent + i);
    send_lock(shared).exchange(1);
    WriteStep step = *sender.write(bytes);
    if (step.kind == WriteStep::Kind::kFull) step = *sender.write_by_tcp(bytes.size());
    if (step.kind == WriteStep::Kind::kTcp) {
      step.bytes = shared.tcp.send(std::span(bytes).first(step.bytes));
      sender.sent(step.bytes);
    }
    send_lock(shared).store(0);
    if (step.bytes == 0) shared.tcp.wait_writable();
    sent += step.bytes;
    // Sometimes gives the reader time to read all bytes and to sleep.
    if (random.below(50) == 0) std::this_thread::yield();
  }
}

Counters counters_of(Shared& shared) {
  return counters_of(*direction_memory(shared.memory, 0)->direction);
}

// Starts the receiver, and a thread that writes.  Returns when bytes have entered the ring: the
// receiver has promised to check the ring, and does not sleep yet.
std::thread start_writer(Shared& shared, std::uint64_t seed) {
  Receiver(*direction_memory(shared.memory, 0)).start(0, 0);
  std::thread writer([&shared, seed] { write_all(shared, seed); });
  while (counters_of(shared).by_ring == 0) std::this_thread::yield();
  return writer;
}

// Reads all bytes.  Returns false as soon as a byte is wrong.
bool read_all(Shared& shared, std::uint64_t seed) {
  Random random(seed);
  Receiver receiver(*direction_memory(shared.memory, 0));
  std::vector<std::byte> buffer(5000);
  std::uint64_t received = 0;
  while (received < kBytes) {
    const std::span requested = std::span(buffer).first(1 + random.below(buffer.size()));
    const ReadStep step = *receiver.read(requested);
    std::size_t n = step.bytes;
    if (step.kind == ReadStep::Kind::kTcp) {
      n = shared.tcp.receive(requested.first(n));
      receiver.received(n);
      if (n == 0) shared.tcp.wait_readable();
    } else if (step.kind == ReadStep::Kind::kRingEmpty && *receiver.withdraw(step.tail)) {
      shared.tcp.wait_readable();
      n = shared.tcp.receive(requested);
      receiver.received_while_withdrawn(n);
      receiver.promise();
    }
    for (std::size_t i = 0; i < n; ++i) {
      if (requested[i] != byte_at(received + i)) return false;
    }
    received += n;
  }
  return true;
}

TEST(StreamThreads, ReaderThreadGetsAllBytesOfTheWriterThread) {
  auto shared = std::make_unique<Shared>();
  std::thread writer = start_writer(*shared, 1);
  EXPECT_TRUE(read_all(*shared, 2));
  writer.join();
  const Counters counters = counters_of(*shared);
  EXPECT_EQ(counters.by_ring + counters.by_tcp, kBytes);
  EXPECT_EQ(counters.unread, 0U);
}

TEST(StreamThreads, NoByteIsLostWhileAThirdThreadGivesTheRingsPagesBack) {
  auto shared = std::make_unique<Shared>();
  std::atomic<bool> is_done = false;
  std::thread writer = start_writer(*shared, 3);
  std::thread service([&] {
    const DirectionMemory mapped = *direction_memory(shared->memory, 0);
    IdleRing ring(*mapped.direction, shared->sender_end);
    // At the end the ring is idle, so that begin() succeeds at least once.
    for (bool has_begun = false; !has_begun || !is_done.load();) {
      if (!ring.begin()) continue;
      has_begun = true;
      std::ranges::fill(mapped.ring, std::byte{0xee});
      ring.end();
      std::this_thread::yield();
    }
  });
  EXPECT_TRUE(read_all(*shared, 4));
  writer.join();
  is_done.store(true);
  service.join();
  const Counters counters = counters_of(*shared);
  EXPECT_EQ(counters.by_ring + counters.by_tcp, kBytes);
}

}  // namespace
}  // namespace verbena::stream
