#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "abi/abi.h"
#include "abi/acknowledge.h"
#include "abi/cm/cm.h"
#include "abi/objects.h"
#include "c_api/attributes.h"

// Takes events from libverbena, fills the public structures, and acknowledges events.

namespace verbena::abi {
namespace {

void fill_connection(const vb_cm_event& from, CmEvent& event) {
  event.param.conn = {.private_data = from.private_data_len > 0 ? event.private_bytes : nullptr,
                      .private_data_len = from.private_data_len,
                      .responder_resources = from.responder_resources,
                      .initiator_depth = from.initiator_depth,
                      .flow_control = from.flow_control,
                      .retry_count = from.retry_count,
                      .rnr_retry_count = from.rnr_retry_count,
                      .srq = from.srq,
                      .qp_num = from.qp_num};
}

// Stores the peer's options of enhanced connection establishment (ECE), if the event reports a
// message that can carry them.
void store_ece(const vb_cm_event& from, const CmEvent& event) {
  switch (event.event) {
    case RDMA_CM_EVENT_CONNECT_REQUEST:
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
    case RDMA_CM_EVENT_ESTABLISHED: break;
    default: return;
  }
  if (from.ece_vendor_id == 0) return;  // ESTABLISHED on the passive side has no ECE options
  static_cast<CmId*>(event.id)->remote_ece = {
      .vendor_id = from.ece_vendor_id, .options = from.ece_options, .comp_mask = 0};
}

// Fills in the address to which the program sends datagrams.
void fill_datagram(const vb_cm_event& from, const CmId& id, CmEvent& event) {
  rdma_ud_param& param = event.param.ud;
  param = {};
  param.private_data = from.private_data_len > 0 ? event.private_bytes : nullptr;
  param.private_data_len = from.private_data_len;
  param.qp_num = from.qp_num;
  param.qkey = from.qkey;
  vb_cm_addresses addresses{};
  if (vb_cm_id_addresses(id.library_handle, &addresses) != 0) return;
  ibv_ah_attr& to = param.ah_attr;
  std::memcpy(to.grh.dgid.raw, addresses.dgid, sizeof addresses.dgid);
  to.grh.flow_label = addresses.flow_label;
  to.grh.sgid_index = static_cast<std::uint8_t>(addresses.sgid_index);
  to.grh.hop_limit = addresses.hop_limit != 0 ? addresses.hop_limit : 64;
  to.grh.traffic_class = addresses.traffic_class;
  to.is_global = addresses.is_global;
  to.port_num = static_cast<std::uint8_t>(addresses.port_num);
  if (addresses.dlid == 0) return;
  to.dlid = addresses.dlid;
  to.sl = addresses.sl;
  vb_port_attr port{};
  if (vb_port_query(addresses.device, addresses.port_num, &port) == 0) {
    to.src_path_bits = static_cast<std::uint8_t>(addresses.slid & ((1U << port.lmc) - 1));
  }
}

// Fills in the address of a joined group; private_data is the context of the join.  Returns false
// if the program has left the group meanwhile.
bool fill_group(const vb_cm_event& from, CmId& id, CmEvent& event) {
  PthreadLock lock(id.mutex);
  const auto joined = std::ranges::find(id.groups, from.group_cookie, &CmGroup::cookie);
  if (joined == id.groups.end()) return false;
  rdma_ud_param& param = event.param.ud;
  param = {};
  param.private_data = joined->context;
  param.ah_attr = verbena::c_api::from_c_api(from.group);
  param.ah_attr.static_rate = from.group_rate;
  param.qp_num = from.qp_num;
  param.qkey = from.qkey;
  return true;
}

// Creates the id of a connection request.  The program gets either a complete id or none.
int adopt_request(const vb_cm_event& from, const CmId& listener, CmEvent& event) {
  CmId* id = nullptr;
  if (int error =
          cm_make_id(listener.channel, listener.context, static_cast<rdma_port_space>(from.new_ps),
                     static_cast<ibv_qp_type>(from.new_qp_type), from.new_id, id)) {
    vb_cm_id_destroy(from.new_id);
    return error;
  }
  int error = cm_refresh(*id);
  if (error == 0 && listener.is_synchronous && rdma_migrate_id(id, nullptr) != 0) error = errno;
  if (error != 0) {
    rdma_destroy_id(id);
    return error;
  }
  {
    PthreadLock lock(id->mutex);
    id->has_unacknowledged_request = true;
  }
  event.new_id = id;
  event.id = id;
  event.listen_id = event.target;
  if (!listener.is_synchronous)
    cm_request_delivered(*static_cast<CmChannel*>(listener.channel), *id);
  return 0;
}

// Updates the addresses of the id, and the state of its QP, if the event has changed them.
void bring_up_to_date(CmId& id, CmEvent& event) {
  switch (event.event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      if (int error = cm_refresh(id)) {
        event.event = RDMA_CM_EVENT_ADDR_ERROR;
        event.status = -error;
      }
      return;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      if (int error = cm_refresh(id)) {
        event.event = RDMA_CM_EVENT_ROUTE_ERROR;
        event.status = -error;
      }
      return;
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
    case RDMA_CM_EVENT_REJECTED:
    case RDMA_CM_EVENT_ESTABLISHED:
      // DISCONNECTED is not in this list: by then the program may have destroyed the QP without
      // setting id.qp to null.
      cm_refresh_qp(id.cookie);
      return;
    default: return;
  }
}

// Calls count(), which counts an event of the id as filled or as acknowledged.  If the id is
// destroyed, and all its events are acknowledged now, frees the id.
void acknowledge(CmId& id, auto&& count) {
  bool is_last = false;
  {
    PthreadLock lock(id.mutex);
    count();
    pthread_cond_broadcast(&id.cond);
    is_last = id.is_destroyed && !id.has_unacknowledged_request &&
              id.events_completed == id.events_delivered;
  }
  if (is_last) delete &id;
}

// Fills the public event.  Returns false if the program must not get the event.
bool fill(const vb_cm_event& from, CmId& id, CmEvent& event) {
  static_cast<rdma_cm_event&>(event) = {};
  event.target = &id;
  event.new_id = nullptr;
  event.id = &id;
  if (from.type >= kAddrInfoResolved) {
    event.status = from.status;
    std::memcpy(&event.event, &from.type, sizeof event.event);
    std::memcpy(&event.param, &from.arg, sizeof from.arg);  // param.arg
    return true;
  }
  event.event = static_cast<rdma_cm_event_type>(from.type);
  event.status = from.status;
  std::memcpy(event.private_bytes, from.private_data, from.private_data_len);
  const bool is_request = from.type == RDMA_CM_EVENT_CONNECT_REQUEST;
  if (is_request && adopt_request(from, id, event) != 0) return false;
  if (from.group_cookie != 0) {
    if (!fill_group(from, id, event)) return false;
  } else if (is_datagram(*event.id)) {
    fill_datagram(from, *static_cast<CmId*>(event.id), event);
  } else {
    fill_connection(from, event);
  }
  store_ece(from, event);
  bring_up_to_date(id, event);
  return true;
}

void link_event(CmId& id, CmEvent& event) {
  event.receiver_thread = pthread_self();
  event.previous = nullptr;
  event.next = id.first_unacknowledged;
  if (id.first_unacknowledged != nullptr) id.first_unacknowledged->previous = &event;
  id.first_unacknowledged = &event;
}

void unlink_event(CmId& id, CmEvent& event) {
  (event.previous != nullptr ? event.previous->next : id.first_unacknowledged) = event.next;
  if (event.next != nullptr) event.next->previous = event.previous;
}

// Counts an event as filled in its destructor, because the thread may be cancelled while it fills
// the event.
struct Filling {
  Filling(CmId& target_id, CmEvent& filled) : id(target_id), event(filled) {}
  Filling(const Filling&) = delete;
  Filling& operator=(const Filling&) = delete;
  ~Filling() {
    acknowledge(id, [this] {
      ++id.events_filled;
      if (is_delivered) {
        link_event(id, event);
      } else {
        ++id.events_completed;
      }
    });
  }

