#include "ring/ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <thread>
#include <vector>

#include "base/random.h"

namespace verbena::ring {
namespace {

using testing::ElementsAre;

class Ring {
 public:
  explicit Ring(std::size_t bytes)
      : lines_((sizeof(Control) + bytes) / sizeof(Line)),
        control(reinterpret_cast<Control*>(lines_.data())),
        data(std::as_writable_bytes(std::span(lines_)).subspan(sizeof(Control))) {}

 private:
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes{};
  };
  std::vector<Line> lines_;

 public:
  Control* control;
  std::span<std::byte> data;
};

bool write(Producer& producer, std::span<const std::byte> bytes, std::uint16_t kind = 1) {
  const auto memory = *producer.prepare(bytes.size());
  if (!memory) return false;
  std::ranges::copy(bytes, memory->begin());
  producer.commit(bytes.size(), kind);
  return true;
}

std::vector<std::byte> bytes_of(std::size_t size, unsigned value) {
  return std::vector<std::byte>(size, static_cast<std::byte>(value));
}

TEST(Ring, DeliversRecordsInOrderWithKindAndBytes) {
  Ring ring(1024);
  auto producer = *Producer::attach(ring.control, ring.data);
  auto consumer = *Consumer::attach(ring.control, ring.data);
  EXPECT_FALSE((*consumer.peek()).has_value());
  ASSERT_TRUE(write(producer, bytes_of(3, 0xaa), 7));
  ASSERT_TRUE(write(producer, bytes_of(0, 0), 8));
  auto record = *consumer.peek();
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->kind, 7);
  EXPECT_THAT(record->payload, ElementsAre(std::byte{0xaa}, std::byte{0xaa}, std::byte{0xaa}));
  consumer.consume();
  record = *consumer.peek();
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->kind, 8);
  EXPECT_TRUE(record->payload.empty());
  consumer.consume();
  EXPECT_FALSE((*consumer.peek()).has_value());
}

TEST(Ring, AcceptsTheLongestRecordAtEveryOffset) {
  for (std::size_t lines = 0; lines < 16; ++lines) {
    Ring ring(1024);
    auto producer = *Producer::attach(ring.control, ring.data);
    auto consumer = *Consumer::attach(ring.control, ring.data);
    for (std::size_t i = 0; i < lines; ++i) {
      ASSERT_TRUE(write(producer, bytes_of(1, 1)));
      ASSERT_TRUE((*consumer.peek()).has_value());
      consumer.consume();
    }
    consumer.finish();
    ASSERT_TRUE(write(producer, bytes_of(record_bytes_max(1024), 2))) << lines;
    const auto record = *consumer.peek();
    ASSERT_TRUE(record.has_value());
    EXPECT_EQ(record->payload.size(), record_bytes_max(1024));
  }
}

TEST(Ring, FullRingAcceptsARecordAfterTheConsumerHasFreedARecord) {
  Ring ring(256);
  auto producer = *Producer::attach(ring.control, ring.data);
  auto consumer = *Consumer::attach(ring.control, ring.data);
  int record_count = 0;
  while (write(producer, bytes_of(8, 1))) ++record_count;
  EXPECT_EQ(record_count, 3);  // the fourth cache line is for the next header
  EXPECT_FALSE(*producer.request_wake_for_space(8));
  EXPECT_FALSE(consumer.finish());  // no record was consumed
  ASSERT_TRUE((*consumer.peek()).has_value());
  consumer.consume();
  EXPECT_TRUE(consumer.finish());
  EXPECT_FALSE(consumer.finish());
  EXPECT_TRUE(write(producer, bytes_of(8, 2)));
}

TEST(Ring, ProducerRequestsNoWakeIfTheRingHasFreeSpace) {
  Ring ring(256);
  auto producer = *Producer::attach(ring.control, ring.data);
  auto consumer = *Consumer::attach(ring.control, ring.data);
  while (write(producer, bytes_of(8, 1))) {
  }
  ASSERT_TRUE((*consumer.peek()).has_value());
  consumer.consume();
  consumer.finish();
  EXPECT_TRUE(*producer.request_wake_for_space(8));
  EXPECT_EQ(ring.control->producer_waits, 0U);
}

TEST(Ring, OnlyAParkedConsumerIsWoken) {
  Ring ring(1024);
  auto producer = *Producer::attach(ring.control, ring.data);
  auto consumer = *Consumer::attach(ring.control, ring.data);
  ASSERT_TRUE(write(producer, bytes_of(8, 1)));
  EXPECT_FALSE(producer.flush());
  EXPECT_FALSE(consumer.park());  // the ring has a record
  ASSERT_TRUE((*consumer.peek()).has_value());
  consumer.consume();
  EXPECT_TRUE(consumer.park());
  ASSERT_TRUE(write(producer, bytes_of(8, 1)));
  ASSERT_TRUE(write(producer, bytes_of(8, 1)));
  EXPECT_TRUE(producer.flush());
  EXPECT_FALSE(producer.flush());
  ASSERT_TRUE(write(producer, bytes_of(8, 1)));
  EXPECT_FALSE(producer.flush());  // the consumer was woken already
}

