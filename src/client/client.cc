#include "client/client.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <thread>
#include <utility>

#include "client/batch.h"
#include "link/framing.h"
#include "os/clock.h"
#include "os/entropy.h"
#include "os/fault_guard.h"
#include "os/process.h"
#include "os/thread.h"

namespace verbena::client {
namespace {

// Datagrams per turn of the drive lock: a flood must not keep commands waiting.
constexpr int kReceiveTurns = 16;
// And so must the answer to a READ, which may be two million packets; what has come waits, too.
constexpr int kBurstsOfFlush = 8;
// A thread that looks at an empty CQ this often in kLook is polling, not looking once more before
// it goes to sleep.
constexpr std::uint32_t kPollsBusy = 64;
// Of one that polled and then let packets lie, how long the progress thread takes them itself; the
// longer, the oftener it happens.
constexpr Duration kStayMin = std::chrono::milliseconds(10);
constexpr Duration kStayMax = std::chrono::seconds(1);
// After so many polls without a packet, some 50 us, the peer may well wait for this processor.
constexpr std::uint32_t kPollsInVain = 64;
constexpr std::uint32_t kDeviceFatal = 8;  // IBV_EVENT_DEVICE_FATAL
// How long a fork waits for whoever drives.  Longer only if the forking thread drives itself (a
// fork in a signal handler that has interrupted us).
constexpr Duration kForkPatience = std::chrono::seconds(1);

// This thread holds the drive lock for the fork that it is in.
thread_local bool held_for_fork = false;

}  // namespace

Time Client::os_now() { return os::now(); }

Client::Client(const process::Process::Config& config, os::WakeFd wake, os::Poller busy,
               os::Poller quiet, os::ForkMark fork_mark)
    : fork_mark_(std::move(fork_mark)),
      process_(config, Random(os::random_key())),
      wake_(std::move(wake)),
      busy_(std::move(busy)),
      quiet_(std::move(quiet)),
      sender_({.observer = this}),
      message_buffer_(os::kMessageBytesMax) {}

Result<void> Client::begin() {
  VB_TRY_VOID(make_qp_table());
  process_.set_qp_table(qp_table_.mapping.bytes());
  os::catch_faults();
  process_.engine().set_memory_guard(os::touch_memory);
  socket_counters_.set_table(ipc::QpTable(qp_table_.mapping.bytes()));
  for (os::Poller* poller : {&busy_, &quiet_}) VB_TRY_VOID(poller->add(wake_.fd(), kWakeToken));
  thread_ = VB_TRY(os::start_thread("verbena", [this] { run(); }));
  return {};
}

// Without shared memory nobody else sees the table, and the program works all the same.
Result<void> Client::make_qp_table() {
  auto shared = os::create_shared_memory("verbena-qps", ipc::QpTable::kBytes);
  if (shared) {
    qp_table_ = *std::move(shared);
    return {};
  }
  if (shared.error().detail != EFBIG) return std::unexpected(shared.error());
  complaints_.write(std::string(shared.error().context) +
                        ": 'verbena ps' will not show this program's queue pairs",
                    os::now());
  qp_table_.mapping = VB_TRY(os::map_private(ipc::QpTable::kBytes));
  return {};
}

Client::~Client() {
  if (!thread_.joinable()) return;
  stop_.store(true);
  wake_.wake();
  thread_.join();
}

// ---- fork
// -----------------------------------------------------------------------------------------

void Client::before_fork() { held_for_fork = drive_.try_lock_for(kForkPatience); }

void Client::after_fork_in_parent() {
  if (!std::exchange(held_for_fork, false)) return;
  drive_.unlock();
  wake_.wake();  // what was posted meanwhile is the progress thread's
}

void Client::abandon() {
  held_for_fork = false;
  agent_.close();
  busy_.close();
  quiet_.close();
  wake_.close();
  // Closed, not destroyed: a child of a bare clone() may have been born while another thread held
  // a lock of the allocator, and free() would wait for it for ever.
  for (os::Daemon& keeper : keepers_) keeper.keeper_pidfd.reset();
  sender_.close();
  for (DataSockets& sockets : sockets_) {
    sockets.ipv4.reset();
    sockets.ipv6.reset();
  }
  qp_table_.fd.reset();
  qp_table_.mapping.abandon();
  capture_memory_.abandon();
}

// ---- driving
// --------------------------------------------------------------------------------------

void Client::run() {
  // Until there is memory again; nobody tells when.
  constexpr auto kPause = std::chrono::milliseconds(10);
  while (!stop_.load()) {
    try {
      turn();
    } catch (const std::bad_alloc&) {
      // Whatever had begun is there for the next turn.
      std::this_thread::sleep_for(kPause);
    }
  }
}

void Client::turn() {
  std::array<os::Poller::Ready, 16> ready{};
  is_quiet_.store(true);  // before the count is taken: whoever arms after it wakes us
  const std::uint32_t polls = empty_polls_.exchange(0);
  const bool polled = polls >= kPollsBusy && os::now() >= stays_until_;
  is_quiet_.store(polled);
  Time deadline = os::now() + kLook;
  // Else those who poll do all there is to do.
  if (!polled || agent_spoke_.load() || holds_messages_.load() || others_hear_.load()) {
    Driving lock(drive_);
    const Time now = os::now();
    if (others_hear_.load()) agent_spoke_.store(true);  // it may have
    // Where nobody said that packets have come, a look is two system calls in vain; but what has
    // come may be what a timer waits for.
    const bool looks =
        std::exchange(packets_came_, false) || left_alone_ || process_.deadline() <= now;
    const bool some = work(now, looks ? std::optional(os::UdpReceiver::Look::kAll) : std::nullopt);
    if (some && left_alone_ && polls == 0) stay(now);
    flush();
    see_who_hears();
    looks_soon_ = std::exchange(events_wait_, false) || std::exchange(held_some_, false) ||
                  others_hear_.load();
    const Time due = process_.deadline();
    if (!polled) deadline = looks_soon_ ? std::min(deadline, due) : due;
    sleeps_until_ = std::min(deadline, due);
    let_go(lock);
  }
  if (trims_heap_.load() && trims_heap_.exchange(false)) os::trim_heap();
  left_alone_ = polled || (left_alone_ && polls != 0);
  const std::size_t count = polled ? quiet_.wait(ready, deadline) : wait_for_work(ready, deadline);
  for (const os::Poller::Ready& one : std::span(ready).first(count)) {
    if (one.token == kKeeperToken) reap_keepers();
    if (one.token == kAgentToken) agent_spoke_.store(true);
    if (one.token == kDataToken) packets_came_ = true;
    if (one.token == kWakeToken) wake_.clear();
  }
}

// A wake-up for each batch of a stream would cost more than the batch.
std::size_t Client::wait_for_work(std::span<os::Poller::Ready> ready, Time deadline) {
  const auto wait = [&](Time until) {
    const std::size_t count = busy_.wait(ready, until);
    const bool packets = std::ranges::any_of(
        ready.first(count), [](const os::Poller::Ready& one) { return one.token == kDataToken; });
    return std::pair(count, packets);
  };
  const auto polls = [&] { return empty_polls_.load(std::memory_order_relaxed) >= kPollsBusy; };
  return waits_.wait(deadline, os::now, os::let_others_run, wait, polls);
}

// Packets lay there, and the program has ceased to poll its queue: it looks at its memory instead,
// as one that is written to may.  If it does so again, it is for longer.
void Client::stay(Time now) {
  stay_ = now < stays_until_ + stay_ ? std::min(2 * stay_, kStayMax) : kStayMin;
  stays_until_ = now + stay_;
}

// Takes what has come; true if packets have.  REQUIRES: the drive lock.
bool Client::work(Time now, std::optional<os::UdpReceiver::Look> look) {
  if (leaving_) agent_gone(now);
  if (agent_spoke_.load() && agent_spoke_.exchange(false)) receive_messages(now);
  const bool some = look && receive_packets(now, *look);
  if (process_.deadline() <= now) process_.on_timer(os::now());
  return some;
}

void Client::receive_packet(const os::UdpReceiver::Datagram& datagram, Time now) {
  const auto& [flow, payload] = datagram;
  if (capture_) capture_->write(now, link::Direction::kIn, flow, 0, payload);
  if (const auto arrival = link::open(flow, payload)) {
    process_.receive(*arrival, now);
  } else {
    socket_counters_.dropped(arrival.error());
    process_.show_soon();  // it may be the last one for long
  }
}

bool Client::receive_packets(Time now, os::UdpReceiver::Look look) {
  bool some = false;
  for (int turn = 0; turn < kReceiveTurns; ++turn) {
    bool more = false;
    for (DataSockets& sockets : sockets_) {
      const auto datagrams = sockets.receiver->receive(look);
      some |= !datagrams.empty();
      take_batch(
          datagrams,
          [&](const os::UdpReceiver::Datagram& datagram) { receive_packet(datagram, now); },
          [&] { return process_.engine().has_work(); }, [&] { flush(); });
      if (sockets.receiver->dropped()) process_.show_soon();
      more |= sockets.receiver->full();
    }
    if (!more) return some;
    flush();          // acknowledgements do not wait for the end of a flood
    now = os::now();  // the engine's time never goes back: flush() has told it a later one
  }
  wake_.wake();  // there may be more: the next turn is the progress thread's
  return some;
}

// Sends what there is to send, and tells whom there is to tell.  REQUIRES: the drive lock.
void Client::flush() {
  const Time now = os::now();
  if (joins_ && process_.hears_others()) stop_joining();
  bool more = true;
  for (int bursts = 0; more && bursts < kBurstsOfFlush; ++bursts) {
    more = process_.transmit(burst_, now);
    if (!burst_.empty()) sender_.send(burst_);
  }
  if (more) wake_.wake();  // the next turn is the progress thread's, or of who polls
  const bool holds = may_hold_messages();
  held_some_ |= holds;
  holds_messages_.store(holds);
  if (!holds) send_messages();
  for (;;) {
    if (!untold_) {
      untold_ = process_.poll_notice();
      if (!untold_) break;
      put_into_words(*untold_, now);
    }
    events_wait_ |= channels_.dispatch(*untold_);
    untold_.reset();
  }
  while (const auto failure = process_.engine().poll_failure()) {
    if (complaints_.wanted()) complaints_.write(text_of(*failure, now - failure->since), now);
  }
  show_counters();
}

// Describes a failure in words, for vb_last_error() and for `verbena run --verbose`.
void Client::put_into_words(process::Notice& notice, Time now) {
  if (const auto* async = std::get_if<process::AsyncNotice>(&notice)) {
    if (async->type == kDeviceFatal)
      complaints_.write("the agent has died: no connection is left", now);
    return;
  }
  auto* const cm = std::get_if<process::CmNotice>(&notice);
  if (cm == nullptr) return;
  const auto connection = process_.connection(cm->id);
  if (!connection) return;
  auto text = text_of(cm->event, (*connection)->step, now - (*connection)->step_began);
  if (!text) return;
  if (!cm->why.empty()) *text += ": " + cm->why;
  cm->why = *text;
  complaints_.write(*text, now);
}

// In a thread of the program, which is not to fail for what it did not ask: the progress thread
// goes on where memory ran out.
void Client::try_flush() {
  try {
    flush();
  } catch (const std::bad_alloc&) {
    wake_.wake();
  }
}

// The end of a call.  A program that asks for much without waiting for an answer hears the answers
// all the same, also when the progress thread, which is told of them, does not get the lock.
void Client::attend() {
  constexpr std::uint32_t kCallsDeaf = 64;
  try {
    if (agent_spoke_.exchange(false) || ++calls_ >= kCallsDeaf) {
      calls_ = 0;
      receive_messages(os::now());
    }
  } catch (const std::bad_alloc&) {
    wake_.wake();
  }
  try_flush();
  // The program need not wait for that.
  if (heap_.is_due(process_.engine().qp_count())) {
    trims_heap_.store(true);
    wake_.wake();
  }
}

// As often as the process shows its own.
void Client::show_counters() {
  if (process_.shown() == counters_shown_) return;
  counters_shown_ = process_.shown();
  std::vector<const os::UdpReceiver*> receivers;
  for (const DataSockets& sockets : sockets_) receivers.push_back(sockets.receiver.get());
  socket_counters_.show(receivers, sender_, complaints_, channels_,
                        capture_ ? capture_->dropped() : 0);
}

void Client::send_messages() {
  while (agent_) {
    if (!unsent_) unsent_ = process_.poll_message();
    if (!unsent_) return;
    while (process_.poll_another(*unsent_)) {
    }
    std::vector<int> fds;
    os::Fd pidfd;
    if (unsent_->qp_table && qp_table_.fd) fds.push_back(qp_table_.fd.get());
    if (unsent_->hello) {
      if (auto own = os::open_pidfd(getpid())) {
        pidfd = *std::move(own);
        fds.push_back(pidfd.get());
      }
    }
    const auto sent = agent_.send(unsent_->message, fds);
    const bool full = !sent && os::would_block(sent.error());
    if (full != std::exchange(awaits_room_, full)) update_watch();
    if (full) return;
    asked_ = os::now();
    const auto message = std::exchange(unsent_, std::nullopt);
    if (!sent && sent.error().detail == ETOOMANYREFS) {
      (void)process_.on_unsent(*message).has_value();
    } else if (!sent) {
      agent_.shut_down();  // it is gone, or as good as: the end of file says so to all who wait
      return;
    }
  }
}

// Whoever posted while we drove and could not get the lock has left its work to us.
// A timer that it has set is the progress thread's, which may sleep for longer.
void Client::let_go(Driving& lock) {
  for (;;) {
    if (const Time due = process_.deadline(); due < sleeps_until_) {
      sleeps_until_ = due;
      wake_.wake();
    }
    lock.unlock();
    handover_.fetch_add(1);
    if (!process_.engine().has_work() || !lock.try_lock()) return;
    try_flush();
  }
}

void Client::kick() {
  handover_.fetch_add(1);
  Driving lock(drive_, std::try_to_lock);
  if (!lock) return;
  try_flush();
  let_go(lock);
}

void Client::poll() {
  comes_back_ = false;
  empty_polls_.fetch_add(1, std::memory_order_relaxed);
  Driving lock(drive_, std::try_to_lock);
  if (!lock) return;
  bool some = false;
  try {
    some = work(os::now(), os::UdpReceiver::Look::kLikely);
    flush();
  } catch (const std::bad_alloc&) {
    wake_.wake();
  }
  let_go(lock);
  if (some) {
    polls_in_vain_.store(0, std::memory_order_relaxed);
  } else if (polls_in_vain_.fetch_add(1, std::memory_order_relaxed) >= kPollsInVain) {
    // Else two programs that poll would each spin until the scheduler takes the processor away.
    polls_in_vain_.store(kPollsInVain, std::memory_order_relaxed);  // never wraps
    os::let_others_run();
  }
}

void Client::armed() {
  empty_polls_.store(0);
  if (is_quiet_.load()) wake_.wake();
}

void Client::send_the_rest(std::chrono::milliseconds patience) {
  const NoCancellation whole_call;
  comes_back_ = false;
  const Time deadline = os::now() + patience;
  Driving lock(drive_, patience);
  if (!lock) return;
  for (;;) {
    try_flush();
    if (!awaits_room_ || os::now() >= deadline) break;
    (void)os::wait_for(agent_.fd(), POLLOUT, deadline).has_value();
  }
  process_.show_now(os::now());  // the agent adds what it finds there to the port's counters
  show_counters();
  let_go(lock);
}

void Client::flush_capture(std::chrono::milliseconds patience) {
  const NoCancellation whole_call;
  Driving lock(drive_, patience);
  if (!lock) return;
  Answer<ipc::Done> answer;
  auto started = process_.flush_capture(
      [&answer](Result<ipc::Done> result) { answer.give(std::move(result)); });
  ++calls_waiting_;
  listen_again();
  try_flush();
  let_go(lock);
  if (std::holds_alternative<Pending>(started)) {
    std::unique_lock waiting(answer.mutex);
    answer.come.wait_for(waiting, patience, [&] { return answer.result.has_value(); });
  }
  lock.lock();
  --calls_waiting_;
  started.emplace<Pending>();
  let_go(lock);
}

void Client::forget(vb_request& request) {
  Driving lock(drive_);
  held_.erase(&request);
  let_go(lock);
}

int Client::cancel(RequestQueue& queue, vb_request& request, bool* was_done) {
  Driving lock(drive_);  // completions run under it: it is done, or never will be
  const bool known = queue.cancel(request, was_done);
  held_.erase(&request);
  let_go(lock);
  return known ? 0 : EINVAL;
}

std::string Client::explain(const Error& error) {
  const std::string& agent = process_.last_text();
  if (std::string_view(error.context) == process::kAgentRefused && !agent.empty()) {
    complaints_.write(agent, os::now());
    return agent;
  }
  std::string text = *error.context != '\0' ? error.context : to_string(error.code);
  if (is_programs_fault(error.code)) complaints_.refused(text, os::now());
  return text;
}

// ---- the agent's words
// ----------------------------------------------------------------------------

void Client::receive_messages(Time now) {
  std::vector<os::Fd> fds;
  while (agent_) {
    bool fds_lost = false;
    const auto size = agent_.receive(message_buffer_, fds, os::kNoWait, &fds_lost);
    if (!size) {
      if (os::would_block(size.error())) return;
      return agent_gone(now);
    }
    if (*size == 0) return agent_gone(now);
    asked_ = {};
    auto datagram = std::span<const std::byte>(message_buffer_).first(*size);
    try {
      while (!datagram.empty()) {
        const auto message = ipc::take_message(datagram);
        if (!message) return agent_gone(now);
        // Before the request is answered: its completion may use the sockets.
        const bool complete = take_descriptors(*message, std::exchange(fds, {})) && !fds_lost;
        if (!process_.on_message(*message, now, complete)) return agent_gone(now);
      }
    } catch (const std::bad_alloc&) {
      // What it said is lost, and somebody may wait for it: that the connection ends is heard.
      agent_.shut_down();
      throw;
    }
  }
}

bool Client::take_descriptors(std::span<const std::byte> message, std::vector<os::Fd> fds) {
  const auto envelope = ipc::open(message);
  if (!envelope) return true;  // for the process to judge
  if (envelope->type == ipc::Type::kLeased) return add_sockets(std::move(fds)).has_value();
  if (envelope->type == ipc::Type::kWelcome && !fds.empty()) {
    // Without it, this program is not captured.
    if (auto memory = os::map_shared(fds[0].get(), link::CaptureRing::kBytes,
                                     link::CaptureRing::kBytes, true)) {
      capture_memory_ = *std::move(memory);
      capture_.emplace(capture_memory_.bytes());
    }
  }
  return true;
}

// May run out of memory in the middle; then the next turn goes on.
void Client::agent_gone(Time now) {
  leaving_ = true;
  joined_.store(false);
  if (agent_) {
    (void)busy_.remove(agent_.fd()).has_value();
    (void)quiet_.remove(agent_.fd()).has_value();
    agent_.close();
  }
  unsent_.reset();
  awaits_room_ = false;
  others_hear_.store(false);
  // The next agent cannot open the port before.
  for (const DataSockets& sockets : sockets_) {
    socket_counters_.closing(*sockets.receiver);
    stop_watching(sockets);
  }
  sockets_.clear();
  capture_.reset();  // its reader is gone
  process_.on_agent_gone(now);
  leaving_ = false;
}

// IPv4 first, then IPv6 if the host has it (ipc::Leased).
Result<void> Client::add_sockets(std::vector<os::Fd> fds) {
  if (fds.empty()) return fail(Errc::kMalformed, "a range without sockets");
  DataSockets sockets;
  sockets.ipv4 = std::move(fds[0]);
  if (fds.size() > 1) sockets.ipv6 = std::move(fds[1]);
  const int ipv4 = sockets.ipv4.get(), ipv6 = sockets.ipv6.get();
  auto receiver = os::UdpReceiver::create(ipv4, ipv6, {.join_packets = joins_});
  // Kernels before Linux 5.0 cannot.
  if (!receiver && joins_) receiver = os::UdpReceiver::create(ipv4, ipv6);
  sockets.receiver = VB_TRY(std::move(receiver));
  sockets_.reserve(sockets_.size() + 1);
  for (const int fd : {sockets.ipv4.get(), sockets.ipv6.get()}) {
    if (fd < 0) continue;
    if (auto watched = busy_.add(fd, kDataToken); !watched) {
      stop_watching(sockets);
      return watched;
    }
  }
  sockets_.push_back(std::move(sockets));
  return {};
}

void Client::stop_watching(const DataSockets& sockets) {
  for (const int fd : {sockets.ipv4.get(), sockets.ipv6.get()}) {
    if (fd >= 0) (void)busy_.remove(fd).has_value();
  }
}

// A flow from another host may carry packets for several programs of this one, and joined ones go
// to one of them alone.  Programs here never put two destination QPs into a batch.
void Client::stop_joining() {
  joins_ = false;
  for (const DataSockets& sockets : sockets_) sockets.receiver->stop_joining();
}

void Client::sent(const link::Flow& flow, std::span<const std::byte> datagram,
                  std::uint16_t identification) {
  if (capture_) capture_->write(os::now(), link::Direction::kOut, flow, identification, datagram);
}

}  // namespace verbena::client
