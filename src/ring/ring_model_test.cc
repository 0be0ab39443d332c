// Checks the wake protocol and the contents of records in all orders of accesses within a budget
// (model_test.h).  VB_MODEL_BUDGET sets the budget of the first test.  AddressSanitizer and
// ThreadSanitizer do not support the context switches of these tests, so the tests do not run under
// them.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "ring/model_test.h"
#include "ring/ring.h"

namespace verbena::ring {
namespace {

using model::Explorer;
using model::ModelMemory;

struct Shared {
  Control control{};
  alignas(64) std::array<std::byte, kRingBytesMin> data{};
  int consumer_eventfd = 0;
  int producer_eventfd = 0;
};

int budget(int default_budget) {
  const char* value = std::getenv("VB_MODEL_BUDGET");
  return value != nullptr ? std::atoi(value) : default_budget;
}

// Runs a producer, which sleeps when the ring is full, and a consumer, which sleeps when the ring
// is empty.  Neither side may sleep for ever, and the consumer must read the numbers 1 to
// `records`.
template <class Memory>
class Conversation {
 public:
  explicit Conversation(std::uint64_t records) : records_(records) {}

  std::uint64_t explore(int limit) {
    Explorer explorer(limit);
    return explorer.explore(
        [&] {
          shared_ = std::make_unique<Shared>();
          numbers_read_.clear();
          return Explorer::Scenario{{[&] { produce(); }, [&] { consume(); }},
                                    [&] { check(explorer); }};
        },
        [&] { return has_lost_wake_ || has_wrong_bytes_; });
  }
  bool has_lost_wake() const { return has_lost_wake_; }
  bool has_wrong_bytes() const { return has_wrong_bytes_; }

 private:
  void produce() {
    auto producer = *BasicProducer<Memory>::attach(&shared_->control, shared_->data);
    const auto flush = [&] {
      if (producer.flush()) ++shared_->consumer_eventfd;
    };
    for (std::uint64_t i = 1; i <= records_; ++i) {
      auto memory = *producer.prepare(sizeof i);
      while (!memory) {
        flush();
        if (!*producer.request_wake_for_space(sizeof i)) sleep(shared_->producer_eventfd);
        memory = *producer.prepare(sizeof i);
      }
      Memory::store_relaxed(*reinterpret_cast<std::uint64_t*>(memory->data()), i);
      producer.commit(sizeof i, 1);
      flush();
    }
  }

  void consume() {
    auto consumer = *BasicConsumer<Memory>::attach(&shared_->control, shared_->data);
    while (numbers_read_.size() < records_) {
      const auto record = *consumer.peek();
      if (record) {
        numbers_read_.push_back(
            Memory::load_relaxed(*reinterpret_cast<const std::uint64_t*>(record->payload.data())));
        consumer.consume();
        continue;
      }
      if (consumer.finish()) ++shared_->producer_eventfd;
      if (consumer.park()) sleep(shared_->consumer_eventfd);
    }
  }

  static void sleep(int& eventfd) {
    const std::function<bool()> is_readable = [&] { return eventfd != 0; };
    model::current_explorer->wait(is_readable);
    eventfd = 0;
  }

  void check(const Explorer& explorer) {
    has_lost_wake_ |= explorer.deadlocked();
    for (std::uint64_t i = 0; i < numbers_read_.size(); ++i)
      has_wrong_bytes_ |= numbers_read_[i] != i + 1;
    if (!explorer.deadlocked()) has_wrong_bytes_ |= numbers_read_.size() != records_;
  }

  std::uint64_t records_;
  std::unique_ptr<Shared> shared_;
  std::vector<std::uint64_t> numbers_read_;
  bool has_lost_wake_ = false;
  bool has_wrong_bytes_ = false;
};

TEST(RingModel, NoSideSleepsForEverAndAllRecordsArrive) {
  // The records do not all fit into the ring, so each side may have to sleep.
  Conversation<ModelMemory<>> conversation(6);
  const std::uint64_t runs = conversation.explore(budget(2));
  EXPECT_FALSE(conversation.has_lost_wake());
  EXPECT_FALSE(conversation.has_wrong_bytes());
  EXPECT_GT(runs, 1000U);
  RecordProperty("runs", static_cast<int>(runs));
}

TEST(RingModel, DetectsALostWakeWithoutFences) {
  Conversation<ModelMemory<false, true>> conversation(6);
  conversation.explore(3);
  EXPECT_TRUE(conversation.has_lost_wake());
}

TEST(RingModel, DetectsWrongBytesWithoutReleaseOrder) {
  Conversation<ModelMemory<true, false>> conversation(6);
  conversation.explore(3);
  EXPECT_TRUE(conversation.has_wrong_bytes());
}

}  // namespace
}  // namespace verbena::ring

#endif
