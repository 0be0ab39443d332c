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
// diagram of all events.  One seed determines the whole run.
//
// Packets are real: the sender writes the ICRC, and the receiver checks it.
class Network {
 public:
  struct Config {
    std::uint64_t seed = 0;
    sim::Faults wire{};
    sim::Faults loopback{.delay_min = std::chrono::microseconds(2),
                         .delay_max = std::chrono::microseconds(2)};
    // ipc_min and ipc_max are the shortest and the longest time that a message between program and
    // agent, a lease or a route query takes.
    Duration ipc_min = std::chrono::microseconds(5);
    Duration ipc_max = std::chrono::microseconds(5);
    bool lanes = false;  // true: programs of the same host use shared memory (lanes)
  };

  explicit Network(const Config& config);
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // Adds a host with loopback and one other interface.  That interface has one address: 10.0.0.n or
  // fd00::n, where n is 1 for the first host.
  Host& add_host(const std::string& name, bool ipv6 = false);
  // Adds a host with other devices or addresses.
  Host& add_host(const Host::Config& config);
  const std::vector<std::unique_ptr<Host>>& hosts() const { return hosts_; }
  static Gid address(std::uint32_t number, bool ipv6 = false);

  Time now() const { return world.now(); }
  void run(Duration time) { world.run_until(world.now() + time); }
  // Runs until done() returns true, but at most for the time `limit`.  Calls done() after each
  // step, and returns its last result.
  bool run_until(auto&& done, Duration limit) {
    const Time end = world.now() + limit;
    while (!done()) {
      if (!world.step(end)) return done();
    }
    return true;
  }

  // Drops the next `count` packets with this name (packet_name.h) from any sender.
  void lose(const std::string& name, int count = 1) { packets_to_lose_[name] += count; }
  // Stops all faults, on the wire and within hosts.
  void stop_faults();
  sim::FaultyWire& wire() { return wire_; }

  // Sends the packets of the burst and empties it.  The diagram shows `sender` as their sender.
  void send(Host& from, const std::string& sender, link::Burst& burst);
  link::Burst& burst() { return burst_; }

  // Reports that the stack has violated a guarantee, which means that the run has failed.
  void report_violation(const std::string& reporter, const std::string& what);
  const std::vector<std::string>& violations() const { return violations_; }

  const Config config;
  sim::World world{};
  sim::Diagram diagram{};
  std::uint64_t packet_count = 0;

 private:
  void send(Host& from, const std::string& sender, const link::Address& address,
            std::span<std::byte> datagram);
  struct PacketInFlight {
    const std::string& sender;
    std::string name;
    bool lost;
    const link::Address& address;
    std::span<const std::byte> datagram;
  };
  void deliver(const PacketInFlight& packet, Host& from, Host* to);
  Host* host_with(const Gid& gid);
  bool should_lose(const std::string& name);

  Random random_;
  sim::FaultyWire wire_;
  std::vector<std::unique_ptr<Host>> hosts_{};
  link::Burst burst_{};
  std::map<std::string, int> packets_to_lose_{};
  std::vector<std::string> violations_{};
};

}  // namespace verbena::fabric
