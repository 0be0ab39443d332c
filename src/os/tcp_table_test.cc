#include "os/tcp_table.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "os/fd.h"

namespace verbena::os {
namespace {

struct ConnectedPair {
  Fd listener{}, client{}, server{};
  sockaddr_in client_name{}, server_name{};
};

ConnectedPair connected_pair() {
  ConnectedPair pair;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  auto* name = reinterpret_cast<sockaddr*>(&address);
  pair.listener = Fd(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(::bind(pair.listener.get(), name, bytes), 0);
  EXPECT_EQ(::listen(pair.listener.get(), 1), 0);
  EXPECT_EQ(::getsockname(pair.listener.get(), name, &bytes), 0);
  pair.client = Fd(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(::connect(pair.client.get(), name, bytes), 0);
  pair.server = Fd(::accept(pair.listener.get(), nullptr, nullptr));
  pair.server_name = address;
  ::getsockname(pair.client.get(), reinterpret_cast<sockaddr*>(&pair.client_name), &bytes);
  return pair;
}

TcpTable::Name table_name(const sockaddr_in& from) {
  TcpTable::Name name{.port = ntohs(from.sin_port)};
  name.address[10] = name.address[11] = 0xff;
  std::memcpy(name.address.data() + 12, &from.sin_addr, 4);
  return name;
}

std::uint64_t cookie_of(const Fd& socket) {
  std::uint64_t cookie = 0;
  socklen_t bytes = sizeof(cookie);
  EXPECT_EQ(::getsockopt(socket.get(), SOL_SOCKET, SO_COOKIE, &cookie, &bytes), 0);
  return cookie;
}

TEST(TcpTable, EachEndOfAConnectionIsFoundWithItsCookie) {
  const ConnectedPair pair = connected_pair();
  auto table = TcpTable::open();
  ASSERT_TRUE(table);
  const auto client = table->find(table_name(pair.client_name), table_name(pair.server_name));
  const auto server = table->find(table_name(pair.server_name), table_name(pair.client_name));
  ASSERT_TRUE(client && server);
  EXPECT_EQ(client->cookie, cookie_of(pair.client));
  EXPECT_EQ(server->cookie, cookie_of(pair.server));
  EXPECT_TRUE(client->held);
}

TEST(TcpTable, AClosedSocketIsNotReportedAsOpen) {
  ConnectedPair pair = connected_pair();
  const std::uint64_t cookie = cookie_of(pair.client);
  pair.client.reset();
  auto table = TcpTable::open();
  ASSERT_TRUE(table);
  const auto found = table->find(table_name(pair.client_name), table_name(pair.server_name));
  EXPECT_FALSE(found && found->cookie == cookie && found->held);
}

TEST(TcpTable, AListenerIsNotReportedAsAConnection) {
  const ConnectedPair pair = connected_pair();
  auto table = TcpTable::open();
  ASSERT_TRUE(table);
  auto unconnected_peer = table_name(pair.client_name);
  unconnected_peer.port = 1;
  const auto found = table->find(table_name(pair.server_name), unconnected_peer);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Errc::kAddressNotFound);
}

}  // namespace
}  // namespace verbena::os
