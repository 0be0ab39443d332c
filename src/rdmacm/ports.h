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

// Who holds which port of which address, in each port space.
//
// Two ids may hold the same port if
//  * they are of different families and both are family-only (an IPv6 wildcard that is not also
//    takes IPv4's place), or of different addresses and neither is a wildcard; or
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

  std::size_t size() const { return holders_.size(); }

 private:
  using Key = std::pair<std::uint16_t, std::uint16_t>;  // space, port
  struct Place {
    Key key{};
    IdHandle id{};
    friend auto operator<=>(const Place&, const Place&) = default;
  };
  bool free(Key key, IdHandle id, const Holder& holder) const;
  bool anyone_listens(Key key) const;

  std::map<Place, Holder> holders_;
};

}  // namespace verbena::rdmacm
