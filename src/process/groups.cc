// Joins ids to multicast groups.

#include <algorithm>
#include <utility>

#include "process/ask.h"
#include "process/process.h"
#include "wire/bth.h"
#include "wire/ip.h"

namespace verbena::process {

Started<ipc::Done> Process::attach_multicast(hca::QpHandle qp, const Gid& group,
                                             std::uint32_t interface, Completion<ipc::Done> done) {
  if (auto alive = check_alive(qp); !alive)
    return Result<ipc::Done>(std::unexpected(alive.error()));
  return memberships_.attach(qp, group, interface, std::move(done));
}

Result<void> Process::join_multicast(ConnectionHandle id, const Gid& group, bool receives,
                                     std::uint64_t cookie) {
  Connection& connection = *VB_TRY(find(id));
  if (!connection.agent_id) return fail(Errc::kDeviceFatal, "the agent of this id is gone");
  if (!connection.is_datagram()) return fail(Errc::kInvalidArgument, "only datagrams have groups");
  if (!connection.bound) return fail(Errc::kBadState, "the id is bound to no device");
  if (!wire::is_multicast(group)) {
    return fail(Errc::kInvalidArgument, "not the address of a multicast group");
  }
  if (cookie == 0 || connection.groups.contains(cookie)) {
    return fail(Errc::kInvalidArgument, "the cookie of another join");
  }
  Connection::Group& joined = connection.groups[cookie];
  joined.address = group;
  if (!connection.qp || !receives) {
    report_join(id, cookie, ipc::Done{});
    return {};
  }
  joined.qp = connection.qp;
  auto attached =
      attach_multicast(connection.qp, group, connection.path.address.interface,
                       Completion<ipc::Done>([this, id, cookie](const Result<ipc::Done>& result) {
                         report_join(id, cookie, result);
                       }));
  if (auto* pending = std::get_if<Pending>(&attached)) {
    joined.attaching = std::move(*pending);
  } else {
    report_join(id, cookie, std::get<Result<ipc::Done>>(attached));
  }
  return {};
}

void Process::report_join(ConnectionHandle id, std::uint64_t cookie,
                          const Result<ipc::Done>& attached) {
  Connection& connection = *connections_.find(id);
  Connection::Group& joined = connection.groups.at(cookie);
  joined.attached = attached && joined.qp;
  CmNotice notice{.id = id, .cookie = connection.cookie, .group = cookie};
  rdmacm::Event& event = notice.event;
  event.kind = rdmacm::EventKind::kMulticastJoin;
  event.port_space = static_cast<std::uint16_t>(connection.port_space);
  event.qp_type = static_cast<std::uint8_t>(connection.qp_type);
  event.path = connection.path;
  event.path.address.destination = joined.address;
  event.param.qpn = wire::kMulticastQpn.value;
  event.param.qkey = rdmacm::kDatagramQkey;
  if (!attached) {
    event.kind = rdmacm::EventKind::kMulticastError;
    event.status = -to_errno(attached.error());
    connection.groups.erase(cookie);
  }
  notices_.push_back(std::move(notice));
}

Result<void> Process::leave_multicast(ConnectionHandle id, std::uint64_t cookie) {
  Connection& connection = *VB_TRY(find(id));
  const auto joined = connection.groups.find(cookie);
  if (joined == connection.groups.end()) return fail(Errc::kAddressNotFound, "no such group");
  leave(joined->second);
  connection.groups.erase(joined);
  std::erase_if(notices_, [&](const Notice& notice) {
    const auto* cm = std::get_if<CmNotice>(&notice);
    return cm != nullptr && cm->id == id && cm->group == cookie;
  });
  return {};
}

// Ignores errors: the QP may be destroyed, or the program may have detached it itself.
void Process::leave(Connection::Group& group) {
  group.attaching.cancel();
  if (group.attached) (void)memberships_.detach(group.qp, group.address).has_value();
}

}  // namespace verbena::process
