#include "ifaddrs/list.h"

#include <linux/if_link.h>
#include <linux/if_packet.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string_view>

#include "wire/ip.h"

namespace verbena::ifaddrs {
namespace {

using interfaces::Interface;

// Holds a link-layer address.  Like the C library's own type, it is large enough for the address of
// an IPoIB interface.
struct PacketAddress {
  std::uint16_t sll_family = AF_PACKET;
  std::uint16_t sll_protocol = 0;
  std::int32_t sll_ifindex = 0;
  std::uint16_t sll_hatype = 0;
  std::uint8_t sll_pkttype = 0;
  std::uint8_t sll_halen = 0;
  std::array<std::byte, 24> sll_addr{};
};
static_assert(offsetof(PacketAddress, sll_addr) == offsetof(sockaddr_ll, sll_addr));
static_assert(interfaces::kInfinibandAddressBytes <= sizeof(PacketAddress::sll_addr));

union AnyAddress {
  AnyAddress() : bytes{} {}
  sockaddr generic;
  PacketAddress packet;
  sockaddr_in ipv4;
  sockaddr_in6 ipv6;
  std::array<std::byte, sizeof(sockaddr_storage)> bytes;
};

// Holds one entry of a list, and all data that the entry points to.
struct Entry {
  ::ifaddrs public_part{};
  std::array<char, IF_NAMESIZE> name{};
  AnyAddress address{};
  AnyAddress netmask{};
  AnyAddress broadcast{};
  rtnl_link_stats statistics{};
};

bool is_loopback(const ::ifaddrs& entry) { return (entry.ifa_flags & IFF_LOOPBACK) != 0; }

// Returns the index of an interface.  REQUIRES: the entry has an AF_PACKET address.
unsigned index_of(const ::ifaddrs& entry) {
  sockaddr_ll address;
  ::memcpy(&address, entry.ifa_addr, sizeof address);
  return static_cast<unsigned>(address.sll_ifindex);
}

// Visits the entries of loopback interfaces that have addresses of this family.
void visit_loopback(const ::ifaddrs* machine, int family, auto&& visit) {
  for (const ::ifaddrs* entry = machine; entry != nullptr; entry = entry->ifa_next) {
    if (is_loopback(*entry) && entry->ifa_addr != nullptr && entry->ifa_addr->sa_family == family) {
      visit(*entry);
    }
  }
}

std::size_t address_bytes(int family) {
  switch (family) {
    case AF_INET: return sizeof(sockaddr_in);
    case AF_INET6: return sizeof(sockaddr_in6);
    default: return sizeof(PacketAddress);
  }
}

// Fills entries one after the other, and links each entry with the entry before it.
class Writer {
 public:
  explicit Writer(std::span<Entry> entries) : entries_(entries) {}

  void copy(const ::ifaddrs& from) {
    Entry& entry = next_entry(from.ifa_name, from.ifa_flags);
    copy(from.ifa_addr, entry.address, entry.public_part.ifa_addr);
    copy(from.ifa_netmask, entry.netmask, entry.public_part.ifa_netmask);
    copy(from.ifa_broadaddr, entry.broadcast, entry.public_part.ifa_broadaddr);
    if (from.ifa_addr->sa_family != AF_PACKET || from.ifa_data == nullptr) return;
    ::memcpy(&entry.statistics, from.ifa_data, sizeof entry.statistics);
    entry.public_part.ifa_data = &entry.statistics;
  }

  void write_packet(const Interface& from) {
    Entry& entry = next_entry(from);
    const bool is_infiniband = from.hardware_address.size() == interfaces::kInfinibandAddressBytes;
    const auto write = [&](AnyAddress& out, sockaddr*& pointer) -> PacketAddress& {
      out.packet = {.sll_ifindex = static_cast<std::int32_t>(from.index),
                    .sll_hatype = is_infiniband ? std::uint16_t{ARPHRD_INFINIBAND}
                                                : std::uint16_t{ARPHRD_ETHER},
                    .sll_halen = static_cast<std::uint8_t>(from.hardware_address.size())};
      pointer = &out.generic;
      return out.packet;
    };
    std::ranges::copy(from.hardware_address,
                      write(entry.address, entry.public_part.ifa_addr).sll_addr.begin());
    std::ranges::fill_n(write(entry.broadcast, entry.public_part.ifa_broadaddr).sll_addr.begin(),
                        static_cast<std::ptrdiff_t>(from.hardware_address.size()), std::byte{0xff});
    entry.public_part.ifa_data = &entry.statistics;
  }

  void write_ipv4(const Interface& from, const interfaces::Address& address) {
    Entry& entry = next_entry(from);
    const std::uint32_t mask = address.prefix_bits == 0 ? 0 : ~0U << (32 - address.prefix_bits);
    const auto write = [](std::uint32_t ip, AnyAddress& out, sockaddr*& pointer) {
      out.ipv4 = {.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(ip)}, .sin_zero = {}};
      pointer = &out.generic;
    };
    const std::uint32_t ip = wire::ipv4_address(address.ip);
    write(ip, entry.address, entry.public_part.ifa_addr);
    write(mask, entry.netmask, entry.public_part.ifa_netmask);
    write(ip | ~mask, entry.broadcast, entry.public_part.ifa_broadaddr);
  }

