#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/port_id.h"
#include "base/strong.h"
#include "base/time.h"
#include "ipc/counters.h"
#include "ipc/messages.h"

// Defines the messages by which the command line tool asks an agent about its InfiniBand subnet.
namespace verbena::ipc {

// Limits the rows in one reply.
inline constexpr std::size_t kSaRowsPerReply = 256;
// Limits the bytes of a text in a row.  A longer text is cut off.
inline constexpr std::size_t kSaTextBytesMax = 100;

enum class SaTopic : std::uint8_t { kPaths, kGroups, kAddresses, kCounters };

// Asks for a page of the rows, without the first `skip` rows.  If rows are added or removed between
// two pages, the pages may miss or repeat a row.
struct ShowSa {
  static constexpr Type kType = Type::kShowSa;
  SaTopic topic{};
  std::uint32_t skip = 0;
  void fields(auto& a) { a(topic, skip); }
};

// Describes a path of a port, or a query that has not found a path.
struct SaPathRow {
  PortId port{};
  std::string state{};  // known, asked or absent
  Gid destination{};
  Gid source{};
  Lid destination_lid{};
  Lid source_lid{};
  Pkey pkey{};  // 0: the query names none
  std::uint8_t service_level = 0;
  std::uint8_t mtu = 0;          // a code, 1 for 256 bytes to 5 for 4096; 0: unknown
  std::uint8_t rate = 0;         // enum ibv_rate; 0: unknown
  std::uint8_t packet_life = 0;  // a timeout code; 0: unknown
  Duration age{};                // the time since the request to the SA; 0 in the state `asked`
  std::uint32_t waiters = 0;
  std::string error{};  // the reason why the path is absent
  friend bool operator==(const SaPathRow&, const SaPathRow&) = default;
  void fields(auto& a) {
    a(port.device, port.number, state, destination, source, destination_lid, source_lid, pkey,
      service_level, mtu, rate, packet_life, age, waiters, error);
  }
};

// Describes a multicast group of a port.  The states are bits of MCMemberRecord.
struct SaGroupRow {
  PortId port{};
  Gid mgid{};                   // 0: the SA has not chosen the MGID yet
  std::uint8_t join_state = 0;  // the state that the SA has confirmed
  std::uint8_t wanted = 0;      // the state that the members need
  std::uint32_t members = 0;    // users of the agent: programs, and the agent itself
  bool busy = false;            // a request to the SA is pending
  // The next members are zeros until the SA has answered.
  Lid mlid{};
  Qkey qkey{};
  Pkey pkey{};
  std::uint8_t mtu = 0;
  std::uint8_t rate = 0;
  std::uint8_t service_level = 0;
  friend bool operator==(const SaGroupRow&, const SaGroupRow&) = default;
  void fields(auto& a) {
    a(port.device, port.number, mgid, join_state, wanted, members, busy, mlid, qkey, pkey, mtu,
      rate, service_level);
  }
};

// Describes an IP address on the link of a port.
struct SaAddressRow {
  PortId port{};
  Gid ip{};
  std::string state{};  // incomplete, reachable, stale or probe
  Gid gid{};            // gid and qpn are zeros if the state is incomplete
  Qpn qpn{};
  // Holds the time since the neighbour's last answer.  In the state incomplete, holds the time
  // since the first request.
  Duration age{};
  std::uint32_t waiters = 0;
  std::uint32_t tries = 0;  // requests without an answer
  friend bool operator==(const SaAddressRow&, const SaAddressRow&) = default;
  void fields(auto& a) { a(port.device, port.number, ip, state, gid, qpn, age, waiters, tries); }
};

// Carries the rows of one topic; the other lists are empty.
struct SaReply {
  static constexpr Type kType = Type::kSaReply;
  std::vector<SaPathRow> paths{};
  std::vector<SaGroupRow> groups{};
  std::vector<SaAddressRow> addresses{};
  std::vector<NamedCount> counters{};
  bool more = false;
  void fields(auto& a) { a(paths, groups, addresses, counters, more); }
};

// Removes all cached paths and addresses of all ports.  Does not change the memberships of groups.
struct FlushSa {
  static constexpr Type kType = Type::kFlushSa;
  void fields(auto&) {}
};

struct SaFlushed {
  static constexpr Type kType = Type::kSaFlushed;
  std::uint64_t paths = 0;
  std::uint64_t addresses = 0;
  friend bool operator==(const SaFlushed&, const SaFlushed&) = default;
  void fields(auto& a) { a(paths, addresses); }
};

}  // namespace verbena::ipc
