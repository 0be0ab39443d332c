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

// What the hosts of a run share: virtual time, the wire between them, and the picture of all that
// happened.  One seed decides everything.
//
// Packets are real ones: sealed with their ICRC when sent, opened where they arrive.
class Network {
 public:
  struct Config {
    std::uint64_t seed = 0;
    sim::Faults wire{};
    sim::Faults loopback{.delay_min = std::chrono::microseconds(2),
                         .delay_max = std::chrono::microseconds(2)};
    // Of a message between program and agent, of a lease, of a look at the routing table.
    Duration ipc_min = std::chrono::microseconds(5);
    Duration ipc_max = std::chrono::microseconds(5);
  };

  explicit Network(const Config& config);
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // A host with one address on one interface, and loopback: IPv4 10.0.0.n or IPv6 fd00::n, n
  // from 1.
  Host& add_host(const std::string& name, bool ipv6 = false);
  const std::vector<std::unique_ptr<Host>>& hosts() const { return hosts_; }
  static Gid address(std::uint32_t number, bool ipv6 = false);

  Time now() const { return world.now(); }
  void run(Duration time) { world.run_until(world.now() + time); }
  // Until done() says so, looked at after each step; false: not within `limit`.
  bool run_until(auto&& done, Duration limit) {
    const Time end = world.now() + limit;
    while (!done()) {
      if (!world.step(end)) return done();
    }
    return true;
  }

  // The next so many packets of this name (packet_name.h) get lost, wherever they are sent.
  void lose(const std::string& name, int count = 1) { losing_[name] += count; }
  // From now on, on the wire and within hosts.
  void stop_faults();
  sim::FaultyWire& wire() { return wire_; }

  // What the burst holds goes out, and the burst is empty.  `who` sends it, for the diagram.
  void send(Host& from, const std::string& who, link::Burst& burst);
  link::Burst& burst() { return burst_; }

  void complain(const std::string& who, const std::string& what);
  const std::vector<std::string>& complaints() const { return complaints_; }

  const Config config;
  sim::World world{};
  sim::Diagram diagram{};
  std::uint64_t packets = 0;

 private:
  void send(Host& from, const std::string& who, const link::Flow& flow,
            std::span<std::byte> datagram);
  struct Passing {
    const std::string& who;
    std::string name;
    bool lost;
    const link::Flow& flow;
    std::span<const std::byte> datagram;
  };
  void pass(const Passing& packet, Host& from, Host* to);
  Host* host_with(const Gid& gid);
  bool is_to_lose(const std::string& name);

  Random random_;
  sim::FaultyWire wire_;
  std::vector<std::unique_ptr<Host>> hosts_{};
  link::Burst burst_{};
  std::map<std::string, int> losing_{};
  std::vector<std::string> complaints_{};
};

}  // namespace verbena::fabric
