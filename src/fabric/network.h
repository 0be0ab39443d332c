#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/time.h"
#include "fabric/host.h"
#include "link/burst.h"
#include "sim/diagram.h"
#include "sim/faults.h"
#include "sim/world.h"

namespace verbena::fabric {

// Owns everything that the hosts of a run share: virtual time, the wire between them, and the
// diagram of all events.  One seed decides the whole run.
//
// Packets are real: their ICRC is written when they are sent, and checked when they arrive.
class Network {
 public:
  struct Config {
    std::uint64_t seed = 0;
    sim::Faults wire{};
    sim::Faults loopback{.delay_min = std::chrono::microseconds(2),
                         .delay_max = std::chrono::microseconds(2)};
    // These are the shortest and the longest time for a message between program and agent, a lease
    // or a route query.
    Duration ipc_min = std::chrono::microseconds(5);
    Duration ipc_max = std::chrono::microseconds(5);
    bool lanes = false;  // programs use lanes to programs of their host
  };

  explicit Network(const Config& config);
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // Adds a host with loopback and one other interface.  That interface has one address: 10.0.0.n or
  // fd00::n, where n counts the hosts from 1.
  Host& add_host(const std::string& name, bool ipv6 = false);
  // Adds a host with other devices or addresses.
  Host& add_host(const Host::Config& config);
  const std::vector<std::unique_ptr<Host>>& hosts() const { return hosts_; }
  static Gid address(std::uint32_t number, bool ipv6 = false);

  Time now() const { return world.now(); }
  void run(Duration time) { world.run_until(world.now() + time); }
  // Runs until done() returns true; calls it after each step.  Returns false if that takes longer
  // than `limit`.
  bool run_until(auto&& done, Duration limit) {
    const Time end = world.now() + limit;
    while (!done()) {
      if (!world.step(end)) return done();
    }
    return true;
  }

  // Loses the next `count` packets with this name (packet_name.h), whoever sends them.
  void lose(const std::string& name, int count = 1) { packets_to_lose_[name] += count; }
  // Stops all faults, on the wire and within hosts.
  void stop_faults();
  sim::FaultyWire& wire() { return wire_; }

  // Sends the packets of the burst and empties it.  The diagram names `who` as the sender.
  void send(Host& from, const std::string& who, link::Burst& burst);
  link::Burst& burst() { return burst_; }

  // Reports a violation of a guarantee of the stack: the run has failed.
  void report_violation(const std::string& who, const std::string& what);
  const std::vector<std::string>& violations() const { return violations_; }

  const Config config;
  sim::World world{};
  sim::Diagram diagram{};
  std::uint64_t packets = 0;

 private:
  void send(Host& from, const std::string& who, const link::Address& address,
            std::span<std::byte> datagram);
  struct PacketInFlight {
    const std::string& who;
    std::string name;
    bool lost;
    const link::Address& address;
    std::span<const std::byte> datagram;
  };
  void deliver(const PacketInFlight& packet, Host& from, Host* to);
  Host* host_with(const Gid& gid);
  bool must_lose(const std::string& name);

  Random random_;
  sim::FaultyWire wire_;
  std::vector<std::unique_ptr<Host>> hosts_{};
  link::Burst burst_{};
  std::map<std::string, int> packets_to_lose_{};
  std::vector<std::string> violations_{};
};

}  // namespace verbena::fabric
