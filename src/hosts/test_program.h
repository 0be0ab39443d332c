#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "agent/uplinks.h"

namespace verbena::hosts {

// Simulates a program at the other end of an uplink, for tests.
class TestProgram {
 public:
  TestProgram(agent::Uplinks& uplinks, const agent::ProgramId& id, Random& random)
      : range_(uplinks.lease(id.first, random, {}).value()),
        memory_(map(uplinks.attach(id, range_, wake_.fd()).value())),
        lane_(link::Lane::attach(memory_.bytes(), link::Lane::Side::kFirst).value()) {
    uplinks.release_passed_descriptors();
  }

  std::uint16_t range() const { return range_; }
  Qpn qpn() const { return {static_cast<std::uint32_t>(range_) << 12 | 5}; }
  std::span<std::byte> memory() { return memory_.bytes(); }
  // Returns true if the program must wake the switch, because the switch waits for the space that
  // the last receive() has freed.
  bool wakes_switch() const { return wakes_switch_; }

  // Sends a packet.  Returns false if the uplink is full.
  bool send(const link::Address& address, std::span<const std::byte> transport) {
    if (!lane_.prepare(address)) return false;
    std::ranges::copy(transport, lane_.packet_space().begin());
    lane_.commit(transport.size());
    return true;
  }
  // Receives all packets that have arrived, and returns their addresses.
  std::vector<link::Address> receive() {
    std::vector<link::Address> all;
    lane_.receive(100000, [&](const link::Arrival& arrival) { all.push_back(arrival.address); });
    wakes_switch_ = lane_.finish();
    return all;
  }

 private:
  static os::Mapping map(const std::vector<int>& fds) {
    VB_CHECK(fds.size() == 3);
    return os::map_shared(fds[0], link::Lane::kBytes, link::Lane::kBytes, true).value();
  }

  std::uint16_t range_;
  bool wakes_switch_ = false;
  os::WakeFd wake_ = os::WakeFd::create().value();
  os::Mapping memory_;
  link::Lane lane_;
};

}  // namespace verbena::hosts
