#include "agent/host.h"

#include <gtest/gtest.h>

#include "wire/ip.h"

namespace verbena::agent {
namespace {

os::Interface interface(std::uint32_t address, std::uint8_t mac_end) {
  os::Interface i{.address = wire::ipv4_gid(address), .index = 2, .name = "eth0"};
  if (mac_end != 0) {
    i.mac = {std::byte{0x52}, std::byte{0x54}, std::byte{0},
             std::byte{0x12}, std::byte{0x34}, std::byte{mac_end}};
  }
  return i;
}

TEST(NodeGuid, IsTheEui64OfTheFirstMac) {
  EXPECT_EQ(node_guid({interface(1, 0), interface(2, 0x56), interface(3, 0x57)}, "id").value,
            0x505400fffe123456u);
}

TEST(NodeGuid, IsLocallyAdministeredIfNoInterfaceHasAMac) {
  const Guid guid = node_guid({interface(1, 0)}, "one");
  EXPECT_EQ(guid, node_guid({}, "one"))
      << "node_guid() must return the same GUID for the same host id";
  EXPECT_NE(guid, node_guid({}, "two"));
  EXPECT_EQ(guid.value >> 56 & 3, 2u);
}

TEST(HostAddresses, BindOptionSelectsOneAddress) {
  const std::vector interfaces{interface(1, 0x56), interface(2, 0x56)};
  EXPECT_EQ(host_addresses(interfaces, {}).size(), 2u);
  const auto bound = host_addresses(interfaces, wire::ipv4_gid(2));
  ASSERT_EQ(bound.size(), 1u);
  EXPECT_EQ(bound[0].gid, wire::ipv4_gid(2));
}

TEST(BindAddress, ParsesIpv4AndIpv6WithAScope) {
  EXPECT_EQ(parse_bind_address("127.0.0.1")->address, wire::ipv4_gid(0x7f000001));
  EXPECT_EQ(parse_bind_address("::1")->address.bytes[15], std::byte{1});
  EXPECT_EQ(parse_bind_address("fe80::1%lo")->interface, 1u);
  EXPECT_FALSE(parse_bind_address("fe80::1%nowhere"));
  EXPECT_FALSE(parse_bind_address("localhost"));
  EXPECT_FALSE(parse_bind_address(""));
}

}  // namespace
}  // namespace verbena::agent
