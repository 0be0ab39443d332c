#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/strong.h"
#include "os/fd.h"

// The host's addresses and routes, by rtnetlink.  Each call asks anew; kSystem if the kernel does
// not answer.  Any thread.
namespace verbena::os {

// One address of one interface.
struct Interface {
  Gid address{};
  std::uint32_t index = 0;
  std::string name{};
  std::uint32_t mtu_bytes = 0;
  std::array<std::byte, 6> mac{};  // zero where there is none
  bool loopback = false;
  bool up = false;               // and running: with a carrier
  std::uint8_t prefix_bits = 0;  // of the family: 0..32 for IPv4
  bool link_local = false;
  bool default_route = false;  // the interface of the best default route (IPv4's, else IPv6's)
  bool deprecated = false;     // still answers, but should not be chosen for something new

  friend bool operator==(const Interface&, const Interface&) = default;
};

// All addresses, by interface index, and in the kernel's order within one.  IPv6 addresses that are
// tentative or have failed duplicate detection are left out: nobody can send from them yet.
Result<std::vector<Interface>> interfaces();

// An interface itself.
struct NetworkLink {
  std::uint32_t index = 0;
  std::string name{};
  std::uint32_t mtu_bytes = 0;
  std::array<std::byte, 6> mac{};
  bool loopback = false;
  bool up = false;  // as above
};
// All of them, also those without an address, by index.
Result<std::vector<NetworkLink>> network_links();

// A descriptor that becomes readable when links, addresses, routes or the rules about them may have
// changed.
class InterfaceMonitor {
 public:
  static Result<InterfaceMonitor> create();

  int fd() const { return fd_.get(); }
  // Empties it.  Ask interfaces() afterwards.  True if there was something.
  bool drain();

 private:
  explicit InterfaceMonitor(Fd fd) : fd_(std::move(fd)) {}

  Fd fd_;
};

// How the kernel would send to an address.
struct RouteAnswer {
  Gid source{};                 // the one asked for, or the kernel's choice
  std::uint32_t interface = 0;  // the loopback interface for an address of this host
  std::uint32_t mtu = 0;  // bytes of an IP packet: of the route if it says so, else the link's
  bool loopback = false;  // the destination is this host
  std::optional<Gid> gateway{};

  friend bool operator==(const RouteAnswer&, const RouteAnswer&) = default;
};

// `scope` is the interface for link-local and multicast destinations, else 0.  kAddressNotFound: no
// route, or a source that is no address of this host (detail = errno).  Says nothing about whether
// anybody answers there.
Result<RouteAnswer> route_to(const Gid& destination, std::optional<Gid> source,
                             std::uint32_t scope);

}  // namespace verbena::os
