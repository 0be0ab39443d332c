#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/strong.h"
#include "os/fd.h"

// Reads the host's addresses and routes from rtnetlink.  Each call queries the kernel again, and
// fails with kSystem if the kernel does not answer.  Any thread may call these functions.
namespace verbena::os {

// Describes one address of one interface.
struct Interface {
  Gid address{};
  std::uint32_t index = 0;
  std::string name{};
  std::uint32_t mtu_bytes = 0;
  std::array<std::byte, 6> mac{};  // zero if the interface has none
  bool loopback = false;
  bool up = false;               // up and running (with a carrier)
  std::uint8_t prefix_bits = 0;  // 0..32 for IPv4, 0..128 for IPv6
  bool link_local = false;
  bool default_route = false;  // packets to the internet leave here (by IPv4, else by IPv6)
  bool deprecated = false;     // the address works, but should not be used for new connections

  friend bool operator==(const Interface&, const Interface&) = default;
};

// Returns all addresses, ordered by interface index and, within one interface, as the kernel orders
// them.  Omits IPv6 addresses that are tentative or have failed duplicate address detection,
// because the kernel does not send from them.
Result<std::vector<Interface>> interfaces();

// Describes one network interface, without its addresses.
struct NetworkLink {
  std::uint32_t index = 0;
  std::string name{};
  std::uint32_t mtu_bytes = 0;
  std::array<std::byte, 6> mac{};
  bool loopback = false;
  bool up = false;  // up and running (with a carrier)
};
// Returns all network interfaces, including those without an address, ordered by index.
Result<std::vector<NetworkLink>> network_links();

// Owns a descriptor that becomes readable when links, addresses, routes or routing rules may have
// changed.
class InterfaceMonitor {
 public:
  static Result<InterfaceMonitor> create();

  int fd() const { return fd_.get(); }
  // Discards all notifications, and returns true if there were any.  Call interfaces() afterwards.
  bool drain();

 private:
  explicit InterfaceMonitor(Fd fd) : fd_(std::move(fd)) {}

  Fd fd_;
};

// Describes how the kernel would send to an address.
struct RouteAnswer {
  Gid source{};                 // the requested source, or the kernel's choice
  std::uint32_t interface = 0;  // for an address of this host: the loopback interface
  std::uint32_t mtu = 0;        // bytes of an IP packet: the route's MTU, else the link's
  bool loopback = false;        // the destination is this host
  std::optional<Gid> gateway{};

  friend bool operator==(const RouteAnswer&, const RouteAnswer&) = default;
};

// Requests the route to an address from the kernel.  `scope` is the interface for link-local and
// multicast destinations, else 0.  kAddressNotFound: there is no route, or this host does not have
// the source address (detail = errno).  For IPv6, the kernel does not check the source address.
// Success does not mean that the destination answers.
Result<RouteAnswer> route_to(const Gid& destination, std::optional<Gid> source,
                             std::uint32_t scope);

}  // namespace verbena::os
