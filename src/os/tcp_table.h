#pragma once

#include <array>
#include <cstdint>

#include "base/error.h"
#include "os/netlink.h"

namespace verbena::os {

// Looks up TCP sockets of this network namespace in the kernel's table (sock_diag(7)).  Needs no
// privilege.  Only one thread may use it.
class TcpTable {
 public:
  // Describes one end of a connection: an address, and a port in host byte order.  IPv4 addresses
  // are mapped (::ffff:a.b.c.d).
  struct Name {
    std::array<std::uint8_t, 16> address{};
    std::uint16_t port = 0;
  };
  struct Socket {
    std::uint64_t cookie = 0;  // as SO_COOKIE returns it
    bool held = false;         // a process still has a descriptor of the socket
    std::uint32_t uid = 0;     // the user who created or accepted the socket
  };

  static Result<TcpTable> open();

  // Finds the connected socket with exactly this local name and this peer name.  kAddressNotFound:
  // there is no such socket.
  Result<Socket> find(const Name& local, const Name& peer);

 private:
  explicit TcpTable(Netlink netlink) : netlink_(std::move(netlink)) {}

  Netlink netlink_;
};

}  // namespace verbena::os
