#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/strong.h"

// Publishes the rights of peers to a program's memory.  A program writes the table.  The programs
// at the other ends of its lanes map the table read-only.  These programs check their WRITEs and
// READs against the table before they carry out the requests directly.
//
// Each row has a sequence number that is odd while the row changes (a seqlock).  A reader copies
// the row, and ignores the copy if the number was odd or has changed.  A reader does not trust the
// table: whatever a row contains, RegionRow::find() returns no address range that wraps.
//
// Zeroed memory is an empty table.
//
// Threads: one writer at a time, and any number of readers.
namespace verbena::link {

// Identifies a protection domain of a program.
using DomainId = std::uint64_t;

// Describes a memory region that peers may access.
struct RegionRow {
  std::uint32_t key = 0;  // the R_Key; 0 is not a key
  std::uint32_t access_flags = 0;
  std::uint64_t address = 0;  // in the program that publishes the row
  std::uint64_t length = 0;
  std::uint64_t iova = 0;  // the address of the region in requests
  DomainId domain = 0;
  friend bool operator==(const RegionRow&, const RegionRow&) = default;

  // Converts an address of a request to an address in the publishing program.  Returns none if a
  // part of [at, at + bytes) is outside of the region.  Both parameters may be any number up to
  // 2^64 - 1.
  std::optional<std::uint64_t> find(std::uint64_t at, std::uint64_t bytes) const {
    if (at < iova) return {};
    const std::uint64_t begin = at - iova;
    if (begin > length || bytes > length - begin) return {};
    const std::uint64_t to_top = ~std::uint64_t{0} - address;
    if (begin > to_top || (bytes != 0 && bytes - 1 > to_top - begin)) return {};
    return address + begin;
  }
};

// Describes an RC queue pair that accepts requests from its peer.
struct QpRow {
  std::uint32_t qpn = 0;  // 0: no queue pair
  std::uint32_t peer_qpn = 0;
  Gid peer{};                    // the peer's address
  std::uint64_t generation = 0;  // differs for each connection of the queue pair
  DomainId domain = 0;
  std::uint32_t access_flags = 0;
  std::uint16_t pkey = 0;
  std::uint8_t mtu = 0;            // a code as in ibv_qp_attr::path_mtu
  std::uint32_t expected_psn = 0;  // AccessTable::set_expected_psn() may change it later
};

class AccessTable {
 public:
  static constexpr std::size_t kRegions = 4096;
  static constexpr std::size_t kQps = 4096;
  static constexpr std::size_t kWords = 8;  // words of a row; the first is the sequence number
  // A key or QPN determines this number of positions in the table.  Its row is at one of these
  // positions.
  static constexpr std::size_t kProbes = 8;
  static constexpr std::size_t kBytes = (kRegions + kQps) * kWords * sizeof(std::uint64_t);

  // Attaches to a table.  A reader that has mapped the memory read-only must not call the functions
  // of the writer.  kInvalidArgument: the memory has the wrong size or alignment.  REQUIRES: the
  // memory outlives the object.
  static Result<AccessTable> attach(std::span<std::byte> memory);

  // ---- the writer ----
  // Adds or replaces a row.  Returns false if other rows take all of its positions (kProbes), or if
  // the key or QPN is 0.
  bool publish(const RegionRow& row);
  bool publish(const QpRow& row);
  // Removes a row.  When the function returns, a reader that has not announced its access yet
  // (Lane::begin_access()) will not find the row.
  void remove_region(std::uint32_t key);
  void remove_qp(std::uint32_t qpn);
  // Sets QpRow::expected_psn.  Ignores queue pairs without a row.
  void set_expected_psn(std::uint32_t qpn, std::uint32_t psn);

  // ---- readers ----
  // These functions return a copy of the row, or none if there is no such row, or if the writer
  // changes it during the call.
  std::optional<RegionRow> region(std::uint32_t key) const;
  std::optional<QpRow> qp(std::uint32_t qpn) const;

 private:
  using Row = std::array<std::uint64_t, kWords>;
  explicit AccessTable(std::span<Row> rows)
      : regions_(rows.first(kRegions)), qps_(rows.subspan(kRegions)) {}

  std::span<Row> regions_;
  std::span<Row> qps_;
};

}  // namespace verbena::link
