// Implements ids without a port space: features of the InfiniBand CM that the RDMA CM does not
// have.

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "cm/paths.h"
#include "rdmacm/manager.h"
#include "rdmacm/private_data.h"

namespace verbena::rdmacm {

using wire::cm::AprStatus;

namespace {

constexpr auto kAprStatusMax = std::to_underlying(AprStatus::kSlRejected);

// Returns true if the mask covers more than one of the service ids of the RDMA CM's ports (annex
// A11.2).
bool covers_several_ports(ServiceId service, ServiceId mask) {
  constexpr std::uint64_t kFirst = 0x0000'0000'0100'0000, kPorts = 0x0000'0000'00ff'ffff;
  const bool overlaps = ((service.value ^ kFirst) & mask.value & ~kPorts) == 0;
  return overlaps && (mask.value & kPorts) != kPorts;
}

}  // namespace

// ---- Listening

Result<void> Manager::listen_for(Owner owner, IdHandle handle, const Filter& filter,
                                 std::uint32_t backlog) {
  Id& id = *VB_TRY(find(owner, handle));
  if (id.port_space != kPortSpaceNone) {
    return fail(Errc::kNotSupported, "ids with a port space listen on a port");
  }
  if (id.state != IdState::kBound) return fail(Errc::kBadState, "not bound");
  if (covers_several_ports(id.source.service, filter.mask)) {
    return fail(Errc::kInvalidArgument, "a mask must not cover several ports of the RDMA CM");
  }
  const cm::Service service{.id = id.source.service,
                            .mask = filter.mask,
                            .data = filter.data,
                            .data_mask = filter.data_mask};
  auto listening = make_listening(backlog);  // this allocates, so it comes before all changes
  VB_TRY_VOID(cm_.listen(service, handle.value));
  listening->service = service;
  start_listening(id, std::move(listening));
  return {};
}

// ---- Alternate paths

Result<const Interface*> Manager::source_of(const PathInfo& path) const {
  return local_interface(
      {.ip = path.address.source, .scope = path.address.interface, .by_gid = true});
}

Result<void> Manager::check_alternate(const Id& id, const ConnParam& param) const {
  const bool has_alternate = param.alternate.address.source != Gid{};
  if (id.port_space != kPortSpaceNone && (has_alternate || param.peer_to_peer)) {
    return fail(Errc::kNotSupported, "the RDMA CM has no alternate paths and no peer to peer");
  }
  if (has_alternate) VB_TRY_VOID(source_of(param.alternate));
  return {};
}

cm::AlternatePath Manager::alternate_path(const Id& id, const PathInfo& path,
                                          const Interface& source) const {
  link::Address address = path.address;
  address.interface = source.index;
  address.port = source.port;
  return {.address = {.path = address}, .local_ack_timeout = id.qp.ack_timeout};
}

PathInfo Manager::path_of(const mad::Address& address, std::uint8_t ack_timeout) const {
  return {.address = address.path,
          .sgid_index = sgid_index(address),
          .packet_life_time = static_cast<std::uint8_t>(ack_timeout == 0 ? 0 : ack_timeout - 1)};
}

Result<void> Manager::load_path(Owner owner, IdHandle handle, const PathInfo& path,
                                std::span<const std::byte> private_data, Time now) {
  Id& id = *VB_TRY(find(owner, handle));
  if (id.port_space != kPortSpaceNone) {
    return fail(Errc::kNotSupported, "the RDMA CM has no alternate paths");
  }
  if (id.state != IdState::kConnected) return fail(Errc::kBadState, "not connected");
  const Interface& source = *VB_TRY(source_of(path));
  const Duration timeout = id.options.give_up_after.count() > 0 ? Duration(id.options.give_up_after)
                                                                : config_.connect_timeout;
  VB_TRY_VOID(cm_.load_alternate_path(id.endpoint, alternate_path(id, path, source), private_data,
                                      timeout, now));
  id.options.alternate = std::make_unique<PathInfo>(path);
  drain_cm(now);
  return {};
}

Result<void> Manager::answer_path(Owner owner, IdHandle handle, const PathAnswer& answer,
                                  Time now) {
  const Id& id = *VB_TRY(find(owner, handle));
  if (answer.status > kAprStatusMax) {
    return fail(Errc::kInvalidArgument, "the status of an APR is 0 to 13");
  }
  VB_TRY_VOID(
      cm_.answer_alternate_path(id.endpoint, {.status = static_cast<AprStatus>(answer.status),
                                              .additional_info = answer.additional_info,
                                              .private_data = answer.private_data}));
  drain_cm(now);
  return {};
}

// Rejects the path at once if the id has a port space, because the RDMA CM has no events for
// alternate paths.
void Manager::on(const cm::LapReceived& request, Time) {
  const IdHandle handle{request.cookie};
  const Id* id = ids_.find(handle);
  if (id == nullptr || id->port_space != kPortSpaceNone) {
    return (void)cm_.answer_alternate_path(request.endpoint, {.status = AprStatus::kNotSupported});
  }
  const wire::cm::Path path = request.lap.alternate_path();
  Event event = this->event(handle, *id, EventKind::kPathOffered);
  const mad::Address from = cm::address_of(path, mad_address(*id));
  event.param.alternate = path_of(from, path.local_ack_timeout);
  set_private_data(event.param, request.lap.private_data);
  emit(event);
}

void Manager::on(const cm::AprReceived& response, Time) {
  const IdHandle handle{response.cookie};
  const Id* id = ids_.find(handle);
  if (id == nullptr) return;
  const auto& apr = response.apr;
  Event event = this->event(handle, *id, EventKind::kPathAnswered, std::to_underlying(apr.status));
  const auto info_bytes =
      std::min<std::size_t>(apr.additional_info_length_bytes, apr.additional_info.size());
  const auto info = std::span(apr.additional_info).first(info_bytes);
  event.additional_info.assign(info.begin(), info.end());
  if (id->options.alternate) event.param.alternate = *id->options.alternate;
  set_private_data(event.param, apr.private_data);
  emit(event);
}

void Manager::on(const cm::LapUnanswered& unanswered, Time) {
  const IdHandle handle{unanswered.cookie};
  const Id* id = ids_.find(handle);
  if (id == nullptr) return;
  Event event = this->event(handle, *id, EventKind::kPathUnanswered, -ETIMEDOUT);
  event.tries = unanswered.tries;
  emit(event);
}

}  // namespace verbena::rdmacm
