#include "client/client.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "client/build.h"
#include "ipc/agent_name.h"
#include "link/framing.h"
#include "os/clock.h"
#include "os/daemon.h"
#include "os/entropy.h"
#include "os/process.h"
#include "os/thread.h"

namespace verbena::client {
namespace {

constexpr std::uint64_t kAgentToken = 1;
constexpr std::uint64_t kWakeToken = 2;
constexpr std::uint64_t kDataToken = 3;
constexpr std::uint64_t kKeeperToken = 4;

// Datagrams per turn of the drive lock: a flood must not keep commands waiting.
constexpr int kReceiveTurns = 16;
// While programs poll, how often the progress thread looks whether they still do.
constexpr Duration kLook = std::chrono::milliseconds(1);
// A thread that looks at an empty CQ this often in kLook is polling, not looking once more before
// it goes to sleep.
constexpr std::uint32_t kPollsBusy = 64;
constexpr Duration kAgentPatience = std::chrono::seconds(10);
// How long a fork waits for whoever drives.  Longer only if the forking thread drives itself (a
// fork in a signal handler that has interrupted us).
constexpr Duration kForkPatience = std::chrono::seconds(1);

// This thread holds the drive lock for the fork that it is in.
thread_local bool held_for_fork = false;

// verbenad lies beside this library.
std::string agent_path() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&agent_path), &info) != 0 && info.dli_fname != nullptr) {
    const std::string library = info.dli_fname;
    const auto slash = library.rfind('/');
    std::string path = slash == std::string::npos ? "./" : library.substr(0, slash + 1);
    path += "verbenad";
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  if (const char* named = std::getenv("VERBENA_AGENT")) return named;
  return {};
}

std::uint64_t capture_of_environment() {
  const char* text = std::getenv("VERBENA_CAPTURE");
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

}  // namespace

NoCancellation::NoCancellation() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
NoCancellation::~NoCancellation() { pthread_setcancelstate(before_, nullptr); }

Time Client::os_now() { return os::now(); }

// ---- finding the agent
// ----------------------------------------------------------------------------

namespace {

Result<os::UnixChannel> find_agent(std::string& problem, os::Daemon& daemon) {
  const std::string name = ipc::agent_socket_name(geteuid());
  const Time deadline = os::now() + kAgentPatience;
  auto agent = os::UnixChannel::connect(name, deadline);
  if (!agent && agent.error().code == Errc::kUnreachable) {
    const std::string path = agent_path();
    if (path.empty()) {
      problem =
          "no agent is running, and verbenad is not beside libverbena.so.0 "
          "(set VERBENA_AGENT to its path)";
      return fail(Errc::kUnreachable, "no agent");
    }
    auto started =
        os::start_daemon({.path = path,
                          .args = {"verbenad", "--ready-fd", std::to_string(os::kReadyFd)},
                          .deadline = deadline},
                         problem);
    if (!started) {
      problem = "the agent (" + path + ") did not start: " + problem;
      return std::unexpected(started.error());
    }
    daemon = *std::move(started);
    agent = os::UnixChannel::connect(name, deadline);
  }
  if (!agent) {
    problem = std::string("cannot connect to the agent: ") + agent.error().context;
    return std::unexpected(agent.error());
  }
  if (const auto trusted = agent->check_peer_uid(geteuid()); !trusted) {
    problem = "the name of this user's agent is held by another user's process";
    return std::unexpected(trusted.error());
  }
  return agent;
}

}  // namespace

Result<std::unique_ptr<Client>> Client::connect(std::string& problem) {
  // An agent may be on its way out when we come: then the next one is ours to start.
  constexpr int kAttempts = 5;
  for (int attempt = 0;; ++attempt) {
    bool again = false;
    auto client = try_connect(problem, again);
    if (client || !again || attempt == kAttempts) return client;
  }
}

Result<std::unique_ptr<Client>> Client::try_connect(std::string& problem, bool& again) {
  os::Daemon daemon;
  auto agent = VB_TRY(find_agent(problem, daemon));
  auto wake = VB_TRY(os::WakeFd::create());
  auto busy = VB_TRY(os::Poller::create());
  auto quiet = VB_TRY(os::Poller::create());
  auto fork_mark = VB_TRY(os::ForkMark::create());
  std::unique_ptr<Client> client(new Client({.build = build_id(),
                                             .pid = static_cast<std::uint32_t>(getpid()),
                                             .capture = capture_of_environment()},
                                            std::move(agent), std::move(wake), std::move(busy),
                                            std::move(quiet), std::move(fork_mark)));
  client->daemon_ = std::move(daemon);
  if (const auto said = client->say_hello(problem, again); !said) {
    return std::unexpected(said.error());
  }
  VB_TRY_VOID(client->begin());
  return client;
}

