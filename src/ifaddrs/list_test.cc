#include "ifaddrs/list.h"

#include <gtest/gtest.h>
#include <linux/if_packet.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <stdlib.h>

#include <cstring>
#include <memory>
#include <string>

#include "wire/address_text.h"
#include "wire/ip.h"

namespace verbena::ifaddrs {
namespace {

using interfaces::Interface;
using Lines = std::vector<std::string>;

// Makes the list of a machine with the interfaces lo and eth0.
class Machine {
 public:
  Machine() {
    packet_.sll_family = AF_PACKET;
    packet_.sll_ifindex = 1;
    packet_.sll_hatype = ARPHRD_LOOPBACK;
    packet_.sll_halen = 6;
    other_packet_ = packet_;
    other_packet_.sll_ifindex = 2;
    ipv4_.sin_family = AF_INET;
    ipv4_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    add(lo_, IFF_UP | IFF_LOOPBACK, reinterpret_cast<sockaddr*>(&packet_));
    add(eth0_, IFF_UP, reinterpret_cast<sockaddr*>(&other_packet_));
    add(lo_, IFF_UP | IFF_LOOPBACK, reinterpret_cast<sockaddr*>(&ipv4_));
    add(lo_, IFF_UP | IFF_LOOPBACK, nullptr);  // some tunnels have an entry without an address
  }
  const ::ifaddrs* list() const { return entries_; }

 private:
  void add(char* name, unsigned flags, sockaddr* address) {
    ::ifaddrs& entry = entries_[used_count_];
    entry = {};
    entry.ifa_name = name;
    entry.ifa_flags = flags;
    entry.ifa_addr = address;
    if (used_count_++ > 0) entries_[used_count_ - 2].ifa_next = &entry;
  }

  char lo_[3] = "lo";
  char eth0_[5] = "eth0";
  sockaddr_ll packet_{};
  sockaddr_ll other_packet_{};
  sockaddr_in ipv4_{};
  ::ifaddrs entries_[4];
  std::size_t used_count_ = 0;
};

std::string text_of(const sockaddr* address) {
  if (address == nullptr) return "-";
  if (address->sa_family == AF_INET) {
    sockaddr_in ipv4;
    std::memcpy(&ipv4, address, sizeof ipv4);
    return wire::address_text(wire::ipv4_gid(ntohl(ipv4.sin_addr.s_addr)));
  }
  if (address->sa_family == AF_INET6) {
    sockaddr_in6 ipv6;
    std::memcpy(&ipv6, address, sizeof ipv6);
    Gid gid;
    std::memcpy(gid.bytes.data(), &ipv6.sin6_addr, gid.bytes.size());
    return wire::address_text(gid) +
           (ipv6.sin6_scope_id == 0 ? "" : "%" + std::to_string(ipv6.sin6_scope_id));
  }
  sockaddr_ll packet;
  std::memcpy(&packet, address, sizeof packet);
  return "index " + std::to_string(packet.sll_ifindex) + " type " +
         std::to_string(packet.sll_hatype) + " bytes " + std::to_string(packet.sll_halen) + " of " +
         std::to_string(packet.sll_addr[0]);
}

Lines lines_of(const ::ifaddrs* list) {
  Lines lines;
  for (; list != nullptr; list = list->ifa_next) {
    std::string flags;
    if (list->ifa_flags & IFF_UP) flags += "U";
    if (list->ifa_flags & IFF_RUNNING) flags += "R";
    if (list->ifa_flags & IFF_MULTICAST) flags += "M";
    if (list->ifa_flags & IFF_LOOPBACK) flags += "L";
    lines.push_back(std::string(list->ifa_name) + " " + flags + " " + text_of(list->ifa_addr) +
                    " mask " + text_of(list->ifa_netmask) + " broadcast " +
                    text_of(list->ifa_broadaddr));
  }
  return lines;
}

struct FreeMemory {
  void operator()(void* memory) const { ::free(memory); }
};

const std::vector<Interface> kInterfaces{
    {.name = "verbena0",
     .index = 2,
     .mtu_bytes = 9000,
     .running = true,
     .hardware_address = std::vector<std::byte>(6, std::byte{2}),
     .addresses = {{*wire::parse_address("10.31.0.1"), 24}, {*wire::parse_address("fe80::1"), 64}}},
    {.name = "ib0",
     .index = 3,
     .mtu_bytes = 2044,
     .hardware_address = std::vector<std::byte>(20, std::byte{7}),
     .addresses = {{*wire::parse_address("10.0.0.7"), 0}, {*wire::parse_address("fd00::7"), 65}}}};

TEST(Ifaddrs, ListHasTheLoopbackInterfaceAndTheInterfacesOfTheHost) {
  const Machine machine;
  const std::unique_ptr<::ifaddrs, FreeMemory> list(*make_list(machine.list(), kInterfaces));
  EXPECT_EQ(
      lines_of(list.get()),
      (Lines{
          "lo UL index 1 type 772 bytes 6 of 0 mask - broadcast -",
          "verbena0 URM index 2 type 1 bytes 6 of 2 mask - broadcast index 2 type 1 bytes 6 of 255",
          "ib0 UM index 3 type 32 bytes 20 of 7 mask - broadcast index 3 type 32 bytes 20 of 255",
          "lo UL 127.0.0.1 mask - broadcast -",
          "verbena0 URM 10.31.0.1 mask 255.255.255.0 broadcast 10.31.0.255",
          "ib0 UM 10.0.0.7 mask 0.0.0.0 broadcast 255.255.255.255",
          "verbena0 URM fe80::1%2 mask ffff:ffff:ffff:ffff:: broadcast -",
          "ib0 UM fd00::7 mask ffff:ffff:ffff:ffff:8000:: broadcast -"}));
}

TEST(Ifaddrs, ListWithoutAnyInterfaceIsEmpty) {
  EXPECT_EQ(make_list(nullptr, {}), std::optional<::ifaddrs*>(nullptr));
}

TEST(Ifaddrs, NamesAreTheSameAsInTheList) {
  const Machine machine;
  auto* const names = make_names(machine.list(), kInterfaces);
  Lines lines;
  for (const auto* entry = names; entry->if_name != nullptr; ++entry) {
    lines.push_back(std::to_string(entry->if_index) + " " + entry->if_name);
  }
  ::if_freenameindex(names);
  EXPECT_EQ(lines, (Lines{"1 lo", "2 verbena0", "3 ib0"}));
}

TEST(Ifaddrs, OnlyLoopbackInterfacesOfTheMachineAreFound) {
  const Machine machine;
  EXPECT_EQ(loopback_index(machine.list(), "lo"), 1U);
  EXPECT_EQ(loopback_index(machine.list(), "eth0"), 0U);
  EXPECT_STREQ(loopback_name(machine.list(), 1), "lo");
  EXPECT_EQ(loopback_name(machine.list(), 2), nullptr);
}

}  // namespace
}  // namespace verbena::ifaddrs
