#include <arpa/inet.h>
#include <infiniband/ib.h>
#include <netinet/in.h>

#include <bit>
#include <cstring>
#include <ctime>
#include <iterator>

#include "abi/abi.h"
#include "abi/acknowledge.h"
#include "abi/cm/cm.h"
#include "abi/library.h"
#include "abi/objects.h"

// Creates, binds, moves and destroys ids, lets them listen, and resolves their addresses and
// routes.

namespace verbena::abi {

EventTargets<CmId>& cm_ids() {
  static constinit EventTargets<CmId> all;
  return all;
}

CmId::CmId() : rdma_cm_id{} {
  pthread_mutex_init(&mutex, nullptr);
  pthread_cond_init(&cond, nullptr);
}

CmId::~CmId() {
  pthread_cond_destroy(&cond);
  pthread_mutex_destroy(&mutex);
}

int cm_make_id(rdma_event_channel* channel, void* context, rdma_port_space ps, ibv_qp_type qp_type,
               vb_handle library_handle, CmId*& id) {
  if (ps == VB_PS_NONE) return EOPNOTSUPP;  // librdmacm has no such port space; only the C API has
  return guarded([&] {
    auto owned = std::make_unique<CmId>();
    CmId& new_id = *owned;
    new_id.channel = channel;
    new_id.context = context;
    new_id.ps = ps;
    new_id.qp_type = qp_type;
    new_id.library_handle = library_handle;
    const std::uint64_t cookie = cm_ids().add(std::move(owned));
    if (cookie == 0) return ENOMEM;
    new_id.cookie = cookie;
    auto& channel_of_id = *static_cast<CmChannel*>(channel);
    const int error = library_handle != 0
                          ? vb_cm_id_set_cookie(library_handle, cookie)
                          : vb_cm_id_create(channel_of_id.library_handle, ps, qp_type, cookie,
                                            &new_id.library_handle);
    if (error != 0) {
      cm_ids().remove(cookie);
      return error;
    }
    ++channel_of_id.users;
    id = &new_id;
    return 0;
  });
}

namespace {

constexpr long kHandlerSeconds = 10;

bool other_threads_have_events(const CmId& id) {
  for (const CmEvent* event = id.first_unacknowledged; event != nullptr; event = event->next) {
    if (pthread_equal(event->receiver_thread, pthread_self()) == 0) return true;
  }
  return false;
}

}  // namespace

void cm_release(CmId& id) {
  (void)cm_ids().remove(id.cookie).release();  // NOLINT(bugprone-unused-return-value): see below
  bool is_needed = false;
  {
    PthreadLock lock(id.mutex);
    while (id.events_filled != id.events_delivered) pthread_cond_wait(&id.cond, &id.mutex);
    timespec deadline{};
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += kHandlerSeconds;
    while (other_threads_have_events(id)) {
      if (pthread_cond_clockwait(&id.cond, &id.mutex, CLOCK_MONOTONIC, &deadline) != 0) break;
    }
    id.is_destroyed = true;
    is_needed = id.has_unacknowledged_request || id.events_completed != id.events_delivered;
  }
  if (!is_needed) delete &id;  // otherwise the last acknowledgement frees the id
}

namespace {

// The selector fields of a path record use this value for "exactly" (vol1 15.2.5.16).
constexpr std::uint8_t kExactly = 2;

// Maps the codes of PortInfo (vol1 14.2.5.6) to a rate.  A row belongs to a bit of the speed code.
// A column belongs to a bit of the width code: 1x, 4x, 8x, 12x, 2x.
constexpr ibv_rate kRates[8][5] = {
    {IBV_RATE_2_5_GBPS, IBV_RATE_10_GBPS, IBV_RATE_20_GBPS, IBV_RATE_30_GBPS, IBV_RATE_5_GBPS},
    {IBV_RATE_5_GBPS, IBV_RATE_20_GBPS, IBV_RATE_40_GBPS, IBV_RATE_60_GBPS, IBV_RATE_10_GBPS},
    {IBV_RATE_10_GBPS, IBV_RATE_40_GBPS, IBV_RATE_80_GBPS, IBV_RATE_120_GBPS, IBV_RATE_20_GBPS},
    {IBV_RATE_10_GBPS, IBV_RATE_40_GBPS, IBV_RATE_80_GBPS, IBV_RATE_120_GBPS, IBV_RATE_20_GBPS},
    {IBV_RATE_14_GBPS, IBV_RATE_56_GBPS, IBV_RATE_112_GBPS, IBV_RATE_168_GBPS, IBV_RATE_28_GBPS},
    {IBV_RATE_25_GBPS, IBV_RATE_100_GBPS, IBV_RATE_200_GBPS, IBV_RATE_300_GBPS, IBV_RATE_50_GBPS},
    {IBV_RATE_50_GBPS, IBV_RATE_200_GBPS, IBV_RATE_400_GBPS, IBV_RATE_600_GBPS, IBV_RATE_100_GBPS},
    {IBV_RATE_100_GBPS, IBV_RATE_400_GBPS, IBV_RATE_800_GBPS, IBV_RATE_1200_GBPS,
     IBV_RATE_200_GBPS},
};

// Returns 10 Gbit/s if the rate of the port is unknown.
std::uint8_t rate_of_port(std::uint32_t device, std::uint32_t number) {
  vb_port_attr port{};
  if (vb_port_query(device, number, &port) != 0) return IBV_RATE_10_GBPS;
  const std::uint32_t speed = port.active_speed, width = port.active_width;
  const auto row = static_cast<std::size_t>(std::countr_zero(speed));
  const auto column = static_cast<std::size_t>(std::countr_zero(width));
  if (row >= std::size(kRates) || column >= std::size(kRates[row])) return IBV_RATE_10_GBPS;
  return static_cast<std::uint8_t>(kRates[row][column]);
}

ibv_sa_path_rec path_record(const vb_cm_addresses& from) {
  ibv_sa_path_rec path{};
  std::memcpy(path.dgid.raw, from.dgid, sizeof path.dgid.raw);
  std::memcpy(path.sgid.raw, from.sgid, sizeof path.sgid.raw);
  path.flow_label = htobe32(from.flow_label);
  path.hop_limit = from.hop_limit;
  path.traffic_class = from.traffic_class;
  path.reversible = 1;
  path.numb_path = 1;
  path.pkey = htobe16(from.pkey);
  path.mtu_selector = kExactly;
  path.mtu = from.path_mtu;
  path.rate_selector = kExactly;
  path.rate = rate_of_port(from.device, from.port_num);
  path.packet_life_time_selector = kExactly;
  path.packet_life_time = from.packet_life_time;
  path.slid = htobe16(from.slid);
  path.dlid = htobe16(from.dlid);
  path.sl = from.sl;
  return path;
}

__be16 port_of(const sockaddr& addr) {
  switch (addr.sa_family) {
    case AF_INET: return reinterpret_cast<const sockaddr_in&>(addr).sin_port;
    case AF_INET6: return reinterpret_cast<const sockaddr_in6&>(addr).sin6_port;
    case AF_IB:
      return htobe16(
          static_cast<std::uint16_t>(be64toh(reinterpret_cast<const sockaddr_ib&>(addr).sib_sid)));
    default: return 0;
  }
}

}  // namespace

int cm_refresh(CmId& id) {
  vb_cm_addresses addresses{};
  if (int error = vb_cm_id_addresses(id.library_handle, &addresses)) return error;
  rdma_addr& addr = id.route.addr;
  std::memcpy(&addr.src_storage, &addresses.src, sizeof addresses.src);
  if (addresses.dst.ss_family != AF_UNSPEC) {
    std::memcpy(&addr.dst_storage, &addresses.dst, sizeof addresses.dst);
  }
  if (addresses.bound != 0) {
    std::memcpy(addr.addr.ibaddr.sgid.raw, addresses.sgid, sizeof addresses.sgid);
    std::memcpy(addr.addr.ibaddr.dgid.raw, addresses.dgid, sizeof addresses.dgid);
    addr.addr.ibaddr.pkey = htobe16(addresses.pkey);
    if (id.verbs == nullptr) {
      CmDevice device{};
      if (int error = cm_get_device(addresses.device, device)) return error;
      id.verbs = device.verbs;
      id.port_num = static_cast<std::uint8_t>(addresses.port_num);
      if (id.pd == nullptr) id.pd = device.pd;
    }
  }
  if (addresses.resolved_path != 0) {
    id.path = path_record(addresses);
    id.route.path_rec = &id.path;
    id.route.num_paths = 1;
  }
  return 0;
}

int cm_wait_for_event(CmId& id) {
  if (id.event != nullptr) {
    rdma_ack_cm_event(id.event);
    id.event = nullptr;
  }
  if (cm_get_step_event(id.channel, id.event) != 0) return -1;
  const int status = id.event->status;
  // The agent has ended, so no other event will follow.
  if (id.event->event == RDMA_CM_EVENT_DEVICE_REMOVAL) return failed(ENODEV);
  if (status == 0) return 0;
  if (id.event->event == RDMA_CM_EVENT_REJECTED) return failed(ECONNREFUSED);
  return failed(status < 0 ? -status : status);
}

}  // namespace verbena::abi

