#include "fake_adapter.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "verbena/c_api_requests.h"

namespace {

// Holds a descriptor that is readable while the count is not 0, like the descriptors of the C API.
struct Counter {
  int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
  ~Counter() { ::close(fd); }
  // Makes a new descriptor, because that of a destroyed channel is closed.
  void reopen() {
    ::close(fd);
    fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
  }
  void increment() const {
    const std::uint64_t one = 1;
    static_cast<void>(::write(fd, &one, sizeof one));
  }
  void decrement() const {
    std::uint64_t value = 0;
    static_cast<void>(::read(fd, &value, sizeof value));
  }
};

struct Object {
  std::uint32_t created_by = 0;  // enum vb_command
  std::vector<vb_handle> depends_on{};
  std::uint64_t cookie = 0;
};

struct State {
  fake::Duration command_time{};
  fake::Duration now{};
  std::uint64_t carried_out = 0;
  std::map<vb_handle, Object> objects{};
  vb_handle next_handle = 100;
  vb_handle membership = 0;  // the object that represents a queue pair's multicast membership
  std::multimap<fake::Duration, vb_request*> pending{};
  std::deque<vb_request*> done{};
  Counter done_count{}, cq_count{}, cm_count{}, async_count{};
  std::deque<std::uint64_t> cq_events{};
  std::deque<vb_cm_event> cm_events{};  // without cookies, which vb_cm_next_event() adds
  std::deque<vb_async_event> async_events{};
  std::map<vb_handle, std::deque<vb_wc>> completions{};
  std::set<vb_handle> armed_cqs{};
  std::vector<vb_handle> moved_ids{};
  int event_channel_error = 0;
  std::string text{};
};
State* global_state = nullptr;
State& state() { return *global_state; }

int fail(int error, const char* text) {
  state().text = text;
  return error;
}

vb_handle create(std::uint32_t command, std::vector<vb_handle> depends_on,
                 std::uint64_t cookie = 0) {
  const vb_handle handle = state().next_handle++;
  state().objects[handle] = {command, std::move(depends_on), cookie};
  return handle;
}

bool exists(vb_handle handle, std::uint32_t created_by) {
  const auto found = state().objects.find(handle);
  return found != state().objects.end() && found->second.created_by == created_by;
}

int destroy(vb_handle handle, std::uint32_t created_by) {
  if (!exists(handle, created_by)) return fail(EINVAL, "no such object");
  for (const auto& [other, object] : state().objects) {
    for (const vb_handle dependency : object.depends_on) {
      if (dependency == handle) return fail(EBUSY, "other objects use it");
    }
  }
  state().objects.erase(handle);
  state().completions.erase(handle);
  return 0;
}

template <class Args>
Args& args_of(vb_request& request) {
  return *static_cast<Args*>(request.arguments);
}

int carry_out(vb_request& request) {
  ++state().carried_out;
  switch (request.command) {
    case VB_OPEN: std::strcpy(args_of<vb_open_args>(request).device.name, "fake"); return 0;
    case VB_PD_CREATE: args_of<vb_pd_args>(request).pd = create(VB_PD_CREATE, {}); return 0;
    case VB_PD_DESTROY: return destroy(args_of<vb_pd_args>(request).pd, VB_PD_CREATE);
    case VB_MR_REGISTER: {
      auto& a = args_of<vb_mr_args>(request);
      if (!exists(a.pd, VB_PD_CREATE)) return fail(EINVAL, "no such protection domain");
      a.mr = create(VB_MR_REGISTER, {a.pd});
      a.lkey = a.rkey = static_cast<std::uint32_t>(a.mr);
      return 0;
    }
    case VB_MR_CREATE_NULL: {
      auto& a = args_of<vb_mr_args>(request);
      a.mr = create(VB_MR_REGISTER, {a.pd});
      return 0;
    }
    case VB_MR_REREGISTER:
      return exists(args_of<vb_mr_args>(request).mr, VB_MR_REGISTER) ? 0 : EINVAL;
    case VB_MR_PREFETCH:
      return exists(args_of<vb_prefetch_args>(request).pd, VB_PD_CREATE) ? 0 : EINVAL;
    case VB_MR_DEREGISTER: return destroy(args_of<vb_mr_args>(request).mr, VB_MR_REGISTER);
    case VB_MW_CREATE: {
      auto& a = args_of<vb_mw_args>(request);
      a.mw = create(VB_MW_CREATE, {a.pd});
      return 0;
    }
    case VB_MW_DESTROY: return destroy(args_of<vb_mw_args>(request).mw, VB_MW_CREATE);
    case VB_SRQ_CREATE: {
      auto& a = args_of<vb_srq_args>(request);
      a.srq = create(VB_SRQ_CREATE, {a.pd}, a.cookie);
      return 0;
    }
    case VB_SRQ_MODIFY:
    case VB_SRQ_QUERY: return exists(args_of<vb_srq_args>(request).srq, VB_SRQ_CREATE) ? 0 : EINVAL;
    case VB_SRQ_DESTROY: return destroy(args_of<vb_srq_args>(request).srq, VB_SRQ_CREATE);
    case VB_CQ_CREATE: {
      auto& a = args_of<vb_cq_args>(request);
      a.cq = create(VB_CQ_CREATE, {}, a.cookie);
      return 0;
    }
    case VB_CQ_RESIZE: return exists(args_of<vb_cq_args>(request).cq, VB_CQ_CREATE) ? 0 : EINVAL;
    case VB_CQ_DESTROY: return destroy(args_of<vb_cq_args>(request).cq, VB_CQ_CREATE);
    case VB_QP_CREATE: {
      auto& a = args_of<vb_qp_args>(request);
      const vb_qp_init& init = a.init;
      a.qp = create(VB_QP_CREATE, {init.pd, init.send_cq, init.recv_cq, init.srq}, init.cookie);
      a.qp_num = 17;
      return 0;
    }
    case VB_AH_CREATE: {
      auto& a = args_of<vb_ah_args>(request);
      a.ah = create(VB_AH_CREATE, {a.pd});
      return 0;
    }
    case VB_AH_DESTROY: return destroy(args_of<vb_ah_args>(request).ah, VB_AH_CREATE);
    case VB_QP_ATTACH:
      if (!exists(args_of<vb_group_args>(request).qp, VB_QP_CREATE)) return EINVAL;
      state().membership = create(VB_QP_ATTACH, {args_of<vb_group_args>(request).qp});
      return 0;
    case VB_QP_DETACH: return vb_qp_detach(args_of<vb_group_args>(request).qp, nullptr);
    case VB_QP_MODIFY:
    case VB_QP_QUERY: return exists(args_of<vb_qp_args>(request).qp, VB_QP_CREATE) ? 0 : EINVAL;
    case VB_QP_DESTROY: return destroy(args_of<vb_qp_args>(request).qp, VB_QP_CREATE);
    case VB_CM_ID_CREATE:
      args_of<vb_cm_args>(request).id =
          create(VB_CM_ID_CREATE, {}, args_of<vb_cm_args>(request).cookie);
      return 0;
    default: return exists(args_of<vb_cm_args>(request).id, VB_CM_ID_CREATE) ? 0 : EINVAL;
  }
}

void carry_out_request(vb_request& request) {
  request.status = carry_out(request);
  std::strcpy(request.text, request.status == 0 ? "" : state().text.c_str());
}

void undo_creation(vb_request& request) {
  if (request.status != 0) return;
  switch (request.command) {
    case VB_PD_CREATE: destroy(args_of<vb_pd_args>(request).pd, VB_PD_CREATE); break;
    case VB_MR_CREATE_NULL:
    case VB_MR_REGISTER: destroy(args_of<vb_mr_args>(request).mr, VB_MR_REGISTER); break;
    case VB_MW_CREATE: destroy(args_of<vb_mw_args>(request).mw, VB_MW_CREATE); break;
    case VB_SRQ_CREATE: destroy(args_of<vb_srq_args>(request).srq, VB_SRQ_CREATE); break;
    case VB_CQ_CREATE: destroy(args_of<vb_cq_args>(request).cq, VB_CQ_CREATE); break;
    case VB_QP_CREATE: destroy(args_of<vb_qp_args>(request).qp, VB_QP_CREATE); break;
    case VB_CM_ID_CREATE: destroy(args_of<vb_cm_args>(request).id, VB_CM_ID_CREATE); break;
    case VB_AH_CREATE: destroy(args_of<vb_ah_args>(request).ah, VB_AH_CREATE); break;
    case VB_QP_ATTACH: destroy(std::exchange(state().membership, 0), VB_QP_ATTACH); break;
    default: break;
  }
}

}  // namespace