  void write_ipv6(const Interface& from, const interfaces::Address& address) {
    Entry& entry = next_entry(from);
    entry.address.ipv6 = {};
    entry.address.ipv6.sin6_family = AF_INET6;
    ::memcpy(&entry.address.ipv6.sin6_addr, address.ip.bytes.data(), sizeof(in6_addr));
    if (IN6_IS_ADDR_LINKLOCAL(&entry.address.ipv6.sin6_addr)) {
      entry.address.ipv6.sin6_scope_id = from.index;
    }
    entry.netmask.ipv6 = {};
    entry.netmask.ipv6.sin6_family = AF_INET6;
    for (unsigned bit = 0; bit < address.prefix_bits; ++bit) {
      entry.netmask.ipv6.sin6_addr.s6_addr[bit / 8] |= static_cast<std::uint8_t>(0x80U >> bit % 8);
    }
    entry.public_part.ifa_addr = &entry.address.generic;
    entry.public_part.ifa_netmask = &entry.netmask.generic;
  }

 private:
  Entry& next_entry(const Interface& from) {
    constexpr unsigned kLowerUp = 0x10000;  // IFF_LOWER_UP, which <net/if.h> lacks
    constexpr unsigned kCommonFlags = IFF_UP | IFF_BROADCAST | IFF_MULTICAST;
    return next_entry(from.name.c_str(),
                      kCommonFlags | (from.running ? IFF_RUNNING | kLowerUp : 0));
  }
  Entry& next_entry(const char* name, unsigned flags) {
    Entry& entry = *new (&entries_[used_count_]) Entry;
    ::strncpy(entry.name.data(), name, entry.name.size() - 1);
    entry.public_part.ifa_name = entry.name.data();
    entry.public_part.ifa_flags = flags;
    if (used_count_ > 0) entries_[used_count_ - 1].public_part.ifa_next = &entry.public_part;
    ++used_count_;
    return entry;
  }
  static void copy(const sockaddr* from, AnyAddress& out, sockaddr*& pointer) {
    if (from == nullptr) return;
    ::memcpy(out.bytes.data(), from, address_bytes(from->sa_family));
    pointer = &out.generic;
  }

  std::span<Entry> entries_;
  std::size_t used_count_ = 0;
};

std::size_t count_entries(const ::ifaddrs* machine, std::span<const Interface> interfaces) {
  std::size_t count = 0;
  for (const int family : {AF_PACKET, AF_INET, AF_INET6}) {
    visit_loopback(machine, family, [&](const ::ifaddrs&) { ++count; });
  }
  for (const Interface& interface : interfaces) count += 1 + interface.addresses.size();
  return count;
}

}  // namespace

std::optional<::ifaddrs*> make_list(const ::ifaddrs* machine,
                                    std::span<const Interface> interfaces) {
  const std::size_t count = count_entries(machine, interfaces);
  if (count == 0) return nullptr;
  auto* const memory = static_cast<Entry*>(::calloc(count, sizeof(Entry)));
  if (memory == nullptr) return std::nullopt;
  Writer writer({memory, count});
  const auto copy = [&](const ::ifaddrs& entry) { writer.copy(entry); };
  visit_loopback(machine, AF_PACKET, copy);
  for (const Interface& interface : interfaces) writer.write_packet(interface);
  visit_loopback(machine, AF_INET, copy);
  for (const Interface& interface : interfaces) {
    for (const interfaces::Address& address : interface.addresses) {
      if (wire::is_ipv4(address.ip)) writer.write_ipv4(interface, address);
    }
  }
  visit_loopback(machine, AF_INET6, copy);
  for (const Interface& interface : interfaces) {
    for (const interfaces::Address& address : interface.addresses) {
      if (!wire::is_ipv4(address.ip)) writer.write_ipv6(interface, address);
    }
  }
  return &memory->public_part;
}

struct ::if_nameindex* make_names(const ::ifaddrs* machine, std::span<const Interface> interfaces) {
  std::size_t loopbacks = 0;
  visit_loopback(machine, AF_PACKET, [&](const ::ifaddrs&) { ++loopbacks; });
  const std::size_t count = loopbacks + interfaces.size();
  // An entry without a name ends the array.  calloc() makes this entry.
  auto* const names =
      static_cast<struct ::if_nameindex*>(::calloc(count + 1, sizeof(struct ::if_nameindex)));
  if (names == nullptr) return nullptr;
  std::size_t used_count = 0;
  bool is_complete = true;
  const auto add = [&](unsigned index, const char* name) {
    if (!is_complete) return;
    names[used_count] = {.if_index = index, .if_name = ::strdup(name)};
    is_complete = names[used_count++].if_name != nullptr;
  };
  visit_loopback(machine, AF_PACKET,
                 [&](const ::ifaddrs& entry) { add(index_of(entry), entry.ifa_name); });
  for (const Interface& interface : interfaces) add(interface.index, interface.name.c_str());
  if (is_complete) return names;
  ::if_freenameindex(names);
  return nullptr;
}

unsigned loopback_index(const ::ifaddrs* machine, const char* name) {
  unsigned index = 0;
  visit_loopback(machine, AF_PACKET, [&](const ::ifaddrs& entry) {
    if (std::string_view(entry.ifa_name) == name) index = index_of(entry);
  });
  return index;
}

const char* loopback_name(const ::ifaddrs* machine, unsigned index) {
  const char* name = nullptr;
  visit_loopback(machine, AF_PACKET, [&](const ::ifaddrs& entry) {
    if (index_of(entry) == index) name = entry.ifa_name;
  });
  return name;
}

}  // namespace verbena::ifaddrs