  CmId& id;
  CmEvent& event;
  bool is_delivered = false;
};

// Counts and fills the event.  Returns false if the id is destroyed, or if the program must not get
// the event.
bool deliver(const vb_cm_event& from, CmEvent& event) {
  CmId* const id = cm_ids().count_event(from.cookie, &CmId::events_delivered);
  if (id == nullptr) {  // the program has destroyed the id meanwhile
    if (from.type == RDMA_CM_EVENT_CONNECT_REQUEST) vb_cm_id_destroy(from.new_id);
    return false;
  }
  Filling filling(*id, event);
  return filling.is_delivered = fill(from, *id, event);
}

constexpr std::array kEventNames{
    "RDMA_CM_EVENT_ADDR_RESOLVED",
    "RDMA_CM_EVENT_ADDR_ERROR",
    "RDMA_CM_EVENT_ROUTE_RESOLVED",
    "RDMA_CM_EVENT_ROUTE_ERROR",
    "RDMA_CM_EVENT_CONNECT_REQUEST",
    "RDMA_CM_EVENT_CONNECT_RESPONSE",
    "RDMA_CM_EVENT_CONNECT_ERROR",
    "RDMA_CM_EVENT_UNREACHABLE",
    "RDMA_CM_EVENT_REJECTED",
    "RDMA_CM_EVENT_ESTABLISHED",
    "RDMA_CM_EVENT_DISCONNECTED",
    "RDMA_CM_EVENT_DEVICE_REMOVAL",
    "RDMA_CM_EVENT_MULTICAST_JOIN",
    "RDMA_CM_EVENT_MULTICAST_ERROR",
    "RDMA_CM_EVENT_ADDR_CHANGE",
    "RDMA_CM_EVENT_TIMEWAIT_EXIT",
    "RDMA_CM_EVENT_ADDRINFO_RESOLVED",
    "RDMA_CM_EVENT_ADDRINFO_ERROR",
    "RDMA_CM_EVENT_USER",
    "RDMA_CM_EVENT_INTERNAL",
};

}  // namespace

int cm_get_step_event(rdma_event_channel* channel, rdma_cm_event*& event) {
  for (;;) {
    rdma_cm_event* any_event = nullptr;
    if (rdma_get_cm_event(channel, &any_event) != 0) return -1;
    std::uint32_t type = 0;
    std::memcpy(&type, &any_event->event, sizeof type);
    if (type < kAddrInfoResolved) {
      event = any_event;
      return 0;
    }
    rdma_ack_cm_event(any_event);
  }
}

}  // namespace verbena::abi

