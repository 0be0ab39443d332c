#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/port_id.h"
#include "base/strong.h"
#include "base/time.h"
#include "ipc/messages.h"
#include "rdmacm/types.h"
#include "wire/bth.h"

// Defines the messages by which programs use the subnet administration (SA) of an InfiniBand port.
// The agent asks the SA on behalf of the programs.
namespace verbena::ipc {

// ---- multicast groups ---------------------------------------------------------------------------

// Joins a group for an id on an InfiniBand port.  The agent asks the subnet administration (SA),
// which answers with the destination for packets to the group.  If the id's queue pair is to
// receive these packets, the program then sends a JoinGroup for the range of the queue pair.  A
// join that has succeeded ends with LeaveMulticast or MulticastLost, or when the program ends.
struct JoinMulticast {
  static constexpr Type kType = Type::kJoinMulticast;
  PortId port{};
  std::uint16_t port_space = 0;  // determines the MGID and the group's Q_Key
  Pkey pkey{wire::kDefaultPkey};
  // Holds an MGID if is_mgid is true, otherwise an IP address, from which the agent derives the
  // MGID.  If all bytes are zero, or the address is the IPv4 wildcard, the SA chooses a group.
  Gid group{};
  bool is_mgid = false;         // `group` is an MGID (AF_IB)
  std::uint8_t join_state = 1;  // bits of MCMemberRecord; 1: full member, 8: send-only full member
  void fields(auto& a) {
    a(port.device, port.number, port_space, pkey, group, is_mgid, join_state);
  }
};

// Ends the membership of a JoinMulticast.
struct LeaveMulticast {
  static constexpr Type kType = Type::kLeaveMulticast;
  std::uint64_t membership = 0;
  void fields(auto& a) { a(membership); }
};

// Carries the group's parameters from the answer of the SA (vol1 15.2.5.17).
struct MulticastJoined {
  static constexpr Type kType = Type::kMulticastJoined;
  std::uint64_t membership = 0;  // identifies this join; never 0
  Gid mgid{};
  Lid mlid{};
  Qkey qkey{};
  Pkey pkey{};
  std::uint8_t mtu = 0;   // a code, 1 for 256 bytes to 5 for 4096
  std::uint8_t rate = 0;  // enum ibv_rate
  std::uint8_t service_level = 0;
  std::uint8_t traffic_class = 0;
  std::uint8_t hop_limit = 0;
  std::uint32_t flow_label = 0;
  friend bool operator==(const MulticastJoined&, const MulticastJoined&) = default;
  void fields(auto& a) {
    a(membership, mgid, mlid, qkey, pkey, mtu, rate, service_level, traffic_class, hop_limit,
      flow_label);
  }
};

// Reports that a membership has ended: the group's parameters have changed, or the SA refuses to
// renew the membership, for example because the group does not exist any more.  The agent has left
// the group, and the program has to join again.
struct MulticastLost {
  static constexpr Type kType = Type::kMulticastLost;
  std::uint64_t membership = 0;
  std::int32_t error = 0;  // a positive errno
  void fields(auto& a) { a(membership, error); }
};

// ---- paths --------------------------------------------------------------------------------------

// Replaces the path that the agent has found for an id whose address is resolved.  The new path
// must be an InfiniBand path that begins at the id's port.
struct SetPath {
  static constexpr Type kType = Type::kSetPath;
  rdmacm::IdHandle id{};
  rdmacm::PathInfo path{};
  void fields(auto& a) { a(id, path); }
};

// ---- services -----------------------------------------------------------------------------------

// Limits the services in one reply.
inline constexpr std::size_t kServicesPerReply = 256;

using ServiceName = std::array<std::byte, 64>;  // UTF-8, padded with zeros

// Describes a service that is registered with the SA (vol1 15.2.5.14).
struct Service {
  ServiceId service_id{};
  Gid gid{};    // the port's GID; in a registration, zeros stand for it
  Pkey pkey{};  // in a registration, 0 stands for the port's partition
  std::uint32_t lease_seconds = 0;
  ServiceName name{};
  std::array<std::byte, 64> data{};  // only the service knows the meaning of the data
  friend bool operator==(const Service&, const Service&) = default;
  void fields(auto& a) { a(service_id, gid, pkey, lease_seconds, name, data); }
};

// Asks the SA for the services that have this name, this id, or both.  Without a name and an id,
// asks for all services.
struct FindServices {
  static constexpr Type kType = Type::kFindServices;
  PortId port{};
  bool by_name = false;
  ServiceName name{};
  bool by_id = false;
  ServiceId service_id{};
  Duration timeout{};
  void fields(auto& a) { a(port.device, port.number, by_name, name, by_id, service_id, timeout); }
};

struct ServicesFound {
  static constexpr Type kType = Type::kServicesFound;
  std::vector<Service> services{};  // kServicesPerReply at most
  std::uint32_t omitted = 0;        // the number of services that did not fit into the reply
  friend bool operator==(const ServicesFound&, const ServicesFound&) = default;
  void fields(auto& a) { a(services, omitted); }
};

// Registers a service with the SA.  The agent renews the registration before its lease ends.  The
// agent removes the registration when the program requests that or ends.  If the SA refuses several
// renewals in a row, the registration ends, and a UserNotice reports this.
struct AddService {
  static constexpr Type kType = Type::kAddService;
  PortId port{};
  Service service{};
  void fields(auto& a) { a(port.device, port.number, service); }
};

struct ServiceAdded {
  static constexpr Type kType = Type::kServiceAdded;
  std::uint64_t registration = 0;  // identifies the registration; never 0
  void fields(auto& a) { a(registration); }
};

// Removes the registration of an AddService.
struct RemoveService {
  static constexpr Type kType = Type::kRemoveService;
  std::uint64_t registration = 0;
  void fields(auto& a) { a(registration); }
};

}  // namespace verbena::ipc
