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

// Returns true if the IP address or GID is a wildcard.  The port may be set.
bool is_wildcard(const SocketAddress& address);

// Returns 127.0.0.1 or ::1.
Gid loopback(std::uint8_t family);

// Returns true for a wildcard or a loopback IP address.  Binding to it selects no device, and a
// listener there accepts requests for all addresses of its family.  Linux does the same
// (cma_any_addr()), and programs rely on it: libfabric offers its peers every address that names a
// device.  It must not offer 127.0.0.1, which no peer can reach.
bool names_no_device(const SocketAddress& address);

// Records which ids have reserved which ports of which addresses, in each port space.
//
// Two ids may reserve the same port in two cases:
//  * Their addresses do not overlap.  Addresses of one family overlap if they are equal or if one
//    is a wildcard (loopback addresses count as wildcards).  An IPv6 wildcard also overlaps with
//    IPv4, unless its id is family-only.
//  * Both ids have set REUSEADDR, and they do not both listen on the same address.
//
// listener() prefers a specific address to a wildcard.
class Ports {
 public:
  struct Reservation {
    SocketAddress address{};
    bool reuse = false;
    bool af_only = false;
    bool listening = false;
  };

  // Reserves a port for an id.  kAddressInUse: another id conflicts.  REQUIRES: port != 0.
  Result<void> bind(std::uint16_t space, IdHandle id, const Reservation& reservation);
  // Reserves a free port of the ephemeral range and returns it.  The search begins at a random
  // port.
  Result<std::uint16_t> bind_ephemeral(std::uint16_t space, IdHandle id, Reservation reservation,
                                       Random& random);
  // Marks the id as a listener.  Returns true if it is the first listener on this port.
  // kAddressInUse: another id conflicts.
  Result<bool> listen(std::uint16_t space, std::uint16_t port, IdHandle id);
  void unlisten(std::uint16_t space, std::uint16_t port, IdHandle id);
  // Removes the id's reservation of the port.  Returns true if the id was the last listener of this
  // port.
  bool release(std::uint16_t space, std::uint16_t port, IdHandle id);
  // Returns true if an id has reserved the port.
  bool is_reserved(std::uint16_t space, std::uint16_t port) const;

  // Returns the listener for a request to this port and address, or nullopt if there is none.
  std::optional<IdHandle> listener(std::uint16_t space, std::uint16_t port, const Gid& ip,
                                   std::uint32_t interface) const;

  // Returns the id that conflicts with this reservation: because of it, bind() or listen() would
  // fail with kAddressInUse.  Returns nullopt if there is no such id.
  std::optional<IdHandle> find_conflict(std::uint16_t space, IdHandle id,
                                        const Reservation& reservation) const;

  std::size_t size() const { return reservations_.size(); }

 private:
  using Key = std::pair<std::uint16_t, std::uint16_t>;  // space, port
  struct ReservationKey {
    Key key{};
    IdHandle id{};
    friend auto operator<=>(const ReservationKey&, const ReservationKey&) = default;
  };
  bool has_listener(Key key) const;

  std::map<ReservationKey, Reservation> reservations_;
};

}  // namespace verbena::rdmacm
