#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/random.h"
#include "base/strong.h"
#include "wire/mad.h"

// What every user of QP1 shares: where a MAD comes from and goes to, and transaction ids.
namespace verbena::mad {

// Both ends of a MAD's way, from this host's point of view.  An answer goes to the address that its
// question came from, unchanged.
struct Address {
  Gid local{};
  Gid remote{};
  std::uint32_t interface {};  // the host's index of it; tells fe80:: addresses apart
  Qpn remote_qpn{wire::kGsiQpn};
  std::uint8_t traffic_class{};
  std::uint8_t hop_limit{64};

  friend bool operator==(const Address&, const Address&) = default;
};

using Mad = std::array<std::byte, wire::kMadBytes>;

// "Send these bytes from QP1."
struct SendMad {
  Address to{};
  Mad mad{};

  friend bool operator==(const SendMad&, const SendMad&) = default;
};

// Ids for requests of our own (vol1 13.4.6.4).  The upper half stays for one run, the lower half
// counts; both begin anywhere, so an answer to a run before this one matches nothing.
class TransactionIds {
 public:
  explicit TransactionIds(Random& random) : run_(random.next() << 32), next_(random.next32()) {}

  std::uint64_t next() { return run_ | next_++; }

 private:
  std::uint64_t run_;
  std::uint32_t next_;
};

}  // namespace verbena::mad
