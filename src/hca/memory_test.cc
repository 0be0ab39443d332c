#include "hca/memory.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <set>

namespace verbena::hca {
namespace {

constexpr std::uint64_t kAddressMax = ~std::uint64_t{0};

struct Fixture {
  Fixture() { memory.add(region); }
  std::array<std::byte, 64> bytes{};
  Pd pd, other;
  MemoryRegion region{pd, reinterpret_cast<std::uintptr_t>(bytes.data()), 64, 1000,
                      access::kLocalWrite};
  Memory memory{Random(1)};
};

TEST(Memory, FindsOnlyBytesInsideTheRegion) {
  Fixture f;
  const auto finds = [&](std::uint64_t iova, std::uint64_t length) {
    return f.memory.find(f.pd, f.region.key, iova, length, 0).has_value();
  };
  EXPECT_TRUE(finds(1000, 64));
  EXPECT_TRUE(finds(1063, 1));
  EXPECT_FALSE(finds(1064, 1));
  EXPECT_FALSE(finds(999, 1));
  EXPECT_FALSE(finds(1000, 65));
  EXPECT_FALSE(finds(1063, kAddressMax));
  EXPECT_FALSE(finds(kAddressMax, 1));
  EXPECT_FALSE(finds(0, kAddressMax));
  EXPECT_EQ(f.memory.find(f.pd, f.region.key, 1010, 4, 0)->data(), f.bytes.data() + 10);
  EXPECT_FALSE(f.memory.find(f.other, f.region.key, 1000, 1, 0));
  EXPECT_FALSE(f.memory.find(f.pd, f.region.key + 1, 1000, 1, 0));
  EXPECT_FALSE(f.memory.find(f.pd, f.region.key, 1000, 1, access::kRemoteRead));
  f.memory.remove(f.region);
  EXPECT_FALSE(finds(1000, 1));
}

TEST(Memory, RefusesInvalidRegions) {
  using namespace access;
  EXPECT_TRUE(Memory::check_region(kAddressMax, 1, kAddressMax, 0));
  EXPECT_TRUE(Memory::check_region(1, kAddressMax, 1, 0));
  EXPECT_FALSE(Memory::check_region(kAddressMax, 2, 0, 0));
  EXPECT_FALSE(Memory::check_region(0, 2, kAddressMax, 0));
  EXPECT_FALSE(Memory::check_region(0, 0, 0, 0));
  EXPECT_FALSE(Memory::check_region(0, 1, 0, kRemoteWrite));
  EXPECT_FALSE(Memory::check_region(0, 1, 0, kRemoteAtomic));
  EXPECT_TRUE(Memory::check_region(0, 1, 0, kRemoteWrite | kLocalWrite));
  EXPECT_TRUE(Memory::check_region(0, 1, 0, kRemoteRead));
  EXPECT_TRUE(Memory::check_region(0, 1, 0, 1u << 20));  // the bit for relaxed ordering is a hint
  EXPECT_TRUE(Memory::check_region(0, ~std::uint64_t{0}, 0, kOnDemand));  // the whole address space
  EXPECT_EQ(Memory::check_region(0, 1, 0, 1u << 9).error().code, Errc::kNotSupported);
}

TEST(Memory, CopiesAcrossElementsFromAnyOffset) {
  Fixture f;
  std::iota(reinterpret_cast<std::uint8_t*>(f.bytes.data()),
            reinterpret_cast<std::uint8_t*>(f.bytes.data()) + 64, std::uint8_t{0});
  const std::uint32_t key = f.region.key;
  const Sge sges[] = {{1000, 3, key}, {0, 0, 0}, {1010, 5, key}, {1003, 1, key}};
  const std::uint8_t expected[] = {0, 1, 2, 10, 11, 12, 13, 14, 3};
  for (std::size_t offset = 0; offset <= 9; ++offset) {
    for (std::size_t bytes = 0; offset + bytes <= 9; ++bytes) {
      std::array<std::byte, 9> out{};
      ASSERT_EQ(f.memory.gather(f.pd, sges, offset, std::span(out).first(bytes)), CopyFault::kNone);
      for (std::size_t i = 0; i < bytes; ++i) {
        ASSERT_EQ(std::to_integer<std::uint8_t>(out[i]), expected[offset + i]);
      }
    }
  }
  std::array<std::byte, 10> out{};
  EXPECT_EQ(f.memory.gather(f.pd, sges, 0, out), CopyFault::kTooLong);
  const Sge wraps{kAddressMax, 10, key};
  EXPECT_EQ(f.memory.gather(f.pd, {&wraps, 1}, 5, std::span(out).first(1)), CopyFault::kProtection);
}

TEST(Memory, ScatteringNeedsLocalWrite) {
  Fixture f;
  // This region has no right to local writes.
  MemoryRegion fixed(f.pd, f.region.address, 64, 0, 0);
  f.memory.add(fixed);
  const std::array<std::byte, 2> in{std::byte{1}, std::byte{2}};
  const Sge into{0, 2, fixed.key};
  EXPECT_EQ(f.memory.scatter(f.pd, {&into, 1}, 0, in), CopyFault::kProtection);
  const Sge good{1000, 2, f.region.key};
  EXPECT_EQ(f.memory.scatter(f.pd, {&good, 1}, 0, in), CopyFault::kNone);
  EXPECT_EQ(f.bytes[1], std::byte{2});
}

TEST(Memory, KeysDifferBetweenRegionsAndEngines) {
  Pd pd;
  std::set<std::uint32_t> keys;
  Memory first_engine(Random(1)), second_engine(Random(2));
  std::vector<std::unique_ptr<MemoryRegion>> regions;
  for (int i = 0; i < 1000; ++i) {
    for (Memory* memory : {&first_engine, &second_engine}) {
      regions.push_back(std::make_unique<MemoryRegion>(pd, 4096, 1, 4096, 0));
      memory->add(*regions.back());
      keys.insert(regions.back()->key);
    }
  }
  EXPECT_EQ(keys.size(), 2000u);
  EXPECT_FALSE(keys.contains(0));
}

// Checks only which bytes are copied.  The order of the stores is not checked.
TEST(Memory, CopiesInOrderAtAnyAlignment) {
  for (std::size_t at = 0; at < 9; ++at) {
    for (std::size_t bytes = 0; bytes < 20; ++bytes) {
      alignas(8) std::array<std::byte, 40> to{};
      std::array<std::byte, 20> from{};
      for (std::size_t i = 0; i < bytes; ++i) from[i] = static_cast<std::byte>(i + 1);
      copy_in_order(std::span(to).subspan(at, bytes), std::span(from).first(bytes));
      for (std::size_t i = 0; i < to.size(); ++i) {
        const bool inside = i >= at && i < at + bytes;
        ASSERT_EQ(to[i], inside ? from[i - at] : std::byte{0});
      }
    }
  }
}

TEST(KeyTable, FindsExactlyTheInsertedKeys) {
  KeyTable<int> table;
  std::set<std::uint32_t> model;
  int object = 0;
  Random random(5);
  for (int i = 0; i < 20000; ++i) {
    // In the first steps, while the table is small, several keys have the same home index.  Once
    // the table has 1024 slots, each of the 700 keys has a home index of its own.
    const std::uint32_t key = random.next32() % 700 * 0x10000;
    if (model.contains(key)) {
      table.erase(key);
      model.erase(key);
    } else {
      table.insert(key, object);
      model.insert(key);
    }
    const std::uint32_t probe = random.next32() % 700 * 0x10000;
    ASSERT_EQ(table.find(probe) != nullptr, model.contains(probe));
    ASSERT_EQ(table.size(), model.size());
  }
  for (const auto key : model) ASSERT_NE(table.find(key), nullptr);
  table.erase(1);  // this key is not in the table
  EXPECT_EQ(table.size(), model.size());
}

}  // namespace
}  // namespace verbena::hca
