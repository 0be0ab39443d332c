#include "node/subnet_services.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace verbena::node {
namespace {

// Lists the parts of a record's data, in the order of their bytes.
constexpr std::array kDataParts{&wire::ServiceRecord::data8, &wire::ServiceRecord::data16,
                                &wire::ServiceRecord::data32, &wire::ServiceRecord::data64};

wire::ServiceRecord record_of(const ipc::Service& service) {
  wire::ServiceRecord record{.service_id = service.service_id,
                             .service_gid = service.gid,
                             .service_pkey = service.pkey,
                             .lease_seconds = service.lease_seconds,
                             .name = service.name};
  std::span<const std::byte> rest = service.data;
  for (const auto part : kDataParts) {
    std::ranges::copy(rest.first((record.*part).size()), (record.*part).begin());
    rest = rest.subspan((record.*part).size());
  }
  return record;
}

ipc::Service service_of(const wire::ServiceRecord& record) {
  ipc::Service service{.service_id = record.service_id,
                       .gid = record.service_gid,
                       .pkey = record.service_pkey,
                       .lease_seconds = record.lease_seconds,
                       .name = record.name};
  auto next_byte = service.data.begin();
  for (const auto part : kDataParts) next_byte = std::ranges::copy(record.*part, next_byte).out;
  return service;
}

ipc::ServicesFound reply_of(const std::vector<wire::ServiceRecord>& records) {
  ipc::ServicesFound found;
  const std::size_t returned = std::min(records.size(), ipc::kServicesPerReply);
  for (const wire::ServiceRecord& record : std::span(records).first(returned)) {
    found.services.push_back(service_of(record));
  }
  found.omitted = static_cast<std::uint32_t>(records.size() - returned);
  return found;
}

}  // namespace

Result<InfinibandPort*> SubnetServices::port_for_request(ClientId client, PortId port) {
  const auto found = ports_.find(port);
  if (found == ports_.end()) {
    return fail(Errc::kInvalidArgument, "services need an InfiniBand port of this host");
  }
  const auto count = std::ranges::count_if(
      entries_, [&](const auto& entry) { return entry.second.client == client; });
  if (static_cast<std::size_t>(count) >= kPerClientMax) {
    ++limit_refusals_;
    return fail(Errc::kNoResources,
                "the limit of services of a program (kPerClientMax) is reached");
  }
  return &found->second;
}

Result<void> SubnetServices::find(ClientId client, std::uint64_t request,
                                  const ipc::FindServices& message, Time now) {
  InfinibandPort& port = *VB_TRY(port_for_request(client, message.port));
  if (message.timeout < Duration(0)) return fail(Errc::kInvalidArgument, "the timeout is negative");
  sa::ServiceQuery query;
  if (message.by_name) query.name = message.name;
  if (message.by_id) query.service_id = message.service_id;
  const std::uint64_t number = ++last_number_;
  const auto ticket = VB_TRY(
      port.client().services().find(query, number, std::min(message.timeout, kTimeoutMax), now));
  entries_[number] = {.client = client, .request = request, .port = message.port, .ticket = ticket};
  port.run(now);
  return {};
}

bool SubnetServices::is_registered(PortId port, const wire::ServiceRecord& record) const {
  return std::ranges::any_of(entries_, [&](const auto& entry) {
    const auto& registered = entry.second.record;
    return registered && entry.second.port == port && registered->service_id == record.service_id &&
           registered->service_gid == record.service_gid &&
           registered->service_pkey == record.service_pkey;
  });
}

Result<void> SubnetServices::add(ClientId client, std::uint64_t request,
                                 const ipc::AddService& message, Time now) {
  InfinibandPort& port = *VB_TRY(port_for_request(client, message.port));
  wire::ServiceRecord record = record_of(message.service);
  if (record.service_gid == port.gid()) record.service_gid = {};
  if (record.service_pkey == Pkey{}) record.service_pkey = port.pkey();
  if (is_registered(message.port, record)) {
    return fail(Errc::kAddressInUse, "a program of this host has registered the service");
  }
  const std::uint64_t number = ++last_number_;
  const auto ticket = VB_TRY(port.client().services().add(record, number, now));
  entries_[number] = {.client = client,
                      .request = request,
                      .port = message.port,
                      .ticket = ticket,
                      .record = record};
  port.run(now);
  return {};
}

Result<void> SubnetServices::remove(ClientId client, std::uint64_t registration, Time now) {
  const auto found = entries_.find(registration);
  if (found == entries_.end() || found->second.client != client || !found->second.record) {
    return fail(Errc::kInvalidArgument, "not a registration of this program");
  }
  InfinibandPort& port = ports_.at(found->second.port);
  port.client().services().remove(found->second.ticket, now);
  entries_.erase(found);
  port.run(now);
  return {};
}

void SubnetServices::remove_client(ClientId client, Time now) {
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (it->second.client != client) {
      ++it;
      continue;
    }
    InfinibandPort& port = ports_.at(it->second.port);
    port.client().services().remove(it->second.ticket, now);
    port.run(now);
    it = entries_.erase(it);
  }
}

std::optional<SubnetServices::Reply> SubnetServices::on(const sa::ServiceEvent& event) {
  const auto found = entries_.find(event.cookie);
  if (found == entries_.end()) return std::nullopt;
  const ClientId client = found->second.client;
  const std::uint64_t request = std::exchange(found->second.request, 0);
  switch (event.what) {
    case sa::ServiceEvent::What::kRegistered:
      if (request == 0) return std::nullopt;
      return Reply{client, ipc::encode(request, ipc::ServiceAdded{event.cookie})};
    case sa::ServiceEvent::What::kFound:
      entries_.erase(found);
      return Reply{client, ipc::encode(request, reply_of(event.records))};
    case sa::ServiceEvent::What::kFailed: break;
  }
  const std::optional<wire::ServiceRecord> record = found->second.record;
  entries_.erase(found);
  if (request != 0) return Reply{client, ipc::encode(request, ipc::refusal(*event.error))};
  if (!record) return std::nullopt;
  std::string text = fmt::format("the registration of service {:#x} has ended: {}",
                                 record->service_id.value, event.error->context);
  return Reply{client, ipc::encode(0, ipc::UserNotice{std::move(text)})};
}

}  // namespace verbena::node
