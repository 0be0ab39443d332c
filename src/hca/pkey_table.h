#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "base/error.h"
#include "base/strong.h"
#include "wire/bth.h"

namespace verbena::hca {

// Returns false for the invalid P_Keys, 0 and 0x8000 (vol1 10.9.1).
constexpr bool is_valid_pkey(Pkey pkey) { return (pkey.value & 0x7fff) != 0; }

// Holds the P_Keys of a port (vol1 10.9.2).  A QP names its P_Key by an index, so a change of the
// table takes effect for the QP's next packet.  An entry of 0 is invalid and matches nothing.
class PkeyTable {
 public:
  static constexpr std::size_t kEntriesMax = 128;

  // Replaces all entries.  kInvalidArgument: there are no entries, or more than kEntriesMax.
  Result<void> set(std::span<const Pkey> pkeys) {
    if (pkeys.empty() || pkeys.size() > kEntriesMax) {
      return fail(Errc::kInvalidArgument, "a P_Key table has 1 to 128 entries");
    }
    std::ranges::copy(pkeys, entries_.begin());
    size_ = pkeys.size();
    return {};
  }

  std::size_t size() const { return size_; }
  // Returns the invalid P_Key 0 if the table has no such entry.  A new table may be shorter than
  // the old one.
  Pkey at(std::size_t index) const { return index < size_ ? entries_[index] : Pkey{}; }
  // Returns the first valid P_Key, or the invalid P_Key 0 if there is none.
  Pkey first_valid() const {
    for (const Pkey pkey : std::span(entries_).first(size_)) {
      if (is_valid_pkey(pkey)) return pkey;
    }
    return {};
  }
  // Returns true if a packet with the P_Key `packet_pkey` matches this entry.
  bool admits(std::size_t index, Pkey packet_pkey) const {
    return wire::pkeys_match(at(index), packet_pkey);
  }
  // Returns true if a packet with the P_Key `packet_pkey` matches any entry, which is enough for
  // QP1 (vol1 10.9.8).
  bool admits(Pkey packet_pkey) const {
    return std::ranges::any_of(std::span(entries_).first(size_),
                               [&](Pkey entry) { return wire::pkeys_match(entry, packet_pkey); });
  }

 private:
  std::array<Pkey, kEntriesMax> entries_{wire::kDefaultPkey};
  std::size_t size_ = 1;
};

}  // namespace verbena::hca
