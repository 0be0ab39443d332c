#include "cm/listeners.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include "base/random.h"

namespace verbena::cm {
namespace {

std::vector<std::byte> bytes(std::initializer_list<int> list) {
  std::vector<std::byte> out;
  for (const int value : list) out.push_back(static_cast<std::byte>(value));
  return out;
}

TEST(ListenersTest, ListenersAreFoundByTheirServiceId) {
  Listeners listeners;
  ASSERT_TRUE(listeners.add({.id = {0x1234}}, 1));
  EXPECT_EQ(listeners.find({0x1234}, {}), 1U);
  EXPECT_EQ(listeners.find({0x1235}, {}), std::nullopt);
  EXPECT_EQ(listeners.add({.id = {0x1234}}, 2).error().code, Errc::kAddressInUse);
  ASSERT_TRUE(listeners.remove({.id = {0x1234}}));
  EXPECT_EQ(listeners.find({0x1234}, {}), std::nullopt);
  EXPECT_EQ(listeners.remove({.id = {0x1234}}).error().code, Errc::kInvalidArgument);
}

TEST(ListenersTest, ExpectationsExpire) {
  Listeners listeners;
  const Time now{std::chrono::seconds(5)};
  const Time until = now + std::chrono::seconds(1);
  EXPECT_FALSE(listeners.expects({7}, now));
  listeners.expect({7}, now, until);
  EXPECT_TRUE(listeners.expects({7}, now));
  EXPECT_FALSE(listeners.expects({7}, until));
  listeners.stop_expecting({7});
  EXPECT_FALSE(listeners.expects({7}, now));
  for (std::uint64_t id = 0; id <= Listeners::kExpectedMax; ++id) {
    listeners.expect({id}, now, until);
  }
  EXPECT_TRUE(listeners.expects({Listeners::kExpectedMax - 1}, now));
  EXPECT_FALSE(listeners.expects({Listeners::kExpectedMax}, now));
  // The other expectations have expired, so they do not count for the limit.
  listeners.expect({9999}, until, until + std::chrono::seconds(1));
  EXPECT_TRUE(listeners.expects({9999}, until));
}

TEST(ListenersTest, ListenersMatchAllServiceIdsOfTheirMask) {
  Listeners listeners;
  ASSERT_TRUE(
      listeners.add({.id = {0xab77}, .mask = {0xff00}}, 1));  // the unmasked bits are ignored
  EXPECT_EQ(listeners.find({0xab00}, {}), 1U);
  EXPECT_EQ(listeners.find({0xffff'0000'0000'ab12}, {}), 1U);
  EXPECT_EQ(listeners.find({0xac00}, {}), std::nullopt);
  // Both a service id within the mask and a wider mask conflict.
  EXPECT_EQ(listeners.add({.id = {0xab01}}, 2).error().code, Errc::kAddressInUse);
  EXPECT_EQ(listeners.add({.id = {0xa000}, .mask = {0xf000}}, 2).error().code, Errc::kAddressInUse);
  EXPECT_TRUE(listeners.add({.id = {0xac01}}, 2));
  EXPECT_TRUE(listeners.remove({.id = {0xab00}, .mask = {0xff00}}));
}

TEST(ListenersTest, ListenersAreSelectedByPrivateData) {
  Listeners listeners;
  const Service red{.id = {7}, .data = bytes({0, 1}), .data_mask = bytes({0, 0x0f})};
  const Service blue{.id = {7}, .data = bytes({9, 2}), .data_mask = bytes({0, 0x0f})};
  ASSERT_TRUE(listeners.add(red, 1));
  ASSERT_TRUE(listeners.add(blue, 2));
  EXPECT_EQ(listeners.find({7}, bytes({5, 0x31})), 1U);
  EXPECT_EQ(listeners.find({7}, bytes({5, 0x32})), 2U);
  EXPECT_EQ(listeners.find({7}, bytes({5, 0x33})), std::nullopt);
  EXPECT_EQ(listeners.add({.id = {7}}, 3).error().code, Errc::kAddressInUse);
  EXPECT_EQ(
      listeners.add({.id = {7}, .data = bytes({1}), .data_mask = bytes({0xff})}, 3).error().code,
      Errc::kAddressInUse);
  ASSERT_TRUE(listeners.remove(red));
  EXPECT_EQ(listeners.find({7}, bytes({5, 0x31})), std::nullopt);
  EXPECT_EQ(listeners.size(), 1U);
}

TEST(ListenersTest, ListenersNeedAMaskAsLongAsTheirData) {
  Listeners listeners;
  EXPECT_EQ(listeners.add({.data = bytes({1})}, 1).error().code, Errc::kInvalidArgument);
  const std::vector<std::byte> too_long(Service::kDataBytesMax + 1);
  EXPECT_EQ(listeners.add({.data = too_long, .data_mask = too_long}, 1).error().code,
            Errc::kInvalidArgument);
}

// ---- Compares with a model, for each id of 4 bits and private data of 3 bits

constexpr std::uint64_t kIds = 16;
constexpr int kDataValues = 8;

bool matches(const Service& service, std::uint64_t id, int data) {
  if (((id ^ service.id.value) & service.mask.value) != 0) return false;
  if (service.data.empty()) return true;
  const auto differs = (static_cast<std::byte>(data) ^ service.data[0]) & service.data_mask[0];
  return differs == std::byte{};
}

bool overlap(const Service& a, const Service& b) {
  for (std::uint64_t id = 0; id < kIds; ++id) {
    for (int data = 0; data < kDataValues; ++data) {
      if (matches(a, id, data) && matches(b, id, data)) return true;
    }
  }
  return false;
}

class ListenersModel : public testing::TestWithParam<std::uint64_t> {};

TEST_P(ListenersModel, EveryRequestFindsItsListener) {
  Random random(GetParam());
  Listeners listeners;
  std::vector<std::pair<Service, std::uint64_t>> model;
  for (std::uint64_t step = 1; step <= 400; ++step) {
    if (!model.empty() && random.chance({1, 3})) {
      const auto at = model.begin() + static_cast<std::ptrdiff_t>(random.below(model.size()));
      ASSERT_TRUE(listeners.remove(at->first));
      EXPECT_FALSE(listeners.remove(at->first));
      model.erase(at);
    } else {
      Service service{.id = {random.below(kIds)}};
      // All ids here have the same upper bits, so each mask may include these bits.
      if (random.chance({1, 2})) service.mask = {~std::uint64_t{0} << 4 | random.below(kIds)};
      if (random.chance({1, 2})) {
        service.data = bytes({static_cast<int>(random.below(kDataValues))});
        service.data_mask = bytes({static_cast<int>(random.below(kDataValues))});
      }
      const bool is_free = std::ranges::none_of(
          model, [&](const auto& other) { return overlap(service, other.first); });
      const auto added = listeners.add(service, step);
      ASSERT_EQ(added.has_value(), is_free) << "step " << step;
      if (is_free) model.emplace_back(service, step);
    }
    ASSERT_EQ(listeners.size(), model.size());
    for (std::uint64_t id = 0; id < kIds; ++id) {
      for (int data = 0; data < kDataValues; ++data) {
        const auto match = std::ranges::find_if(
            model, [&](const auto& other) { return matches(other.first, id, data); });
        const auto found = listeners.find({id}, bytes({data}));
        ASSERT_EQ(found.has_value(), match != model.end()) << id << " " << data;
        ASSERT_EQ(found.value_or(0), match != model.end() ? match->second : 0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ListenersModel, testing::Range<std::uint64_t>(1, 21));

TEST(ListenersTest, MasksAndListenersOfOneServiceAreLimited) {
  Listeners listeners;
  for (std::uint64_t i = 0; i < Listeners::kMasksMax; ++i) {
    const std::uint64_t bit = std::uint64_t{1} << i;
    // Each mask leaves out another bit.  The listeners do not overlap, because their data differs.
    ASSERT_TRUE(listeners.add({.id = {0},
                               .mask = {~bit},
                               .data = {static_cast<std::byte>(i)},
                               .data_mask = {std::byte{0xff}}},
                              i))
        << i;
  }
  const Service one_more{.id = {0},
                         .mask = {~std::uint64_t{3}},
                         .data = {std::byte{0xff}},
                         .data_mask = {std::byte{0xff}}};
  EXPECT_EQ(listeners.add(one_more, 1).error().code, Errc::kNoResources);

  Listeners same_service;
  const auto service_with = [](std::size_t number) {
    return Service{.id = {7},
                   .data = {static_cast<std::byte>(number), static_cast<std::byte>(number >> 8)},
                   .data_mask = {std::byte{0xff}, std::byte{0xff}}};
  };
  for (std::size_t i = 0; i < Listeners::kOfServiceMax; ++i)
    ASSERT_TRUE(same_service.add(service_with(i), i));
  EXPECT_EQ(same_service.add(service_with(Listeners::kOfServiceMax), 1).error().code,
            Errc::kNoResources);
  ASSERT_TRUE(same_service.remove(service_with(5)));
  EXPECT_TRUE(same_service.add(service_with(Listeners::kOfServiceMax), 1));
}

}  // namespace
}  // namespace verbena::cm
