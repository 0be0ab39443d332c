#include "rdmacm/ports.h"

#include "wire/ip.h"
#include "wire/loopback.h"

namespace verbena::rdmacm {

namespace {

bool same_address(const SocketAddress& a, const SocketAddress& b) {
  return a.ip == b.ip && (a.scope == b.scope || a.scope == 0 || b.scope == 0);
}

// Returns true if a request could match both reservations.
bool overlap(const Ports::Reservation& a, const Ports::Reservation& b) {
  if (a.address.family == b.address.family) {
    return names_no_device(a.address) || names_no_device(b.address) ||
           same_address(a.address, b.address);
  }
  const Ports::Reservation& ipv6 = a.address.family == 6 ? a : b;
  return names_no_device(ipv6.address) && !ipv6.af_only;
}

}  // namespace

bool is_wildcard(const SocketAddress& address) {
  return address.ip == Gid{} || address.ip == wire::ipv4_gid(0);
}

Gid loopback(std::uint8_t family) {
  return family == 4 ? wire::kLoopbackIpv4 : wire::kLoopbackIpv6;
}

bool names_no_device(const SocketAddress& address) {
  if (is_wildcard(address)) return true;
  return !address.by_gid && (wire::is_loopback_ipv4(address.ip) || address.ip == loopback(6));
}

std::optional<IdHandle> Ports::find_conflict(std::uint16_t space, IdHandle id,
                                             const Reservation& reservation) const {
  const Key key{space, reservation.address.port};
  for (auto at = reservations_.lower_bound({key, IdHandle{}});
       at != reservations_.end() && at->first.key == key; ++at) {
    const Reservation& other = at->second;
    if (at->first.id == id || !overlap(reservation, other)) continue;
    const bool may_share = reservation.reuse && other.reuse;
    const bool has_same_address = reservation.address.family == other.address.family &&
                                  same_address(reservation.address, other.address);
    if (!may_share || (has_same_address && reservation.listening && other.listening))
      return at->first.id;
  }
  return std::nullopt;
}

Result<void> Ports::bind(std::uint16_t space, IdHandle id, const Reservation& reservation) {
  VB_CHECK(reservation.address.port != 0);
  const Key key{space, reservation.address.port};
  if (find_conflict(space, id, reservation)) return fail(Errc::kAddressInUse, "the port is in use");
  reservations_.insert_or_assign(ReservationKey{key, id}, reservation);
  return {};
}

Result<std::uint16_t> Ports::bind_ephemeral(std::uint16_t space, IdHandle id,
                                            Reservation reservation, Random& random) {
  constexpr std::uint32_t kCount = kEphemeralLast - kEphemeralFirst + 1;
  const auto start = static_cast<std::uint32_t>(random.below(kCount));
  for (std::uint32_t i = 0; i < kCount; ++i) {
    const auto port = static_cast<std::uint16_t>(kEphemeralFirst + (start + i) % kCount);
    const Key key{space, port};
    // An ephemeral port is never shared, so a port with any reservation is taken.
    const auto at = reservations_.lower_bound({key, IdHandle{}});
    if (at != reservations_.end() && at->first.key == key) continue;
    reservation.address.port = port;
    reservations_.emplace(ReservationKey{key, id}, reservation);
    return port;
  }
  return fail(Errc::kAddressInUse, "all ephemeral ports are in use");
}

Result<bool> Ports::listen(std::uint16_t space, std::uint16_t port, IdHandle id) {
  const Key key{space, port};
  const auto entry = reservations_.find(ReservationKey{key, id});
  VB_CHECK(entry != reservations_.end());
  Reservation listener_entry = entry->second;
  listener_entry.listening = true;
  if (find_conflict(space, id, listener_entry))
    return fail(Errc::kAddressInUse, "the port is in use");
  const bool is_first = !has_listener(key);
  entry->second = listener_entry;
  return is_first;
}

void Ports::unlisten(std::uint16_t space, std::uint16_t port, IdHandle id) {
  const auto entry = reservations_.find(ReservationKey{{space, port}, id});
  if (entry != reservations_.end()) entry->second.listening = false;
}

bool Ports::release(std::uint16_t space, std::uint16_t port, IdHandle id) {
  const Key key{space, port};
  const auto entry = reservations_.find(ReservationKey{key, id});
  if (entry == reservations_.end()) return false;
  const bool was_listening = entry->second.listening;
  reservations_.erase(entry);
  return was_listening && !has_listener(key);
}

bool Ports::is_reserved(std::uint16_t space, std::uint16_t port) const {
  const Key key{space, port};
  const auto first = reservations_.lower_bound({key, IdHandle{}});
  return first != reservations_.end() && first->first.key == key;
}

bool Ports::has_listener(Key key) const {
  for (auto at = reservations_.lower_bound({key, IdHandle{}});
       at != reservations_.end() && at->first.key == key; ++at) {
    if (at->second.listening) return true;
  }
  return false;
}

std::optional<IdHandle> Ports::listener(std::uint16_t space, std::uint16_t port, const Gid& ip,
                                        std::uint32_t interface) const {
  const SocketAddress address{
      .ip = ip, .scope = interface, .family = static_cast<std::uint8_t>(wire::is_ipv4(ip) ? 4 : 6)};
  const Key key{space, port};
  std::optional<IdHandle> found;
  int found_rank = 0;  // 3: same address, 2: wildcard of its family, 1: IPv6 wildcard for IPv4
  for (auto at = reservations_.lower_bound({key, IdHandle{}});
       at != reservations_.end() && at->first.key == key; ++at) {
    const Reservation& reservation = at->second;
    if (!reservation.listening) continue;
    int rank = 0;
    if (!names_no_device(reservation.address)) {
      rank = same_address(reservation.address, address) ? 3 : 0;
    } else if (reservation.address.family == address.family) {
      rank = 2;
    } else if (reservation.address.family == 6 && !reservation.af_only) {
      rank = 1;
    }
    if (rank > found_rank) {
      found_rank = rank;
      found = at->first.id;
    }
  }
  return found;
}

}  // namespace verbena::rdmacm
