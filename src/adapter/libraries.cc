#include "adapter/libraries.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace verbena::adapter {
namespace {

// Holds a library, and the first of its functions that is missing.
class Library {
 public:
  explicit Library(const char* name)
      : name_(name), handle_(::dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) {
    if (handle_ == nullptr) {
      const char* why = ::dlerror();
      problem_ = fmt::format("there is no {}: {}", name, why == nullptr ? "unknown" : why);
    } else if (::dlsym(handle_, "vb_build_id") != nullptr) {
      problem_ = fmt::format(
          "the {} that is found here is Verbena's own; take its directory out of LD_LIBRARY_PATH",
          name);
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

void find_verbs(Library& library, Libraries& found) {
  library.find(found.get_device_list, "ibv_get_device_list");
  library.find(found.free_device_list, "ibv_free_device_list");
  library.find(found.get_device_name, "ibv_get_device_name");
  library.find(found.open_device, "ibv_open_device");
  library.find(found.query_device, "ibv_query_device");
  library.find(found.query_port, "ibv_query_port");
  library.find(found.query_pkey, "ibv_query_pkey");
  library.find(found.query_gid_ex, "_ibv_query_gid_ex");
  library.find(found.get_async_event, "ibv_get_async_event");
  library.find(found.ack_async_event, "ibv_ack_async_event");
  library.find(found.alloc_pd, "ibv_alloc_pd");
  library.find(found.dealloc_pd, "ibv_dealloc_pd");
  library.find(found.reg_mr, "ibv_reg_mr_iova2");
  library.find(found.dereg_mr, "ibv_dereg_mr");
  library.find(found.create_comp_channel, "ibv_create_comp_channel");
  library.find(found.destroy_comp_channel, "ibv_destroy_comp_channel");
  library.find(found.create_cq, "ibv_create_cq");
  library.find(found.resize_cq, "ibv_resize_cq");
  library.find(found.destroy_cq, "ibv_destroy_cq");
  library.find(found.get_cq_event, "ibv_get_cq_event");
  library.find(found.ack_cq_events, "ibv_ack_cq_events");
  library.find(found.create_ah, "ibv_create_ah");
  library.find(found.destroy_ah, "ibv_destroy_ah");
  library.find(found.create_srq, "ibv_create_srq");
  library.find(found.modify_srq, "ibv_modify_srq");
  library.find(found.query_srq, "ibv_query_srq");
  library.find(found.destroy_srq, "ibv_destroy_srq");
  library.find(found.create_qp, "ibv_create_qp");
  library.find(found.modify_qp, "ibv_modify_qp");
  library.find(found.query_qp, "ibv_query_qp");
  library.find(found.destroy_qp, "ibv_destroy_qp");
  library.find(found.attach_mcast, "ibv_attach_mcast");
  library.find(found.detach_mcast, "ibv_detach_mcast");
}

void find_cm(Library& library, Libraries& found) {
  library.find(found.get_devices, "rdma_get_devices");
  library.find(found.create_event_channel, "rdma_create_event_channel");
  library.find(found.destroy_event_channel, "rdma_destroy_event_channel");
  library.find(found.create_id, "rdma_create_id");
  library.find(found.destroy_id, "rdma_destroy_id");
  library.find(found.migrate_id, "rdma_migrate_id");
  library.find(found.bind_addr, "rdma_bind_addr");
  library.find(found.resolve_addr, "rdma_resolve_addr");
  library.find(found.resolve_route, "rdma_resolve_route");
  library.find(found.listen, "rdma_listen");
  library.find(found.set_option, "rdma_set_option");
  library.find(found.init_qp_attr, "rdma_init_qp_attr");
  library.find(found.connect, "rdma_connect");
  library.find(found.accept, "rdma_accept");
  library.find(found.reject, "rdma_reject");
  library.find(found.reject_ece, "rdma_reject_ece");
  library.find(found.set_local_ece, "rdma_set_local_ece");
  library.find(found.get_remote_ece, "rdma_get_remote_ece");
  library.find(found.establish, "rdma_establish");
  library.find(found.notify, "rdma_notify");
  library.find(found.disconnect, "rdma_disconnect");
  library.find(found.join_multicast, "rdma_join_multicast_ex");
  library.find(found.leave_multicast, "rdma_leave_multicast");
  library.find(found.get_cm_event, "rdma_get_cm_event");
  library.find(found.ack_cm_event, "rdma_ack_cm_event");
}

}  // namespace

std::expected<Libraries, std::string> load_libraries() {
  Libraries found{};
  Library verbs("libibverbs.so.1");
  find_verbs(verbs, found);
  if (!verbs.problem().empty()) return std::unexpected(verbs.problem());
  Library cm("librdmacm.so.1");
  find_cm(cm, found);
  if (!cm.problem().empty()) return std::unexpected(cm.problem());
  return found;
}

}  // namespace verbena::adapter
