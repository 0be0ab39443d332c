#pragma once

#include <array>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "verbena/c_api_requests.h"
#include "verbena/device.h"
#include "verbena/loop.h"
#include "verbena/outcome.h"
#include "verbena/request.h"

namespace verbena {

// Describes the result of a work request.  If `status` is not 0 (enum ibv_wc_status), only wr_id,
// status and qp_num are valid.
using Completion = vb_wc;

// Describes a completion's status (vol1 11.6.2); never null.
inline const char* status_text(std::uint32_t status) {
  static constexpr std::array<const char*, 24> kTexts{
      "success",
      "local length error",
      "local QP operation error",
      "local EE context operation error",
      "local protection error",
      "flushed: the queue pair is in the error state",
      "memory window bind error",
      "bad response",
      "local access error",
      "remote invalid request",
      "remote access error",
      "remote operation error",
      "retries exceeded: the peer does not answer",
      "RNR retries exceeded: the peer has no receive posted",
      "local RDD violation",
      "remote invalid RD request",
      "remote aborted",
      "invalid EE context number",
      "invalid EE context state",
      "fatal error",
      "response timeout",
      "general error",
      "tag matching error",
      "tag matching rendezvous incomplete",
  };
  return status < kTexts.size() ? kTexts[status] : "unknown status";
}
inline const char* status_text(const Completion& done) { return status_text(done.status); }

namespace detail {

// Receives the events of a completion queue.
class CqSink final : public AsyncSink {
 public:
  class Next;

  using AsyncSink::AsyncSink;
  CqSink(const CqSink&) = delete;
  CqSink& operator=(const CqSink&) = delete;
  ~CqSink() { end_wait(); }
  void end_wait();
  void on_completions() override;
  void on_async(std::uint32_t /*type*/) override { overrun_ = true; }
  std::size_t poll(std::span<Completion> out) const {
    const int count = vb_cq_poll(handle.get(), static_cast<int>(out.size()), out.data());
    return count < 0 ? 0 : static_cast<std::size_t>(count);
  }
  void arm(bool solicited_only) const { vb_cq_arm(handle.get(), solicited_only ? 1 : 0); }
  bool overrun() const { return overrun_; }

  Owned<vb_cq_destroy> handle{};

 private:
  Next* waiter_ = nullptr;
  bool overrun_ = false;
};

// Awaits completions in co_await CompletionQueue::next().
class CqSink::Next {
 public:
  Next(CqSink& cq, std::span<Completion> out) : cq_(&cq), out_(out) {}
  Next(const Next&) = delete;
  Next& operator=(const Next&) = delete;
  ~Next() {
    if (cq_ != nullptr && cq_->waiter_ == this) cq_->waiter_ = nullptr;
  }

  bool await_ready() { return out_.empty() || poll(); }
  bool await_suspend(std::coroutine_handle<> frame) {
    if (arm_and_poll()) return false;
    frame_ = frame;
    cq_->waiter_ = this;
    return true;
  }
  std::span<Completion> await_resume() const { return out_.first(count_); }

  void on_event() {
    if (!poll() && !arm_and_poll()) return;
    cq_->waiter_ = nullptr;
    frame_.resume();
  }
  // Ends the wait because the queue is destroyed: the coroutine is never resumed.
  void end_wait() { cq_ = nullptr; }

 private:
  bool poll() {
    count_ = cq_->poll(out_);
    return count_ > 0;
  }
  // Arms the queue and polls again, because completions that came before the arming raise no event.
  bool arm_and_poll() {
    cq_->arm(false);
    return poll();
  }

  CqSink* cq_;
  std::span<Completion> out_;
  std::size_t count_ = 0;
  std::coroutine_handle<> frame_{};
};

inline void CqSink::end_wait() {
  if (waiter_ != nullptr) std::exchange(waiter_, nullptr)->end_wait();
}

inline void CqSink::on_completions() {
  if (waiter_ != nullptr) waiter_->on_event();
}

}  // namespace detail

// Receives the completions of work requests (vol1 10.2.8).  Queue pairs that use the queue keep it
// alive after this object is destroyed.
class CompletionQueue {
 public:
  CompletionQueue(Loop& loop, detail::SinkOwner<detail::CqSink> sink)
      : loop_(&loop), sink_(std::move(sink)) {}

  // Stores completions in `out`, and returns their number: 0 if there are none, or after an error.
  // Does not wait.  Any thread may call it.
  std::size_t poll(std::span<Completion> out) const { return sink_->poll(out); }
  // Waits for at least one completion:
  //     for (const Completion& done : co_await cq.next(buffer)) ...
  // Only one coroutine may wait at a time.
  detail::CqSink::Next next(std::span<Completion> out) { return {*sink_, out}; }
  // Returns true if a completion was lost, because the queue was full.  poll() and next() still
  // return the completions that are in the queue.
  bool overrun() const { return sink_->overrun(); }
  // Changes the capacity to at least `entries`, and returns the new capacity.  The completions in
  // the queue remain.
  Request<std::uint32_t> resize(std::uint32_t entries) {
    vb_cq_args args{};
    args.cq = sink_->handle.get();
    args.entries = entries;
    return detail::submit<std::uint32_t>(
        *loop_, VB_CQ_RESIZE, args,
        [](Loop&, vb_cq_args& results) -> Outcome<std::uint32_t> { return results.entries; });
  }
  // Destroys the queue.  Fails with device_or_resource_busy while queue pairs use it.
  Request<void> destroy() {
    return detail::submit_plain<vb_cq_args>(
        *loop_, VB_CQ_DESTROY, [&](vb_cq_args& args) { args.cq = sink_->handle.get(); });
  }
  vb_handle handle() const { return sink_->handle.get(); }
  // Keeps the queue alive as long as the returned pointer lives.
  std::shared_ptr<const void> share() const { return sink_.share(); }

 private:
  Loop* loop_;
  detail::SinkOwner<detail::CqSink> sink_;
};

namespace detail {
struct CqArguments {
  vb_cq_args value{};
  SinkOwner<CqSink> sink{};
};
}  // namespace detail

inline Request<CompletionQueue> Device::create_cq(std::uint32_t entries) const {
  detail::CqArguments args;
  args.sink = detail::SinkOwner(std::make_shared<detail::CqSink>(*loop_));
  args.value.context = detail::AsyncEvents::get().context();
  args.value.entries = entries;
  args.value.channel = loop_->completions();
  args.value.cookie = detail::cookie_of(*args.sink);
  return detail::submit<CompletionQueue>(
      *loop_, VB_CQ_CREATE, std::move(args),
      [](Loop& loop, detail::CqArguments& results) -> Outcome<CompletionQueue> {
        results.sink->handle = detail::Owned<vb_cq_destroy>(results.value.cq);
        return CompletionQueue(loop, std::move(results.sink));
      });
}

}  // namespace verbena
