#pragma once

#include "c_api/call.h"
#include "verbena/c_api_requests.h"

// Carries out commands of verbena/c_api_requests.h by calling functions of verbena/c_api.h.
// Include it in one source file of each library that implements these functions.
namespace verbena::c_api {

template <class Args>
Args& args_of(vb_request& request) {
  return *static_cast<Args*>(request.arguments);
}

// Carries out commands of the connection manager.  Refuses any other command.
inline int call_cm(vb_request& request) {
  auto& a = args_of<vb_cm_args>(request);
  switch (request.command) {
    case VB_CM_ID_CREATE: return vb_cm_id_create(a.channel, a.ps, a.qp_type, a.cookie, &a.id);
    case VB_CM_ID_DESTROY: return vb_cm_id_destroy(a.id);
    case VB_CM_ID_SET_QP: return vb_cm_id_set_qp(a.id, a.qp);
    case VB_CM_BIND: return vb_cm_bind(a.id, a.src);
    case VB_CM_RESOLVE_ADDR: return vb_cm_resolve_addr(a.id, a.src, a.dst, a.timeout_ms);
    case VB_CM_RESOLVE_ROUTE: return vb_cm_resolve_route(a.id, a.timeout_ms);
    case VB_CM_LISTEN:
      return a.filter == nullptr ? vb_cm_listen(a.id, a.backlog)
                                 : vb_cm_listen_for(a.id, a.backlog, a.filter);
    case VB_CM_CONNECT: return vb_cm_connect(a.id, a.param);
    case VB_CM_ACCEPT: return vb_cm_accept(a.id, a.param);
    case VB_CM_REJECT:
      if (a.data != nullptr) return vb_cm_reject_with(a.id, a.reason, a.data);
      if (a.param == nullptr) return vb_cm_reject(a.id, a.reason, nullptr, 0);
      return vb_cm_reject(a.id, a.reason, a.param->private_data, a.param->private_data_len);
    case VB_CM_ESTABLISH:
      return a.data == nullptr ? vb_cm_establish(a.id) : vb_cm_establish_with(a.id, a.data);
    case VB_CM_DISCONNECT:
      return a.data == nullptr ? vb_cm_disconnect(a.id) : vb_cm_disconnect_with(a.id, a.data);
    case VB_CM_LOAD_PATH: return vb_cm_load_path(a.id, a.path, a.data);
    case VB_CM_ANSWER_PATH: return vb_cm_answer_path(a.id, a.reason, a.data);
    default: return failed({Errc::kInvalidArgument, 0, "no such command"});
  }
}

// Carries out commands of memory regions, memory windows and shared receive queues.  Passes any
// other command to call_cm().
inline int call_on_memory(vb_request& request) {
  switch (request.command) {
    case VB_MR_REGISTER: {
      auto& a = args_of<vb_mr_args>(request);
      return vb_mr_register(a.pd, a.address, a.length, a.iova, a.access, &a.mr, &a.lkey, &a.rkey);
    }
    case VB_MR_DEREGISTER: return vb_mr_deregister(args_of<vb_mr_args>(request).mr);
    case VB_MR_CREATE_NULL: {
      auto& a = args_of<vb_mr_args>(request);
      return vb_mr_create_null(a.pd, &a.mr, &a.lkey);
    }
    case VB_MR_REREGISTER: {
      const auto& a = args_of<vb_mr_args>(request);
      return vb_mr_reregister(a.mr, a.what, a.pd, a.address, a.length, a.access);
    }
    case VB_MR_PREFETCH: {
      const auto& a = args_of<vb_prefetch_args>(request);
      return vb_mr_prefetch(a.pd, a.list, a.count, a.write);
    }
    case VB_MW_CREATE: {
      auto& a = args_of<vb_mw_args>(request);
      return vb_mw_create(a.pd, a.type, &a.mw, &a.rkey);
    }
    case VB_MW_DESTROY: return vb_mw_destroy(args_of<vb_mw_args>(request).mw);
    case VB_SRQ_CREATE: {
      auto& a = args_of<vb_srq_args>(request);
      return vb_srq_create(a.context, a.pd, &a.attr, a.cookie, &a.srq);
    }
    case VB_SRQ_MODIFY: {
      const auto& a = args_of<vb_srq_args>(request);
      return vb_srq_modify(a.srq, &a.attr, a.mask);
    }
    case VB_SRQ_QUERY: {
      auto& a = args_of<vb_srq_args>(request);
      return vb_srq_query(a.srq, &a.attr);
    }
    case VB_SRQ_DESTROY: return vb_srq_destroy(args_of<vb_srq_args>(request).srq);
    default: return call_cm(request);
  }
}

// Carries out VB_OPEN: describes the device and its ports.
inline int open(vb_open_args& args) {
  int error = vb_device_query(args.index, &args.device);
  for (std::uint32_t port = 1; error == 0 && port <= args.device.phys_port_count; ++port) {
    if (port > VB_PORTS_MAX) break;
    error = vb_port_query(args.index, port, &args.ports[port - 1]);
  }
  return error;
}

// Carries out any command by calling the function of the same name.
inline int call(vb_request& request) {
  switch (request.command) {
    case VB_OPEN: {
      auto& a = args_of<vb_open_args>(request);
      return open(a);
    }
    case VB_GID_QUERY: {
      auto& a = args_of<vb_gid_args>(request);
      return vb_gid_query(a.device, a.port, a.index, &a.entry);
    }
    case VB_PD_CREATE: return vb_pd_create(&args_of<vb_pd_args>(request).pd);
    case VB_PD_DESTROY: return vb_pd_destroy(args_of<vb_pd_args>(request).pd);
    case VB_CQ_CREATE: {
      auto& a = args_of<vb_cq_args>(request);
      return vb_cq_create(a.context, &a.entries, a.channel, a.cookie, &a.cq);
    }
    case VB_CQ_RESIZE: {
      auto& a = args_of<vb_cq_args>(request);
      return vb_cq_resize(a.cq, &a.entries);
    }
    case VB_CQ_DESTROY: return vb_cq_destroy(args_of<vb_cq_args>(request).cq);
    case VB_AH_CREATE: {
      auto& a = args_of<vb_ah_args>(request);
      return vb_ah_create(a.device, a.pd, &a.attr, &a.ah);
    }
    case VB_AH_DESTROY: return vb_ah_destroy(args_of<vb_ah_args>(request).ah);
    case VB_QP_CREATE: {
      auto& a = args_of<vb_qp_args>(request);
      return vb_qp_create(&a.init, &a.qp, &a.qp_num);
    }
    case VB_QP_MODIFY: {
      const auto& a = args_of<vb_qp_args>(request);
      return vb_qp_modify(a.qp, &a.attr, a.mask);
    }
    case VB_QP_QUERY: {
      auto& a = args_of<vb_qp_args>(request);
      return vb_qp_query(a.qp, &a.attr, &a.init);
    }
    case VB_QP_DESTROY: return vb_qp_destroy(args_of<vb_qp_args>(request).qp);
    case VB_QP_ATTACH: {
      const auto& a = args_of<vb_group_args>(request);
      return vb_qp_attach(a.qp, a.group, a.interface_index);
    }
    case VB_QP_DETACH: {
      const auto& a = args_of<vb_group_args>(request);
      return vb_qp_detach(a.qp, a.group);
    }
    default: return call_on_memory(request);
  }
}

// Destroys the object that a command has created, or detaches the QP that it has attached to a
// group, because the caller has cancelled the request.
inline void undo(vb_request& request) {
  if (request.status != 0) return;
  switch (request.command) {
    case VB_PD_CREATE: vb_pd_destroy(args_of<vb_pd_args>(request).pd); break;
    case VB_MR_REGISTER:
    case VB_MR_CREATE_NULL: vb_mr_deregister(args_of<vb_mr_args>(request).mr); break;
    case VB_MW_CREATE: vb_mw_destroy(args_of<vb_mw_args>(request).mw); break;
    case VB_SRQ_CREATE: vb_srq_destroy(args_of<vb_srq_args>(request).srq); break;
    case VB_CQ_CREATE: vb_cq_destroy(args_of<vb_cq_args>(request).cq); break;
    case VB_AH_CREATE: vb_ah_destroy(args_of<vb_ah_args>(request).ah); break;
    case VB_QP_CREATE: vb_qp_destroy(args_of<vb_qp_args>(request).qp); break;
    case VB_QP_ATTACH: {
      const auto& a = args_of<vb_group_args>(request);
      vb_qp_detach(a.qp, a.group);
      break;
    }
    case VB_CM_ID_CREATE: vb_cm_id_destroy(args_of<vb_cm_args>(request).id); break;
    default: break;  // other commands create nothing
  }
}

}  // namespace verbena::c_api