using namespace verbena::abi;

VB_EXPORT int rdma_create_id(rdma_event_channel* channel, rdma_cm_id** id, void* context,
                             rdma_port_space ps) {
  if (int error = check_cm_library()) return failed(error);
  const bool is_synchronous = channel == nullptr;
  if (is_synchronous) channel = rdma_create_event_channel();
  if (channel == nullptr) return -1;
  const auto qp_type = ps == RDMA_PS_UDP || ps == RDMA_PS_IPOIB ? IBV_QPT_UD : IBV_QPT_RC;
  CmId* new_id = nullptr;
  if (int error = cm_make_id(channel, context, ps, qp_type, 0, new_id)) {
    if (is_synchronous) rdma_destroy_event_channel(channel);
    return failed(error);
  }
  new_id->is_synchronous = is_synchronous;
  *id = new_id;
  return 0;
}

VB_EXPORT int rdma_destroy_id(rdma_cm_id* id) {
  auto& self = *static_cast<CmId*>(id);
  if (int error = vb_cm_id_destroy(self.library_handle)) return failed(error);
  if (self.event != nullptr) rdma_ack_cm_event(self.event);
  cm_mark_used(self);
  auto& channel = *static_cast<CmChannel*>(self.channel);
  const bool owns_channel = self.is_synchronous;
  cm_release(self);
  if (owns_channel) rdma_destroy_event_channel(&channel);
  cm_release_channel(channel);
  return 0;
}