Client::Client(const process::Process::Config& config, os::UnixChannel agent, os::WakeFd wake,
               os::Poller busy, os::Poller quiet, os::ForkMark fork_mark)
    : fork_mark_(std::move(fork_mark)),
      process_(config, Random(os::random_key())),
      agent_(std::move(agent)),
      wake_(std::move(wake)),
      busy_(std::move(busy)),
      quiet_(std::move(quiet)),
      sender_({.observer = this}),
      message_buffer_(os::kMessageBytesMax) {}

// The first exchange is waited for right here: nothing else is under way yet.
Result<void> Client::say_hello(std::string& problem, bool& again) {
  std::optional<Result<ipc::Welcome>> welcome;
  auto started = process_.hello([&](Result<ipc::Welcome> word) { welcome = std::move(word); });
  send_messages();
  std::vector<os::Fd> fds;
  const Time deadline = os::now() + kAgentPatience;
  while (!welcome) {
    const auto size = agent_.receive(message_buffer_, fds, deadline);
    if (!size || *size == 0) {
      again = size.has_value() || size.error().code != Errc::kTimedOut;
      problem = again ? "the agent went away during the first exchange"
                      : "the agent does not answer (is it stopped? see 'verbena agent status')";
      return fail(Errc::kUnreachable, "no agent");
    }
    VB_TRY_VOID(process_.on_message(std::span(message_buffer_).first(*size), os::now()));
  }
  if (!*welcome) {
    problem = "the agent speaks another language than this library";
    return std::unexpected(welcome->error());
  }
  if (!(*welcome)->refusal.empty()) {
    problem = (*welcome)->refusal;
    again = (*welcome)->again;
    return fail(Errc::kPermission, "the agent refused");
  }
  if ((*welcome)->capture && !fds.empty()) {
    capture_memory_ = VB_TRY(
        os::map_shared(fds[0].get(), link::CaptureRing::kBytes, link::CaptureRing::kBytes, true));
    capture_.emplace(capture_memory_.bytes());
  }
  return {};
}

Result<void> Client::begin() {
  qp_table_ = VB_TRY(os::create_shared_memory("verbena-qps", ipc::QpTable::kBytes));
  process_.set_qp_table(qp_table_.mapping.bytes());
  for (os::Poller* poller : {&busy_, &quiet_}) {
    VB_TRY_VOID(poller->add(agent_.fd(), kAgentToken));
    VB_TRY_VOID(poller->add(wake_.fd(), kWakeToken));
  }
  if (daemon_.keeper_pidfd) {
    VB_TRY_VOID(busy_.add(daemon_.keeper_pidfd.get(), kKeeperToken));
  }
  thread_ = VB_TRY(os::start_thread("verbena", [this] { run(); }));
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
  if (std::exchange(held_for_fork, false)) drive_.unlock();
}

void Client::abandon() {
  held_for_fork = false;
  agent_.close();
  busy_.close();
  quiet_.close();
  wake_.close();
  daemon_.keeper_pidfd.reset();
  sender_.close();
  sockets_.clear();
  qp_table_.fd.reset();
  qp_table_.mapping.abandon();
  capture_memory_.abandon();
}

// ---- driving
// --------------------------------------------------------------------------------------

void Client::run() {
  std::array<os::Poller::Ready, 16> ready{};
  while (!stop_.load()) {
    Time deadline;
    {
      Driving lock(drive_);
      work(os::now());
      flush();
      deadline = sleeps_until_ = process_.deadline();
      let_go(lock);
    }
    is_quiet_.store(true);  // before the count is taken: whoever arms after it wakes us
    const bool busy_polling = empty_polls_.exchange(0) >= kPollsBusy;
    is_quiet_.store(busy_polling);
    const std::size_t count = busy_polling
                                  ? quiet_.wait(ready, std::min(deadline, os::now() + kLook))
                                  : busy_.wait(ready, deadline);
    for (const os::Poller::Ready& one : std::span(ready).first(count)) {
      if (one.token == kKeeperToken) reap_keeper();
    }
    wake_.clear();
  }
}

// The agent that we started has ended, and so has its keeper: no zombie of ours stays in the
// program.
void Client::reap_keeper() {
  (void)busy_.remove(daemon_.keeper_pidfd.get()).has_value();
  (void)os::reap_keeper(daemon_);
}

// Takes what has come.  REQUIRES: the drive lock.
void Client::work(Time now) {
  receive_messages(now);
  receive_packets(now);
  if (process_.deadline() <= now) process_.on_timer(now);
}

void Client::receive_packets(Time now) {
  for (int turn = 0; turn < kReceiveTurns; ++turn) {
    bool some = false;
    for (DataSockets& sockets : sockets_) {
      for (const auto& [flow, payload] : sockets.receiver->receive()) {
        some = true;
        if (capture_) capture_->write(now, link::Direction::kIn, flow, 0, payload);
        if (const auto arrival = link::open(flow, payload)) {
          process_.receive(*arrival, now);
        } else {
          ++wrong_icrc_;
        }
      }
    }
    if (!some) return;
    flush();  // acknowledgements do not wait for the end of a flood
  }
  wake_.wake();  // there may be more: the next turn is the progress thread's
}

