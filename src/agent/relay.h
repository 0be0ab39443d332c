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

// Forwards the packets of programs of other users between their uplinks and UDP.  Such a program
// gets no socket of port 4791, because with it the program could steal the packets of other
// programs (SO_DETACH_REUSEPORT_BPF).  Instead, the relay owns the sockets of the program's range,
// and copies each packet between them and the uplink.  Packets between two programs of this host
// bypass the relay as soon as the two programs have a lane.
//
// Only the loop's thread uses it.
class Relay final : private Uplinks::Reader {
 public:
  // kSystem: this process can open no more descriptors.
  static Result<std::unique_ptr<Relay>> create(asio::io_context& loop);
  ~Relay() = default;
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // Passes packets that arrive on the sockets of a range to the program.  If the program has no
  // uplink, makes one and returns its descriptors (Network::attach()).  Fails as Uplinks::attach()
  // and UdpReceiver::create() do.
  Result<std::vector<int>> attach(node::ClientId client, os::RocePort::Lease sockets);
  void release_passed_descriptors() { uplinks_->release_passed_descriptors(); }
  // Removes the uplink of a program.  Packets for the program's ranges are dropped until the ranges
  // are released.
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
    std::uint64_t malformed = 0;   // records of programs that are not valid packets
    std::uint64_t damaged = 0;     // datagrams with a wrong length or ICRC
    std::uint64_t no_program = 0;  // packets for a program that has disconnected
  };

  explicit Relay(asio::io_context& loop) : loop_(loop), poll_later_(loop, [this] { poll(); }) {}

  static ProgramId program_of(node::ClientId client) { return {0, client}; }
  bool pass(const ProgramId& from, const link::Arrival& arrival, Time now, bool may_wait) override;
  void poll();
  void receive(Range& range);
  void send();

  asio::io_context& loop_;
  std::unique_ptr<Uplinks> uplinks_{};
  std::map<std::uint16_t, Range> ranges_{};
  os::UdpSender sender_{};
  link::Burst burst_{};
  Counters counters_{};
  DeferredCall poll_later_;
};

}  // namespace verbena::agent
