#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "ipc/umad_messages.h"
#include "mad/management_port.h"
#include "subnet/subnet.h"

namespace verbena::umad {

// Identifies a port that a program has opened.
using SessionId = std::uint64_t;

// Serves the programs of one HCA of a simulated subnet that use libibumad, as Linux's ib_umad does.
// Each session (an open port of a program) has up to 32 agents, numbered from 0.  The end of a
// session unregisters its agents, so the death of a program unregisters all its agents.
//
// The class is pure: the owner passes in requests of programs and MADs of the subnet, and pulls
// messages for programs.  MADs of programs go to the subnet at once.  Only one thread may use it.
class Node {
 public:
  static constexpr std::size_t kAgentsPerSession = 32;  // UMAD_CA_MAX_AGENTS
  static constexpr std::size_t kSessionsMax = 1024;
  static_assert(ipc::umad::kMadBytesMax == mad::ManagementPort::kMessageBytesMax);

  // `hca` is the index of the HCA in the topology.  `device` is the name that programs use for the
  // HCA.  REQUIRES: the subnet outlives the node.
  Node(subnet::Subnet& subnet, std::uint32_t hca, std::string device);

  const std::string& device() const { return device_; }
  ipc::umad::Device describe() const;

  // Opens a port for a program.  kInvalidArgument: there is no such device or port.  kNoResources:
  // kSessionsMax ports are open.
  Result<void> open(SessionId session, const std::string& device, std::uint8_t port);
  // Ends a session, and unregisters its agents.  Ignores unknown sessions.
  void close(SessionId session);

  // The next functions handle requests of programs.  A reply has the errno that Linux would return.
  ipc::umad::Reply add_agent(SessionId session, const ipc::umad::Register& request);
  ipc::umad::Reply remove_agent(SessionId session, const ipc::umad::Unregister& request);
  ipc::umad::Reply send(SessionId session, const ipc::umad::UserMad& header,
                        std::span<const std::byte> mad, Time now);

  // Reports that a program has opened or closed the file of a port that marks a subnet manager
  // (SM).  REQUIRES: the HCA has this port.
  void set_sm_file_open(std::uint8_t port, bool is_open, Time now);
  bool has_port(const std::string& device, std::uint8_t port) const;

  // Receives a MAD that has arrived at one of the HCA's ports.
  void receive(const subnet::MadDelivery& arrival, Time now);

  Time deadline() const;
  void on_timer(Time now);

  // Holds a MAD for a program.
  struct Output {
    SessionId session = 0;
    ipc::umad::UserMad header{};
    std::vector<std::byte> mad{};
  };
  // Takes the next MAD for a program; returns nothing if there is none.
  std::optional<Output> next_output();

  // Adds the counters of all ports to `sum`.
  void add_counters(mad::ManagementPort::Counters& sum) const;

 private:
  struct Session {
    std::uint8_t port = 1;
    std::array<mad::AgentNumber, kAgentsPerSession> agents{};
  };
  struct AgentOwner {
    SessionId session = 0;
    std::uint32_t id = 0;
  };
  struct Port {
    mad::ManagementPort mads{};
    std::map<mad::AgentNumber, AgentOwner> owners{};
    unsigned open_sm_files = 0;  // counts the programs that have the port's SM file open
  };

  subnet::PortRef ref(std::uint8_t port) const { return {.node = hca_, .port = port}; }
  Port& port(std::uint8_t number) { return ports_[number - std::size_t{1}]; }
  static Result<mad::Address> address_of(std::uint8_t port, const subnet::PortStatus& status,
                                         const ipc::umad::UserMad& header);
  ipc::umad::UserMad header_of(std::uint8_t port, const mad::Address& from) const;
  // Sends the MADs of programs to the subnet, and stores messages for programs in outputs_.
  void pump(std::uint8_t number, Time now);

  subnet::Subnet& subnet_;
  std::uint32_t hca_;
  std::string device_;
  std::vector<Port> ports_;
  std::map<SessionId, Session> sessions_{};
  std::deque<Output> outputs_{};
};

// Returns the rate of a link in Gbit/s, as Linux shows it.
std::uint32_t rate_of(subnet::LinkWidth width, subnet::LinkSpeed speed);

}  // namespace verbena::umad
