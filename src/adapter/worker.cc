#include "adapter/worker.h"

#include <netinet/in.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "c_api/commands.h"
#include "c_api/sockaddr.h"
#include "os/thread.h"

namespace verbena::adapter {

// Holds a copy of a request, of its arguments, and of the data that the arguments point to.
// VB_MR_PREFETCH, and VB_CM_BIND to VB_CM_ANSWER_PATH, need a copy, because the caller may free the
// data before the command is carried out.  These commands return no data.
struct Worker::Copies {
  vb_request request{};
  vb_cm_args cm{};
  sockaddr_storage src{}, dst{};
  vb_conn_param param{};
  vb_cm_message_data data{};
  vb_cm_filter filter{};
  vb_cm_path path{}, alternate{};
  std::vector<std::vector<std::byte>> bytes{};
  vb_prefetch_args prefetch{};
  std::vector<vb_sge> segments{};

  static void copy(const sockaddr*& address, sockaddr_storage& to) {
    if (address == nullptr) return;
    std::memcpy(&to, address, c_api::bytes_of(*address));
    address = reinterpret_cast<const sockaddr*>(&to);
  }
  template <class T>
  static void copy(const T*& pointer, T& to) {
    if (pointer == nullptr) return;
    to = *pointer;
    pointer = &to;
  }
  void copy_bytes(const void*& pointer, std::uint8_t length) {
    if (pointer == nullptr) return;
    const auto* const first = static_cast<const std::byte*>(pointer);
    pointer = bytes.emplace_back(first, first + length).data();
  }
  void copy_cm_arguments(vb_request& from) {
    cm = c_api::args_of<vb_cm_args>(from);
    copy(cm.src, src);
    copy(cm.dst, dst);
    copy(cm.param, param);
    copy(param.alternate, alternate);
    copy_bytes(param.private_data, param.private_data_len);
    copy(cm.data, data);
    copy_bytes(data.private_data, data.private_data_len);
    copy_bytes(data.additional_info, data.additional_info_len);
    copy(cm.filter, filter);
    copy_bytes(filter.data, filter.data_len);
    copy_bytes(filter.data_mask, filter.data_len);
    copy(cm.path, path);
    request.arguments = &cm;
  }
  void copy_prefetch_arguments(vb_request& from) {
    prefetch = c_api::args_of<vb_prefetch_args>(from);
    segments.assign(prefetch.list, prefetch.list + prefetch.count);
    prefetch.list = segments.data();
    request.arguments = &prefetch;
  }
};

namespace {

std::mutex worker_mutex;
Worker* the_worker = nullptr;  // it is never destroyed, because its thread never ends

// A forked child does not have its parent's threads.  Its first command starts a new worker.
void forget_worker_in_child() {
  new (&worker_mutex) std::mutex;
  the_worker = nullptr;
}

}  // namespace

Result<Worker*> Worker::get() {
  const std::lock_guard lock(worker_mutex);
  static const int registered = pthread_atfork(nullptr, nullptr, forget_worker_in_child);
  (void)registered;
  if (the_worker == nullptr) {
    the_worker = VB_TRY(start({.call = c_api::call, .undo = c_api::undo}));
  }
  return the_worker;
}

Result<Worker*> Worker::start(const Functions& functions) {
  auto worker = std::make_unique<Worker>(functions);
  auto thread = VB_TRY(
      os::start_thread("verbena-adapter", [raw_worker = worker.get()] { raw_worker->run(); }));
  thread.detach();
  return worker.release();
}

void Worker::submit(c_api::RequestQueue& queue, vb_request& request) {
  Job job{&queue, &request, {nullptr, [](Copies* copies) { delete copies; }}};
  const bool is_cm_command = request.command >= VB_CM_BIND && request.command <= VB_CM_ANSWER_PATH;
  if (is_cm_command || request.command == VB_MR_PREFETCH) {
    job.copies.reset(new Copies);
    job.copies->request.command = request.command;
    is_cm_command ? job.copies->copy_cm_arguments(request)
                  : job.copies->copy_prefetch_arguments(request);
  }
  const std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  queue.begin(request);
  submitted_.notify_one();
}

Result<void> Worker::cancel(c_api::RequestQueue& queue, vb_request& request) {
  std::unique_lock lock(mutex_);
  const auto job =
      std::ranges::find_if(jobs_, [&](const Job& one) { return one.request == &request; });
  if (job != jobs_.end()) jobs_.erase(job);
  done_.wait(lock, [&] { return running_ != &request; });
  bool was_done = false;
  if (!queue.cancel(request, &was_done)) {
    return fail(Errc::kBadHandle, "the request is not pending");
  }
  lock.unlock();
  if (was_done) functions_.undo(request);
  return {};
}

void Worker::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    submitted_.wait(lock, [&] { return !jobs_.empty(); });
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    running_ = job.request;
    lock.unlock();
    const int status = functions_.call(job.copies ? job.copies->request : *job.request);
    job.queue->finish(*job.request, status, status == 0 ? "" : c_api::last_error());
    lock.lock();
    running_ = nullptr;
    done_.notify_all();
  }
}

}  // namespace verbena::adapter