using namespace verbena::abi;

// rdma_get_cm_event() waits, so it is a cancellation point.  Destructors release its locks and
// memory.
VB_EXPORT int rdma_get_cm_event(rdma_event_channel* channel, rdma_cm_event** event) {
  if (event == nullptr) return failed(EINVAL);
  // Allocates the public event first.  If there is no memory, no event has been taken from
  // libverbena and lost.
  std::unique_ptr<CmEvent> new_event(new (std::nothrow) CmEvent);
  if (!new_event) return failed(ENOMEM);
  vb_cm_event from;  // NOLINT: not initialized, because vb_cm_next_event() fills it
  auto& self = *static_cast<CmChannel*>(channel);
  cm_wait_until_used(self);
  do {
    if (int error = vb_cm_next_event(self.library_handle, &from)) {
      while (self.is_destroyed && self.was_blocking) pause();  // see rdma_destroy_event_channel()
      return failed(error);
    }
  } while (!deliver(from, *new_event));
  *event = new_event.release();
  return 0;
}

VB_EXPORT int rdma_ack_cm_event(rdma_cm_event* event) {
  if (event == nullptr) return failed(EINVAL);
  const std::unique_ptr<CmEvent> self(static_cast<CmEvent*>(event));
  if (CmId* const new_id = self->new_id) {
    acknowledge(*new_id, [&] { new_id->has_unacknowledged_request = false; });
  }
  CmId& target = *self->target;
  acknowledge(target, [&] {
    ++target.events_completed;
    unlink_event(target, *self);
  });
  return 0;
}

VB_EXPORT const char* rdma_event_str(rdma_cm_event_type event) {
  const auto index = static_cast<std::size_t>(event);
  return index < kEventNames.size() ? kEventNames[index] : "UNKNOWN EVENT";
}