namespace fake {

void reset(Duration command_time) {
  delete global_state;
  global_state = new State;
  global_state->command_time = command_time;
}

void advance(Duration time) {
  const Duration until = state().now + time;
  while (!state().pending.empty() && state().pending.begin()->first <= until) {
    vb_request* const request = state().pending.begin()->second;
    state().now = state().pending.begin()->first;
    state().pending.erase(state().pending.begin());
    carry_out_request(*request);
    state().done.push_back(request);
    state().done_count.increment();
  }
  state().now = until;
}

Duration now() { return state().now; }
std::uint64_t carried_out() { return state().carried_out; }
std::uint64_t objects() { return state().objects.size(); }
std::uint64_t requests() { return state().pending.size() + state().done.size(); }

void fail_event_channels(int error) { state().event_channel_error = error; }

void request_and_abort(std::uint64_t listener) {
  vb_cm_event request{};
  request.type = 4;  // RDMA_CM_EVENT_CONNECT_REQUEST
  request.id = listener;
  request.new_id = create(VB_CM_ID_CREATE, {});
  vb_cm_event abort_event{};
  abort_event.type = 6;  // RDMA_CM_EVENT_CONNECT_ERROR
  abort_event.id = request.new_id;
  for (const vb_cm_event& event : {request, abort_event}) {
    state().cm_events.push_back(event);
    state().cm_count.increment();
  }
}

std::vector<std::uint64_t> moved_ids() { return state().moved_ids; }

void raise_event(std::uint64_t object, std::uint32_t type) {
  state().async_events.push_back(
      {.type = type, .cookie = state().objects.at(object).cookie, .device = 0, .port = 0});
  state().async_count.increment();
}

void add_completion(std::uint64_t cq, std::uint64_t wr_id) {
  vb_wc wc{};
  wc.wr_id = wr_id;
  state().completions[cq].push_back(wc);
  if (state().armed_cqs.erase(cq) == 0) return;
  state().cq_events.push_back(state().objects.at(cq).cookie);
  state().cq_count.increment();
}

}  // namespace fake

