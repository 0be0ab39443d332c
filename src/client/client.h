#pragma once

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/operation.h"
#include "border/call.h"
#include "border/requests.h"
#include "client/channels.h"
#include "client/complaints.h"
#include "client/look_then_sleep.h"
#include "client/socket_counters.h"
#include "link/burst.h"
#include "link/capture.h"
#include "os/daemon.h"
#include "os/event_fd.h"
#include "os/fork_mark.h"
#include "os/heap.h"
#include "os/poller.h"
#include "os/shared_memory.h"
#include "os/udp_link.h"
#include "os/unix_channel.h"
#include "process/process.h"

namespace verbena::client {

using border::NoCancellation;
using border::RequestQueue;
using border::settle;
using border::Submission;

// One program's engine in real time: threads, sockets and clocks around a process::Process.
//
// Who drives.  All protocol state belongs to whoever holds the drive lock.  A thread that posts
// takes it if it is free, and sends its packets itself; if not, the holder sees the work when it
// lets go.  A thread that polls an empty CQ takes it if it is free, and receives.  When nobody
// does, the progress thread does: it sleeps on the sockets and the agent's connection.  While
// programs poll (many empty polls, no CQ armed) it leaves the sockets and the timers to them and
// looks every millisecond whether they still do: a wake-up for each packet would cost more than it
// brings.  (One that polls its queue, and then its memory for what is written there, is found out.)
// For the same reason it looks for a moment before it sleeps, while packets come at short
// intervals. It alone waits for the agent, and tells whoever drives next that there is a message.
//
// The same holds for one that polls for events of the RDMA CM: it hears the agent itself, which the
// progress thread then is not woken for.  One that waits for them does so, too, for a moment before
// it sleeps, as long as its waits are short.
//
// What a program says to the agent between two events goes there together: a thread that was given
// one while there were more comes back for them, and is followed by the progress thread, which
// looks after a millisecond whether it has.
//
// Lock order: joining, drive, then the channels' own.
class Client final : private os::PacketObserver {
 public:
  // Finds the user's agent, or starts one, and says Hello.  The text explains a failure in one
  // line.
  static Result<std::unique_ptr<Client>> connect(std::string& problem);
  // The same again if the agent has died: what process::Process says of it holds from then on.  Of
  // many threads one does it and the others wait for it.  Nothing to do is an atomic load.
  Result<void> join(std::string& problem);
  ~Client() override;

  // ---- commands ----
  // Runs `body(process, now)` under the drive lock and carries out what comes of it.
  template <class Body>
  auto command(Body body) {
    Driving lock(drive_);
    auto result = body(process_, os_now());
    attend();
    let_go(lock);
    return result;
  }
  // Starts an asynchronous command and waits for its end: the agent's word, never a peer's.
  // Not a cancellation point.
  template <class T, class Start>
  Result<T> call(Start start);
  // Starts one for `submission`: its status, or EINPROGRESS.  `finish(process, result)`, under the
  // drive lock, makes what the caller gets of it.
  template <class T, class Start, class Finish>
  int submit(const Submission& submission, Start start, Finish finish);
  void forget(vb_request& request);
  int cancel(RequestQueue& queue, vb_request& request, bool* was_done);
  // For the program's exit, which may come from a signal handler inside any call: what is to be
  // sent is sent.  Waits for whoever drives, and for an agent that is slow to read, but no longer
  // than that.
  void send_the_rest(std::chrono::milliseconds patience);
  // Waits until what was captured so far is in the file, but no longer than that: for the program's
  // exit, which may come from a signal handler inside any call, or with a stopped agent.
  void flush_capture(std::chrono::milliseconds patience);

  // The next event of the channel; waits as read(2) on its descriptor does, and gives 0 or its
  // errno.  A cancellation point, which may unwind.
  int next_event(CmChannel& channel, process::CmNotice& notice);
  // This thread may wait for something else: nothing is held back for it.
  void waits_elsewhere();

  hca::Engine& engine() { return process_.engine(); }
  // Something was posted: sends it now if nobody else is at it.
  void kick();
  // A poll found nothing: receives if nobody else is at it.
  void poll();
  // A CQ was armed: from now on somebody must wait on the sockets.
  void armed();
  // A failure in words: the agent's own if it was the agent that refused, and then the user hears
  // of it, too.  REQUIRES: the drive lock.
  std::string explain(const Error& error);

