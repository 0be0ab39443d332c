#pragma once

#include <array>
#include <asio/io_context.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "agent/uplinks.h"
#include "agent/watch.h"
#include "base/error.h"
#include "ipc/counters.h"
#include "link/burst.h"
#include "os/roce_port.h"
#include "os/udp_link.h"

namespace verbena::agent {

// Carries the packets of programs of other users between their uplinks and UDP.  Such a program
// gets no socket of port 4791, with which it could take away the packets of others
// (SO_DETACH_REUSEPORT_BPF).  The agent keeps the sockets of its range, and copies each packet.
// Programs of this host use a lane as soon as it is set up.  Then their packets do not pass through
// the relay.
//
// Only the loop's thread uses it.
class Relay final : private Uplinks::Reader {
 public:
  // kSystem: there is no descriptor left.
  static Result<std::unique_ptr<Relay>> create(asio::io_context& loop);
  ~Relay() = default;
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // Passes packets that come by the sockets of a range to the program.  If the program has no
  // uplink, makes one and returns its descriptors (Network::attach()).  Fails as Uplinks::attach()
  // and UdpReceiver::create() do.
  Result<std::vector<int>> attach(node::ClientId client, os::RocePort::Lease sockets);
  void passed_on() { uplinks_->passed_on(); }
  // Forgets the uplink of a program.  Packets for its ranges are dropped until the ranges are
  // released.
  void detach(node::ClientId client);
  // Closes the sockets of a range; ignores ranges that have none.
  void release(std::uint16_t range);

  void add_counters(std::vector<ipc::NamedCount>& out) const;

 private:
  struct Range {
    os::RocePort::Lease sockets;
    std::unique_ptr<os::UdpReceiver> receiver;
    std::array<Watch, 2> watches{};
  };
  struct Counters {
    std::uint64_t to_udp = 0;
    std::uint64_t malformed = 0;  // programs wrote something that is not a packet
    std::uint64_t damaged = 0;    // datagrams with a wrong length or ICRC
    std::uint64_t to_nobody = 0;  // packets for a program that has gone
  };

  explicit Relay(asio::io_context& loop) : loop_(loop), turn_later_(loop, [this] { turn(); }) {}

  static ProgramId program_of(node::ClientId client) { return {0, client}; }
  bool pass(const ProgramId& from, const link::Arrival& arrival, Time now, bool may_wait) override;
  void turn();
  void receive(Range& range);
  void send();

  asio::io_context& loop_;
  std::unique_ptr<Uplinks> uplinks_{};
  std::map<std::uint16_t, Range> ranges_{};
  os::UdpSender sender_{};
  link::Burst burst_{};
  Counters counters_{};
  DeferredCall turn_later_;
};

}  // namespace verbena::agent