// Sends what there is to send, and tells whom there is to tell.  REQUIRES: the drive lock.
void Client::flush() {
  const Time now = os::now();
  bool more = true;
  while (more) {
    more = process_.transmit(burst_, now);
    if (!burst_.empty()) sender_.send(burst_);
  }
  send_messages();
  while (const auto notice = process_.poll_notice()) channels_.dispatch(*notice);
}

void Client::send_messages() {
  while (agent_) {
    if (!unsent_) unsent_ = process_.poll_message();
    if (!unsent_) return;
    std::vector<int> fds;
    os::Fd pidfd;
    if (unsent_->qp_table) fds.push_back(qp_table_.fd.get());
    if (unsent_->hello) {
      if (auto own = os::open_pidfd(getpid())) {
        pidfd = *std::move(own);
        fds.push_back(pidfd.get());
      }
    }
    const auto sent = agent_.send(unsent_->message, fds);
    if (!sent && os::would_block(sent.error())) {
      // The agent is slow; its next word, or the next call, tries again.
      return;
    }
    unsent_.reset();
    if (!sent) {
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
    flush();
  }
}

void Client::kick() {
  handover_.fetch_add(1);
  Driving lock(drive_, std::try_to_lock);
  if (!lock) return;
  flush();
  let_go(lock);
}

void Client::poll() {
  empty_polls_.fetch_add(1, std::memory_order_relaxed);
  Driving lock(drive_, std::try_to_lock);
  if (!lock) return;
  work(os::now());
  flush();
  let_go(lock);
}

void Client::armed() {
  empty_polls_.store(0);
  if (is_quiet_.load()) wake_.wake();
}

void Client::flush_capture(std::chrono::milliseconds patience) {
  const NoCancellation whole_call;
  Driving lock(drive_, patience);
  if (!lock) return;
  Answer<ipc::Done> answer;
  auto started = process_.flush_capture(
      [&answer](Result<ipc::Done> result) { answer.give(std::move(result)); });
  flush();
  let_go(lock);
  if (std::holds_alternative<Pending>(started)) {
    std::unique_lock waiting(answer.mutex);
    answer.come.wait_for(waiting, patience, [&] { return answer.result.has_value(); });
  }
  lock.lock();
  started.emplace<Pending>();
  let_go(lock);
}

std::string Client::agent_text() {
  const std::lock_guard lock(drive_);
  return process_.last_text();
}

// ---- the agent's words
// ----------------------------------------------------------------------------

void Client::receive_messages(Time now) {
  std::vector<os::Fd> fds;
  while (agent_) {
    const auto size = agent_.receive(message_buffer_, fds);
    if (!size) {
      if (os::would_block(size.error())) return;
      return agent_gone(now);
    }
    if (*size == 0) return agent_gone(now);
    const auto message = std::span<const std::byte>(message_buffer_).first(*size);
    // Before the request is answered: its completion may use the sockets.
    if (!fds.empty()) add_sockets(std::exchange(fds, {}));
    if (!process_.on_message(message, now)) return agent_gone(now);
  }
}

void Client::agent_gone(Time now) {
  (void)busy_.remove(agent_.fd()).has_value();
  (void)quiet_.remove(agent_.fd()).has_value();
  agent_.close();
  unsent_.reset();
  process_.on_agent_gone(now);
  for (const DataSockets& sockets : sockets_) {
    for (const int fd : {sockets.ipv4.get(), sockets.ipv6.get()}) {
      if (fd >= 0) (void)busy_.remove(fd).has_value();
    }
  }
  sockets_.clear();
}

// IPv4 first, then IPv6 if the host has it (ipc::Leased).
void Client::add_sockets(std::vector<os::Fd> fds) {
  DataSockets sockets;
  sockets.ipv4 = std::move(fds[0]);
  if (fds.size() > 1) sockets.ipv6 = std::move(fds[1]);
  auto receiver = os::UdpReceiver::create(sockets.ipv4.get(), sockets.ipv6.get());
  if (!receiver) return;
  sockets.receiver = *std::move(receiver);
  for (const int fd : {sockets.ipv4.get(), sockets.ipv6.get()}) {
    if (fd >= 0) (void)busy_.add(fd, kDataToken).has_value();
  }
  sockets_.push_back(std::move(sockets));
}

void Client::sent(const link::Flow& flow, std::span<const std::byte> datagram,
                  std::uint16_t identification) {
  if (capture_) capture_->write(os::now(), link::Direction::kOut, flow, identification, datagram);
}

}  // namespace verbena::client
