#include "os/tcp_table.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace verbena::os {
namespace {

constexpr std::array<std::uint8_t, 12> kMappedPrefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool is_mapped(const std::array<std::uint8_t, 16>& address) {
  return std::equal(kMappedPrefix.begin(), kMappedPrefix.end(), address.begin());
}

void write_address(__be32 (&out)[4], const std::array<std::uint8_t, 16>& address, bool v4) {
  const std::size_t skip = v4 ? kMappedPrefix.size() : 0;
  std::memcpy(out, address.data() + skip, address.size() - skip);
}

}  // namespace

Result<TcpTable> TcpTable::open() { return TcpTable(VB_TRY(Netlink::open(0, NETLINK_SOCK_DIAG))); }

Result<TcpTable::Socket> TcpTable::find(const Name& local, const Name& peer) {
  const bool v4 = is_mapped(local.address) && is_mapped(peer.address);
  NetlinkRequest<inet_diag_req_v2> request(SOCK_DIAG_BY_FAMILY, 0);
  inet_diag_req_v2& query = request.fixed();
  query.sdiag_family = v4 ? AF_INET : AF_INET6;
  query.sdiag_protocol = IPPROTO_TCP;
  query.idiag_states = ~0U;
  query.id.idiag_sport = htons(local.port);
  query.id.idiag_dport = htons(peer.port);
  write_address(query.id.idiag_src, local.address, v4);
  write_address(query.id.idiag_dst, peer.address, v4);
  query.id.idiag_cookie[0] = query.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;

  const auto answer = netlink_.call(request.header());
  if (!answer) {
    if (answer.error().detail == ENOENT) return fail(Errc::kAddressNotFound, "no such socket");
    return std::unexpected(answer.error());
  }
  if (answer->empty()) return fail(Errc::kAddressNotFound, "no such socket");
  const auto found = answer->front().fixed<inet_diag_msg>();
  // Checks the peer's port, because the kernel returns a listener of the local port if there is no
  // connected socket.
  if (found.id.idiag_dport != query.id.idiag_dport) {
    return fail(Errc::kAddressNotFound, "no such socket");
  }
  return Socket{.cookie = std::uint64_t{found.id.idiag_cookie[1]} << 32 | found.id.idiag_cookie[0],
                .held = found.idiag_inode != 0,
                .uid = found.idiag_uid};
}

}  // namespace verbena::os
