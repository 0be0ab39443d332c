// Handles alternate paths of connections: CM messages agree on them, and the QP loads them.

#include <algorithm>
#include <cerrno>
#include <utility>

#include "process/ask.h"
#include "process/process.h"
#include "wire/source_port.h"

namespace verbena::process {
namespace {

namespace attribute = hca::attribute;

}  // namespace

Result<Process::OtherPath> Process::other_path(const Connection& connection,
                                               rdmacm::PathInfo path) const {
  if (!connected()) return fail(Errc::kDeviceFatal, kAgentGone);
  // Both paths of a QP begin at ports of its device.
  const std::uint8_t device = connection.path.address.port.device;
  const ipc::GidEntry* entry = nullptr;
  for (std::uint8_t number = 1; entry == nullptr && number <= devices_[device].ports.size();
       ++number) {
    const auto& gids = find_port({device, number})->gids;
    const auto found = std::ranges::find_if(gids, [&](const ipc::GidEntry& gid) {
      return gid.gid == path.address.source &&
             (path.address.interface == 0 || gid.interface == path.address.interface);
    });
    if (found == gids.end()) continue;
    entry = &*found;
    path.address.port = {device, number};
  }
  if (entry == nullptr) {
    return fail(Errc::kAddressNotFound, "the other path begins at no address of the device");
  }
  path.address.interface = entry->interface;
  path.sgid_index = entry->index;
  if (path.address.is_infiniband()) path.pkey = connection.path.pkey;  // a REQ names one for both
  rdmacm::PathInfo to = path;
  if (to.address.flow_label == 0) {
    to.address.flow_label =
        wire::default_flow_label(connection.qpn, {connection.qp_transition.remote_qpn});
  }
  return OtherPath{.path = path,
                   .attributes = {.alternate_path = VB_TRY(path_of(to)),
                                  .alternate_pkey_index = pkey_index_of(path),
                                  .alternate_port = path.address.port.number,
                                  .alternate_timeout = connection.qp_transition.ack_timeout,
                                  .migration = hca::MigrationState::kRearm}};
}

// If the QP belongs to the program, the program loads the path itself.
Result<void> Process::load(Connection& connection, const OtherPath& other, Time now) {
  if (other.path.address.source == Gid{}) return {};
  if (connection.qp) {
    VB_TRY_VOID(move_qp(connection.qp, other.attributes,
                        attribute::kAlternatePath | attribute::kMigrationState, now));
  }
  connection.other = other.path;
  return {};
}

Started<ipc::Done> Process::load_path(ConnectionHandle id, const rdmacm::PathInfo& path,
                                      std::span<const std::byte> private_data,
                                      Completion<ipc::Done> done) {
  const auto found = find(id);
  if (!found) return failed(found.error());
  const auto other = other_path(**found, path);
  if (!other) return failed(other.error());
  return ask_for(id, ipc::LoadPath{{}, other->path, bytes(private_data)}, std::move(done));
}

// The QP has to load the path before the peer may use it.
Started<ipc::Done> Process::answer_path(ConnectionHandle id, const rdmacm::PathAnswer& answer,
                                        Time now, Completion<ipc::Done> done) {
  const auto found = find(id);
  if (!found) return failed(found.error());
  Connection& connection = **found;
  if (!connection.agent_id) return failed({Errc::kDeviceFatal, 0, kIdGone});
  if (connection.offered.address.source == Gid{}) {
    return failed({Errc::kBadState, 0, "the peer has not offered a path"});
  }
  if (answer.additional_info.size() > rdmacm::kAdditionalInfoBytes ||
      answer.private_data.size() > rdmacm::kPathAnswerPrivateBytes) {
    return failed({Errc::kInvalidArgument, 0, "too much private data or additional information"});
  }
  if (answer.status == 0) {
    const auto other = other_path(connection, connection.offered);
    if (!other) return failed(other.error());
    if (const auto has = load(connection, *other, now); !has) return failed(has.error());
  }
  return ask_for(
      id,
      ipc::AnswerPath{{}, answer.status, bytes(answer.additional_info), bytes(answer.private_data)},
      Completion<ipc::Done>([this, id, done = std::move(done)](Result<ipc::Done> result) mutable {
        Connection* const asked = connections_.find(id);
        if (result && asked != nullptr) asked->offered = {};
        done(std::move(result));
      }));
}

// Returns the alternate path that the peer's request offers, if the QP of the id can load it.  The
// RDMA CM has no events for alternate paths, so the program is not asked.
std::optional<Process::OtherPath> Process::offer_of_route(const Connection& connection) const {
  const link::Address& offered = connection.offered.address;
  if (connection.is_without_port_space() || !connection.qp || !offered.is_infiniband() ||
      offered.source == Gid{}) {
    return std::nullopt;
  }
  auto other = other_path(connection, connection.offered);
  return other ? std::optional(*std::move(other)) : std::nullopt;
}

// Loads the alternate path that came with the route, and that the peer has accepted.  The
// connection works without it, too.
void Process::load_agreed_of_route(Connection& connection, Time now) {
  if (connection.agreed.address.source == Gid{}) return;
  if (const auto other = other_path(connection, connection.agreed)) {
    (void)load(connection, *other, now).has_value();
  }
}

// Handles the peer's answer to a path that we have offered.
void Process::load_agreed(Connection& connection, CmNotice& notice, Time now) {
  if (notice.event.status != 0) return;  // the QP keeps its paths
  auto other = other_path(connection, notice.event.param.alternate);
  Result<void> loaded{};
  if (other) loaded = load(connection, *other, now);
  const bool good = other && loaded;
  if (!good) notice.event.status = -to_errno(other ? loaded.error() : other.error());
}

// CM messages of the connection now take the same path as its packets.
void Process::on_migrated(Qpn qpn) {
  requests_.say(ipc::Migrated{qpn});
  Connection* connection = connections_.find_by_qpn(qpn);
  if (connection == nullptr) {  // the QP belongs to the program
    connections_.for_each([&](ConnectionHandle, Connection& one) {
      if (one.pending_disconnect.local_qpn == qpn && one.other.address.source != Gid{})
        connection = &one;
    });
  }
  if (connection == nullptr || connection->other.address.source == Gid{}) return;
  const rdmacm::PathInfo other = std::exchange(connection->other, {});
  rdmacm::PathInfo& path = connection->path;
  path.address = other.address;
  path.sgid_index = other.sgid_index;
  connection->pending_disconnect.address = other.address;
}

}  // namespace verbena::process
