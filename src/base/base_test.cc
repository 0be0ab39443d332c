#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "base/handle.h"
#include "base/operation.h"
#include "base/random.h"
#include "base/strong.h"
#include "base/time.h"

namespace verbena {
namespace {

TEST(Psn, ComparesAcrossTheWrap) {
  EXPECT_TRUE((Psn{0xffffff}.before(Psn{0})));
  EXPECT_FALSE((Psn{0}.before(Psn{0xffffff})));
  EXPECT_EQ((Psn{0xffffff} + 1), Psn{0});
  EXPECT_EQ((Psn{0} - 1), Psn{0xffffff});
  EXPECT_EQ((Psn{2}.since(Psn{0xfffffe})), 4);
  EXPECT_EQ((Psn{0xfffffe}.since(Psn{2})), -4);
}

TEST(TimeoutCode, StandsForTheDurationThatTheSpecificationDefines) {
  EXPECT_EQ(timeout_of_code(0), Duration(4096));
  EXPECT_EQ(timeout_of_code(14).count(), 67108864);
  EXPECT_EQ(code_of_timeout(Duration(4096)), 0);
  EXPECT_EQ(code_of_timeout(Duration(4097)), 1);
  EXPECT_EQ(code_of_timeout(std::chrono::hours(10)), 31);
}

// Checks the block function against a published test vector of ChaCha12 with key 0 and counter 0
// (eSTREAM, "TC1: all zero key and IV", 256-bit key).
TEST(Random, IsChaCha12) {
  Random random(Random::Key{});
  EXPECT_EQ(random.next(), 0x53f955076a9af49bULL);
}

TEST(Random, SameSeedGivesTheSameNumbersAndForksDiffer) {
  Random a(7);
  Random b(7);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(a.next(), b.next());
  Random forked = a.fork();
  EXPECT_NE(forked.next(), a.next());
  for (int i = 0; i < 1000; ++i) EXPECT_LT(a.below(3), 3u);
  EXPECT_FALSE(a.chance({0, 1}));
  EXPECT_TRUE(a.chance({1, 1}));
}

TEST(Slots, StaleOrForgedHandleIsNotFound) {
  Slots<int> slots(2);
  const auto first = slots.insert(std::make_unique<int>(1));
  const auto second = slots.insert(std::make_unique<int>(2));
  ASSERT_TRUE(first && second);
  EXPECT_EQ(slots.insert(std::make_unique<int>(3)).error().code, Errc::kNoResources);
  EXPECT_EQ(*slots.find(*first), 1);
  EXPECT_EQ(*slots.remove(*first), 1);
  EXPECT_EQ(slots.find(*first), nullptr);
  EXPECT_EQ(slots.remove(*first), nullptr);
  const auto third = slots.insert(std::make_unique<int>(3));
  ASSERT_TRUE(third);
  EXPECT_NE(*third, *first);
  EXPECT_EQ(slots.find(*first), nullptr);
  EXPECT_EQ(*slots.find(*third), 3);
  EXPECT_EQ(slots.find(Handle<int>{}), nullptr);
  EXPECT_EQ(slots.find(Handle<int>{0xffffffffffffffff}), nullptr);
  EXPECT_EQ(slots.find(Handle<int>{0x1000000ff}), nullptr);
  EXPECT_EQ(slots.size(), 2u);
}

TEST(Pending, DestroyingAPendingCancelsOnce) {
  int cancelled = 0;
  {
    Pending pending([&] { ++cancelled; });
    Pending moved(std::move(pending));
    EXPECT_EQ(cancelled, 0);
  }
  EXPECT_EQ(cancelled, 1);
}

Result<int> sum(Result<int> a, Result<int> b) { return VB_TRY(a) + VB_TRY(b); }

TEST(Try, ReturnsTheFirstError) {
  EXPECT_EQ(sum(1, 2), 3);
  EXPECT_EQ(sum(1, fail(Errc::kTimedOut)).error(), (Error{Errc::kTimedOut}));
}

TEST(Error, EveryCodeHasANameAndAnErrno) {
  std::set<std::string> names;
  for (int code = 0; code <= static_cast<int>(Errc::kSystem); ++code) {
    names.insert(to_string(static_cast<Errc>(code)));
    EXPECT_NE(to_errno({static_cast<Errc>(code)}), 0);
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(Errc::kSystem) + 1);
}

TEST(Error, AnErrnoInTheDetailReplacesThatOfTheCode) {
  EXPECT_EQ(to_errno({Errc::kAddressNotFound}), EADDRNOTAVAIL);
  EXPECT_EQ(to_errno({Errc::kAddressNotFound, ENETUNREACH}), ENETUNREACH);
  EXPECT_EQ(to_errno({Errc::kNotSupported, ENOSYS}), ENOSYS);
  EXPECT_EQ(to_errno({Errc::kSystem, EMFILE}), EMFILE);
  EXPECT_EQ(to_errno({Errc::kSystem}), EIO);
  EXPECT_EQ(to_errno({Errc::kRejected, 8}), ECONNREFUSED) << "the detail is a REJ reason";
  EXPECT_EQ(to_errno({Errc::kMalformed, 2}), EPROTO) << "the detail is a reason of a layer";
}

}  // namespace
}  // namespace verbena
