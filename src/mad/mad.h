#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/random.h"
#include "base/strong.h"
#include "link/address.h"
#include "wire/mad.h"

// Defines types for MADs: their addresses, their bytes, and transaction ids.
namespace verbena::mad {

// Holds the source and the destination of a MAD, from this host's point of view.  An answer uses
// the address of its request unchanged.
struct Address {
  link::Address path{};  // from this host to the peer
  Qpn remote_qpn{wire::kGsiQpn};
  std::uint16_t pkey_index{};

  const Gid& local() const { return path.source; }
  const Gid& remote() const { return path.destination; }

  friend bool operator==(const Address&, const Address&) = default;
};

using Mad = std::array<std::byte, wire::kMadBytes>;

// Asks the owner to send these bytes from QP1, or from QP0 if a ManagementPort returns the MAD for
// QP0.
struct SendMad {
  Address to{};
  Mad mad{};

  friend bool operator==(const SendMad&, const SendMad&) = default;
};

// Makes ids for our own requests (vol1 13.4.6.4).  The upper half is the same in all ids, and the
// lower half is a counter.  Both begin with random values, so that an answer to a request of an
// earlier process will hardly match a request of this process.
class TransactionIds {
 public:
  explicit TransactionIds(Random& random)
      : upper_half_(random.next() << 32), next_(random.next32()) {}

  std::uint64_t next() { return upper_half_ | next_++; }

 private:
  std::uint64_t upper_half_;
  std::uint32_t next_;
};

}  // namespace verbena::mad
