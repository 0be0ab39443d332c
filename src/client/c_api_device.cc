// Implements the C API: the library itself, devices and their ports, contexts and their events,
// protection domains.

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "client/build.h"
#include "client/c_api_support.h"
#include "verbena_build.h"

namespace verbena::client {
namespace {

// Holds the only Client of the process.  The Client is never destroyed, because threads of the
// program may use it at exit.
std::atomic<Client*> the_client{nullptr};
std::mutex creation_mutex;

void before_fork() {
  if (Client* client = the_client.load()) client->before_fork();
}

void after_fork_in_parent() {
  if (Client* client = the_client.load()) client->after_fork_in_parent();
}

// The child of a fork has copies of the descriptors, but none of the threads, and must not use the
// parent's connections.  Its first call makes a Client of its own.
void after_fork_in_child() {
  if (Client* inherited = the_client.exchange(nullptr)) inherited->abandon();
  first_generation.fetch_add(1u << 20);  // makes all inherited handles invalid in the child
  new (&creation_mutex) std::mutex;      // the fork may have copied a locked mutex
}

// Registers the handlers before any user of this library registers its own.  So a fork takes our
// lock last.  Another order could cause a deadlock, because a thread that waits for our lock may
// have locked a mutex that another handler needs.
__attribute__((constructor)) void register_fork_handlers() {
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

// Acknowledges the packets that the program received just before its end, as an adapter would.
// Completes the capture file of a program that exits normally.
__attribute__((destructor)) void flush_at_exit() {
  Client* client = the_client.load();
  if (client == nullptr || client->is_in_forked_child()) return;
  client->send_all_queued(std::chrono::milliseconds(100));
  if (client->capturing()) client->flush_capture(std::chrono::seconds(2));
}

// Writes a diagnostic line about a call that failed because of the program's mistake, or because
// its destination has no route.
void report_program_error(const Error& error) {
  const Errc code = error.code;
  if (!is_program_error(code) && code != Errc::kAddressNotFound) return;
  Client* const client = the_client.load(std::memory_order_acquire);
  if (client == nullptr || client->is_in_forked_child()) return;
  client->diagnostics().write_refusal(*error.context != '\0' ? error.context : to_string(code),
                                      Client::os_now());
}

}  // namespace

int failed(Client& client, const Error& error) {
  set_last_error(client.command([&](process::Process&, Time)
                                    VB_REQUIRES(drive_lock) { return client.explain(error); }));
  return to_errno(error);
}

Client* client_if_any() {
  Client* client = the_client.load(std::memory_order_acquire);
  if (client == nullptr || !client->is_in_forked_child()) return client;
  after_fork_in_child();  // a bare clone() has made this child, and runs no fork handlers
  return nullptr;
}

namespace {

Client* fail_without_client(const Error& why, const std::string& problem, int& error) {
  // Uses an object of its own, because there may be no Client with Diagnostics.
  static Diagnostics diagnostics;
  const std::string& text = problem.empty() ? std::string(why.context) : problem;
  diagnostics.write(text, Client::os_now());
  error = to_errno(why);
  set_last_error(text);
  return nullptr;
}

}  // namespace

Client* client_with_agent(int& error) {
  std::string problem;
  if (Client* client = client_if_any()) {
    const auto joined = client->join(problem);
    return joined ? client : fail_without_client(joined.error(), problem, error);
  }
  const NoCancellation no_cancellation;
  const std::lock_guard lock(creation_mutex);
  if (Client* client = client_if_any()) return client;
  auto result = Client::connect(problem);
  if (!result) return fail_without_client(result.error(), problem, error);
  Client* client = result->release();
  the_client.store(client, std::memory_order_release);
  if (client->diagnostics().enabled()) c_api::set_error_listener(report_program_error);
  return client;
}

}  // namespace verbena::client

using verbena::Result;
using verbena::Time;
using namespace verbena::client;  // NOLINT(google-build-using-namespace): implements its C API
namespace c_api = verbena::c_api;
namespace hca = verbena::hca;
namespace ipc = verbena::ipc;
using verbena::process::Process;

namespace {

constexpr verbena::Error kAgentLost{verbena::Errc::kDeviceFatal, 0, "the agent has ended"};

// Sets the attributes of the port's link.  On InfiniBand they come from the subnet.  On Ethernet
// all attributes but the states are nominal values, because nothing measures the link.
void set_link(vb_port_attr& attr, const ipc::Port& port) {
  if (port.link_layer == verbena::LinkLayer::kInfiniband) {
    attr.link_layer = 1;  // IBV_LINK_LAYER_INFINIBAND
    attr.state = port.link.state;
    attr.phys_state = port.link.physical_state;
    attr.max_mtu = port.link.max_mtu;
    attr.active_width = port.link.width;
    // The field has 8 bits.  Linux, too, shows programs NDR in place of faster speeds.
    constexpr std::uint16_t kNdr = 128;
    attr.active_speed = static_cast<std::uint8_t>(std::min(port.link.speed, kNdr));
    attr.port_cap_flags = port.link.capability_mask;
    attr.max_vl_num = port.link.virtual_lanes;
    attr.subnet_timeout = port.link.subnet_timeout;
    return;
  }
  attr.link_layer = 2;                    // IBV_LINK_LAYER_ETHERNET
  attr.state = port.active ? 4 : 1;       // IBV_PORT_ACTIVE, IBV_PORT_DOWN
  attr.phys_state = port.active ? 5 : 3;  // LinkUp, Disabled
  attr.max_mtu = 5;
  attr.active_width = 2;                      // 4x
  attr.active_speed = 32;                     // EDR, 100 Gb/s with 4x
  attr.port_cap_flags = 1u << 16 | 1u << 26;  // CM supported, IP based GIDs
  attr.max_vl_num = 1;
}

// Calls body(port, process) for a port that exists.
int on_port(std::uint32_t device, std::uint32_t number, auto&& body) {
  return on_client([&](Client& client) {
    return client.command([&](Process& process, Time) {
      if (!process.connected()) return failed(kAgentLost);
      const bool may_exist = device < verbena::kDevicesMax && number <= verbena::kPortsPerDeviceMax;
      const ipc::Port* const port = may_exist
                                        ? process.find_port({static_cast<std::uint8_t>(device),
                                                             static_cast<std::uint8_t>(number)})
                                        : nullptr;
      if (port == nullptr) return failed({verbena::Errc::kBadHandle, 0, "no such port"});
      return body(*port, process);
    });
  });
}

}  // namespace

extern "C" {

const char* vb_last_error(void) { return c_api::last_error(); }

const char* vb_build_id(void) { return build_id(); }

int vb_device_query(uint32_t index, struct vb_device_attr* attr) {
  return on_client([&](Client& client) {
    return client.command([&](Process& process, Time) {
      if (!process.connected()) return failed(kAgentLost);
      if (index >= process.devices().size()) {
        return failed({verbena::Errc::kSystem, ENOENT, "no such device"});
      }
      const ipc::Device& device = process.devices()[index];
      const hca::Limits& limits = process.engine().limits();
      *attr = {};
      std::snprintf(attr->name, sizeof attr->name, "%s", device.name.c_str());
      std::snprintf(attr->fw_ver, sizeof attr->fw_ver, "%s", VB_VERSION);
      attr->node_guid = attr->sys_image_guid = device.node_guid.value;
      attr->max_mr_bytes = ~std::uint64_t{0};
      attr->vendor_id = 0x7eb;  // not an assigned OUI, but some programs refuse zero
      attr->vendor_part_id = 1;
      attr->hw_ver = 1;
      attr->max_qp = limits.qps;
      attr->max_qp_wr = limits.max_wr;
      attr->max_sge = attr->max_sge_rd = limits.max_sge;
      attr->max_inline = limits.max_inline_bytes;
      attr->max_cq = limits.cqs;
      attr->max_cqe = limits.max_cqe;
      attr->max_mr = limits.mrs;
      attr->max_mw = limits.mws;
      attr->max_pd = limits.pds;
      attr->max_ah = limits.ahs;
      attr->max_srq = limits.srqs;
      attr->max_mcast_grp = limits.groups;
      attr->max_mcast_qp_attach = limits.group_members;
      attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = limits.max_rd_atomic;
      attr->max_res_rd_atom = limits.max_rd_atomic * limits.qps;
      attr->atomic_cap = 2;           // IBV_ATOMIC_GLOB: atomics are CPU instructions
      attr->local_ca_ack_delay = 15;  // 134 ms: a process may wait for a CPU
      attr->phys_port_count = static_cast<std::uint8_t>(device.ports.size());
      return 0;
    });
  });
}

int vb_port_query(uint32_t device, uint32_t number, struct vb_port_attr* attr) {
  return on_port(device, number, [&](const ipc::Port& port, Process& process) {
    *attr = {};
    set_link(*attr, port);
    attr->active_mtu = port.active_mtu;
    attr->lid = port.lid.value;
    attr->lmc = port.lmc;
    attr->sm_lid = port.sm_lid.value;
    attr->sm_sl = port.sm_sl;
    attr->gid_tbl_len = port.gid_indexes;
    attr->pkey_tbl_len = static_cast<std::uint32_t>(port.pkeys.size());
    attr->max_msg_bytes = static_cast<std::uint32_t>(process.engine().limits().max_message_bytes);
    if (!port.active) {
      set_last_error("port " + std::to_string(number) +
                     (attr->state == 1 ? " is down: " : " is not active: ") + port.down_reason);
    } else if (!port.reach.why_only_this_host.empty()) {
      attr->host_alone = 1;
      set_last_error("this user's programs on this host reach only each other: " +
                     port.reach.why_only_this_host);
    }
    return 0;
  });
}

int vb_gid_query(uint32_t device, uint32_t number, uint32_t index, struct vb_gid_entry* entry) {
  return on_port(device, number, [&](const ipc::Port& port, Process&) {
    *entry = {.raw = {}, .index = index, .interface_index = 0, .in_use = 0};
    for (const ipc::GidEntry& one : port.gids) {
      if (one.index != index) continue;
      std::memcpy(entry->raw, one.gid.bytes.data(), sizeof entry->raw);
      entry->interface_index = one.interface;
      entry->in_use = 1;
    }
    if (index < port.gid_indexes) return 0;
    return failed({verbena::Errc::kSystem, ENOENT, "the port has no GID with this index"});
  });
}

int vb_pkey_query(uint32_t device, uint32_t number, uint32_t index, uint16_t* pkey) {
  return on_port(device, number, [&](const ipc::Port& port, Process&) {
    if (index >= port.pkeys.size()) {
      return failed({verbena::Errc::kBadHandle, 0, "the port has no P_Key with this index"});
    }
    *pkey = port.pkeys[index].value;
    return 0;
  });
}

int vb_context_create(uint32_t device, vb_handle* context, int* fd) {
  return on_client([&](Client& client) {
    const auto result = client.channels().create_context(device);
    if (!result) return failed(result.error());
    *context = result->value;
    *fd = client.channels().context(*result)->fd();
    return 0;
  });
}

int vb_context_destroy(vb_handle context) {
  return on_object([&](Client& client) {
    return result_of(client.channels().destroy_context(as_handle<ContextHandle>(context)));
  });
}

// Does not use guarded(), because this function may unwind when the thread is cancelled.
int vb_async_next(vb_handle context, struct vb_async_event* event) {
  Client* client = client_if_any();
  if (client == nullptr) return EINVAL;
  const auto queue = client->channels().context(as_handle<ContextHandle>(context));
  if (queue == nullptr) return EINVAL;
  AsyncEvent next;
  if (const int error = queue->next(next); error != 0) return error;
  *event = {.type = next.type, .cookie = next.cookie, .device = 0, .port = 0};
  if (is_port_event(next.type)) {
    event->device = next.port.device;
    event->port = next.port.number;
  }
  return 0;
}

int vb_pd_create(vb_handle* pd) {
  return on_client([&](Client& client) {
    const auto result =
        client.command([](Process& process, Time) { return process.engine().create_pd(); });
    if (!result) return failed(result.error());
    *pd = result->value;
    return 0;
  });
}

int vb_pd_destroy(vb_handle pd) {
  return on_object([&](Client& client) {
    return result_of(client.command([&](Process& process, Time) {
      return process.engine().destroy_pd(as_handle<hca::PdHandle>(pd));
    }));
  });
}

}  // extern "C"
