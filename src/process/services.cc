// Implements paths and services on an InfiniBand subnet: paths that the program has chosen for its
// ids, services that the subnet administration (SA) finds by name or id, and the registration of
// services.

#include <utility>
#include <variant>

#include "process/ask.h"
#include "process/process.h"

namespace verbena::process {

using Stage = Connection::Stage;
using rdmacm::EventKind;

Started<ipc::Done> Process::set_path(ConnectionHandle id, const rdmacm::PathInfo& path,
                                     Completion<ipc::Done> done) {
  const auto found = find_with_agent(id);
  if (!found) return failed(found.error());
  const Connection& connection = **found;
  if (connection.stage != Stage::kAddressResolved) {
    return failed({Errc::kBadState, 0, "no address resolved"});
  }
  rdmacm::PathInfo full_path = path;
  full_path.address.port = connection.path.address.port;
  full_path.sgid_index = connection.path.sgid_index;
  return ask_about(
      id, ipc::SetPath{{}, full_path},
      Completion<ipc::Done>(
          [this, id, full_path, done = std::move(done)](Result<ipc::Done> result) mutable {
            Connection* const current = connections_.find(id);
            if (result && current != nullptr && current->stage == Stage::kAddressResolved) {
              current->path = full_path;
              report_route(id, *current);
            }
            done(std::move(result));
          }));
}

// An id that has found services cannot look up services again, as on Linux, because the answer
// decides the id's destination.
Started<ipc::Done> Process::find_services_for(ConnectionHandle id, const ServiceFilter& filter) {
  const auto found = find_with_agent(id);
  if (!found) return failed(found.error());
  Connection& connection = **found;
  if (connection.bound && !is_on_subnet(connection)) {
    return failed({Errc::kNotSupported, 0, "services need an InfiniBand port"});
  }
  if (connection.stage != Stage::kBound || !connection.bound) {
    return failed({Errc::kBadState, 0, "a lookup of services needs an id that is bound to a port"});
  }
  if (connection.service_lookup) {
    return failed({Errc::kBadState, 0, "this id has looked up services already"});
  }
  connection.service_lookup = requests_.ask<ipc::ServicesFound>(
      message_of(connection.path.address.port, filter),
      Completion<ipc::ServicesFound>(
          [this, id](Result<ipc::ServicesFound> reply) { on_services(id, std::move(reply)); }));
  return Result<ipc::Done>(ipc::Done{});
}

Started<ipc::ServicesFound> Process::find_services(PortId port, const ServiceFilter& filter,
                                                   Completion<ipc::ServicesFound> done) {
  if (!connected()) return Result<ipc::ServicesFound>(fail(Errc::kDeviceFatal, kNoAgentText));
  return requests_.ask<ipc::ServicesFound>(message_of(port, filter), std::move(done));
}

Started<ipc::ServiceAdded> Process::add_service(PortId port, const ipc::Service& service,
                                                Completion<ipc::ServiceAdded> done) {
  if (!connected()) return Result<ipc::ServiceAdded>(fail(Errc::kDeviceFatal, kNoAgentText));
  return requests_.ask<ipc::ServiceAdded>(ipc::AddService{port, service}, std::move(done));
}

Started<ipc::Done> Process::remove_service(std::uint64_t registration, Completion<ipc::Done> done) {
  if (!connected()) return failed({Errc::kDeviceFatal, 0, kNoAgentText});
  return requests_.ask<ipc::Done>(ipc::RemoveService{registration}, std::move(done));
}

ipc::FindServices Process::message_of(PortId port, const ServiceFilter& filter) {
  return {.port = port,
          .by_name = filter.name.has_value(),
          .name = filter.name.value_or(ipc::ServiceName{}),
          .by_id = filter.service_id.has_value(),
          .service_id = filter.service_id.value_or(ServiceId{}),
          .timeout = filter.timeout};
}

void Process::on_services(ConnectionHandle id, Result<ipc::ServicesFound> reply) {
  Connection& connection = *connections_.find(id);
  if (reply && reply->services.empty()) {
    reply = fail(Errc::kAddressNotFound, "the subnet administration has no such service");
  }
  CmNotice notice{.id = id, .cookie = connection.cookie};
  notice.event = {.id = connection.agent_id, .kind = EventKind::kAddrInfoResolved};
  if (reply) {
    connection.services = std::move(reply->services);
  } else {
    notice.event.kind = EventKind::kAddrInfoError;
    notice.event.status = -to_errno(reply.error());
    notice.why = reply.error().from_agent ? last_refusal_text() : reply.error().context;
    connection.service_lookup.reset();  // the program may look up services again
  }
  notices_.push_back(std::move(notice));
}

// Resolves the first service's GID to a path.  The program gets only the event of the route,
// because it did not call resolve_address().
Started<ipc::Done> Process::resolve_service(ConnectionHandle id, Duration timeout,
                                            Completion<ipc::Done> done) {
  Connection& connection = *connections_.find(id);
  const ipc::Service& service = connection.services.front();
  ipc::ResolveAddress message{
      {},
      {},
      {.ip = service.gid, .family = 6, .by_gid = true, .service = service.service_id},
      timeout};
  auto started =
      ask_about(id, std::move(message),
                Completion<ipc::Done>(
                    [this, id, done = set_stage_on_success(id, Stage::kResolving, std::move(done))](
                        Result<ipc::Done> result) mutable {
                      Connection* const current = connections_.find(id);
                      if (!result && current != nullptr) current->reports_only_route = false;
                      done(std::move(result));
                    }));
  connection.reports_only_route = std::holds_alternative<Pending>(started);
  return started;
}

// Turns an event about the address into an event about the route.
void Process::report_address_as_route(Connection& connection, CmNotice& notice) {
  connection.reports_only_route = false;
  if (notice.event.kind == EventKind::kAddrError) {
    notice.event.kind = EventKind::kRouteError;
    return;
  }
  connection.stage = Stage::kRouteResolved;
  connection.resolved = true;
  notice.event.kind = EventKind::kRouteResolved;
  notice.event.path = connection.path;
}

}  // namespace verbena::process
