#include "rdmacm/ports.h"

#include "wire/ip.h"
#include "wire/loopback.h"

namespace verbena::rdmacm {

namespace {

bool same_address(const SocketAddress& a, const SocketAddress& b) {
  return a.ip == b.ip && (a.scope == b.scope || a.scope == 0 || b.scope == 0);
}

// Returns true if a request could be for both holders.
bool overlap(const Ports::Holder& a, const Ports::Holder& b) {
  if (a.address.family == b.address.family) {
    return names_no_device(a.address) || names_no_device(b.address) ||
           same_address(a.address, b.address);
  }
  const Ports::Holder& ipv6 = a.address.family == 6 ? a : b;
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
                                             const Holder& holder) const {
  const Key key{space, holder.address.port};
  for (auto at = holders_.lower_bound({key, IdHandle{}});
       at != holders_.end() && at->first.key == key; ++at) {
    const Holder& other = at->second;
    if (at->first.id == id || !overlap(holder, other)) continue;
    const bool share = holder.reuse && other.reuse;
    const bool same = holder.address.family == other.address.family &&
                      same_address(holder.address, other.address);
    if (!share || (same && holder.listening && other.listening)) return at->first.id;
  }
  return std::nullopt;
}

Result<void> Ports::bind(std::uint16_t space, IdHandle id, const Holder& holder) {
  VB_CHECK(holder.address.port != 0);
  const Key key{space, holder.address.port};
  if (find_conflict(space, id, holder)) return fail(Errc::kAddressInUse, "the port is in use");
  holders_.insert_or_assign(HolderKey{key, id}, holder);
  return {};
}

Result<std::uint16_t> Ports::bind_ephemeral(std::uint16_t space, IdHandle id, Holder holder,
                                            Random& random) {
  constexpr std::uint32_t kCount = kEphemeralLast - kEphemeralFirst + 1;
  const auto start = static_cast<std::uint32_t>(random.below(kCount));
  for (std::uint32_t i = 0; i < kCount; ++i) {
    const auto port = static_cast<std::uint16_t>(kEphemeralFirst + (start + i) % kCount);
    const Key key{space, port};
    // An ephemeral port is never shared, so a port with any holder is taken.
    const auto at = holders_.lower_bound({key, IdHandle{}});
    if (at != holders_.end() && at->first.key == key) continue;
    holder.address.port = port;
    holders_.emplace(HolderKey{key, id}, holder);
    return port;
  }
  return fail(Errc::kAddressInUse, "all ephemeral ports are taken");
}

Result<bool> Ports::listen(std::uint16_t space, std::uint16_t port, IdHandle id) {
  const Key key{space, port};
  const auto entry = holders_.find(HolderKey{key, id});
  VB_CHECK(entry != holders_.end());
  Holder listener_entry = entry->second;
  listener_entry.listening = true;
  if (find_conflict(space, id, listener_entry))
    return fail(Errc::kAddressInUse, "the port is in use");
  const bool first = !anyone_listens(key);
  entry->second = listener_entry;
  return first;
}

void Ports::unlisten(std::uint16_t space, std::uint16_t port, IdHandle id) {
  const auto entry = holders_.find(HolderKey{{space, port}, id});
  if (entry != holders_.end()) entry->second.listening = false;
}

bool Ports::release(std::uint16_t space, std::uint16_t port, IdHandle id) {
  const Key key{space, port};
  const auto entry = holders_.find(HolderKey{key, id});
  if (entry == holders_.end()) return false;
  const bool listened = entry->second.listening;
  holders_.erase(entry);
  return listened && !anyone_listens(key);
}

bool Ports::is_held(std::uint16_t space, std::uint16_t port) const {
  const Key key{space, port};
  const auto first = holders_.lower_bound({key, IdHandle{}});
  return first != holders_.end() && first->first.key == key;
}

bool Ports::anyone_listens(Key key) const {
  for (auto at = holders_.lower_bound({key, IdHandle{}});
       at != holders_.end() && at->first.key == key; ++at) {
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
  int found_rank = 0;  // 3: the address, 2: its family's wildcard, 1: the IPv6 wildcard for IPv4
  for (auto at = holders_.lower_bound({key, IdHandle{}});
       at != holders_.end() && at->first.key == key; ++at) {
    const Holder& holder = at->second;
    if (!holder.listening) continue;
    int rank = 0;
    if (!names_no_device(holder.address)) {
      rank = same_address(holder.address, address) ? 3 : 0;
    } else if (holder.address.family == address.family) {
      rank = 2;
    } else if (holder.address.family == 6 && !holder.af_only) {
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
