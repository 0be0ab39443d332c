#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

#include "base/error.h"
#include "base/strong.h"

// The QPs of one process for `verbena ps`: a flat table in a memfd that goes to the agent with the
// lease.  Whoever looks maps it and sends no message, so it shows stopped processes, too.
namespace verbena::ipc {

// Plain numbers; enumerations with the numbers of <infiniband/verbs.h>.
struct QpTableRow {
  std::uint32_t qpn = 0;  // 0: the row is empty
  std::uint32_t destination_qpn = 0;
  std::uint8_t type = 0;
  std::uint8_t state = 0;
  std::uint8_t path_mtu = 0;
  std::uint8_t reserved = 0;
  std::uint32_t send_psn = 0;
  std::uint32_t acked_psn = 0;
  std::uint32_t expected_psn = 0;
  std::uint32_t send_queued = 0;
  std::uint32_t recv_queued = 0;
  Gid source{};
  Gid destination{};
  std::uint64_t packets_in = 0;
  std::uint64_t packets_out = 0;
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
  std::uint64_t retransmissions = 0;
  std::uint64_t timeouts = 0;
};
static_assert(std::is_trivially_copyable_v<QpTableRow> && sizeof(QpTableRow) % 8 == 0);

// A table of kRows rows over memory that both sides map.  One writer; any number of readers, each
// of which gets a row whole or not at all (a sequence lock per row).
class QpTable {
 public:
  static constexpr std::uint32_t kRows = 1024;  // of the first QPs; the rest is only counted
  static constexpr std::size_t kRowBytes = 8 + sizeof(QpTableRow);
  static constexpr std::size_t kBytes = 64 + kRows * kRowBytes;

  // `memory` is kBytes long, zeroed when new, aligned to 8 bytes, and outlives the table.
  explicit QpTable(std::span<std::byte> memory) : memory_(memory) {
    VB_CHECK(memory.size() >= kBytes);
  }

  // How many QPs there are, which may be more than rows.
  void set_count(std::uint32_t qps) { word(0).store(qps, std::memory_order_relaxed); }
  std::uint32_t count() const { return word(0).load(std::memory_order_relaxed); }

  void write(std::uint32_t index, const QpTableRow& row) {
    const auto words = std::bit_cast<Words>(row);
    auto sequence = word(at(index));
    const std::uint32_t before = sequence.load(std::memory_order_relaxed) & ~1u;
    sequence.store(before + 1, std::memory_order_relaxed);
    for (std::size_t i = 0; i < words.size(); ++i) {  // release: not before the odd number
      word(at(index) + 8 + 4 * i).store(words[i], std::memory_order_release);
    }
    sequence.store(before + 2, std::memory_order_release);
  }

  // The row, or none if it is empty or was being written (by a process that died in the middle, for
  // good).
  std::optional<QpTableRow> read(std::uint32_t index) const {
    for (int attempt = 0; attempt < 100; ++attempt) {
      const std::uint32_t before = word(at(index)).load(std::memory_order_acquire);
      Words words{};
      for (std::size_t i = 0; i < words.size(); ++i) {
        words[i] = word(at(index) + 8 + 4 * i).load(std::memory_order_acquire);
      }
      if (before % 2 != 0 || word(at(index)).load(std::memory_order_relaxed) != before) continue;
      const auto row = std::bit_cast<QpTableRow>(words);
      if (row.qpn == 0) return std::nullopt;
      return row;
    }
    return std::nullopt;
  }

 private:
  using Words = std::array<std::uint32_t, sizeof(QpTableRow) / 4>;

  static constexpr std::size_t at(std::uint32_t index) { return 64 + index * kRowBytes; }
  std::atomic_ref<std::uint32_t> word(std::size_t offset) const {
    return std::atomic_ref<std::uint32_t>(
        *reinterpret_cast<std::uint32_t*>(memory_.data() + offset));
  }

  std::span<std::byte> memory_;
};

}  // namespace verbena::ipc
