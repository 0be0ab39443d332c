#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/operation.h"
#include "base/thread_safety.h"
#include "c_api/call.h"
#include "c_api/requests.h"
#include "client/agent_link.h"
#include "client/blocked_wait.h"
#include "client/channels.h"
#include "client/data_path.h"
#include "client/diagnostics.h"
#include "client/driver.h"
#include "client/event_wait.h"
#include "client/lane_links.h"
#include "client/watches.h"
#include "os/fork_mark.h"
#include "os/heap.h"
#include "os/shared_memory.h"
#include "process/process.h"

namespace verbena::client {

using c_api::NoCancellation;
using c_api::RequestQueue;
using c_api::settle;
using c_api::Submission;

// Runs a program's half of the stack in real time.  Connects a process::Process with the program's
// threads, its sockets (DataPath) and its agent (AgentLink).  The Driver decides which thread runs
// the Process.
//
// A thread locks join_mutex_ before the drive lock, and the drive lock before the channels' locks.
class Client final : private Driver::Work {
 public:
  // Finds the user's agent, or starts one, and sends Hello.  `problem` explains a failure in one
  // line.
  static Result<std::unique_ptr<Client>> connect(std::string& problem);
  // Joins the next agent if the last agent has died; see process::Process for the effects.  If many
  // threads call join(), one of them joins and the others wait.  Costs one atomic load if the agent
  // lives.
  Result<void> join(std::string& problem);
  ~Client();

  // ---- commands ----
  // Runs `body(process, now)` under the drive lock, and then sends the resulting messages and
  // packets and delivers the resulting events.
  template <class Body>
  auto command(Body body) {
    const Driving lock(driver_);
    begin_command();
    auto result = body(process_, os_now());
    finish_command();
    return result;
  }
  // Runs a command that takes the rights to memory away from peers.  Then waits until no peer
  // accesses this program's memory with those rights (link/lane.h).  The wait takes microseconds,
  // unless a debugger or a signal has stopped a peer in the middle of an access.
  template <class Body>
  auto revoke(Body body) {
    std::vector<link::Lanes::Access> accesses;
    auto result = command([&](process::Process& process, Time now) {
      auto body_result = body(process, now);
      accesses = process.lanes().accesses();
      return body_result;
    });
    if (!accesses.empty()) wait_for_end_of(std::move(accesses));
    return result;
  }
  // Starts an asynchronous command and waits for its end.  The command may wait for the agent's
  // answer, but never for a peer's answer.  This function is not a cancellation point.
  template <class T, class Start>
  Result<T> call(Start start);
  // Starts an asynchronous command for `submission`.  Returns 0 or the errno if the command has
  // ended already; otherwise returns EINPROGRESS.
  // `finish(process, result)` runs under the drive lock and makes the caller's result.
  template <class T, class Start, class Finish>
  int submit(const Submission& submission, Start start, Finish finish);
  // Removes the record of a submitted request whose result the program has taken.
  void forget(vb_request& request);
  // Cancels a submitted request.  Returns 0, or EINVAL if the request is not in the queue.  Sets
  // *was_done if the command had been carried out already.
  int cancel(RequestQueue& queue, vb_request& request, bool* was_done);
  // Sends all queued packets and messages, because the program exits.  It may exit in a signal
  // handler that has interrupted any call.  Gives up after `timeout` if another thread drives or
  // the agent is slow to read.  From now on no events are delivered.
  void send_all_queued(std::chrono::milliseconds timeout);
  // Waits until all packets captured so far are in the capture file, because the program exits.
  // Gives up after `timeout`.
  void flush_capture(std::chrono::milliseconds timeout);

  // Takes the next event of a completion channel (BlockedWait::next()).
  int next_event(CompletionChannel& channel, CqEvent& event) {
    return blocked_.next(channel, event);
  }
  // The next two functions call those of EventWait.
  int next_event(CmChannel& channel, process::CmNotice& notice) {
    return events_.next(channel, notice);
  }
  void note_other_wait() { events_.note_other_wait(); }

  // Returns the engine, for those of its calls that need no drive lock.
  hca::Engine& engine() VB_NO_THREAD_SAFETY_ANALYSIS { return process_.engine(); }
  // The next three functions call those of the Driver with the same names.
  void kick() { driver_.kick(); }
  void poll() {
    AgentLink::set_will_take_more_events(false);
    driver_.poll();
  }
  void cq_armed() { driver_.cq_armed(); }
  // Returns a text that describes a failure.  If the agent refused a request, returns the agent's
  // text.  If the agent refused or the program made a mistake, also writes the text as a line for
  // the user (Diagnostics).
  std::string explain(const Error& error) VB_REQUIRES(drive_lock);