TEST(Ring, ConsumerNeverReadsOldBytesAsARecord) {
  Ring ring(256);
  auto producer = *Producer::attach(ring.control, ring.data);
  auto consumer = *Consumer::attach(ring.control, ring.data);
  // Makes a payload that looks like a header at every position where a header could be.
  std::vector<std::byte> forged_headers(record_bytes_max(256));
  const std::uint64_t header = detail::header(8, 99);
  for (std::size_t at = 0; at + 8 <= forged_headers.size(); at += 8) {
    std::memcpy(forged_headers.data() + at, &header, sizeof header);
  }
  for (int lap = 0; lap < 50; ++lap) {
    ASSERT_TRUE(write(producer, std::span(forged_headers).first(lap % 2 == 0 ? 100 : 20), 1));
    const auto record = *consumer.peek();
    ASSERT_TRUE(record.has_value());
    EXPECT_EQ(record->kind, 1);
    consumer.consume();
    EXPECT_FALSE((*consumer.peek()).has_value());
    consumer.finish();
  }
}

TEST(Ring, ProducerFailsAfterAnInvalidConsumerPosition) {
  for (const std::uint64_t head : {std::uint64_t{193}, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    Ring ring(256);
    auto producer = *Producer::attach(ring.control, ring.data);
    while (write(producer, bytes_of(1, 1))) {
    }
    ASSERT_EQ(producer.position(), 192U);
    ring.control->head = head;
    const auto memory = producer.prepare(1);
    ASSERT_FALSE(memory.has_value()) << head;
    EXPECT_EQ(memory.error().code, Errc::kMalformed);
    ring.control->head = 0;
    EXPECT_FALSE(producer.prepare(1).has_value()) << "later calls must fail, too";
  }
}

TEST(Ring, ProducerFailsIfTheConsumerPositionDecreases) {
  Ring ring(256);
  auto producer = *Producer::attach(ring.control, ring.data);
  while (write(producer, bytes_of(1, 1))) {
  }
  ring.control->head = 64;
  ASSERT_TRUE(write(producer, bytes_of(1, 1)));
  ring.control->head = 0;
  EXPECT_FALSE(producer.prepare(1).has_value());
}

TEST(Ring, ConsumerFailsAfterAnInvalidHeader) {
  const std::uint64_t record = detail::kRecordMark << 48;
  for (const std::uint64_t header : {std::uint64_t{1}, ~std::uint64_t{0}, record | 0xffffffff,
                                     record | (record_bytes_max(256) + 1), detail::kSkipMark << 48,
                                     (detail::kSkipMark << 48) | 1}) {
    Ring ring(256);
    auto consumer = *Consumer::attach(ring.control, ring.data);
    detail::word_at(ring.data, 0) = header;
    const auto result = consumer.peek();
    ASSERT_FALSE(result.has_value()) << std::hex << header;
    EXPECT_EQ(result.error().code, Errc::kMalformed);
    detail::word_at(ring.data, 0) = 0;
    EXPECT_FALSE(consumer.peek().has_value()) << "later calls must fail, too";
  }
}

TEST(Ring, ConsumerRefusesARecordPastTheEndOfTheRing) {
  Ring ring(256);
  auto producer = *Producer::attach(ring.control, ring.data);
  auto consumer = *Consumer::attach(ring.control, ring.data);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(write(producer, bytes_of(8, 1)));
    ASSERT_TRUE((*consumer.peek()).has_value());
    consumer.consume();
  }
  // With its header, the record is one byte longer than the last cache line of the ring.
  detail::word_at(ring.data, 192) = detail::header(57, 1);
  EXPECT_FALSE(consumer.peek().has_value());
}

TEST(Ring, AttachRefusesMemoryOfInvalidSizeOrAlignment) {
  Ring ring(1024);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{128}, std::size_t{320}}) {
    EXPECT_FALSE(Producer::attach(ring.control, ring.data.first(bytes)).has_value()) << bytes;
    EXPECT_FALSE(Consumer::attach(ring.control, ring.data.first(bytes)).has_value()) << bytes;
  }
  EXPECT_FALSE(Producer::attach(ring.control, ring.data.subspan(8, 256)).has_value());
  EXPECT_FALSE(Producer::attach(nullptr, ring.data).has_value());
}

