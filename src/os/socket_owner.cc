#include "os/socket_owner.h"

#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <span>

#include "os/netlink.h"

namespace verbena::os {
namespace {

// Returns true if the attribute is the abstract name: a zero byte, and then the name.
bool has_name(std::span<const std::byte> attribute, std::string_view name) {
  return attribute.size() == name.size() + 1 && attribute[0] == std::byte{0} &&
         std::memcmp(attribute.data() + 1, name.data(), name.size()) == 0;
}

}  // namespace

std::optional<uid_t> find_name_owner(std::string_view name) {
  auto netlink = Netlink::open(0, NETLINK_SOCK_DIAG);
  if (!netlink) return std::nullopt;
  NetlinkRequest<unix_diag_req> request(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP);
  unix_diag_req& query = request.fixed();
  query.sdiag_family = AF_UNIX;
  // A socket that is bound, but does not listen, has the state CLOSE.  Connected sockets do not
  // matter, although those that a listener has accepted have its name, too.
  query.udiag_states = (1U << TCP_LISTEN) | (1U << TCP_CLOSE);
  query.udiag_show = UDIAG_SHOW_NAME | UDIAG_SHOW_UID;
  const auto answer = netlink->call(request.header());
  if (!answer) return std::nullopt;
  std::optional<uid_t> owner;
  for (const NetlinkMessage& message : *answer) {
    if (!has_name(message.attribute<unix_diag_msg>(UNIX_DIAG_NAME), name)) continue;
    const auto user = message.attribute<unix_diag_msg>(UNIX_DIAG_UID);
    if (user.size() < sizeof(std::uint32_t)) continue;
    owner = value_of<std::uint32_t>(user);
    if (message.fixed<unix_diag_msg>().udiag_state == TCP_LISTEN) break;
  }
  return owner;
}

bool is_stranger(uid_t owner) { return owner != 0 && owner != ::geteuid(); }

std::string describe_stranger(uid_t owner) {
  return "a process of another user (uid " + std::to_string(owner) + ")";
}

}  // namespace verbena::os