  Diagnostics& diagnostics() { return diagnostics_; }
  Channels& channels() { return channels_; }
  bool capturing() const VB_NO_THREAD_SAFETY_ANALYSIS { return data_.capturing(); }

  // ---- fork ----
  // Returns true in a forked child.  The child has a copy of this object, and must not use it.
  bool is_in_forked_child() const { return fork_mark_.is_in_forked_child(); }
  void before_fork() { driver_.before_fork(); }
  void after_fork_in_parent() { driver_.after_fork_in_parent(); }
  // Closes the inherited descriptors in the child, and does not change anything that the child
  // shares with the parent.  Leaves the descriptors of channels open, because the program knows
  // their numbers and closes them itself.
  void abandon();

  // Returns the time now.
  static Time os_now();

 private:
  // Carries the result of a command from its completion, which runs under the drive lock, to the
  // call that waits for it.
  template <class T>
  struct PendingResult {
    std::mutex mutex;
    std::condition_variable available;
    std::optional<Result<T>> result;

    void set(Result<T> value) {
      // Notifies under the lock, since the waiting thread destroys this object once it has the
      // result.
      const std::lock_guard lock(mutex);
      result = std::move(value);
      available.notify_all();
    }
  };
  // Holds a command that was submitted and waits for the agent.
  struct SubmittedCommand {
    Pending pending{};
    std::optional<AgentLink::AwaitedAnswer> awaited{};
  };

  Client(const process::Process::Config& config, Watches watches, os::ForkMark fork_mark);

  Result<void> begin(bool allows_direct_access);
  Result<void> make_qp_table() VB_REQUIRES(drive_lock);
  Result<void> try_join(std::string& problem, bool& should_retry);
  Result<void> check_welcome(const std::optional<Result<ipc::Welcome>>& welcome,
                             std::string& problem, bool& should_retry) VB_REQUIRES(drive_lock);

  // ---- Driver::Work
  bool receive(Time now, std::optional<os::UdpReceiver::Poll> poll_mode)
      VB_REQUIRES(drive_lock) override;
  void flush() VB_REQUIRES(drive_lock) override;
  void deliver(Time now) VB_REQUIRES(drive_lock) override;
  Time deadline() const VB_REQUIRES(drive_lock) override { return process_.deadline(); }
  void begin_iteration() VB_REQUIRES(drive_lock) override;
  bool end_iteration(Time now) VB_REQUIRES(drive_lock) override;
  bool take_unfinished() VB_REQUIRES(drive_lock) override {
    return std::exchange(unfinished_, false);
  }
  bool park() VB_REQUIRES(drive_lock) override { return process_.lanes().park(); }
  void unpark() VB_REQUIRES(drive_lock) override;
  bool has_lanes() VB_REQUIRES(drive_lock) override { return !process_.lanes().empty(); }
  bool waits_for_lane_space() VB_REQUIRES(drive_lock) override { return engine().waits_for_lane(); }
  bool has_posts() override { return engine().has_work(); }
  bool posts_can_wait() const override VB_REQUIRES(drive_lock) {
    return process_.engine().posts_can_wait();
  }
  bool acknowledgements_can_wait() const override VB_REQUIRES(drive_lock) {
    return data_.coalesces();
  }
  bool needs_flush() const override VB_REQUIRES(drive_lock) {
    return needs_flush_ || agent_.has_delayed_messages() || process_.engine().waits_for_lane();
  }
  bool needs_progress_thread() const override VB_NO_THREAD_SAFETY_ANALYSIS {
    return agent_.needs_progress_thread();
  }
  bool delegate_messages() override VB_NO_THREAD_SAFETY_ANALYSIS {
    return agent_.delegate_messages();
  }
  void after_iteration() override;
  void on_ready(Watches::Kind kind) override;

  void wait_for_end_of(std::vector<link::Lanes::Access> accesses);
  void begin_command() VB_REQUIRES(drive_lock);
  void finish_command() VB_REQUIRES(drive_lock);
  void receive_messages(Time now) VB_REQUIRES(drive_lock);
  bool receive_packets(Time now, os::UdpReceiver::Poll poll_mode) VB_REQUIRES(drive_lock);
  bool receive_from_sockets(Time now, os::UdpReceiver::Poll poll_mode) VB_REQUIRES(drive_lock);
  bool show_if_remark(std::span<const std::byte> message, Time now) VB_REQUIRES(drive_lock);
  bool take_descriptors(std::span<const std::byte> message, std::vector<os::Fd> fds)
      VB_REQUIRES(drive_lock);
  void handle_agent_loss(Time now) VB_REQUIRES(drive_lock);
  void send_and_deliver(Time now) VB_REQUIRES(drive_lock);
  void deliver_notices(Time now) VB_REQUIRES(drive_lock);
  void describe(process::Notice& notice, Time now) VB_REQUIRES(drive_lock);
  void show_counters() VB_REQUIRES(drive_lock);

