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

// Completes an alternate path with its port, interface, GID index and P_Key, and makes the
// attributes that load the path into a QP.  The source address of the path chooses the port.
Result<Process::AlternatePath> Process::alternate_path(const Connection& connection,
                                                       rdmacm::PathInfo path) const {
  if (!connected()) return fail(Errc::kDeviceFatal, kNoAgentText);
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
    return fail(Errc::kAddressNotFound,
                "the device does not have the source address of the alternate path");
  }
  path.address.interface = entry->interface;
  path.sgid_index = entry->index;
  // A REQ has one P_Key for both paths.
  if (path.address.is_infiniband()) path.pkey = connection.path.pkey;
  rdmacm::PathInfo to = path;
  if (to.address.flow_label == 0) {
    to.address.flow_label =
        wire::default_flow_label(connection.qpn, {connection.qp_transition.remote_qpn});
  }
  return AlternatePath{.path = path,
                       .attributes = {.alternate_path = VB_TRY(path_of(to)),
                                      .alternate_pkey_index = pkey_index_of(path),
                                      .alternate_port = path.address.port.number,
                                      .alternate_timeout = connection.qp_transition.ack_timeout,
                                      .migration = hca::MigrationState::kRearm}};
}

// Loads an alternate path, if there is one, into the QP of the id.  A program that has created its
// QP itself also loads the path itself.
Result<void> Process::load(Connection& connection, const AlternatePath& alternate, Time now) {
  if (alternate.path.address.source == Gid{}) return {};
  if (connection.qp) {
    VB_TRY_VOID(move_qp(connection.qp, alternate.attributes,
                        attribute::kAlternatePath | attribute::kMigrationState, now));
  }
  connection.loaded_path = alternate.path;
  return {};
}

Started<ipc::Done> Process::load_path(ConnectionHandle id, const rdmacm::PathInfo& path,
                                      std::span<const std::byte> private_data,
                                      Completion<ipc::Done> done) {
  const auto found = find_with_agent(id);
  if (!found) return failed(found.error());
  const auto alternate = alternate_path(**found, path);
  if (!alternate) return failed(alternate.error());
  return ask_about(id, ipc::LoadPath{{}, alternate->path, bytes(private_data)}, std::move(done));
}

// The QP loads an accepted path before the answer is sent, because the peer may use the path as
// soon as it has the answer.
Started<ipc::Done> Process::answer_path(ConnectionHandle id, const rdmacm::PathAnswer& answer,
                                        Time now, Completion<ipc::Done> done) {
  const auto found = find(id);
  if (!found) return failed(found.error());
  Connection& connection = **found;
  if (!connection.agent_id) return failed({Errc::kDeviceFatal, 0, kAgentOfIdDiedText});
  if (connection.offered_path.address.source == Gid{}) {
    return failed({Errc::kBadState, 0, "the peer has not offered a path"});
  }
  if (answer.additional_info.size() > rdmacm::kAdditionalInfoBytes ||
      answer.private_data.size() > rdmacm::kPathAnswerPrivateBytes) {
    return failed({Errc::kInvalidArgument, 0, "too much private data or additional information"});
  }
  if (answer.status == 0) {
    const auto alternate = alternate_path(connection, connection.offered_path);
    if (!alternate) return failed(alternate.error());
    if (const auto loaded = load(connection, *alternate, now); !loaded) {
      return failed(loaded.error());
    }
  }
  return ask_about(
      id,
      ipc::AnswerPath{{}, answer.status, bytes(answer.additional_info), bytes(answer.private_data)},
      Completion<ipc::Done>([this, id, done = std::move(done)](Result<ipc::Done> result) mutable {
        Connection* const current = connections_.find(id);
        if (result && current != nullptr) current->offered_path = {};
        done(std::move(result));
      }));
}

// Returns the alternate path of the peer's request, if the QP of the id can load it.  The RDMA CM
// has no events for alternate paths, so accept() accepts this path without asking the program.
std::optional<Process::AlternatePath> Process::acceptable_alternate(
    const Connection& connection) const {
  const link::Address& offered = connection.offered_path.address;
  if (connection.is_without_port_space() || !connection.qp || !offered.is_infiniband() ||
      offered.source == Gid{}) {
    return std::nullopt;
  }
  auto alternate = alternate_path(connection, connection.offered_path);
  return alternate ? std::optional(*std::move(alternate)) : std::nullopt;
}

// Loads the alternate path of the route after the peer has accepted it.  Ignores errors, because
// the connection also works without an alternate path.
void Process::load_accepted_alternate(Connection& connection, Time now) {
  if (connection.accepted_path.address.source == Gid{}) return;
  if (const auto alternate = alternate_path(connection, connection.accepted_path)) {
    (void)load(connection, *alternate, now).has_value();
  }
}

// Handles the peer's answer to the alternate path that this side has offered (LAP, APR).
void Process::on_path_answered(Connection& connection, CmNotice& notice, Time now) {
  if (notice.event.status != 0) return;  // the peer refused the path, so the QP keeps its paths
  auto alternate = alternate_path(connection, notice.event.param.alternate);
  Result<void> loaded{};
  if (alternate) loaded = load(connection, *alternate, now);
  const bool is_loaded = alternate && loaded;
  if (!is_loaded) notice.event.status = -to_errno(alternate ? loaded.error() : alternate.error());
}

// Handles the migration of a QP to its alternate path.  Later CM messages of the connection also
// take this path.
void Process::on_migrated(Qpn qpn) {
  requests_.send(ipc::Migrated{qpn});
  Connection* connection = connections_.find_by_qpn(qpn);
  if (connection == nullptr) {  // the program created the QP itself, so no id has it
    connections_.for_each([&](ConnectionHandle, Connection& candidate) {
      if (candidate.pending_disconnect.local_qpn == qpn &&
          candidate.loaded_path.address.source != Gid{})
        connection = &candidate;
    });
  }
  if (connection == nullptr || connection->loaded_path.address.source == Gid{}) return;
  const rdmacm::PathInfo alternate = std::exchange(connection->loaded_path, {});
  rdmacm::PathInfo& path = connection->path;
  path.address = alternate.address;
  path.sgid_index = alternate.sgid_index;
  connection->pending_disconnect.address = alternate.address;
}

}  // namespace verbena::process