  // Whom the user hears of failures from, if he wants to.
  Complaints& complaints() { return complaints_; }
  Channels& channels() { return channels_; }
  bool capturing() const { return capture_.has_value(); }

  // ---- fork ----
  // This is the copy that a child of the program has: nothing of it may be used.
  bool in_copy() const { return fork_mark_.in_copy(); }
  // Around a fork: nobody drives meanwhile, so the child's copy is whole enough to be abandoned.
  void before_fork();
  void after_fork_in_parent();
  // In the child: closes every inherited descriptor but those that the program has been shown
  // (channels; their numbers are the program's to close), and touches nothing of the parent's.
  void abandon();

  // Time for messages: how long the calls of this thread have taken is part of them.
  static Time os_now();

 private:
  using Driving = std::unique_lock<std::timed_mutex>;

  // What a waiting call shares with its completion, which runs under the drive lock.
  template <class T>
  struct Answer {
    std::mutex mutex;
    std::condition_variable come;
    std::optional<Result<T>> result;

    void give(Result<T> value) {
      const std::lock_guard lock(mutex);  // also around the notice: the waiter ends our life
      result = std::move(value);
      come.notify_all();
    }
  };

  // What the pollers say is ready.
  static constexpr std::uint64_t kAgentToken = 1;
  static constexpr std::uint64_t kWakeToken = 2;
  static constexpr std::uint64_t kDataToken = 3;
  static constexpr std::uint64_t kKeeperToken = 4;

  // While programs poll, how often the progress thread looks whether they still do.
  static constexpr Duration kLook = std::chrono::milliseconds(1);

  struct DataSockets {
    os::Fd ipv4, ipv6;
    std::unique_ptr<os::UdpReceiver> receiver;
  };

  Client(const process::Process::Config& config, os::WakeFd wake, os::Poller busy, os::Poller quiet,
         os::ForkMark fork_mark);

  Result<void> make_qp_table();

  // ---- join.cc
  Result<void> try_join(std::string& problem, bool& again);
  // How the Hello went.  `again`: with another agent it may go better.
  Result<void> judge(const std::optional<Result<ipc::Welcome>>& welcome, std::string& problem,
                     bool& again);
  Result<void> watch_agent(os::Daemon daemon);
  void reap_keepers();

  // ---- events.cc
  bool may_hold_messages() const;
  void send_held_messages();
  int wait_for_event(CmChannel& channel, process::CmNotice& notice);
  bool polls_on(Time now);
  std::optional<int> look_for_event(CmChannel& channel, process::CmNotice& notice, Time began);
  bool hear_agent();
  void see_who_hears();
  void listen_again();
  void update_watch();

  // ---- client.cc
  Result<void> begin();
  void run();
  void turn();
  std::size_t wait_for_work(std::span<os::Poller::Ready> ready, Time deadline);
  void stay(Time now);
  bool work(Time now, std::optional<os::UdpReceiver::Look> look);
  void receive_messages(Time now);
  void receive_packet(const os::UdpReceiver::Datagram& datagram, Time now);
  bool receive_packets(Time now, os::UdpReceiver::Look look);
  void flush();
  void attend();
  void show_counters();
  void put_into_words(process::Notice& notice, Time now);
  void try_flush();
  void send_messages();
  void agent_gone(Time now);
  // False: what the message brings is not complete.
  bool take_descriptors(std::span<const std::byte> message, std::vector<os::Fd> fds);
  Result<void> add_sockets(std::vector<os::Fd> fds);
  void stop_joining();
  void stop_watching(const DataSockets& sockets);
  void let_go(Driving& lock);
  void sent(const link::Flow& flow, std::span<const std::byte> datagram,
            std::uint16_t identification) override;

  std::timed_mutex drive_;
  os::ForkMark fork_mark_;
  process::Process process_;
  os::UnixChannel agent_;
  os::WakeFd wake_;
  os::Poller busy_;                  // sockets, agent, wake
  os::Poller quiet_;                 // agent, wake: while programs poll
  std::vector<os::Daemon> keepers_;  // of agents that we started and had to leave one for
  os::UdpSender sender_;
  link::Burst burst_;
  std::vector<DataSockets> sockets_;
  bool joins_ = true;  // all our peers are on this host
  os::SharedMemory qp_table_;
  os::Mapping capture_memory_;
  std::optional<link::CaptureRing> capture_;
  std::optional<process::Process::ToAgent> unsent_;  // the agent's socket was full
  bool awaits_room_ = false;                         // there
  std::uint32_t calls_ = 0;                          // since the agent was listened to
  std::uint32_t calls_waiting_ = 0;                  // for its answer
  std::optional<process::Notice> untold_;            // memory was full
  bool leaving_ = false;                             // the agent is gone, and not all is done yet
  Channels channels_;
  std::vector<std::byte> message_buffer_;
  SocketCounters socket_counters_;
  Complaints complaints_;
  std::map<vb_request*, Pending> held_;  // submitted, and the agent's turn
  Time counters_shown_{};

