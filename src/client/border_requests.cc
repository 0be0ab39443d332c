// The border: commands as requests.

#include <memory>
#include <mutex>
#include <thread>

#include "client/border_support.h"
#include "os/thread.h"

namespace verbena::client {
namespace {

constexpr std::uint32_t kQueuesMax = 4096;

// They are there before the engine is: opening the device is a request, too.
struct Queues {
  std::mutex mutex;
  Slots<RequestQueue> all{kQueuesMax};
};
Queues& queues() {
  static auto* const made = new Queues;  // threads of the program may be inside when it exits
  return *made;
}

RequestQueue* find(vb_handle queue) { return queues().all.find(Handle<RequestQueue>{queue}); }

template <class Args>
Args& args_of(vb_request& request) {
  return *static_cast<Args*>(request.arguments);
}

// What is done in the call, and asks nobody.  Memory and shared receive queues:
int run_on_memory(vb_request& request) {
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
      return vb_srq_create(a.pd, &a.attr, a.cookie, &a.srq);
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
    default: return failed({Errc::kInvalidArgument, 0, "no such command"});
  }
}

// All else:
int run(vb_request& request) {
  switch (request.command) {
    case VB_GID_QUERY: {
      auto& a = args_of<vb_gid_args>(request);
      return vb_gid_query(a.index, &a.entry);
    }
    case VB_PD_CREATE: return vb_pd_create(&args_of<vb_pd_args>(request).pd);
    case VB_PD_DESTROY: return vb_pd_destroy(args_of<vb_pd_args>(request).pd);
    case VB_CQ_CREATE: {
      auto& a = args_of<vb_cq_args>(request);
      return vb_cq_create(&a.entries, a.channel, a.cookie, &a.cq);
    }
    case VB_CQ_RESIZE: {
      auto& a = args_of<vb_cq_args>(request);
      return vb_cq_resize(a.cq, &a.entries);
    }
    case VB_CQ_DESTROY: return vb_cq_destroy(args_of<vb_cq_args>(request).cq);
    case VB_AH_CREATE: {
      auto& a = args_of<vb_ah_args>(request);
      return vb_ah_create(a.pd, &a.attr, &a.ah);
    }
    case VB_AH_DESTROY: return vb_ah_destroy(args_of<vb_ah_args>(request).ah);
    case VB_QP_MODIFY: {
      const auto& a = args_of<vb_qp_args>(request);
      return vb_qp_modify(a.qp, &a.attr, a.mask);
    }
    case VB_QP_QUERY: {
      auto& a = args_of<vb_qp_args>(request);
      return vb_qp_query(a.qp, &a.attr, &a.init);
    }
    case VB_QP_DESTROY: return vb_qp_destroy(args_of<vb_qp_args>(request).qp);
    case VB_QP_DETACH: {
      const auto& a = args_of<vb_group_args>(request);
      return vb_qp_detach(a.qp, a.group);
    }
    case VB_CM_ID_DESTROY: return vb_cm_id_destroy(args_of<vb_cm_args>(request).id);
    case VB_CM_ID_SET_QP: {
      const auto& a = args_of<vb_cm_args>(request);
      return vb_cm_id_set_qp(a.id, a.qp);
    }
    default: return run_on_memory(request);
  }
}

// What a command that was carried out has made, when nobody takes it.
void undo(vb_request& request) {
  if (request.status != 0) return;
  switch (request.command) {
    case VB_QP_CREATE: vb_qp_destroy(args_of<vb_qp_args>(request).qp); break;
    case VB_QP_ATTACH: {
      const auto& a = args_of<vb_group_args>(request);
      vb_qp_detach(a.qp, a.group);
      break;
    }
    case VB_CM_ID_CREATE: vb_cm_id_destroy(args_of<vb_cm_args>(request).id); break;
    default: break;  // no other is both pending and makes something
  }
}

// Opening may start the agent and waits for it, which is a thread's work, once for each program.
struct Opening {
  std::mutex mutex;
  vb_request* request = nullptr;  // nullptr: cancelled
};

class Openings {
 public:
  int start(RequestQueue& queue, vb_request& request) {
    auto opening = std::make_shared<Opening>();
    opening->request = &request;
    {
      const std::lock_guard lock(mutex_);
      under_way_[&request] = opening;
    }
    queue.begin(request);
    auto thread = os::start_thread("verbena-open", [&queue, opening] { open(queue, *opening); });
    if (!thread) {
      queue.end(request);
      forget(request);
      return failed(thread.error());
    }
    thread->detach();
    return EINPROGRESS;
  }
  // After it the thread does not touch the request.
  void end(vb_request& request) {
    if (const auto opening = forget(request)) {
      const std::lock_guard lock(opening->mutex);
      opening->request = nullptr;
    }
  }