  os::ForkMark fork_mark_;
  Watches watches_;
  // Precedes process_ and submitted_, because their destructors may still deliver to channels.
  Channels channels_;
  process::Process process_ VB_GUARDED_BY(drive_lock);
  AgentLink agent_ VB_GUARDED_BY(drive_lock);
  DataPath data_ VB_GUARDED_BY(drive_lock);
  LaneLinks links_ VB_GUARDED_BY(drive_lock);
  Time sockets_polled_at_ VB_GUARDED_BY(drive_lock){};
  Time sockets_had_packets_at_ VB_GUARDED_BY(drive_lock){};
  os::SharedMemory qp_table_ VB_GUARDED_BY(drive_lock);
  // These two members record work that an earlier call could not finish because memory ran out.
  std::optional<process::Notice> undelivered_ VB_GUARDED_BY(drive_lock);
  bool agent_loss_unfinished_ VB_GUARDED_BY(drive_lock) = false;
  bool is_exiting_ VB_GUARDED_BY(drive_lock) = false;  // see deliver_notices()
  // Events were delivered since the last iteration.
  bool has_new_events_ VB_GUARDED_BY(drive_lock) = false;
  bool needs_flush_ VB_GUARDED_BY(drive_lock) = false;  // see needs_flush()
  bool unfinished_ VB_GUARDED_BY(drive_lock) = false;   // see take_unfinished()
  std::map<vb_request*, SubmittedCommand> submitted_ VB_GUARDED_BY(drive_lock);
  Time counters_shown_at_ VB_GUARDED_BY(drive_lock){};
  os::HeapTrim heap_trim_ VB_GUARDED_BY(drive_lock);
  Diagnostics diagnostics_;
  std::atomic<bool> trim_is_pending_{false};
  std::atomic<bool> joined_{false};
  std::mutex join_mutex_;  // locked during a whole join()
  Driver driver_;          // its thread uses all members above
  BlockedWait blocked_;
  EventWait events_;
};

template <class T, class Start>
Result<T> Client::call(Start start) {
  const NoCancellation no_cancellation;
  PendingResult<T> answer;
  Started<T> started = Result<T>(fail(Errc::kBadState, "not started"));
  std::optional<AgentLink::AwaitedAnswer> awaited;
  {
    const Driving lock(driver_);
    begin_command();
    started = start(process_, os_now(),
                    Completion<T>([&answer](Result<T> result) { answer.set(std::move(result)); }));
    finish_command();
    if (auto* early_result = std::get_if<Result<T>>(&started)) return std::move(*early_result);
    awaited.emplace(agent_);
  }
  {
    std::unique_lock waiting(answer.mutex);
    answer.available.wait(waiting, [&] { return answer.result.has_value(); });
  }
  const Driving lock(driver_);
  awaited.reset();
  started.template emplace<Pending>();  // destroying a Pending needs the drive lock
  return *std::move(answer.result);
}

template <class T, class Start, class Finish>
int Client::submit(const Submission& submission, Start start, Finish finish) {
  vb_request& request = submission.request;
  const auto outcome_of =
      [this, finish = std::move(finish)](const Result<T>& result) VB_NO_THREAD_SAFETY_ANALYSIS {
        const Result<void> finished = finish(process_, result);
        return finished ? std::pair(0, std::string())
                        : std::pair(to_errno(finished.error()), explain(finished.error()));
      };
  const Driving lock(driver_);
  begin_command();
  submitted_[&request] = SubmittedCommand();  // allocates before the command starts
  submission.queue.begin(request);
  Started<T> started = Result<T>(fail(Errc::kBadState, "not started"));
  try {
    started = start(
        process_, os_now(),
        Completion<T>([&queue = submission.queue, &request, outcome_of](const Result<T>& result) {
          const auto [status, text] = outcome_of(result);
          queue.finish(request, status, text);
        }));
  } catch (const std::bad_alloc&) {
    submission.queue.end(request);
    submitted_.erase(&request);
    throw;
  }
  int status = EINPROGRESS;
  if (auto* early_result = std::get_if<Result<T>>(&started)) {
    submission.queue.end(request);
    submitted_.erase(&request);
    const auto [error, text] = outcome_of(*early_result);
    if (error != 0) c_api::set_last_error(text);  // vb_submit() copies this text to the request
    status = error;
  } else {
    SubmittedCommand& entry = submitted_[&request];
    entry.pending = std::move(std::get<Pending>(started));
    entry.awaited.emplace(agent_);
  }
  finish_command();  // do not use `request` after this: the program may have taken and freed it
  return status;
}

}  // namespace verbena::client
