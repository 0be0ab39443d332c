#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "base/link_layer.h"
#include "base/strong.h"
#include "ipc/counters.h"

// Shows the QPs and counters of one process to `verbena ps`.  They are in a flat table in a memfd,
// which the process sends to the agent with its lease request.  A reader only maps the memfd, so it
// can also read the table of a stopped process.
namespace verbena::ipc {

// Describes one QP by plain numbers.  Enumerations have the values of <infiniband/verbs.h>.
struct QpTableRow {
  std::uint32_t qpn = 0;  // 0: the row is empty
  std::uint32_t destination_qpn = 0;
  std::uint8_t type = 0;
  std::uint8_t state = 0;
  std::uint8_t path_mtu = 0;
  LinkLayer link_layer{};
  std::uint32_t send_psn = 0;
  std::uint32_t acked_psn = 0;
  std::uint32_t expected_psn = 0;
  std::uint32_t send_queued = 0;
  std::uint32_t recv_queued = 0;
  Gid source{};
  Gid destination{};
  Lid source_lid{};       // 0 on Ethernet
  Lid destination_lid{};  // 0 on Ethernet
  std::uint32_t reserved = 0;
  std::uint64_t packets_in = 0;
  std::uint64_t packets_out = 0;
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
  std::uint64_t retransmissions = 0;
  std::uint64_t timeouts = 0;
  std::uint64_t rnr_naks_in = 0;
  std::uint64_t rnr_naks_out = 0;
};
static_assert(std::is_trivially_copyable_v<QpTableRow> && sizeof(QpTableRow) % 8 == 0);

// Reads and writes a table of kRows rows and kCounters counters in memory that both sides map.
// There is one writer and any number of readers.  Each row has a sequence lock, so a reader never
// gets parts of two versions of a row.  The table contains the names of the counters, so a reader
// need not know the names.
//
// Offsets in the memory:
//   0   number of QPs
//   4   number of counters
//   64  rows, each a sequence number and a QpTableRow; then counters, each a value and a name
class QpTable {
 public:
  static constexpr std::uint32_t kRows = 1024;  // more QPs are only counted, and have no row
  static constexpr std::size_t kRowBytes = 8 + sizeof(QpTableRow);
  static constexpr std::uint32_t kCounters = 128;
  static constexpr std::size_t kCounterNameBytes = 56;  // padded with zeros
  static constexpr std::size_t kCounterBytes = 8 + kCounterNameBytes;
  static constexpr std::size_t kBytes = 64 + kRows * kRowBytes + kCounters * kCounterBytes;

  // REQUIRES: `memory` has at least kBytes bytes, is zeroed when new, aligned to 8 bytes, and
  // outlives the table.
  explicit QpTable(std::span<std::byte> memory) : memory_(memory) {
    VB_CHECK(memory.size() >= kBytes);
  }

  // Sets the number of QPs, which may exceed kRows.
  void set_count(std::uint32_t qps) { word(0).store(qps, std::memory_order_relaxed); }
  std::uint32_t count() const { return word(0).load(std::memory_order_relaxed); }

  void write(std::uint32_t index, const QpTableRow& row) {
    const auto words = std::bit_cast<Words>(row);
    auto sequence = word(row_offset(index));
    const std::uint32_t before = sequence.load(std::memory_order_relaxed) & ~1u;
    sequence.store(before + 1, std::memory_order_relaxed);
    // Uses release stores, so that a reader that sees a new word also sees the odd sequence number.
    for (std::size_t i = 0; i < words.size(); ++i) {
      word(row_offset(index) + 8 + 4 * i).store(words[i], std::memory_order_release);
    }
    sequence.store(before + 2, std::memory_order_release);
  }

  // Reads a row.  Returns none if the row is empty or is being written.  If the process died while
  // it wrote the row, the row remains unreadable.
  std::optional<QpTableRow> read(std::uint32_t index) const {
    for (int attempt = 0; attempt < 100; ++attempt) {
      const std::uint32_t before = word(row_offset(index)).load(std::memory_order_acquire);
      Words words{};
      for (std::size_t i = 0; i < words.size(); ++i) {
        words[i] = word(row_offset(index) + 8 + 4 * i).load(std::memory_order_acquire);
      }
      if (before % 2 != 0 || word(row_offset(index)).load(std::memory_order_relaxed) != before)
        continue;
      const auto row = std::bit_cast<QpTableRow>(words);
      if (row.qpn == 0) return std::nullopt;
      return row;
    }
    return std::nullopt;
  }

  // Returns the index of the counter with this name.  Adds the counter if there is none.
  std::uint32_t add_counter(std::string_view name) {
    VB_CHECK(name.size() <= kCounterNameBytes);
    const std::uint32_t number = word(4).load(std::memory_order_relaxed);
    for (std::uint32_t i = 0; i < number && i < kCounters; ++i) {
      if (counter_name(i) == name) return i;
    }
    VB_CHECK(number < kCounters);
    std::array<char, kCounterNameBytes> text{};
    std::ranges::copy(name, text.begin());
    const auto words = std::bit_cast<NameWords>(text);
    for (std::size_t i = 0; i < words.size(); ++i) {
      word(counter_offset(number) + 8 + 4 * i).store(words[i], std::memory_order_relaxed);
    }
    word(4).store(number + 1, std::memory_order_release);
    return number;
  }
  void set_counter(std::uint32_t index, std::uint64_t value) {
    long_word(counter_offset(index)).store(value, std::memory_order_relaxed);
  }
  std::vector<NamedCount> counters() const {
    std::vector<NamedCount> all;
    const std::uint32_t number = word(4).load(std::memory_order_acquire);
    for (std::uint32_t i = 0; i < number && i < kCounters; ++i) {
      all.push_back(
          {counter_name(i), long_word(counter_offset(i)).load(std::memory_order_relaxed)});
    }
    return all;
  }

 private:
  using NameWords = std::array<std::uint32_t, kCounterNameBytes / 4>;
  using Words = std::array<std::uint32_t, sizeof(QpTableRow) / 4>;

  static constexpr std::size_t row_offset(std::uint32_t index) { return 64 + index * kRowBytes; }
  std::atomic_ref<std::uint32_t> word(std::size_t offset) const {
    return std::atomic_ref<std::uint32_t>(
        *reinterpret_cast<std::uint32_t*>(memory_.data() + offset));
  }

  static constexpr std::size_t counter_offset(std::uint32_t index) {
    return 64 + kRows * kRowBytes + index * kCounterBytes;
  }
  std::atomic_ref<std::uint64_t> long_word(std::size_t offset) const {
    return std::atomic_ref<std::uint64_t>(
        *reinterpret_cast<std::uint64_t*>(memory_.data() + offset));
  }
  std::string counter_name(std::uint32_t index) const {
    NameWords words{};
    for (std::size_t i = 0; i < words.size(); ++i) {
      words[i] = word(counter_offset(index) + 8 + 4 * i).load(std::memory_order_relaxed);
    }
    const auto text = std::bit_cast<std::array<char, kCounterNameBytes>>(words);
    return {text.begin(), std::ranges::find(text, '\0')};
  }

  std::span<std::byte> memory_;
};

}  // namespace verbena::ipc
