// Creates, queries and destroys ids.  Other files implement the other members of Manager.
#include "rdmacm/manager.h"

#include <algorithm>
#include <memory>

#include "rdmacm/rules.h"

namespace verbena::rdmacm {

Manager::Manager(const Config& config, Random random)
    : config_(config), random_(random), cm_(config.cm, random_.fork()), ids_(config.ids_max) {}

Result<IdHandle> Manager::create_id(Owner owner, std::uint16_t port_space, std::uint8_t qp_type,
                                    Time, std::uint64_t name) {
  VB_TRY_VOID(check_port_space(port_space, qp_type));
  const IdHandle handle = VB_TRY(add_id(owner, port_space, qp_type));
  ids_.find(handle)->name = name;
  return handle;
}

std::uint64_t Manager::name(IdHandle handle) const {
  const Id* id = ids_.find(handle);
  return id == nullptr ? 0 : id->name;
}

Result<IdHandle> Manager::add_id(Owner owner, std::uint16_t port_space, std::uint8_t qp_type) {
  if (counts_.count_of_owner(owner) >= config_.ids_per_owner_max) {
    ++limit_refusals_.ids_per_owner;
    return fail(Errc::kNoResources, "a program's RDMA CM ids are all in use (ids_per_owner_max)");
  }
  if (counts_.count_of_user(owner) >= config_.ids_per_user_max) {
    ++limit_refusals_.ids_per_user;
    return fail(Errc::kNoResources, "a user's RDMA CM ids are all in use (ids_per_user_max)");
  }
  auto id = std::make_unique<Id>();
  id->owner = owner;
  id->port_space = port_space;
  id->qp_type = qp_type;
  const auto handle = ids_.insert(std::move(id));
  if (!handle) {
    ++limit_refusals_.ids;
    return fail(handle.error().code, "the host's RDMA CM ids are all in use (ids_max)");
  }
  counts_.add(owner);
  return *handle;
}

Result<void> Manager::destroy_id(Owner owner, IdHandle handle, Time now) {
  Id* id = VB_TRY(find(owner, handle));
  remove_id(handle, *id, now);
  drain_cm(now);
  return {};
}

void Manager::remove_client(Owner owner, Time now) {
  if (counts_.count_of_owner(owner) > 0) {
    std::vector<IdHandle> handles;
    ids_.for_each([&](IdHandle handle, const Id& id) {
      if (id.owner == owner) handles.push_back(handle);
    });
    for (const IdHandle handle : handles) remove_id(handle, *ids_.find(handle), now);
    drain_cm(now);
  }
  counts_.forget(owner);
}

void Manager::remove_id(IdHandle handle, Id& id, Time now) {
  cancel_query(id);
  leave_backlog(id);
  // The endpoint disconnects even though its id is removed, and reports nothing from now on.
  if (id.endpoint) (void)cm_.destroy(id.endpoint, now);
  if (id.resolution)
    (void)cm_.sidr().destroy(id.resolution, now);  // fails if the request was answered already
  release_port(handle, id);
  counts_.remove(id.owner);
  ids_.remove(handle);
}

void Manager::release_port(IdHandle handle, Id& id) {
  if (id.listening && id.listening->service) {
    VB_CHECK(cm_.unlisten(*id.listening->service).has_value());
  }
  if (!id.has_reserved_port) return;
  id.has_reserved_port = false;
  const ServiceId service = service_id(id.port_space, id.source.port);
  if (ports_.release(id.port_space, id.source.port, handle)) {
    VB_CHECK(cm_.unlisten({.id = service}).has_value());
  }
  // Another id that is bound to this port may still be about to listen.
  if (!ports_.is_reserved(id.port_space, id.source.port)) cm_.stop_expecting(service);
}

Result<void> Manager::set_option(Owner owner, IdHandle handle, Option option, std::uint32_t value) {
  Id* id = VB_TRY(find(owner, handle));
  switch (option) {
    case Option::kTos:
      if (value > 0xff) return fail(Errc::kInvalidArgument, "TOS is one byte");
      id->tos = static_cast<std::uint8_t>(value);
      return {};
    case Option::kReuseAddr:
      if (id->has_reserved_port) return fail(Errc::kBadState, "bound already");
      id->reuse_addr = value != 0;
      return {};
    case Option::kAfOnly:
      if (id->has_reserved_port) return fail(Errc::kBadState, "bound already");
      id->af_only = value != 0;
      return {};
    case Option::kAckTimeout:
      if (value > 31) return fail(Errc::kInvalidArgument, "a timeout code has 5 bits");
      id->ack_timeout = static_cast<std::uint8_t>(value);
      return {};
  }
  return fail(Errc::kInvalidArgument, "unknown option");
}

Result<IdInfo> Manager::info(Owner owner, IdHandle handle) const {
  const Id* id = VB_TRY(find(owner, handle));
  return IdInfo{.port_space = id->port_space,
                .qp_type = id->qp_type,
                .source = id->source,
                .destination = id->destination,
                .path = id->path,
                .bound_to_device = id->bound_to_device};
}

// Finds an id of this owner.  The id of another owner is treated as if it did not exist.
Result<Id*> Manager::find(Owner owner, IdHandle handle) const {
  Id* id = ids_.find(handle);
  if (id == nullptr || id->owner != owner) return fail(Errc::kBadHandle, "no such id");
  return id;
}

Row Manager::row(IdHandle handle, const Id& id) const {
  Row row{.id = handle,
          .owner = id.owner,
          .state = to_string(id.state),
          .port_space = id.port_space,
          .source = id.source,
          .destination = id.destination,
          .qpn = id.qpn,
          .remote_qpn = id.qp.remote_qpn,
          .cm_state = ""};
  if (const auto view = cm_.view(id.endpoint)) {
    row.tries = view->tries;
    row.cm_state = cm::to_string(view->state);
  } else if (const auto resolution = cm_.sidr().row(id.resolution)) {
    row.tries = resolution->tries;
    row.cm_state = resolution->active ? "SIDR_REQ_SENT" : "SIDR_REQ_RCVD";
  }
  return row;
}

void Manager::receive(const mad::Delivered& mad, Time now) {
  cm_.receive(mad, now);
  drain_cm(now);
}

void Manager::on_timer(Time now) {
  cm_.on_timer(now);
  while (!query_deadlines_.empty() && query_deadlines_.begin()->first <= now) {
    const IdHandle handle = query_deadlines_.begin()->second;
    finish_resolve(handle, *ids_.find(handle),
                   fail(Errc::kTimedOut, "the route was not resolved in time"));
  }
  drain_cm(now);
}

Time Manager::deadline() const {
  const Time query = query_deadlines_.empty() ? kNever : query_deadlines_.begin()->first;
  return std::min(query, cm_.deadline());
}

std::optional<Output> Manager::poll() {
  if (outputs_.empty()) return std::nullopt;
  std::optional<Output> first = std::move(outputs_.front());
  outputs_.pop_front();
  return first;
}

Event Manager::event(IdHandle handle, const Id& id, EventKind kind, std::int32_t status) const {
  return {.owner = id.owner,
          .id = handle,
          .kind = kind,
          .status = status,
          .port_space = id.port_space,
          .qp_type = id.qp_type,
          .source = id.source,
          .destination = id.destination,
          .path = id.path};
}

}  // namespace verbena::rdmacm
