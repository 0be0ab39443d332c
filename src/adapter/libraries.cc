#include "adapter/libraries.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace verbena::adapter {
namespace {

// Loads a library and finds its functions.  Stores the first problem, for example a missing
// function.
class Library {
 public:
  explicit Library(const char* name)
      : name_(name), handle_(::dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) {
    if (handle_ == nullptr) {
      const char* error = ::dlerror();
      problem_ = fmt::format("cannot load {}: {}", name, error == nullptr ? "unknown" : error);
    } else if (::dlsym(handle_, "vb_build_id") != nullptr) {
      problem_ = fmt::format(
          "the loader finds Verbena's own {}: remove its directory from LD_LIBRARY_PATH", name);
    }
  }

  template <class Function>
  void find(Function*& function, const char* name) {
    if (!problem_.empty()) return;
    function = reinterpret_cast<Function*>(::dlsym(handle_, name));
    if (function == nullptr) problem_ = fmt::format("{} has no {}()", name_, name);
  }
  const std::string& problem() const { return problem_; }

 private:
  const char* name_;
  void* handle_;
  std::string problem_;
};

void find_verbs(Library& library, Libraries& functions) {
  library.find(functions.get_device_list, "ibv_get_device_list");
  library.find(functions.free_device_list, "ibv_free_device_list");
  library.find(functions.get_device_name, "ibv_get_device_name");
  library.find(functions.open_device, "ibv_open_device");
  library.find(functions.query_device, "ibv_query_device");
  library.find(functions.query_port, "ibv_query_port");
  library.find(functions.query_pkey, "ibv_query_pkey");
  library.find(functions.query_gid_ex, "_ibv_query_gid_ex");
  library.find(functions.get_async_event, "ibv_get_async_event");
  library.find(functions.ack_async_event, "ibv_ack_async_event");
  library.find(functions.alloc_pd, "ibv_alloc_pd");
  library.find(functions.dealloc_pd, "ibv_dealloc_pd");
  library.find(functions.reg_mr, "ibv_reg_mr_iova2");
  library.find(functions.dereg_mr, "ibv_dereg_mr");
  library.find(functions.create_comp_channel, "ibv_create_comp_channel");
  library.find(functions.destroy_comp_channel, "ibv_destroy_comp_channel");
  library.find(functions.create_cq, "ibv_create_cq");
  library.find(functions.resize_cq, "ibv_resize_cq");
  library.find(functions.destroy_cq, "ibv_destroy_cq");
  library.find(functions.get_cq_event, "ibv_get_cq_event");
  library.find(functions.ack_cq_events, "ibv_ack_cq_events");
  library.find(functions.create_ah, "ibv_create_ah");
  library.find(functions.destroy_ah, "ibv_destroy_ah");
  library.find(functions.create_srq, "ibv_create_srq");
  library.find(functions.modify_srq, "ibv_modify_srq");
  library.find(functions.query_srq, "ibv_query_srq");
  library.find(functions.destroy_srq, "ibv_destroy_srq");
  library.find(functions.create_qp, "ibv_create_qp");
  library.find(functions.modify_qp, "ibv_modify_qp");
  library.find(functions.query_qp, "ibv_query_qp");
  library.find(functions.destroy_qp, "ibv_destroy_qp");
  library.find(functions.attach_mcast, "ibv_attach_mcast");
  library.find(functions.detach_mcast, "ibv_detach_mcast");
}

void find_cm(Library& library, Libraries& functions) {
  library.find(functions.get_devices, "rdma_get_devices");
  library.find(functions.create_event_channel, "rdma_create_event_channel");
  library.find(functions.destroy_event_channel, "rdma_destroy_event_channel");
  library.find(functions.create_id, "rdma_create_id");
  library.find(functions.destroy_id, "rdma_destroy_id");
  library.find(functions.migrate_id, "rdma_migrate_id");
  library.find(functions.bind_addr, "rdma_bind_addr");
  library.find(functions.resolve_addr, "rdma_resolve_addr");
  library.find(functions.resolve_route, "rdma_resolve_route");
  library.find(functions.listen, "rdma_listen");
  library.find(functions.set_option, "rdma_set_option");
  library.find(functions.init_qp_attr, "rdma_init_qp_attr");
  library.find(functions.connect, "rdma_connect");
  library.find(functions.accept, "rdma_accept");
  library.find(functions.reject, "rdma_reject");
  library.find(functions.reject_ece, "rdma_reject_ece");
  library.find(functions.set_local_ece, "rdma_set_local_ece");
  library.find(functions.get_remote_ece, "rdma_get_remote_ece");
  library.find(functions.establish, "rdma_establish");
  library.find(functions.notify, "rdma_notify");
  library.find(functions.disconnect, "rdma_disconnect");
  library.find(functions.join_multicast, "rdma_join_multicast_ex");
  library.find(functions.leave_multicast, "rdma_leave_multicast");
  library.find(functions.get_cm_event, "rdma_get_cm_event");
  library.find(functions.ack_cm_event, "rdma_ack_cm_event");
}

}  // namespace

std::expected<Libraries, std::string> load_libraries() {
  Libraries functions{};
  Library verbs("libibverbs.so.1");
  find_verbs(verbs, functions);
  if (!verbs.problem().empty()) return std::unexpected(verbs.problem());
  Library cm("librdmacm.so.1");
  find_cm(cm, functions);
  if (!cm.problem().empty()) return std::unexpected(cm.problem());
  return functions;
}

}  // namespace verbena::adapter
