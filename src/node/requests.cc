// Handles requests of programs to the node, and replies to them.

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>

#include "ipc/lane_messages.h"
#include "node/node.h"
#include "rdmacm/ports.h"
#include "rdmacm/rules.h"
#include "rdmacm/service_id.h"

namespace verbena::node {
namespace {

constexpr std::uint32_t kNamesMax = rdmacm::kIdsPerOwnerMax;

// Returns the port of the RDMA CM whose service id (annex A11.2) equals `service` where `mask` is
// set; 0 if there is none.  The RDMA CM refuses a mask that covers several of its ports.
std::uint16_t port_of_service(ServiceId service, ServiceId mask) {
  constexpr std::uint64_t kFirst = 0x0000'0000'0100'0000, kPorts = 0x0000'0000'00ff'ffff;
  const bool is_port = ((service.value ^ kFirst) & mask.value & ~kPorts) == 0;
  return is_port ? static_cast<std::uint16_t>(service.value) : std::uint16_t{0};
}

}  // namespace

// Calls the handler of a request.  Replaces the program's name for an id with the RDMA CM's handle.
template <class Message>
Result<bool> Node::call_handler(ClientId client, std::uint64_t request, const Message& message,
                                Time now) {
  // The handlers of these requests need the name itself.
  constexpr bool kNeedsName =
      std::is_same_v<Message, ipc::CreateId> || std::is_same_v<Message, ipc::DestroyId>;
  if constexpr (requires { message.id; } && !kNeedsName) {
    Message resolved = message;
    resolved.id = VB_TRY(find_named(client, message.id));
    return on(client, request, resolved, now);
  } else {
    return on(client, request, message, now);
  }
}

// Carries out a request and replies to it, unless the handler sends the reply itself.  If the
// request has a number, the caller must reply to it with an error that this function returns.
template <class Message>
Result<void> Node::serve(ClientId client, const ipc::Envelope& envelope, Time now) {
  const Message message = VB_TRY(ipc::decode<Message>(envelope));
  const auto result = call_handler(client, envelope.request, message, now);
  std::string conflict;
  if (!result && result.error().code == Errc::kAddressInUse) {
    if constexpr (std::is_same_v<Message, ipc::Bind>) {
      conflict = describe_port_conflict(client, message.id, &message.address);
    } else if constexpr (std::is_same_v<Message, ipc::Listen>) {
      conflict = describe_port_conflict(client, message.id, nullptr);
    }
  }
  if (envelope.request != 0) {
    if (!result && !conflict.empty()) {
      ipc::Done refused = ipc::refusal(result.error());
      refused.text = std::move(conflict);
      send_to(client, ipc::encode(envelope.request, refused));
      return {};
    }
    if (!result) return std::unexpected(result.error());
    if (!*result) send_to(client, ipc::encode(envelope.request, ipc::Done{}));
    return {};
  }
  // The request gets no reply, but an error of a request about an id is reported as Refused.
  if constexpr (requires { message.id; }) {
    if (!result) {
      const Error& error = result.error();
      send_to(client,
              ipc::encode(0, ipc::Refused{.request = envelope.type,
                                          .id = message.id,
                                          .code = error.code,
                                          .detail = error.detail,
                                          .text = conflict.empty() ? error.context : conflict}));
    }
  }
  return {};
}

Result<void> Node::handle(ClientId client, const ipc::Envelope& envelope, Time now) {
  switch (envelope.type) {
    case ipc::Type::kLease: return serve<ipc::Lease>(client, envelope, now);
    case ipc::Type::kCreateId: return serve<ipc::CreateId>(client, envelope, now);
    case ipc::Type::kDestroyId: return serve<ipc::DestroyId>(client, envelope, now);
    case ipc::Type::kBind: return serve<ipc::Bind>(client, envelope, now);
    case ipc::Type::kResolveAddress: return serve<ipc::ResolveAddress>(client, envelope, now);
    case ipc::Type::kListen: return serve<ipc::Listen>(client, envelope, now);
    case ipc::Type::kConnect: return serve<ipc::Connect>(client, envelope, now);
    case ipc::Type::kAccept: return serve<ipc::Accept>(client, envelope, now);
    case ipc::Type::kReject: return serve<ipc::Reject>(client, envelope, now);
    case ipc::Type::kEstablish: return serve<ipc::Establish>(client, envelope, now);
    case ipc::Type::kDisconnect: return serve<ipc::Disconnect>(client, envelope, now);
    case ipc::Type::kNotify: return serve<ipc::Notify>(client, envelope, now);
    case ipc::Type::kSetOption: return serve<ipc::SetOption>(client, envelope, now);
    case ipc::Type::kSetPath: return serve<ipc::SetPath>(client, envelope, now);
    case ipc::Type::kFindServices: return serve<ipc::FindServices>(client, envelope, now);
    case ipc::Type::kAddService: return serve<ipc::AddService>(client, envelope, now);
    case ipc::Type::kRemoveService: return serve<ipc::RemoveService>(client, envelope, now);
    case ipc::Type::kReturnRange: return serve<ipc::ReturnRange>(client, envelope, now);
    case ipc::Type::kHandOver: return serve<ipc::UnfinishedWork>(client, envelope, now);
    case ipc::Type::kJoinGroup: return serve<ipc::JoinGroup>(client, envelope, now);
    case ipc::Type::kLeaveGroup: return serve<ipc::LeaveGroup>(client, envelope, now);
    case ipc::Type::kJoinMulticast: return serve<ipc::JoinMulticast>(client, envelope, now);
    case ipc::Type::kLeaveMulticast: return serve<ipc::LeaveMulticast>(client, envelope, now);
    case ipc::Type::kLoadPath: return serve<ipc::LoadPath>(client, envelope, now);
    case ipc::Type::kAnswerPath: return serve<ipc::AnswerPath>(client, envelope, now);
    case ipc::Type::kMigrated: return serve<ipc::Migrated>(client, envelope, now);
    case ipc::Type::kAttachLane: return serve<ipc::AttachLane>(client, envelope, now);
    case ipc::Type::kCloseLane: return serve<ipc::CloseLane>(client, envelope, now);
    default: return fail(Errc::kNotSupported, "not a request of a program");
  }
}

void Node::on_message(ClientId client, std::span<const std::byte> message, Time now) {
  if (!clients_.contains(client)) return;
  const auto envelope = ipc::open(message);
  if (!envelope) return;  // the request has no readable number, so there is no way to reply
  const auto served = handle(client, *envelope, now);
  if (!served && envelope->request != 0) {
    send_to(client, ipc::encode(envelope->request, ipc::refusal(served.error())));
  }
  run(now);
}

Result<bool> Node::on(ClientId client, std::uint64_t request, const ipc::Lease& m, Time) {
  if (ports_.all_down_reason() && m.sockets) {
    send_to(client, ipc::encode(request, ipc::Done{.failed = true,
                                                   .code = Errc::kUnreachable,
                                                   .text = "the port is down: " +
                                                           *ports_.all_down_reason()}));
    return true;
  }
  ipc::DirectAccess& direct = clients_.at(client).direct;
  direct = m.direct;
  direct.pid = m.direct.mark_address == 0 ? 0 : clients_.at(client).program.pid;
  VB_TRY_VOID(request_lease({client, request, m.sockets}));
  return true;
}

// Outputs a LeaseRequest, or makes the lease wait.  A range that quiesces counts towards the limit
// of the program that has returned it.  Without this rule, one program could lease and return all
// ranges, and other programs would get none.
Result<void> Node::request_lease(const PendingLease& lease) {
  const auto is_of_client = [&](const auto& request) {
    return request.second.client == lease.client;
  };
  const auto pending = std::ranges::count_if(lease_requests_, is_of_client);
  const auto quiescing = std::ranges::count(quiescing_, lease.client, &QuiescingRange::owner);
  const std::size_t in_use =
      clients_.at(lease.client).ranges.size() + static_cast<std::size_t>(pending);
  if (in_use >= config_.leases_per_client_max) {
    ++leases_over_client_limit_;
    return fail(Errc::kNoResources,
                "all QP numbers of a program are in use (leases_per_client_max)");
  }
  const std::uint32_t user = clients_.at(lease.client).program.user;
  if (user != config_.own_user && count_ranges_of_user(user) >= config_.leases_per_user_max) {
    ++leases_over_user_limit_;
    return fail(Errc::kNoResources, "all QP numbers of a user are in use (leases_per_user_max)");
  }
  if (in_use + static_cast<std::size_t>(quiescing) >= config_.leases_per_client_max) {
    ++leases_delayed_;
    leases_waiting_.push_back(lease);
    return {};
  }
  const std::uint64_t token = next_token_++;
  lease_requests_[token] = lease;
  outputs_.emplace_back(LeaseRequest{token, lease.client, old_ranges(), lease.sockets});
  return {};
}

// Returns the number of ranges that the programs of a user have leased or requested.
std::size_t Node::count_ranges_of_user(std::uint32_t user) const {
  std::size_t count = 0;
  for (const auto& [id, client] : clients_) {
    if (client.program.user == user) count += client.ranges.size();
  }
  for (const auto& [token, lease] : lease_requests_) {
    if (clients_.at(lease.client).program.user == user) ++count;
  }
  return count;
}

// Refuses privileged ports to users other than root, as TCP does.
Result<void> Node::check_port(ClientId client, std::uint16_t port) const {
  if (port == 0 || port >= config_.unprivileged_port_start ||
      clients_.at(client).program.user == 0) {
    return {};
  }
  return fail(Errc::kPermission, "only root may use this port (ip_unprivileged_port_start)",
              EACCES);
}

// Checks the port of an address at which a program gets requests.  Also checks the port that the
// service id means, because an id without a port space may have any service id.
Result<void> Node::check_port_of(ClientId client, const rdmacm::SocketAddress& address,
                                 ServiceId mask) const {
  if (rdmacm::named_by(address) == rdmacm::NamedBy::kPort) {
    VB_TRY_VOID(check_port(client, address.port));
  }
  return check_port(client, port_of_service(address.service, mask));
}

void Node::retry_leases() {
  for (const PendingLease& lease : std::exchange(leases_waiting_, {})) {
    if (const auto result = request_lease(lease); !result) {
      send_to(lease.client, ipc::encode(lease.request, ipc::refusal(result.error())));
    }
  }
}

std::vector<std::uint16_t> Node::old_ranges() const {
  // Only half of the 4094 ranges may be avoided, so that enough ranges remain to choose from and
  // QPNs remain hard to guess.
  constexpr std::size_t kAvoidedMax = 2048;
  std::vector<std::uint16_t> all;
  for (const auto& [id, client] : clients_) {
    const auto count = std::min(kAvoidedMax - all.size(), client.old_ranges.size());
    all.insert(all.end(), client.old_ranges.begin(),
               client.old_ranges.begin() + static_cast<std::ptrdiff_t>(count));
  }
  return all;
}

Result<bool> Node::on(ClientId client, std::uint64_t, const ipc::ReturnRange& m, Time now) {
  if (std::erase(clients_.at(client).ranges, m.range) == 0) {
    return fail(Errc::kInvalidArgument, "not a range of this program");
  }
  report_lane_range(client, m.range, false);
  leave_groups(m.range);
  quiescing_.push_back({now + config_.range_quiesce_time, m.range, client});
  return false;
}

// Ignores disconnects that cannot be sent, because the program can do nothing about them.  The RDMA
// CM counts them.
Result<bool> Node::on(ClientId client, std::uint64_t, const ipc::UnfinishedWork& m, Time now) {
  if (m.disconnects.size() > ipc::UnfinishedWork::kDisconnectsMax ||
      m.ranges.size() > ipc::UnfinishedWork::kRangesMax) {
    return fail(Errc::kInvalidArgument, "the unfinished work has too many disconnects or ranges");
  }
  if (!m.ranges.empty()) clients_.at(client).old_ranges = m.ranges;
  for (const rdmacm::PendingDisconnect& pending : m.disconnects) {
    (void)rdmacm_.inherit_disconnect(pending, now).has_value();
  }
  return false;
}

Result<bool> Node::on(ClientId client, std::uint64_t, const ipc::CreateId& m, Time now) {
  Client& program = clients_.at(client);
  const std::uint32_t index = ipc::index_of_name(m.id);
  if (!ipc::is_name(m.id) || index >= kNamesMax) {
    return fail(Errc::kInvalidArgument, "not a name for an id");
  }
  if (index < program.ids_by_index.size() && rdmacm_.name(program.ids_by_index[index]) != 0) {
    return fail(Errc::kInvalidArgument, "another id has this name");
  }
  program.failed_ids.erase(m.id);
  const auto created_id = create_id(client, m, now);
  if (!created_id) {
    // The error is stored, because later requests that name the id get the same error.
    if (program.failed_ids.size() < kNamesMax) program.failed_ids.emplace(m.id, created_id.error());
    return std::unexpected(created_id.error());
  }
  if (index >= program.ids_by_index.size()) program.ids_by_index.resize(index + 1);
  program.ids_by_index[index] = *created_id;
  return false;
}

Result<rdmacm::IdHandle> Node::create_id(ClientId client, const ipc::CreateId& m, Time now) {
  VB_TRY_VOID(rdmacm::check_port_space(m.port_space, m.qp_type));
  return rdmacm_.create_id(client, static_cast<std::uint16_t>(m.port_space),
                           static_cast<std::uint8_t>(m.qp_type), now, m.id.value);
}

Result<bool> Node::on(ClientId client, std::uint64_t, const ipc::DestroyId& m, Time now) {
  if (clients_.at(client).failed_ids.erase(m.id) != 0) return false;
  const rdmacm::IdHandle id = VB_TRY(find_named(client, m.id));
  VB_TRY_VOID(rdmacm_.destroy_id(client, id, now));
  return false;
}

std::string Node::describe_port_conflict(ClientId client, rdmacm::IdHandle name,
                                         const rdmacm::SocketAddress* address) const {
  const auto id = find_named(client, name);
  const auto other = id ? rdmacm_.find_conflict(client, *id, address) : std::nullopt;
  const auto holder = other ? clients_.find(other->owner) : clients_.end();
  if (holder == clients_.end()) return {};
  return "port " + std::to_string(other->source.port) + " is in use, by " +
         (other->owner == client ? "another id of this program"
                                 : "PID " + std::to_string(holder->second.program.pid));
}

Result<bool> Node::on(ClientId client, std::uint64_t request, const ipc::Bind& m, Time now) {
  VB_TRY_VOID(check_port_of(client, m.address));
  VB_TRY_VOID(rdmacm_.bind(client, m.id, m.address, now));
  return reply_bound(client, request, m.id);
}

// Replies with the address to which the id is bound.
Result<bool> Node::reply_bound(ClientId client, std::uint64_t request, rdmacm::IdHandle id) {
  const rdmacm::IdInfo info = VB_TRY(rdmacm_.info(client, id));
  send_to(client, ipc::encode(request, ipc::Bound{.source = info.source,
                                                  .on_device = info.bound_to_device != 0,
                                                  .path = info.path}));
  return true;
}

Result<bool> Node::on(ClientId client, std::uint64_t, const ipc::ResolveAddress& m, Time now) {
  VB_TRY_VOID(check_port_of(client, m.source));
  VB_TRY_VOID(rdmacm_.resolve_addr(client, m.id, m.source.family == 0 ? nullptr : &m.source,
                                   m.destination, m.timeout, now));
  return false;
}

// Replies with the address, because listen() binds an id that the program has not bound.
Result<bool> Node::on(ClientId client, std::uint64_t request, const ipc::Listen& m, Time) {
  const rdmacm::IdInfo info = VB_TRY(rdmacm_.info(client, m.id));
  VB_TRY_VOID(check_port_of(client, info.source, m.filter.mask));
  const auto backlog = m.backlog < 0 ? 0 : static_cast<std::uint32_t>(m.backlog);
  // A default filter accepts all requests for the service ID, so it means listen() without a
  // filter.
  VB_TRY_VOID(m.filter == rdmacm::Filter{} ? rdmacm_.listen(client, m.id, backlog)
                                           : rdmacm_.listen_for(client, m.id, m.filter, backlog));
  return reply_bound(client, request, m.id);
}

bool Node::has_leased(ClientId client, Qpn qpn) const {
  return has_range(client, static_cast<std::uint16_t>(qpn.value >> 12));
}

bool Node::has_range(ClientId client, std::uint16_t range) const {
  const auto ranges = ranges_of(client);
  return std::ranges::find(ranges, range) != ranges.end();
}

Result<bool> Node::on(ClientId client, std::uint64_t, const ipc::Connect& m, Time now) {
  const rdmacm::IdInfo info = VB_TRY(rdmacm_.info(client, m.id));
  // If two peers connect to each other, one of them gets a request for the same service.
  if (m.param.peer_to_peer) VB_TRY_VOID(check_port_of(client, info.destination));
  // An id of another type asks for the QP of a service (SIDR), and needs no QP of its own yet.
  const bool needs_qp = info.qp_type == rdmacm::kQpTypeRc;
  if ((needs_qp || m.param.qpn != 0) && !has_leased(client, {m.param.qpn})) {
    return fail(Errc::kInvalidArgument, "not a QP of this program");
  }
  VB_TRY_VOID(rdmacm_.set_option(client, m.id, rdmacm::Option::kTos, m.traffic_class));
  VB_TRY_VOID(rdmacm_.connect(client, m.id, m.param, now));
  return false;
}

Result<bool> Node::on(ClientId client, std::uint64_t, const ipc::Accept& m, Time now) {
  if (!has_leased(client, {m.param.qpn})) {
    return fail(Errc::kInvalidArgument, "not a QP of this program");
  }
  VB_TRY_VOID(rdmacm_.accept(client, m.id, m.param, now));
  return false;
}

Result<bool> Node::on(ClientId client, std::uint64_t, const ipc::Reject& m, Time now) {
  VB_TRY_VOID(rdmacm_.reject(
      client, m.id,
      {.reason = m.reason, .additional_info = m.additional_info, .private_data = m.private_data},
      now));
  return false;
}

Result<bool> Node::on(ClientId client, std::uint64_t, const ipc::Establish& m, Time now) {
  VB_TRY_VOID(rdmacm_.establish(client, m.id, now, m.private_data));
  return false;
}

Result<bool> Node::on(ClientId client, std::uint64_t, const ipc::Disconnect& m, Time now) {
  VB_TRY_VOID(rdmacm_.disconnect(client, m.id, now, m.private_data));
  return false;
}

Result<bool> Node::on(ClientId client, std::uint64_t, const ipc::LoadPath& m, Time now) {
  VB_TRY_VOID(rdmacm_.load_path(client, m.id, m.path, m.private_data, now));
  return false;
}

Result<bool> Node::on(ClientId client, std::uint64_t, const ipc::AnswerPath& m, Time now) {
  VB_TRY_VOID(rdmacm_.answer_path(
      client, m.id,
      {.status = m.status, .additional_info = m.additional_info, .private_data = m.private_data},
      now));
  return false;
}

// The program must have leased the QPN, so that it cannot migrate another program's connection.
Result<bool> Node::on(ClientId client, std::uint64_t, const ipc::Migrated& m, Time) {
  if (!has_leased(client, m.qpn)) {
    return fail(Errc::kInvalidArgument, "not a QP of this program");
  }
  rdmacm_.path_migrated(m.qpn);
  return false;
}

// The program must have leased the QPN, so that it cannot establish another program's connection.
Result<bool> Node::on(ClientId client, std::uint64_t, const ipc::Notify& m, Time now) {
  if (!has_leased(client, m.qpn)) {
    return fail(Errc::kInvalidArgument, "not a QP of this program");
  }
  rdmacm_.comm_established(m.qpn, now);
  return false;
}

Result<bool> Node::on(ClientId client, std::uint64_t, const ipc::SetOption& m, Time) {
  constexpr std::uint32_t kLevelId = 0;  // RDMA_OPTION_ID
  if (m.level != kLevelId || m.option > std::to_underlying(rdmacm::Option::kAckTimeout)) {
    return fail(Errc::kNotSupported, "no such option");
  }
  if (m.value > 0xffffffff)
    return fail(Errc::kInvalidArgument, "the value of an option has more than 32 bits");
  VB_TRY_VOID(rdmacm_.set_option(client, m.id, static_cast<rdmacm::Option>(m.option),
                                 static_cast<std::uint32_t>(m.value)));
  return false;
}

Result<bool> Node::on(ClientId client, std::uint64_t, const ipc::SetPath& m, Time) {
  VB_TRY_VOID(rdmacm_.set_path(client, m.id, m.path));
  return false;
}

Result<bool> Node::on(ClientId client, std::uint64_t request, const ipc::FindServices& m,
                      Time now) {
  VB_TRY_VOID(services_.find(client, request, m, now));
  return true;
}

Result<bool> Node::on(ClientId client, std::uint64_t request, const ipc::AddService& m, Time now) {
  VB_TRY_VOID(services_.add(client, request, m, now));
  return true;
}

Result<bool> Node::on(ClientId client, std::uint64_t, const ipc::RemoveService& m, Time now) {
  VB_TRY_VOID(services_.remove(client, m.registration, now));
  return false;
}

}  // namespace verbena::node
