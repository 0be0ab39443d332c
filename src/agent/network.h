#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/captures.h"
#include "base/error.h"
#include "base/random.h"
#include "ipc/counters.h"
#include "ipc/lane_messages.h"
#include "link/burst.h"
#include "link/framing.h"
#include "node/node.h"

namespace verbena::agent {

// Connects an agent's node with a network.  An agent of this machine uses the kernel's network
// (KernelNetwork), and an agent of a virtual host uses the network of its fabric.  Only one thread
// may use it.
class Network {
 public:
  // Receives reports of what happens in the network.  The user may call the network from inside
  // these functions.
  class User {
   public:
    virtual void addresses_changed(const std::vector<node::HostAddress>& addresses) = 0;
    // `down_reason` is the reason why no port of the host works.  If the ports work, there is no
    // reason, and `reach` tells which hosts the programs can reach.
    virtual void port_changed(const std::optional<std::string>& down_reason,
                              const ipc::Reach& reach) = 0;
    void port_changed(const std::optional<std::string>& down_reason) {
      port_changed(down_reason, {});
    }
    // Reports the state of one port of the host.  REQUIRES: the host has the port
    // (Identity::devices).
    virtual void port_state_changed(PortId port, const node::PortState& state) = 0;
    // Handles packets for QP1 of the host that have arrived.
    virtual void arrived(std::span<const link::Arrival> arrivals) = 0;
    // Handles the answer to a query for which route() returned nothing.
    virtual void on_route(std::uint64_t token, const Result<node::HostRoute>& route) = 0;
    // Sends the user of a program a message that explains why something does not work
    // (ipc::UserNotice).
    virtual void notify_user(node::ClientId client, const std::string& text) = 0;
    virtual Captures& captures() = 0;
    virtual void log(std::string_view text) = 0;

   protected:
    ~User() = default;
  };
  using Answer = std::optional<Result<node::HostRoute>>;

  // Describes the host to the programs and to its peers.
  struct Identity {
    Guid node_guid{};
    std::vector<node::DeviceConfig> devices{};  // empty: see node::Node::Config
    sa::Client::Config sa{};                    // for InfiniBand ports
  };

  Network() = default;
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;
  virtual ~Network() = default;

  virtual Identity identity() const = 0;
  // Opens the network.  Reports the host's addresses and the state of its port to `user`, now and
  // after each change.  REQUIRES: `user` is not destroyed before close().
  virtual void open(User& user) = 0;
  // Closes all sockets.  After this call no packets arrive.
  virtual void close() = 0;
  // Returns true if packets can be sent.
  virtual bool is_open() const = 0;
  // Describes the state of the port for the log.
  virtual std::string state() const = 0;
  // Tries at once to open a port that is down.
  virtual void retry_port() {}

  // Sends the burst.  A network may leave packets to this host itself to the caller: it returns
  // these packets.  They are valid until the burst is cleared.  If the port is down, the burst is
  // lost.
  virtual std::span<const link::Arrival> send(link::Burst& burst, Time now) = 0;
  // Returns the answer to a query.  Returns nothing if User::on_route() will get the answer later.
  virtual Answer route(const node::Node::RouteRequest& request) = 0;

  // Leases a range of QP numbers for a program; `request.avoid` lists ranges that must not be
  // leased.
  virtual Result<std::uint16_t> lease(Random& random, const node::Node::LeaseRequest& request) = 0;
  // Frees a range whose quiesce time is over.
  virtual void release(std::uint16_t range) = 0;
  // Returns the data sockets of a range.  The caller passes them to the range's program and then
  // calls release_passed_descriptors().
  virtual std::vector<int> sockets_of(std::uint16_t range) const = 0;
  // Releases the descriptors of sockets_of() and attach().  Call it after they were passed to the
  // program.
  virtual void release_passed_descriptors(std::uint16_t range) = 0;
  // Lets packets for the range reach the program.  Makes an uplink if the program needs one and has
  // none.  Returns the descriptors of a new uplink in the order of ipc::Lane, or no descriptors.
  // They are valid until release_passed_descriptors().
  //
  // The descriptors are the memory, `wake` (an eventfd that wakes the program) and an eventfd that
  // wakes this process.  There is no `wake` if the program belongs to another user than this
  // process; the descriptors are then the memory and a socket that wakes in both directions.
  virtual Result<std::vector<int>> attach(node::ClientId /*client*/, std::uint16_t /*range*/,
                                          std::optional<int> /*wake*/) {
    return std::vector<int>();
  }
  // Removes the uplink of a program.
  virtual void detach(node::ClientId /*client*/) {}
  // Makes the range a member of a multicast group on exactly these interfaces.
  virtual Result<void> set_members(std::uint16_t range, const Gid& group,
                                   std::span<const std::uint32_t> interfaces) = 0;

  virtual std::size_t leases() const = 0;
  virtual void add_counters(std::vector<ipc::NamedCount>& out) const = 0;
};

}  // namespace verbena::agent
