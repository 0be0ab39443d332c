#pragma once

#include <cstdint>
#include <optional>

#include "base/strong.h"
#include "link/access_table.h"

namespace verbena::link {

// Describes a WRITE or READ that the initiator wants to carry out directly, without the target.
struct AccessRequest {
  Qpn target{};
  Qpn initiator{};
  Gid initiator_address{};
  Pkey pkey{};
  std::uint8_t mtu = 0;            // a code as in ibv_qp_attr::path_mtu
  std::uint64_t generation = 0;    // AccessGrant::generation of an earlier grant; 0: unknown
  Psn first_psn{};                 // the initiator's next PSN
  std::uint32_t psns = 0;          // the number of packets that the direct access replaces
  std::uint32_t access_flags = 0;  // the rights that the target must have given
  std::uint32_t r_key = 0;
  std::uint64_t remote_address = 0;
  std::uint32_t length = 0;  // at least 1
};

// Allows one direct access.
struct AccessGrant {
  std::uint64_t address = 0;     // the address of the first byte in the target process
  std::uint64_t generation = 0;  // identifies the target's connection in later requests
};

// Checks the request against the rows that the target publishes.  The check equals that of the
// target's responder for the packets of the request (vol1 9.7.4.1).  Returns none if the initiator
// must send packets instead.  The responder then checks those packets.
//
// A request with an unknown generation is granted only if its first PSN is exactly the PSN that the
// target expects.  With a known generation, the target's expected PSN may be lower, because the
// target may not have read the records of earlier accesses yet (Lane::commit()).
std::optional<AccessGrant> grant(const AccessTable& table, const AccessRequest& request);

}  // namespace verbena::link