 private:
  static void open(RequestQueue& queue, Opening& opening);

  std::shared_ptr<Opening> forget(vb_request& request) {
    const std::lock_guard lock(mutex_);
    auto node = under_way_.extract(&request);
    return node ? std::move(node.mapped()) : nullptr;
  }

  std::mutex mutex_;
  std::map<vb_request*, std::shared_ptr<Opening>> under_way_;
};

Openings& openings() {
  static auto* const made = new Openings;
  return *made;
}

void Openings::open(RequestQueue& queue, Opening& opening) {
  vb_open_args args{};
  int error = vb_device_query(&args.device);
  if (error == 0) error = vb_port_query(&args.port);
  const std::string text = error == 0 ? "" : vb_last_error();
  const std::lock_guard lock(opening.mutex);
  if (opening.request == nullptr) return;
  args_of<vb_open_args>(*opening.request) = args;
  queue.finish(*opening.request, error, text);
}

// It was taken: nothing is kept for it any more.
void drop(RequestQueue& queue, vb_request& request) {
  if (request.command == VB_OPEN) return openings().end(request);
  if (Client* engine = client_if_any()) engine->forget(queue, request);
}

int cancel(RequestQueue& queue, vb_request& request) {
  bool was_done = false;
  int error = EINVAL;
  if (request.command == VB_OPEN) {
    openings().end(request);
    error = queue.cancel(request, &was_done) ? 0 : EINVAL;
  } else if (Client* engine = client_if_any()) {
    error = engine->cancel(queue, request, &was_done);
  }
  if (error != 0) return failed({Errc::kBadHandle, 0, "the request is not pending"});
  if (was_done) undo(request);
  return 0;
}

int submit(RequestQueue& queue, vb_request& request) {
  const Submission submission{queue, request};
  switch (request.command) {
    case VB_OPEN: return openings().start(queue, request);
    case VB_QP_CREATE: {
      auto& a = args_of<vb_qp_args>(request);
      return qp_create(&submission, &a.init, &a.qp, &a.qp_num);
    }
    case VB_QP_ATTACH: return qp_attach(&submission, args_of<vb_group_args>(request));
    case VB_CM_ID_CREATE: return cm_id_create(&submission, args_of<vb_cm_args>(request));
    default: break;
  }
  if (request.command >= VB_CM_BIND && request.command <= VB_CM_DISCONNECT) {
    return cm_command(&submission, request.command, args_of<vb_cm_args>(request));
  }
  return run(request);
}

}  // namespace
}  // namespace verbena::client

using namespace verbena::client;  // NOLINT(google-build-using-namespace): this file is its face

extern "C" {

int vb_requests_create(vb_handle* queue, int* fd) {
  return guarded([&] {
    auto made = RequestQueue::create();
    if (!made) return failed(made.error());
    *fd = (*made)->fd();
    const std::lock_guard lock(queues().mutex);
    const auto handle = queues().all.insert(*std::move(made));
    if (!handle) return failed(handle.error());
    *queue = handle->value;
    return 0;
  });
}

int vb_requests_destroy(vb_handle queue) {
  const std::lock_guard lock(queues().mutex);
  const RequestQueue* const found = find(queue);
  if (found == nullptr) return failed({verbena::Errc::kBadHandle, 0, "no such request queue"});
  if (found->busy()) return failed({verbena::Errc::kBusy, 0, "requests are pending"});
  queues().all.remove(verbena::Handle<RequestQueue>{queue});
  return 0;
}

int vb_submit(vb_handle queue, struct vb_request* request) {
  return guarded([&] {
    RequestQueue* const found = find(queue);
    if (found == nullptr) return failed({verbena::Errc::kBadHandle, 0, "no such request queue"});
    request->next = nullptr;
    request->state = 0;
    const int status = submit(*found, *request);
    if (status != EINPROGRESS) settle(*request, status, status == 0 ? "" : vb_last_error());
    return status;
  });
}

struct vb_request* vb_requests_next(vb_handle queue) {
  RequestQueue* const found = find(queue);
  vb_request* const request = found == nullptr ? nullptr : found->next();
  if (request != nullptr) drop(*found, *request);
  return request;
}

int vb_requests_wait(vb_handle queue, struct vb_request* request) {
  RequestQueue* const found = find(queue);
  if (found == nullptr) return failed({verbena::Errc::kBadHandle, 0, "no such request queue"});
  const NoCancellation whole_call;
  found->wait(*request);
  drop(*found, *request);
  return 0;
}

int vb_requests_cancel(vb_handle queue, struct vb_request* request) {
  RequestQueue* const found = find(queue);
  if (found == nullptr) return failed({verbena::Errc::kBadHandle, 0, "no such request queue"});
  return cancel(*found, *request);
}

}  // extern "C"