  std::atomic<std::uint32_t> handover_{0};  // orders posts against the end of driving
  std::atomic<std::uint32_t> empty_polls_{0};
  // The progress thread's: the last turn was left to those who poll; packets are its own until
  // then.
  bool left_alone_ = false;
  bool packets_came_ = false;
  Time stays_until_{};
  Duration stay_{};
  LookThenSleep waits_{};
  std::atomic<std::uint32_t> polls_in_vain_{0};  // since a packet came
  std::atomic<bool> is_quiet_{false};
  std::atomic<bool> agent_spoke_{true};  // set by who waits, cleared by who reads
  Time sleeps_until_ = kNever;           // the progress thread; under the drive lock
  // So are these: it looks within kLook, because events wait, messages were held since, or others
  // hear the agent.
  bool looks_soon_ = false;
  bool events_wait_ = false;
  bool held_some_ = false;
  std::atomic<bool> holds_messages_{false};
  static constinit thread_local bool comes_back_;  // this thread, for more events
  // Who polls or looks for events hears the agent, and the progress thread is not told of its
  // messages.  Changes under the drive lock.
  std::atomic<bool> others_hear_{false};
  std::uint32_t event_hearings_ = 0;  // since the progress thread looked
  std::uint32_t hearings_before_ = 0;
  Time others_hear_since_{};
  Time asked_{};       // when something was last said to the agent; 0: it has spoken
  os::HeapTrim heap_;  // under the drive lock
  std::atomic<bool> trims_heap_{false};  // the progress thread is to
  std::atomic<bool> stop_{false};
  std::mutex joining_;  // held for a whole join(); before drive
  std::atomic<bool> joined_{false};
  std::thread thread_;
};

template <class T, class Start>
Result<T> Client::call(Start start) {
  const NoCancellation whole_call;
  Answer<T> answer;
  Driving lock(drive_);
  Started<T> started =
      start(process_, os_now(),
            Completion<T>([&answer](Result<T> result) { answer.give(std::move(result)); }));
  attend();
  if (auto* at_once = std::get_if<Result<T>>(&started)) {
    Result<T> result = std::move(*at_once);
    let_go(lock);
    return result;
  }
  ++calls_waiting_;
  listen_again();
  let_go(lock);
  {
    std::unique_lock waiting(answer.mutex);
    answer.come.wait(waiting, [&] { return answer.result.has_value(); });
  }
  lock.lock();
  --calls_waiting_;
  started.template emplace<Pending>();  // what it refers to belongs to the drive lock
  let_go(lock);
  return *std::move(answer.result);
}

template <class T, class Start, class Finish>
int Client::submit(const Submission& submission, Start start, Finish finish) {
  vb_request& request = submission.request;
  const auto settled = [this, finish = std::move(finish)](const Result<T>& result) {
    const Result<void> end = finish(process_, result);
    return end ? std::pair(0, std::string())
               : std::pair(to_errno(end.error()), explain(end.error()));
  };
  Driving lock(drive_);
  held_[&request] = Pending();  // what needs memory comes first
  submission.queue.begin(request);
  Started<T> started =
      start(process_, os_now(),
            Completion<T>([&queue = submission.queue, &request, settled](const Result<T>& result) {
              const auto [status, text] = settled(result);
              queue.finish(request, status, text);
            }));
  int status = EINPROGRESS;
  if (auto* at_once = std::get_if<Result<T>>(&started)) {
    submission.queue.end(request);
    held_.erase(&request);
    const auto [ended, text] = settled(*at_once);
    if (ended != 0) border::set_last_error(text);  // which vb_submit() takes
    status = ended;
  } else {
    held_[&request] = std::move(std::get<Pending>(started));
    listen_again();
  }
  attend();  // it may be done by now, and taken
  let_go(lock);
  return status;
}

}  // namespace verbena::client