TEST(Ring, NewProducerAndConsumerContinueAtAGivenPosition) {
  Ring ring(512);
  std::uint64_t producer_position = 0;
  std::uint64_t consumer_position = 0;
  for (unsigned round = 0; round < 40; ++round) {
    auto producer = *Producer::attach(ring.control, ring.data, producer_position);
    auto consumer = *Consumer::attach(ring.control, ring.data, consumer_position);
    ASSERT_TRUE(write(producer, bytes_of(round, round)));
    const auto record = *consumer.peek();
    ASSERT_TRUE(record.has_value());
    EXPECT_EQ(record->payload.size(), round);
    consumer.consume();
    consumer.finish();
    producer_position = producer.position();
    consumer_position = consumer.position();
  }
}

// The peer changes random bytes at random moments between the calls.  No call may access memory
// outside of the ring (AddressSanitizer checks that) or loop for ever.
TEST(Ring, SurvivesAPeerThatWritesRandomBytes) {
  Random random(7);
  unsigned sum = 0;
  for (int round = 0; round < 2'000; ++round) {
    Ring ring(256);
    auto producer = *Producer::attach(ring.control, ring.data);
    auto consumer = *Consumer::attach(ring.control, ring.data);
    for (int step = 0; step < 50; ++step) {
      switch (random.below(6)) {
        case 0: {
          const auto memory = producer.prepare(random.below(record_bytes_max(256) + 1));
          if (memory.has_value() && memory->has_value()) {
            std::ranges::fill(**memory, std::byte{0x5a});
            producer.commit((*memory)->size(), 1);
          }
          break;
        }
        case 1:
          if (const auto record = consumer.peek(); record.has_value() && record->has_value()) {
            for (const std::byte byte : (*record)->payload) sum += static_cast<unsigned>(byte);
            consumer.consume();
          }
          break;
        case 2:
          producer.flush();
          (void)producer.request_wake_for_space(1);
          break;
        case 3:
          consumer.park();
          consumer.finish();
          break;
        case 4: {
          auto memory = std::as_writable_bytes(std::span(ring.control, 1));
          memory[random.below(memory.size())] = static_cast<std::byte>(random.below(256));
          break;
        }
        default:
          ring.data[random.below(ring.data.size())] = static_cast<std::byte>(random.below(256));
      }
    }
  }
  EXPECT_NE(sum, 0U);  // some records were read
}

// Two threads use one ring and wake each other; ThreadSanitizer checks the accesses.
TEST(Ring, ThreadReadsAllRecordsOfAnotherThread) {
  constexpr std::uint64_t kRecords = 20'000;
  Ring ring(2048);
  std::atomic<int> consumer_eventfd = 0;
  std::atomic<int> producer_eventfd = 0;
  const auto sleep = [](std::atomic<int>& eventfd) {
    eventfd.wait(0);
    eventfd = 0;
  };
  const auto wake = [](std::atomic<int>& eventfd) {
    eventfd = 1;
    eventfd.notify_one();
  };
  std::thread writer([&] {
    auto producer = *Producer::attach(ring.control, ring.data);
    Random random(3);
    for (std::uint64_t i = 0; i < kRecords; ++i) {
      const std::size_t bytes = 8 + random.below(600);
      auto memory = *producer.prepare(bytes);
      while (!memory) {
        if (producer.flush()) wake(consumer_eventfd);
        if (!*producer.request_wake_for_space(bytes)) sleep(producer_eventfd);
        memory = *producer.prepare(bytes);
      }
      std::memcpy(memory->data(), &i, sizeof i);
      std::ranges::fill(memory->subspan(8), static_cast<std::byte>(i));
      producer.commit(bytes, 1);
      if (i % 4 == 3 && producer.flush()) wake(consumer_eventfd);
    }
    if (producer.flush()) wake(consumer_eventfd);
  });
  auto consumer = *Consumer::attach(ring.control, ring.data);
  std::uint64_t wrong_count = 0;
  for (std::uint64_t i = 0; i < kRecords;) {
    const auto record = *consumer.peek();
    if (record) {
      std::uint64_t number = 0;
      std::memcpy(&number, record->payload.data(), sizeof number);
      wrong_count += number == i ? 0 : 1;
      for (const std::byte byte : record->payload.subspan(8)) {
        wrong_count += byte == static_cast<std::byte>(i) ? 0 : 1;
      }
      consumer.consume();
      ++i;
      continue;
    }
    if (consumer.finish()) wake(producer_eventfd);
    if (consumer.park()) sleep(consumer_eventfd);
  }
  writer.join();
  EXPECT_EQ(wrong_count, 0U);
}

}  // namespace
}  // namespace verbena::ring
