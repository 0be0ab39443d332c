#include "link/access_table.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>

namespace verbena::link {
namespace {

struct Memory {
  alignas(64) std::array<std::byte, AccessTable::kBytes> bytes{};
};

struct Table {
  std::unique_ptr<Memory> memory = std::make_unique<Memory>();
  AccessTable writer = *AccessTable::attach(memory->bytes);
  AccessTable reader = *AccessTable::attach(memory->bytes);
};

constexpr std::uint64_t kHighest = ~std::uint64_t{0};

TEST(AccessTable, MemoryOfAnotherSizeIsRefused) {
  Memory memory;
  EXPECT_FALSE(AccessTable::attach(std::span(memory.bytes).first(AccessTable::kBytes - 8)));
  EXPECT_TRUE(AccessTable::attach(memory.bytes));
}

TEST(AccessTable, PublishedRegionIsFoundUntilItIsRemoved) {
  Table table;
  const RegionRow row{.key = 0x12345678,
                      .access_flags = 7,
                      .address = 0x7f0000001000,
                      .length = 4096,
                      .iova = 0x1000,
                      .domain = 3};
  EXPECT_FALSE(table.reader.region(row.key));
  ASSERT_TRUE(table.writer.publish(row));
  EXPECT_EQ(table.reader.region(row.key), row);
  EXPECT_FALSE(table.reader.region(row.key ^ 1));
  table.writer.remove_region(row.key);
  EXPECT_FALSE(table.reader.region(row.key));
}

TEST(AccessTable, PublishingAKeyAgainReplacesItsRow) {
  Table table;
  ASSERT_TRUE(table.writer.publish(RegionRow{.key = 5, .length = 10}));
  ASSERT_TRUE(table.writer.publish(RegionRow{.key = 5, .length = 20}));
  EXPECT_EQ(table.reader.region(5)->length, 20U);
  table.writer.remove_region(5);
  EXPECT_FALSE(table.reader.region(5));
}

TEST(AccessTable, ZeroIsNeitherAKeyNorAQpn) {
  Table table;
  EXPECT_FALSE(table.writer.publish(RegionRow{.key = 0, .length = 10}));
  EXPECT_FALSE(table.writer.publish(QpRow{.qpn = 0}));
  EXPECT_FALSE(table.reader.region(0));
  EXPECT_FALSE(table.reader.qp(0));
}

TEST(AccessTable, PublishedQueuePairHasAllFieldsAndItsExpectedPsnCanChange) {
  Table table;
  QpRow row{.qpn = 0xabcdef,
            .peer_qpn = 0xfedcba,
            .generation = 9,
            .domain = kHighest,
            .access_flags = 15,
            .pkey = 0xffff,
            .mtu = 5,
            .expected_psn = 0xffffff};
  row.peer.bytes[15] = std::byte{1};
  ASSERT_TRUE(table.writer.publish(row));
  auto found = table.reader.qp(0xabcdef);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->peer_qpn, 0xfedcbaU);
  EXPECT_EQ(found->peer, row.peer);
  EXPECT_EQ(found->generation, 9U);
  EXPECT_EQ(found->domain, kHighest);
  EXPECT_EQ(found->access_flags, 15U);
  EXPECT_EQ(found->pkey, 0xffff);
  EXPECT_EQ(found->mtu, 5);
  EXPECT_EQ(found->expected_psn, 0xffffffU);
  table.writer.set_expected_psn(0xabcdef, 7);
  EXPECT_EQ(table.reader.qp(0xabcdef)->expected_psn, 7U);
  table.writer.remove_qp(0xabcdef);
  EXPECT_FALSE(table.reader.qp(0xabcdef));
  table.writer.set_expected_psn(0xabcdef, 8);
  EXPECT_FALSE(table.reader.qp(0xabcdef));
}

TEST(AccessTable, RowIsRefusedWhenAllPositionsOfItsKeyAreTaken) {
  Table table;
  std::uint32_t published_rows = 0;
  for (std::uint32_t key = 1; key <= 2 * AccessTable::kRegions; ++key) {
    published_rows += table.writer.publish(RegionRow{.key = key, .length = key}) ? 1 : 0;
  }
  EXPECT_LE(published_rows, AccessTable::kRegions);
  EXPECT_GT(published_rows, AccessTable::kRegions / 2);
  for (std::uint32_t key = 1; key <= 2 * AccessTable::kRegions; ++key) {
    const auto row = table.reader.region(key);
    EXPECT_TRUE(!row || row->length == key);
    table.writer.remove_region(key);
  }
  for (std::uint32_t key = 1; key <= 2 * AccessTable::kRegions; ++key) {
    EXPECT_FALSE(table.reader.region(key));
  }
}

TEST(AccessTable, RangeMustBeInTheRegionEvenAtTheTopOfTheAddressSpace) {
  const RegionRow row{.key = 1, .address = 0x10000, .length = 0x1000, .iova = 0x500};
  EXPECT_EQ(row.find(0x500, 0x1000), 0x10000U);
  EXPECT_EQ(row.find(0x14ff, 1), 0x10fffU);
  EXPECT_FALSE(row.find(0x4ff, 1));
  EXPECT_FALSE(row.find(0x500, 0x1001));
  EXPECT_FALSE(row.find(0x1501, 0));
  EXPECT_FALSE(row.find(kHighest, kHighest));
  EXPECT_FALSE(row.find(0x501, kHighest));
  const RegionRow top{.key = 1, .address = kHighest - 9, .length = 10, .iova = kHighest - 9};
  EXPECT_EQ(top.find(kHighest, 1), kHighest);
  EXPECT_FALSE(top.find(kHighest, 2));
}

// A hostile program can publish a region that wraps.
TEST(AccessTable, RangeThatWrapsIsNotFoundEvenIfTheRegionWraps) {
  const RegionRow wraps{.key = 1, .address = kHighest - 15, .length = kHighest, .iova = 0};
  EXPECT_FALSE(wraps.find(16, 1));
  EXPECT_FALSE(wraps.find(0, 17));
  EXPECT_EQ(wraps.find(0, 16), kHighest - 15);
}

TEST(AccessTable, HalfWrittenRowIsNotFound) {
  Table table;
  ASSERT_TRUE(table.writer.publish(RegionRow{.key = 77, .length = 10}));
  auto* const words = reinterpret_cast<std::uint64_t*>(table.memory->bytes.data());
  std::uint64_t* row = words;
  while (row[1] != 77) row += AccessTable::kWords;
  ++row[0];  // as if the writer had died between two stores
  EXPECT_FALSE(table.reader.region(77));
  ++row[0];
  EXPECT_TRUE(table.reader.region(77));
}

TEST(AccessTable, ReaderNeverSeesPartsOfTwoRows) {
  Table table;
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (std::uint64_t n = 1; !stop; ++n) {
      table.writer.publish(RegionRow{.key = 9, .address = n, .length = n, .iova = n, .domain = n});
      if (n % 3 == 0) table.writer.remove_region(9);
    }
  });
  std::uint64_t rows_found = 0;
  for (int i = 0; i < 200'000 || rows_found == 0; ++i) {
    const auto row = table.reader.region(9);
    if (!row) continue;
    ++rows_found;
    EXPECT_TRUE(row->address == row->length && row->iova == row->domain &&
                row->address == row->iova);
  }
  stop = true;
  writer.join();
}

}  // namespace
}  // namespace verbena::link
