#include <infiniband/ib.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "abi/abi.h"
#include "abi/cm/cm.h"

// Finds services that are registered with the subnet administration of an InfiniBand subnet, for
// programs that ask with RAI_SA.

namespace verbena::abi {
namespace {

constexpr int kTimeoutMs = 10'000;

struct FreeList {
  void operator()(rdma_addrinfo* list) const { rdma_freeaddrinfo(list); }
};

// Holds a program's query.  The query is for a service id if the whole text is a number, else for a
// service name.
struct Query {
  std::uint64_t service_id = 0;
  vb_service_query service_query{};

  // EINVAL: the text is empty or too long.
  static int parse(const char* text, Query& query) {
    if (text == nullptr || *text == '\0') return EINVAL;
    char* end = nullptr;
    errno = 0;
    const std::uint64_t number = std::strtoull(text, &end, 0);
    query.service_query.timeout_ms = kTimeoutMs;
    if (*end == '\0' && errno == 0 && *text != '-') {
      query.service_id = number;
      query.service_query.service_id = &query.service_id;
      return 0;
    }
    if (std::strlen(text) >= sizeof(vb_service::name)) return EINVAL;
    query.service_query.name = text;
    return 0;
  }
};

// Describes a service as rdma_getaddrinfo() does.  Returns null if there is no memory.
rdma_addrinfo* info_of(const vb_service& service, int port_space, int qp_type) {
  std::unique_ptr<rdma_addrinfo, FreeList> info(
      static_cast<rdma_addrinfo*>(std::calloc(1, sizeof(rdma_addrinfo))));
  auto* const address = static_cast<sockaddr_ib*>(std::calloc(1, sizeof(sockaddr_ib)));
  if (!info || address == nullptr) {
    std::free(address);
    return nullptr;
  }
  address->sib_family = AF_IB;
  address->sib_pkey = htobe16(service.pkey);
  std::memcpy(&address->sib_addr, service.gid, sizeof service.gid);
  address->sib_sid = htobe64(service.service_id);
  address->sib_sid_mask = ~__be64{0};
  info->ai_family = AF_IB;
  info->ai_qp_type = qp_type;
  info->ai_port_space = port_space;
  info->ai_dst_len = sizeof *address;
  info->ai_dst_addr = reinterpret_cast<sockaddr*>(address);
  return info.release();
}

// Makes a list that describes the services.  Returns 0, ENOENT if there are no services, or ENOMEM.
int list_of(std::span<const vb_service> services, int port_space, int qp_type,
            rdma_addrinfo*& list) {
  std::unique_ptr<rdma_addrinfo, FreeList> head;
  rdma_addrinfo* tail = nullptr;
  for (const vb_service& service : services) {
    rdma_addrinfo* const info = info_of(service, port_space, qp_type);
    if (info == nullptr) return ENOMEM;
    if (tail == nullptr) {
      head.reset(info);
    } else {
      tail->ai_next = info;
    }
    tail = info;
  }
  if (!head) return ENOENT;
  list = head.release();
  return 0;
}

// Gets all services.  Calls get() again with a larger buffer if the first buffer was too small.
int get_all_services(std::vector<vb_service>& services, auto&& get) {
  return guarded([&] {
    services.resize(16);
    for (;;) {
      std::uint32_t count = 0;
      if (int error = get(services.data(), static_cast<std::uint32_t>(services.size()), count)) {
        return error;
      }
      const bool complete = count <= services.size();
      services.resize(count);
      if (complete) return 0;
    }
  });
}

// Waits until an event ends the query of a synchronous id.  Returns 0, or the error of that event.
int wait_for_services(CmId& id) {
  for (;;) {
    rdma_cm_event* event = nullptr;
    if (rdma_get_cm_event(id.channel, &event) != 0) return errno;
    std::uint32_t type = 0;
    std::memcpy(&type, &event->event, sizeof type);
    const int status = event->status;
    rdma_ack_cm_event(event);
    if (type == RDMA_CM_EVENT_DEVICE_REMOVAL) return ENODEV;  // no other event will follow
    if (type == kAddrInfoResolved) return 0;
    if (type == kAddrInfoError) return status < 0 ? -status : EIO;
  }
}

// Calls use(device, port) for each InfiniBand port that is active, until use() returns 0.  Returns
// the last result of use(), or ENODEV if no port is active.
int try_active_ports(auto&& use) {
  int error = ENODEV;
  vb_device_attr attributes{};
  for (std::uint32_t device = 0; vb_device_query(device, &attributes) == 0; ++device) {
    for (std::uint8_t number = 1; number <= VB_PORTS_MAX; ++number) {
      vb_port_attr port{};
      if (vb_port_query(device, number, &port) != 0) break;
      if (port.link_layer != IBV_LINK_LAYER_INFINIBAND || port.state != IBV_PORT_ACTIVE) continue;
      error = use(device, number);
      if (error == 0) return 0;
    }
  }
  return error;
}

}  // namespace

int cm_find_services(CmId& id, const char* node, const char* service) {
  if (node != nullptr) return EOPNOTSUPP;
  Query query;
  if (int error = Query::parse(service, query)) return error;
  const bool waits = id.is_synchronous;
  if (int error = vb_cm_find_services(id.library_handle, &query.service_query)) return error;
  return waits ? wait_for_services(id) : 0;
}

int cm_list_services(const CmId& id, rdma_addrinfo*& list) {
  std::vector<vb_service> services;
  if (int error = get_all_services(
          services, [&](vb_service* buffer, std::uint32_t max, std::uint32_t& count) {
            return vb_cm_services(id.library_handle, buffer, max, &count);
          })) {
    return error;
  }
  return list_of(services, id.ps, id.qp_type, list);
}

int find_services(const char* service, const rdma_addrinfo& hints, rdma_addrinfo*& list) {
  Query query;
  if (Query::parse(service, query) != 0) return EAI_SERVICE;
  std::vector<vb_service> services;
  // Each port may be on a subnet of its own, so a port without such a service does not end the
  // search.
  const int error = try_active_ports([&](std::uint32_t device, std::uint8_t port) {
    const int failure = get_all_services(
        services, [&](vb_service* buffer, std::uint32_t max, std::uint32_t& count) {
          return vb_services_find(device, port, &query.service_query, buffer, max, &count);
        });
    return failure == 0 && services.empty() ? ENOENT : failure;
  });
  const int port_space = hints.ai_port_space != 0 ? hints.ai_port_space : RDMA_PS_IB;
  const int qp_type = hints.ai_qp_type != 0 ? hints.ai_qp_type : IBV_QPT_RC;
  const int result = error != 0 ? error : list_of(services, port_space, qp_type, list);
  if (result == ENOENT) return EAI_NONAME;
  return result == 0 ? 0 : failed(result);
}

}  // namespace verbena::abi
