// Joins ids to multicast groups.  On Ethernet, a join only attaches the QP.  On InfiniBand the
// agent joins the group first, because only the subnet knows the destination of the group's
// packets.

#include <algorithm>
#include <cerrno>
#include <utility>

#include "process/ask.h"
#include "process/process.h"
#include "wire/bth.h"
#include "wire/ip.h"

namespace verbena::process {
namespace {

// Names the bits of a join state (vol1 15.2.5.17.2) that the RDMA CM uses.
constexpr std::uint8_t kFullMember = 1;
constexpr std::uint8_t kSendOnlyFullMember = 8;

// Accepts a multicast address, and on a subnet also a wildcard.  A wildcard lets the subnet
// administration choose the group.
Result<void> check_group(const rdmacm::SocketAddress& group, bool on_subnet) {
  const bool is_wildcard = group.ip == Gid{} || group.ip == wire::ipv4_gid(0);
  if (wire::is_multicast(group.ip) || (on_subnet && is_wildcard)) return {};
  return fail(Errc::kInvalidArgument, "not the address of a multicast group");
}

// Returns an error with this errno, or with EIO if the agent has sent an invalid one.
std::unexpected<Error> group_lost_error(std::int32_t error) {
  constexpr std::int32_t kErrnoMax = 4095;  // MAX_ERRNO of Linux
  const bool valid = error > 0 && error <= kErrnoMax;
  return fail(Errc::kSystem, "the multicast group has ended or changed: join it again",
              static_cast<std::uint16_t>(valid ? error : EIO));
}

}  // namespace

Started<ipc::Done> Process::attach_multicast(hca::QpHandle qp, const Gid& group,
                                             std::uint32_t interface, Completion<ipc::Done> done) {
  if (auto alive = check_alive(qp); !alive)
    return Result<ipc::Done>(std::unexpected(alive.error()));
  return memberships_.attach(qp, group, interface, std::move(done));
}

// Returns true if the id's port is an InfiniBand port.
bool Process::is_on_subnet(const Connection& connection) const {
  const ipc::Port* const port = find_port(connection.path.address.port);
  return port != nullptr && port->link_layer == LinkLayer::kInfiniband;
}

Result<void> Process::join_multicast(ConnectionHandle id, const rdmacm::SocketAddress& group,
                                     bool receives, std::uint64_t cookie) {
  Connection& connection = *VB_TRY(find(id));
  if (!connection.agent_id)
    return fail(Errc::kDeviceFatal, "the agent of this id has ended: create a new id");
  if (!connection.is_datagram())
    return fail(Errc::kInvalidArgument, "only datagram ids can join groups");
  if (!connection.bound) return fail(Errc::kBadState, "the id is bound to no device");
  const bool on_subnet = is_on_subnet(connection);
  VB_TRY_VOID(check_group(group, on_subnet));
  if (cookie == 0 || connection.groups.contains(cookie)) {
    return fail(Errc::kInvalidArgument, "the cookie is 0 or belongs to another join");
  }
  if (on_subnet) return join_on_subnet(id, group, receives, cookie);
  VB_TRY_VOID(qkey_of(connection));  // fails for RDMA_PS_IPOIB, which has no Q_Key on Ethernet
  connection.groups[cookie] = {.address = group.ip, .receives = receives};
  attach_or_report(id, cookie, group.ip, connection.path.address.interface);
  return {};
}

// ---- on InfiniBand ------------------------------------------------------------------------------

Result<void> Process::join_on_subnet(ConnectionHandle id, const rdmacm::SocketAddress& group,
                                     bool receives, std::uint64_t cookie) {
  Connection& connection = *VB_TRY(find_with_agent(id));
  Pending request =
      VB_TRY(group_joins_.join({.port = connection.path.address.port,
                                .port_space = static_cast<std::uint16_t>(connection.port_space),
                                .pkey = {connection.path.pkey},
                                .group = group.ip,
                                .is_mgid = group.by_gid,
                                .join_state = receives ? kFullMember : kSendOnlyFullMember},
                               [this, id, cookie](const Result<ipc::MulticastJoined>& reply) {
                                 const Result<void> result = reply ? on_joined(id, cookie, *reply)
                                                                   : std::unexpected(reply.error());
                                 if (!result)
                                   report_join(id, cookie, std::unexpected(result.error()));
                               }));
  connection.groups[cookie] = {
      .address = group.ip, .receives = receives, .pending = std::move(request)};
  return {};
}

// Reports the join if it succeeds.  If it fails, the caller reports the error.
Result<void> Process::on_joined(ConnectionHandle id, std::uint64_t cookie,
                                const ipc::MulticastJoined& reply) {
  Connection& connection = *connections_.find(id);
  Connection::Group& group = connection.groups.at(cookie);
  VB_TRY_VOID(group_joins_.set_holder(reply.membership, {id, cookie}));
  group.membership = reply.membership;
  const PortId port = connection.path.address.port;
  const hca::Path path =
      VB_TRY(this->path(connection.path.sgid_index, {.destination = reply.mgid,
                                                     .flow_label = reply.flow_label,
                                                     .traffic_class = reply.traffic_class,
                                                     .destination_lid = reply.mlid,
                                                     .service_level = reply.service_level,
                                                     .has_grh = true,
                                                     .port = port}));
  VB_TRY_VOID(apply_qkey(connection, reply.qkey));
  group.address = reply.mgid;
  group.rate = reply.rate;
  group.path = {.address = path.address,
                .sgid_index = connection.path.sgid_index,
                .pkey = reply.pkey.value,
                .mtu = reply.mtu,
                .packet_life_time = connection.path.packet_life_time};
  group.path.address.hop_limit = reply.hop_limit;  // path() replaces 0 by a default
  attach_or_report(id, cookie, reply.mgid, port.number);
  return {};
}

// Checks the Q_Key of a group, because an id has one Q_Key for all its groups.  The first join sets
// the Q_Key of an RDMA_PS_IPOIB id that has none.  The QP of the id may exist already.
Result<void> Process::apply_qkey(Connection& connection, Qkey qkey) {
  if (qkey.value == 0 || (connection.qkey.value != 0 && connection.qkey != qkey)) {
    return fail(Errc::kInvalidArgument, "the group and the id have different Q_Keys");
  }
  if (connection.qkey == qkey) return {};
  connection.qkey = qkey;
  if (!connection.qp) return {};
  const auto info = engine_.query_qp(connection.qp);
  // If the QP's Q_Key is not the default, the program has set it.  Then the QP keeps this Q_Key.
  if (!info || info->attributes.qkey.value != rdmacm::kDatagramQkey) return {};
  // This call fails if the program has moved the QP to a state in which the Q_Key does not matter.
  (void)engine_.modify_qp(connection.qp, {.qkey = qkey}, hca::attribute::kQkey, message_time_)
      .has_value();
  return {};
}

Result<Qkey> Process::qkey_of(const Connection& connection) const {
  if (connection.qkey.value != 0) return connection.qkey;
  if (is_on_subnet(connection))
    return Qkey{rdmacm::kDatagramQkey};  // the default until the first join
  return fail(Errc::kAddressNotFound,
              "RDMA_PS_IPOIB uses the Q_Key of IPoIB, which Ethernet does not have");
}

void Process::on_multicast_lost(const ipc::MulticastLost& message) {
  const auto holder = group_joins_.forget(message.membership);
  if (!holder) return;  // the program left the group while the message was under way
  report_join(holder->id, holder->cookie, group_lost_error(message.error));
}

// ---- attaching, reporting and leaving -----------------------------------------------------------

void Process::attach_or_report(ConnectionHandle id, std::uint64_t cookie, const Gid& group,
                               std::uint32_t interface) {
  Connection& connection = *connections_.find(id);
  Connection::Group& group_entry = connection.groups.at(cookie);
  if (!connection.qp || !group_entry.receives) return report_join(id, cookie, ipc::Done{});
  group_entry.qp = connection.qp;
  auto attached =
      attach_multicast(connection.qp, group, interface,
                       Completion<ipc::Done>([this, id, cookie](const Result<ipc::Done>& result) {
                         report_join(id, cookie, result);
                       }));
  if (auto* pending = std::get_if<Pending>(&attached)) {
    group_entry.pending = std::move(*pending);
  } else {
    report_join(id, cookie, std::get<Result<ipc::Done>>(attached));
  }
}

void Process::report_join(ConnectionHandle id, std::uint64_t cookie,
                          const Result<ipc::Done>& result) {
  Connection& connection = *connections_.find(id);
  Connection::Group& group_entry = connection.groups.at(cookie);
  CmNotice notice{.id = id, .cookie = connection.cookie, .group = cookie};
  rdmacm::Event& event = notice.event;
  event.kind = rdmacm::EventKind::kMulticastJoin;
  event.port_space = static_cast<std::uint16_t>(connection.port_space);
  event.qp_type = static_cast<std::uint8_t>(connection.qp_type);
  event.path = group_entry.membership != 0 ? group_entry.path : connection.path;
  event.path.address.destination = group_entry.address;
  event.param.qpn = wire::kMulticastQpn.value;
  event.param.qkey = connection.qkey.value;
  notice.group_rate = group_entry.rate;
  if (result) {
    group_entry.attached |= static_cast<bool>(group_entry.qp);
  } else {
    const Error& error = result.error();
    event.kind = rdmacm::EventKind::kMulticastError;
    event.status = -to_errno(error);
    notice.why = error.from_agent ? requests_.last_refusal_text() : error.context;
    leave(group_entry);
    connection.groups.erase(cookie);
  }
  notices_.push_back(std::move(notice));
}

Result<void> Process::leave_multicast(ConnectionHandle id, std::uint64_t cookie) {
  Connection& connection = *VB_TRY(find(id));
  std::erase_if(notices_, [&](const Notice& notice) {
    const auto* cm = std::get_if<CmNotice>(&notice);
    return cm != nullptr && cm->id == id && cm->group == cookie;
  });
  const auto found = connection.groups.find(cookie);
  if (found == connection.groups.end()) return fail(Errc::kAddressNotFound, "no such group");
  leave(found->second);
  connection.groups.erase(found);
  return {};
}

// Ignores errors: the QP may be destroyed, or the program may have detached it itself.
void Process::leave(Connection::Group& group) {
  group.pending.cancel();
  if (group.attached) (void)memberships_.detach(group.qp, group.address).has_value();
  group_joins_.leave(group.membership);
}

}  // namespace verbena::process
