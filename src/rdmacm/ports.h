#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "rdmacm/types.h"

namespace verbena::rdmacm {

inline constexpr std::uint16_t kEphemeralFirst = 32768;
inline constexpr std::uint16_t kEphemeralLast = 60999;

// No address, only a port.
bool is_wildcard(const SocketAddress& address);

// Any of 127/8.
bool is_loopback_ipv4(const Gid& ip);
// 127.0.0.1 or ::1.
Gid loopback(std::uint8_t family);

// A wildcard or a loopback IP address: binding to it names no device, and a listener there hears
// all addresses of its family.  Linux does so (cma_any_addr()), and programs count on it: libfabric
// offers its peers each address that names a device, and 127.0.0.1 leads nobody here.
bool names_no_device(const SocketAddress& address);

// Who holds which port of which address, in each port space.
//
// Two ids may hold the same port if
//  * they are of different families and both are family-only (an IPv6 wildcard that is not also
//    takes IPv4's place), or of different addresses and neither is a wildcard, which loopback
//    addresses are, too; or
//  * both said REUSEADDR, and not both listen on the same address.
// A specific listener is found before a wildcard one.
class Ports {
 public:
  struct Holder {
    SocketAddress address{};
    bool reuse = false;
    bool af_only = false;
    bool listening = false;
  };

  // kAddressInUse if another one is in the way.  REQUIRES: port != 0.
  Result<void> take(std::uint16_t space, IdHandle id, const Holder& holder);
  // The same with a free port of the ephemeral range, begun anywhere; the port is returned.
  Result<std::uint16_t> take_any(std::uint16_t space, IdHandle id, Holder holder, Random& random);
  // Turns a holder into a listener; true if it is the first on this port.
  Result<bool> listen(std::uint16_t space, std::uint16_t port, IdHandle id);
  void unlisten(std::uint16_t space, std::uint16_t port, IdHandle id);
  // True if it was the last listener of this port.
  bool release(std::uint16_t space, std::uint16_t port, IdHandle id);

  // Whose request is this?
  std::optional<IdHandle> listener(std::uint16_t space, std::uint16_t port, const Gid& ip,
                                   std::uint32_t interface) const;

  // Why take() or listen() would say kAddressInUse: an id that holds the port already.
  std::optional<IdHandle> in_the_way(std::uint16_t space, IdHandle id, const Holder& holder) const;

  std::size_t size() const { return holders_.size(); }

 private:
  using Key = std::pair<std::uint16_t, std::uint16_t>;  // space, port
  struct Place {
    Key key{};
    IdHandle id{};
    friend auto operator<=>(const Place&, const Place&) = default;
  };
  bool anyone_listens(Key key) const;

  std::map<Place, Holder> holders_;
};

}  // namespace verbena::rdmacm
