#include "hca/completion_queue.h"

#include <gtest/gtest.h>

#include <array>

#include "base/random.h"
#include "hca/deadline_heap.h"

namespace verbena::hca {
namespace {

// first: the completion was added.  second: the consumer must be notified.
using AddResult = std::pair<bool, bool>;
constexpr AddResult kAdded{true, false}, kAddedAndMustNotify{true, true};

struct Cq : CompletionQueue {
  using CompletionQueue::CompletionQueue;
  // Adds a completion, and publishes it.
  AddResult add(std::uint64_t id, bool solicited = false) {
    const bool added = push({.wr_id = id}, {}, solicited);
    return {added, publish()};
  }
};

TEST(CompletionQueue, IsFirstInFirstOutAndHoldsACompletionForEachEntry) {
  Cq cq(3, 0);
  ASSERT_EQ(cq.capacity(), 4u);
  std::uint64_t in = 0, out = 0;
  for (int round = 0; round < 10; ++round) {
    while (cq.add(in).first) ++in;
    EXPECT_EQ(in - out, 4u);
    std::array<WorkCompletion, 3> got;
    ASSERT_EQ(cq.poll(got), 3u);
    for (const auto& wc : got) EXPECT_EQ(wc.wr_id, out++);
  }
}

TEST(CompletionQueue, UnpublishedCompletionsAreInvisibleAndOccupyEntries) {
  Cq cq(4, 0);
  cq.arm(true);
  std::array<WorkCompletion, 4> got;
  for (std::uint64_t id = 0; id < 4; ++id) {
    EXPECT_TRUE(cq.push({.wr_id = id, .qpn = {id % 2 == 0 ? 1u : 2u}}, {}, id == 2));
    if (id == 0) {
      EXPECT_FALSE(cq.publish());  // the completions are not solicited
    }
  }
  EXPECT_FALSE(cq.push({}, {}, false));
  ASSERT_EQ(cq.poll(got), 1u);
  cq.remove_completions(Qpn{2});
  EXPECT_EQ(cq.poll(got), 0u);
  EXPECT_TRUE(cq.resize(2));
  EXPECT_TRUE(cq.publish());
  EXPECT_FALSE(cq.publish());
  ASSERT_EQ(cq.poll(got), 1u);
  EXPECT_EQ(got[0].wr_id, 2u);
}

TEST(CompletionQueue, TellsIfAPollHasEmptiedTheQueueInOrAfterAnEpoch) {
  Cq cq(4, 0);
  std::array<WorkCompletion, 1> got;
  const std::uint32_t first = cq.start_epoch();
  EXPECT_FALSE(cq.was_emptied_since(first));
  cq.add(1);
  cq.add(2);
  ASSERT_EQ(cq.poll(got), 1u);
  EXPECT_FALSE(cq.was_emptied_since(first)) << "one completion remains";
  ASSERT_EQ(cq.poll(got), 1u);
  EXPECT_TRUE(cq.was_emptied_since(first));
  const std::uint32_t second = cq.start_epoch();
  EXPECT_TRUE(cq.was_emptied_since(first));
  EXPECT_FALSE(cq.was_emptied_since(second));
  ASSERT_EQ(cq.poll(got), 0u);
  EXPECT_TRUE(cq.was_emptied_since(second));
}

TEST(CompletionQueue, RemovedCompletionsDoNotNotify) {
  Cq cq(4, 0);
  EXPECT_TRUE(cq.push({.qpn = {1}}, {}, true));
  cq.remove_completions(Qpn{1});
  EXPECT_FALSE(cq.publish());
  cq.arm(true);
  EXPECT_EQ(cq.add(2), kAdded);
}

TEST(CompletionQueue, GrowsAndShrinksWithCompletionsInIt) {
  Cq cq(4, 0);
  std::uint64_t in = 0, out = 0;
  std::array<WorkCompletion, 64> got;
  const auto fill = [&] {
    while (cq.add(in).first) ++in;
  };
  const auto take = [&](std::size_t count) {
    ASSERT_EQ(cq.poll(std::span(got).first(count)), count);
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(got[i].wr_id, out++);
  };
  fill();
  take(3);
  fill();  // the completions now wrap around the end of the ring
  ASSERT_TRUE(cq.resize(20));
  EXPECT_EQ(cq.capacity(), 32u);
  fill();
  EXPECT_EQ(in - out, 32u);
  EXPECT_FALSE(cq.resize(31));
  EXPECT_EQ(cq.capacity(), 32u);
  take(30);
  ASSERT_TRUE(cq.resize(2));
  EXPECT_EQ(cq.capacity(), 2u);
  EXPECT_FALSE(cq.add(in).first);
  take(2);
}

TEST(CompletionQueue, NotifiesForTheFirstCompletionAfterArming) {
  Cq cq(8, 0);
  EXPECT_EQ(cq.add(1), kAdded);
  cq.arm(false);
  EXPECT_EQ(cq.add(2), kAddedAndMustNotify);
  EXPECT_EQ(cq.add(3), kAdded);
}

TEST(CompletionQueue, AQueueArmedForSolicitedCompletionsIgnoresOthers) {
  Cq cq(8, 0);
  cq.arm(true);
  EXPECT_EQ(cq.add(1, false), kAdded);
  EXPECT_EQ(cq.add(2, true), kAddedAndMustNotify);
  cq.arm(false);
  cq.arm(true);  // this call does not narrow the earlier request
  EXPECT_EQ(cq.add(3, false), kAddedAndMustNotify);
}

struct TimedObject {
  HeapPosition position{};
};

TEST(DeadlineHeap, PopsTheEarliestDeadlineFirstDespiteRemovals) {
  DeadlineHeap<TimedObject, &TimedObject::position> heap;
  heap.reserve(100);
  std::array<TimedObject, 100> objects;
  Random random(3);
  const auto at = [](std::uint64_t ns) { return Time(Duration(ns)); };
  for (int round = 0; round < 50; ++round) {
    for (auto& object : objects) heap.schedule(object, at(random.below(1000)));
    for (int i = 0; i < 30; ++i) heap.remove(objects[random.below(100)]);
    for (int i = 0; i < 30; ++i) heap.schedule(objects[random.below(100)], at(random.below(1000)));
    Time last_deadline{};
    while (heap.top_deadline() != kNever) {
      const Time top = heap.top_deadline();
      EXPECT_GE(top, last_deadline);
      last_deadline = top;
      TimedObject& object = heap.pop();
      EXPECT_EQ(object.position.deadline, kNever);
    }
    for (const auto& object : objects) EXPECT_EQ(object.position.index, HeapPosition::kNone);
  }
}

TEST(DeadlineHeap, IgnoresADeadlineThatIsLaterThanTheStoredDeadline) {
  DeadlineHeap<TimedObject, &TimedObject::position> heap;
  TimedObject object;
  heap.schedule(object, Time(Duration(5)));
  heap.schedule(object, Time(Duration(9)));
  heap.schedule(object, kNever);
  EXPECT_EQ(heap.top_deadline(), Time(Duration(5)));
}

}  // namespace
}  // namespace verbena::hca