extern "C" {

const char* vb_last_error(void) { return state().text.c_str(); }

int vb_requests_create(vb_handle* queue, int* fd) {
  *queue = 1;
  *fd = state().done_count.fd;
  return 0;
}
int vb_requests_destroy(vb_handle) { return fake::requests() > 0 ? EBUSY : 0; }

int vb_submit(vb_handle, struct vb_request* request) {
  if (state().command_time == fake::Duration{}) {
    carry_out_request(*request);
    return request->status;
  }
  state().pending.emplace(state().now + state().command_time, request);
  return EINPROGRESS;
}

struct vb_request* vb_requests_next(vb_handle) {
  if (state().done.empty()) return nullptr;
  vb_request* const first = state().done.front();
  state().done.pop_front();
  state().done_count.decrement();
  return first;
}

int vb_requests_wait(vb_handle, struct vb_request* request) {
  while (std::erase(state().done, request) == 0) {
    fake::advance(state().pending.begin()->first - state().now);
  }
  state().done_count.decrement();
  return 0;
}

int vb_requests_cancel(vb_handle, struct vb_request* request) {
  if (std::erase_if(state().pending, [&](const auto& entry) { return entry.second == request; }) >
      0) {
    return 0;
  }
  if (std::erase(state().done, request) == 0) return EINVAL;
  state().done_count.decrement();
  undo_creation(*request);
  return 0;
}

int vb_channel_create(vb_handle* channel, int* fd) {
  *channel = 2;
  *fd = state().cq_count.fd;
  return 0;
}
int vb_channel_destroy(vb_handle) {
  state().cq_count.reopen();
  return 0;
}
int vb_channel_next(vb_handle, uint64_t* cookie) {
  if (state().cq_events.empty()) return EAGAIN;
  *cookie = state().cq_events.front();
  state().cq_events.pop_front();
  state().cq_count.decrement();
  return 0;
}
int vb_cm_channel_create(vb_handle* channel, int* fd) {
  if (state().event_channel_error != 0) {
    return fail(state().event_channel_error, "no event channel");
  }
  *channel = 3;
  *fd = state().cm_count.fd;
  return 0;
}
int vb_cm_channel_destroy(vb_handle) { return 0; }
int vb_cm_next_event(vb_handle, struct vb_cm_event* event) {
  if (state().cm_events.empty()) return EAGAIN;
  *event = state().cm_events.front();
  state().cm_events.pop_front();
  state().cm_count.decrement();
  event->cookie = state().objects.at(event->id).cookie;  // the current cookie
  return 0;
}
int vb_context_create(uint32_t, vb_handle* context, int* fd) {
  *context = 1;
  *fd = state().async_count.fd;
  return 0;
}
int vb_async_next(vb_handle, struct vb_async_event* event) {
  if (state().async_events.empty()) return EAGAIN;
  *event = state().async_events.front();
  state().async_events.pop_front();
  state().async_count.decrement();
  return 0;
}

int vb_pd_destroy(vb_handle pd) { return destroy(pd, VB_PD_CREATE); }
int vb_mw_destroy(vb_handle mw) { return destroy(mw, VB_MW_CREATE); }
int vb_srq_destroy(vb_handle srq) { return destroy(srq, VB_SRQ_CREATE); }
int vb_mr_deregister(vb_handle mr) { return destroy(mr, VB_MR_REGISTER); }
int vb_qp_detach(vb_handle qp, const uint8_t*) {
  if (state().membership != 0) destroy(std::exchange(state().membership, 0), VB_QP_ATTACH);
  return exists(qp, VB_QP_CREATE) ? 0 : EINVAL;
}
int vb_ah_destroy(vb_handle ah) { return destroy(ah, VB_AH_CREATE); }
int vb_cq_destroy(vb_handle cq) { return destroy(cq, VB_CQ_CREATE); }
int vb_qp_destroy(vb_handle qp) { return destroy(qp, VB_QP_CREATE); }
int vb_cm_id_destroy(vb_handle id) { return destroy(id, VB_CM_ID_CREATE); }
int vb_cm_id_migrate(vb_handle id, vb_handle) {
  if (!exists(id, VB_CM_ID_CREATE)) return EINVAL;
  state().moved_ids.push_back(id);
  return 0;
}
int vb_cm_id_set_cookie(vb_handle id, uint64_t cookie) {
  state().objects.at(id).cookie = cookie;
  return 0;
}

int vb_cq_poll(vb_handle cq, int max, struct vb_wc* wc) {
  auto& queue = state().completions[cq];
  int count = 0;
  for (; count < max && !queue.empty(); ++count) {
    wc[count] = queue.front();
    queue.pop_front();
  }
  return count;
}
int vb_cq_arm(vb_handle cq, int) {
  state().armed_cqs.insert(cq);
  return 0;
}
int vb_post_send(vb_handle, const struct vb_send_wr*, int) { return 0; }
int vb_post_recv(vb_handle, const struct vb_recv_wr*) { return 0; }
int vb_post_srq_recv(vb_handle, const struct vb_recv_wr*) { return 0; }

}  // extern "C"