VB_EXPORT int rdma_migrate_id(rdma_cm_id* id, rdma_event_channel* channel) {
  auto& self = *static_cast<CmId*>(id);
  cm_mark_used(self);
  const bool is_synchronous = channel == nullptr;
  if (is_synchronous && self.is_synchronous) return failed(EINVAL);
  if (is_synchronous) channel = rdma_create_event_channel();
  if (channel == nullptr) return -1;
  auto& new_channel = *static_cast<CmChannel*>(channel);
  if (int error = vb_cm_id_migrate(self.library_handle, new_channel.library_handle)) {
    if (is_synchronous) rdma_destroy_event_channel(channel);
    return failed(error);
  }
  ++new_channel.users;
  if (self.is_synchronous) {
    if (self.event != nullptr) {
      rdma_ack_cm_event(self.event);
      self.event = nullptr;
    }
    rdma_destroy_event_channel(self.channel);
  }
  auto& old_channel = *static_cast<CmChannel*>(self.channel);
  self.channel = channel;
  self.is_synchronous = is_synchronous;
  // When rdma_migrate_id() returns, no thread handles an event of the old channel.
  wait_until_acknowledged(self.mutex, self.cond, self.events_completed,
                          cm_ids().delivered(self, &CmId::events_delivered));
  cm_release_channel(old_channel);
  return 0;
}

VB_EXPORT int rdma_bind_addr(rdma_cm_id* id, sockaddr* addr) {
  auto& self = *static_cast<CmId*>(id);
  if (addr == nullptr || verbena::c_api::bytes_of(*addr) == 0) return failed(EINVAL);
  if (int error = vb_cm_bind(self.library_handle, addr)) return failed(error);
  if (int error = cm_refresh(self)) return failed(error);
  return 0;
}

VB_EXPORT int rdma_resolve_addr(rdma_cm_id* id, sockaddr* src_addr, sockaddr* dst_addr,
                                int timeout_ms) {
  auto& self = *static_cast<CmId*>(id);
  if (dst_addr == nullptr || verbena::c_api::bytes_of(*dst_addr) == 0) return failed(EINVAL);
  if (src_addr != nullptr && verbena::c_api::bytes_of(*src_addr) == 0) return failed(EINVAL);
  // Stores the address before the call, because another thread may take the event before the call
  // returns.
  std::memcpy(&id->route.addr.dst_storage, dst_addr, verbena::c_api::bytes_of(*dst_addr));
  const bool waits = self.is_synchronous;
  if (int error = vb_cm_resolve_addr(self.library_handle, src_addr, dst_addr, timeout_ms)) {
    return failed(error);
  }
  return waits ? cm_wait_for_event(self) : 0;
}

VB_EXPORT int rdma_resolve_route(rdma_cm_id* id, int timeout_ms) {
  auto& self = *static_cast<CmId*>(id);
  const bool waits = self.is_synchronous;
  if (int error = vb_cm_resolve_route(self.library_handle, timeout_ms)) return failed(error);
  return waits ? cm_wait_for_event(self) : 0;
}

VB_EXPORT int rdma_listen(rdma_cm_id* id, int backlog) {
  auto& self = *static_cast<CmId*>(id);
  if (int error = vb_cm_listen(self.library_handle, backlog)) return failed(error);
  if (int error = cm_refresh(self)) return failed(error);  // vb_cm_listen() may choose the port
  // If the port of the device is down, no request can arrive.  So this call prints the reason.
  const std::uint32_t device = id->verbs != nullptr ? device_of(id->verbs) : 0;
  vb_port_attr port{};
  if (vb_port_query(device, id->verbs != nullptr ? id->port_num : 1, &port) == 0 &&
      port.state == IBV_PORT_DOWN) {
    explain_once();
  }
  return 0;
}

VB_EXPORT int rdma_set_option(rdma_cm_id* id, int level, int optname, void* optval, size_t optlen) {
  if (int error = vb_cm_set_option(static_cast<CmId*>(id)->library_handle, level, optname, optval,
                                   optlen)) {
    return failed(error);
  }
  return 0;
}

VB_EXPORT __be16 rdma_get_src_port(rdma_cm_id* id) { return port_of(id->route.addr.src_addr); }
VB_EXPORT __be16 rdma_get_dst_port(rdma_cm_id* id) { return port_of(id->route.addr.dst_addr); }
