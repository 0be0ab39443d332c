#include "link/access_table.h"

#include <cstring>

#include "ring/shared_memory.h"

namespace verbena::link {
namespace {

using Word = std::uint64_t;
using Row = std::array<Word, AccessTable::kWords>;

// Word 0 of a row is the sequence number.  Word 1 is the id of the row, which is the key or QPN.
// The id is 0 if the row is free.
constexpr std::size_t kIdWord = 1;
// The last word of a QP's row is the PSN that the QP expects.  Only this word may change without a
// change of the sequence number.
constexpr std::size_t kPsnWord = 7;

// Stores of a row's words are release stores, so a reader that sees a new word also sees the odd
// sequence number.  Loads are acquire loads, so the second load of the sequence number comes last.
Word load(Word& word) { return ring::SharedMemory::load_acquire(word); }
void store(Word& word, Word value) { ring::SharedMemory::store_release(word, value); }

// Returns the first of the kProbes positions that the row with this id may have.
std::size_t home_index(std::uint32_t id, std::size_t rows) {
  return (id * std::uint64_t{0x9e3779b97f4a7c15} >> 32) & (rows - 1);  // Fibonacci hashing
}

// Returns the row with this id, or null.
Row* find(std::span<Row> rows, std::uint32_t id) {
  const std::size_t first = home_index(id, rows.size());
  for (std::size_t i = 0; i < AccessTable::kProbes; ++i) {
    Row& row = rows[(first + i) & (rows.size() - 1)];
    if (load(row[kIdWord]) == id) return &row;
  }
  return nullptr;
}

// Returns the row with this id.  If there is none, returns a free row at one of the id's positions.
// Returns null if other rows take all these positions.
Row* find_or_choose(std::span<Row> rows, std::uint32_t id) {
  if (Row* const row = find(rows, id)) return row;
  const std::size_t first = home_index(id, rows.size());
  for (std::size_t i = 0; i < AccessTable::kProbes; ++i) {
    Row& row = rows[(first + i) & (rows.size() - 1)];
    if (load(row[kIdWord]) == 0) return &row;
  }
  return nullptr;
}

// Replaces a row.  Ignores the first of the words.
void write(Row& row, const Row& words) {
  const Word before = load(row[0]) & ~Word{1};
  store(row[0], before + 1);
  for (std::size_t i = 1; i < row.size(); ++i) store(row[i], words[i]);
  store(row[0], before + 2);
}

// Copies a row.  Returns none if the writer changes the row during the call.
std::optional<Row> read(Row& row) {
  Row copy{};
  for (std::size_t i = 0; i < row.size(); ++i) copy[i] = load(row[i]);
  if ((copy[0] & 1) != 0 || load(row[0]) != copy[0]) return {};
  return copy;
}

constexpr Word join(std::uint32_t low, std::uint32_t high) { return Word{high} << 32 | low; }
constexpr std::uint32_t low(Word word) { return static_cast<std::uint32_t>(word); }
constexpr std::uint32_t high(Word word) { return static_cast<std::uint32_t>(word >> 32); }

}  // namespace

Result<AccessTable> AccessTable::attach(std::span<std::byte> memory) {
  if (memory.size() != kBytes ||
      reinterpret_cast<std::uintptr_t>(memory.data()) % alignof(Word) != 0) {
    return fail(Errc::kInvalidArgument, "access table: wrong size or alignment");
  }
  return AccessTable({reinterpret_cast<Row*>(memory.data()), kRegions + kQps});
}

bool AccessTable::publish(const RegionRow& row) {
  Row* const place = row.key == 0 ? nullptr : find_or_choose(regions_, row.key);
  if (place == nullptr) return false;
  write(*place, {0, row.key, row.address, row.length, row.iova, row.domain, row.access_flags});
  return true;
}

bool AccessTable::publish(const QpRow& row) {
  Row* const place = row.qpn == 0 ? nullptr : find_or_choose(qps_, row.qpn);
  if (place == nullptr) return false;
  Row words{0, row.qpn};
  words[2] = row.generation;
  words[3] = row.domain;
  std::memcpy(&words[4], row.peer.bytes.data(), sizeof(Word) * 2);
  words[6] = join(row.peer_qpn | std::uint32_t{row.mtu} << 24,
                  (row.access_flags & 0xffff) | std::uint32_t{row.pkey} << 16);
  words[kPsnWord] = row.expected_psn;
  write(*place, words);
  return true;
}

void AccessTable::remove_region(std::uint32_t key) {
  if (Row* const row = find(regions_, key)) write(*row, {});
  ring::SharedMemory::fence();
}

void AccessTable::remove_qp(std::uint32_t qpn) {
  if (Row* const row = find(qps_, qpn)) write(*row, {});
  ring::SharedMemory::fence();
}

void AccessTable::set_expected_psn(std::uint32_t qpn, std::uint32_t psn) {
  if (Row* const row = find(qps_, qpn)) store((*row)[kPsnWord], psn);
}

std::optional<RegionRow> AccessTable::region(std::uint32_t key) const {
  Row* const row = key == 0 ? nullptr : find(regions_, key);
  const auto words = row == nullptr ? std::nullopt : read(*row);
  if (!words || (*words)[kIdWord] != key) return {};
  return RegionRow{.key = key,
                   .access_flags = low((*words)[6]),
                   .address = (*words)[2],
                   .length = (*words)[3],
                   .iova = (*words)[4],
                   .domain = (*words)[5]};
}

std::optional<QpRow> AccessTable::qp(std::uint32_t qpn) const {
  Row* const row = qpn == 0 ? nullptr : find(qps_, qpn);
  const auto words = row == nullptr ? std::nullopt : read(*row);
  if (!words || (*words)[kIdWord] != qpn) return {};
  QpRow out{.qpn = qpn,
            .peer_qpn = low((*words)[6]) & 0xffffff,
            .generation = (*words)[2],
            .domain = (*words)[3],
            .access_flags = high((*words)[6]) & 0xffff,
            .pkey = static_cast<std::uint16_t>(high((*words)[6]) >> 16),
            .mtu = static_cast<std::uint8_t>(low((*words)[6]) >> 24),
            .expected_psn = low((*words)[kPsnWord])};
  std::memcpy(out.peer.bytes.data(), &(*words)[4], sizeof(Word) * 2);
  return out;
}

}  // namespace verbena::link
