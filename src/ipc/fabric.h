#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/strong.h"
#include "faults/fault.h"
#include "ipc/counters.h"
#include "ipc/messages.h"

// Defines the messages between the command line tool and the process of a fabric of virtual hosts.
// The connection begins with Hello, as with an agent; Stop ends the fabric.
namespace verbena::ipc {

// Limits the hosts in one reply.  The description of each host has about 4 KiB at most.
inline constexpr std::uint32_t kHostsPerReply = 8;

// Asks for a page of the hosts.  The page begins with number `first_host` in the fabric's file.
struct ShowFabric {
  static constexpr Type kType = Type::kShowFabric;
  std::uint32_t first_host = 0;
  void fields(auto& a) { a(first_host); }
};

// Describes a network device (a rail) of a host.
struct RailStatus {
  std::string device{};
  std::string network{};
  std::uint16_t vlan = 0;
  std::uint32_t mtu_bytes = 0;
  std::vector<Gid> addresses{};
  std::vector<Pkey> pkeys{};
  void fields(auto& a) { a(device, network, vlan, mtu_bytes, addresses, pkeys); }
};

struct HostStatus {
  std::string name{};
  std::string description{};   // the NodeDescription of an HCA of a subnet
  Guid guid{};                 // its node GUID, or 0
  std::uint32_t programs = 0;  // the number of programs that run on the host
  std::vector<RailStatus> rails{};
  void fields(auto& a) { a(name, description, guid, programs, rails); }
};

// Describes a subnet manager that the fabric runs.
struct ManagerStatus {
  std::string node{};
  std::uint32_t pid = 0;
  std::string state{};      // one or more words for the user, such as "master"
  std::string directory{};  // the directory of its files
  void fields(auto& a) { a(node, pid, state, directory); }
};

// Describes a fault that a user has set.  `what` names the link or node, for example
// "link a:verbena0 - red".  `state` describes the fault, for example "is down".
struct FaultStatus {
  std::string what{};
  std::string state{};
  void fields(auto& a) { a(what, state); }
};

// Limits the faults in a reply.  faults_left_out counts the others.
inline constexpr std::size_t kFaultsShownMax = 100;

struct FabricReply {
  static constexpr Type kType = Type::kFabricReply;
  std::uint32_t pid = 0;
  std::string name{};
  std::string file{};
  Duration uptime{};
  bool more = false;  // there are hosts after those in `hosts`
  std::vector<HostStatus> hosts{};
  std::vector<NamedCount> counters{};
  std::vector<ManagerStatus> managers{};
  std::vector<FaultStatus> faults{};
  std::uint32_t faults_left_out = 0;
  void fields(auto& a) {
    a(pid, name, file, uptime, more, hosts, counters, managers, faults, faults_left_out);
  }
};

// Sets a fault of a link or a node of the fabric, or ends the fault.
struct SetFault {
  static constexpr Type kType = Type::kSetFault;
  faults::Fault fault{};
  void fields(auto& x) {
    x(fault.kind, fault.a, fault.b, fault.lost_per_million, fault.delay, fault.down, fault.up,
      fault.mtu_bytes, fault.pkey, fault.has_seed, fault.seed);
  }
};

struct FaultReply {
  static constexpr Type kType = Type::kFaultReply;
  std::string problem{};  // empty: the fault was set
  std::string text{};     // the new state of the link or node
  void fields(auto& a) { a(problem, text); }
};

// Asks for the network interfaces that the programs on a host see.
struct ShowInterfaces {
  static constexpr Type kType = Type::kShowInterfaces;
  std::string host{};
  void fields(auto& a) { a(host); }
};

struct InterfacesReply {
  static constexpr Type kType = Type::kInterfacesReply;
  std::string text{};  // written by interfaces::to_text()
  void fields(auto& a) { a(text); }
};

// Limits the time that a tool may wait for a subnet.
inline constexpr Duration kAwaitSubnetMax = std::chrono::hours(1);

// Waits until the subnet managers have brought the subnet up, or until they have failed, but no
// longer than `limit`.
struct AwaitSubnet {
  static constexpr Type kType = Type::kAwaitSubnet;
  Duration limit{};
  void fields(auto& a) { a(limit); }
};

struct SubnetState {
  static constexpr Type kType = Type::kSubnetState;
  std::string problem{};  // empty: the subnet is up
  void fields(auto& a) { a(problem); }
};

// Asks for lines of the fabric's log, beginning with number `first_line`.
struct ShowLog {
  static constexpr Type kType = Type::kShowLog;
  std::uint64_t first_line = 0;
  void fields(auto& a) { a(first_line); }
};

// Limits the lines in one reply, because each line may have kTextBytesMax bytes.
inline constexpr std::size_t kLinesPerReply = 48;

struct LogReply {
  static constexpr Type kType = Type::kLogReply;
  std::uint64_t next_line = 0;  // the number of the line after `lines`
  bool more = false;            // there are lines after `lines`
  std::vector<std::string> lines{};
  void fields(auto& a) { a(next_line, more, lines); }
};

}  // namespace verbena::ipc
