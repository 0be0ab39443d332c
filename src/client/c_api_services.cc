// Implements the C API: paths that programs choose, and services of an InfiniBand subnet.

#include <infiniband/sa.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "client/c_api_support.h"
#include "link/path_address.h"
#include "wire/sa.h"

namespace verbena::client {
namespace {

using process::Connection;
using process::ConnectionHandle;
using process::Process;

// set_paths() uses the first record with exactly these flags and ignores all others, as Linux does.
constexpr std::uint32_t kPrimaryBothWays =
    IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;

rdmacm::PathInfo path_of(const wire::PathRecord& record) {
  return {.address = link::address_of(record, {}),  // Process sets the port
          .pkey = record.pkey.value,
          .mtu = record.mtu,
          .packet_life_time = record.packet_life};
}

// Converts a port.  An invalid device number remains invalid, so that the agent refuses it.
PortId port_of(std::uint32_t device, std::uint8_t port) {
  constexpr std::uint32_t kDeviceMax = 0xff;
  return {static_cast<std::uint8_t>(std::min(device, kDeviceMax)), port};
}

Result<Process::ServiceFilter> to_service_request(const vb_service_query* query) {
  if (query == nullptr || (query->name == nullptr && query->service_id == nullptr)) {
    return verbena::fail(Errc::kInvalidArgument, "the name or the id of a service is missing");
  }
  Process::ServiceFilter request{.timeout =
                                     std::chrono::milliseconds(std::max(query->timeout_ms, 0))};
  if (query->name != nullptr) {
    ipc::ServiceName name{};
    const std::size_t bytes = std::strlen(query->name);
    if (bytes > name.size()) {
      return verbena::fail(Errc::kInvalidArgument, "the name of a service has 64 bytes at most");
    }
    std::memcpy(name.data(), query->name, bytes);
    request.name = name;
  }
  if (query->service_id != nullptr) request.service_id = ServiceId{*query->service_id};
  return request;
}

vb_service convert(const ipc::Service& service) {
  vb_service out{.service_id = service.service_id.value,
                 .gid = {},
                 .pkey = service.pkey.value,
                 .lease_seconds = service.lease_seconds,
                 .name = {},
                 .data = {}};
  std::memcpy(out.gid, service.gid.bytes.data(), sizeof out.gid);
  std::memcpy(out.name, service.name.data(), sizeof out.name);
  std::memcpy(out.data, service.data.data(), sizeof out.data);
  return out;
}

ipc::Service convert(const vb_service& service) {
  ipc::Service out{.service_id = {service.service_id},
                   .pkey = {service.pkey},
                   .lease_seconds = service.lease_seconds};
  std::memcpy(out.gid.bytes.data(), service.gid, sizeof service.gid);
  std::memcpy(out.name.data(), service.name, sizeof service.name);
  std::memcpy(out.data.data(), service.data, sizeof service.data);
  return out;
}

void copy_services(const std::vector<ipc::Service>& from, vb_service* to, std::uint32_t max,
                   std::uint32_t& count) {
  count = static_cast<std::uint32_t>(from.size());
  const std::size_t copied = std::min<std::size_t>(max, from.size());
  std::ranges::transform(std::span(from).first(copied), to,
                         [](const ipc::Service& service) { return convert(service); });
}

}  // namespace

int set_paths(vb_handle id, const void* value, std::size_t bytes) {
  if (value == nullptr || bytes == 0 || bytes % sizeof(ibv_path_data) != 0) {
    return failed({Errc::kInvalidArgument, 0, "paths are an array of struct ibv_path_data"});
  }
  for (std::size_t at = 0; at < bytes; at += sizeof(ibv_path_data)) {
    ibv_path_data data{};
    std::memcpy(&data, static_cast<const std::byte*>(value) + at, sizeof data);
    if (data.flags != kPrimaryBothWays) continue;
    const auto raw = std::as_bytes(std::span(&data.path, 1));
    const auto record = wire::decode_exact<wire::PathRecord>(raw.first<sizeof(ibv_path_record)>());
    return call_or_submit_for_id<ipc::Done>(
        nullptr, id,
        [&](Process& process, ConnectionHandle handle, Time, Completion<ipc::Done> done) {
          return process.set_path(handle, path_of(record), std::move(done));
        });
  }
  return failed({Errc::kInvalidArgument, 0, "no path is the primary one in both directions"});
}

}  // namespace verbena::client

using verbena::Completion;
using verbena::Result;
using verbena::Time;
using namespace verbena::client;  // NOLINT(google-build-using-namespace): implements its C API
namespace ipc = verbena::ipc;
using verbena::process::ConnectionHandle;
using verbena::process::Process;

extern "C" {

int vb_cm_find_services(vb_handle id, const struct vb_service_query* query) {
  const auto request = to_service_request(query);
  if (!request) return failed(request.error());
  return call_or_submit_for_id<ipc::Done>(
      nullptr, id, [&](Process& process, ConnectionHandle handle, Time, const auto&) {
        return process.find_services_for(handle, *request);
      });
}

int vb_cm_services(vb_handle id, struct vb_service* services, uint32_t max, uint32_t* count) {
  return on_object([&](Client& client) {
    return client.command([&](Process& process, Time) {
      const auto found = process.connection(ConnectionHandle{id});
      if (!found) return failed(found.error());
      copy_services((*found)->services, services, max, *count);
      return 0;
    });
  });
}

int vb_services_find(uint32_t device, uint8_t port, const struct vb_service_query* query,
                     struct vb_service* services, uint32_t max, uint32_t* count) {
  const auto request = to_service_request(query);
  if (!request) return failed(request.error());
  return on_client([&](Client& client) {
    return call_or_submit<ipc::ServicesFound>(
        client, nullptr,
        [&](Process& process, Time, Completion<ipc::ServicesFound> done) {
          return process.find_services(port_of(device, port), *request, std::move(done));
        },
        [&](Process&, const Result<ipc::ServicesFound>& found) -> Result<void> {
          if (!found) return std::unexpected(found.error());
          copy_services(found->services, services, max, *count);
          return {};
        });
  });
}

int vb_service_add(uint32_t device, uint8_t port, const struct vb_service* service,
                   uint64_t* registration) {
  return on_client([&](Client& client) {
    return call_or_submit<ipc::ServiceAdded>(
        client, nullptr,
        [&](Process& process, Time, Completion<ipc::ServiceAdded> done) {
          return process.add_service(port_of(device, port), convert(*service), std::move(done));
        },
        [&](Process&, const Result<ipc::ServiceAdded>& added) -> Result<void> {
          if (!added) return std::unexpected(added.error());
          *registration = added->registration;
          return {};
        });
  });
}

int vb_service_remove(uint64_t registration) {
  return on_object([&](Client& client) {
    return call_or_submit<ipc::Done>(
        client, nullptr,
        [&](Process& process, Time, Completion<ipc::Done> done) {
          return process.remove_service(registration, std::move(done));
        },
        [](Process&, const Result<ipc::Done>& removed) -> Result<void> {
          if (!removed) return std::unexpected(removed.error());
          return {};
        });
  });
}

}  // extern "C"
