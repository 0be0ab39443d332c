#include "client/client.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <new>
#include <thread>
#include <utility>

#include "client/build.h"
#include "client/find_agent.h"
#include "ipc/lane_messages.h"
#include "os/agent_name.h"
#include "os/clock.h"
#include "os/entropy.h"
#include "os/fault_guard.h"
#include "os/thread.h"

namespace verbena::client {
namespace {

// Limits how often a thread polls the sockets before it releases the drive lock.  Commands need the
// lock, and must not wait until a flood of datagrams ends.
constexpr int kSocketPollsMax = 16;
// Limits the bursts that one flush() sends.  The answer to a READ may have two million packets.
// Neither commands nor received packets must wait until all of these are sent.
constexpr int kBurstsPerFlush = 8;
constexpr std::uint32_t kDeviceFatal = 8;  // IBV_EVENT_DEVICE_FATAL

std::uint64_t capture_from_environment() {
  const char* text = ::secure_getenv("VERBENA_CAPTURE");
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

Result<hca::Personality> personality_from_environment(std::string& problem) {
  const char* text = ::secure_getenv("VERBENA_PERSONALITY");
  const std::string name = text == nullptr ? "" : text;
  if (name.empty() || name == "connectx") return hca::kConnectX;
  if (name == "rxe") return hca::kRxe;
  problem = "VERBENA_PERSONALITY is '" + name + "'; the valid values are connectx and rxe";
  return fail(Errc::kInvalidArgument, "no such personality");
}

// Returns true if the program may use lanes to the other programs of its host.
Result<bool> lanes_from_environment(std::string& problem) {
  const char* text = ::secure_getenv("VERBENA_LINK");
  const std::string name = text == nullptr ? "" : text;
  if (name.empty() || name == "lane") return true;
  if (name == "udp") return false;
  problem = "VERBENA_LINK is '" + name + "'; the valid values are lane and udp";
  return fail(Errc::kInvalidArgument, "no such link");
}

}  // namespace

Time Client::os_now() { return os::now(); }

Client::Client(const process::Process::Config& config, Watches watches, os::ForkMark fork_mark)
    : fork_mark_(std::move(fork_mark)),
      watches_(std::move(watches)),
      process_(config, Random(os::random_key())),
      agent_(process_, watches_),
      data_(watches_),
      links_(process_.lanes(), watches_),
      driver_(*this, watches_),
      blocked_(driver_, fork_mark_),
      events_(driver_, agent_, blocked_) {}

// Stops the progress thread before any member is destroyed, because the thread uses the members.
Client::~Client() { driver_.stop(); }

Result<std::unique_ptr<Client>> Client::connect(std::string& problem) {
  const hca::Personality personality = VB_TRY(personality_from_environment(problem));
  const bool lanes = VB_TRY(lanes_from_environment(problem));
  if (!lanes && os::fabric_host_from_environment()) {
    problem = "VERBENA_LINK is 'udp', but a host of a fabric has no UDP";
    return fail(Errc::kInvalidArgument, "no such link");
  }
  auto watches = VB_TRY(Watches::create());
  auto fork_mark = VB_TRY(os::ForkMark::create());
  std::unique_ptr<Client> client(new Client({.personality = personality,
                                             .build = build_id(),
                                             .pid = static_cast<std::uint32_t>(::getpid()),
                                             .capture = capture_from_environment(),
                                             .lanes = lanes},
                                            std::move(watches), std::move(fork_mark)));
  // Allows no direct access with a capture, because direct accesses have no packets to capture.
  VB_TRY_VOID(client->begin(lanes && capture_from_environment() == 0));
  VB_TRY_VOID(client->join(problem));
  return client;
}

Result<void> Client::begin(bool allows_direct_access) {
  {
    const Driving lock(driver_);
    VB_TRY_VOID(make_qp_table());
    process_.set_qp_table(qp_table_.mapping.bytes());
    process_.engine().set_memory_guard(os::touch_memory);
    data_.set_table(ipc::QpTable(qp_table_.mapping.bytes()));
    if (allows_direct_access) links_.publish(process_);
  }
  os::catch_faults();
  return driver_.start();
}

// Creates the table of QPs.  If the program's file size limit is too small for shared memory
// (EFBIG), uses private memory.  Then no other process can read the table, but the program works.
Result<void> Client::make_qp_table() {
  auto shared = os::create_shared_memory("verbena-qps", ipc::QpTable::kBytes);
  if (shared) {
    qp_table_ = *std::move(shared);
    return {};
  }
  if (shared.error().detail != EFBIG) return std::unexpected(shared.error());
  diagnostics_.write(std::string(shared.error().context) +
                         ": 'verbena ps' will not show this program's queue pairs",
                     os::now());
  qp_table_.mapping = VB_TRY(os::map_private(ipc::QpTable::kBytes));
  return {};
}

void Client::abandon() VB_NO_THREAD_SAFETY_ANALYSIS {
  Driver::after_fork_in_child();
  agent_.abandon();
  watches_.abandon();
  // Closes the descriptors of the members, but does not destroy the members.  A bare clone() may
  // have made this child while another thread had locked a mutex of the allocator.  Then free()
  // would wait for ever.
  data_.abandon();
  links_.abandon();
  qp_table_.fd.reset();
  qp_table_.mapping.abandon();
}

// ---- joining an agent

Result<void> Client::join(std::string& problem) {
  if (joined_.load()) return {};
  const NoCancellation no_cancellation;
  const std::lock_guard one_at_a_time(join_mutex_);
  // An agent that is about to end may still answer.  Then the next attempt starts a new agent.
  constexpr int kRetriesMax = 5;
  for (int attempt = 0;; ++attempt) {
    if (joined_.load()) return {};
    bool should_retry = false;
    auto joined = try_join(problem, should_retry);
    if (joined || !should_retry || attempt == kRetriesMax) return joined;
  }
}

Result<void> Client::try_join(std::string& problem, bool& should_retry) {
  os::Daemon daemon;
  auto channel = VB_TRY(find_agent(problem, daemon));
  PendingResult<ipc::Welcome> answer;
  Started<ipc::Welcome> started;
  std::optional<AgentLink::AwaitedAnswer> awaited;
  {
    const Driving lock(driver_);
    // An earlier attempt may have run out of memory before it closed its connection.
    if (agent_loss_unfinished_ || agent_.is_open()) handle_agent_loss(os::now());
    if (const auto opened = agent_.open(std::move(channel), std::move(daemon)); !opened) {
      handle_agent_loss(os::now());
      problem = std::string("cannot wait for the agent: ") + opened.error().context;
      return opened;
    }
    started =
        process_.hello([&answer](Result<ipc::Welcome> welcome) { answer.set(std::move(welcome)); });
    awaited.emplace(agent_);
    driver_.try_flush();
  }
  {
    std::unique_lock waiting(answer.mutex);
    answer.available.wait_for(waiting, kAgentTimeout, [&] { return answer.result.has_value(); });
  }
  const Driving lock(driver_);
  awaited.reset();
  started.emplace<Pending>();  // destroying a Pending needs the drive lock
  auto joined = check_welcome(answer.result, problem, should_retry);
  if (joined) {
    joined_.store(true);
  } else if (agent_.is_open()) {
    handle_agent_loss(os::now());
  }
  return joined;
}

// Returns the result of Hello.  Sets `should_retry` if another agent may give a better result.
Result<void> Client::check_welcome(const std::optional<Result<ipc::Welcome>>& welcome,
                                   std::string& problem, bool& should_retry) {
  if (!welcome) {
    problem = "the agent does not answer (is it stopped? see 'verbena agent status')";
    return fail(Errc::kUnreachable, "no agent");
  }
  if (!*welcome && welcome->error().code == Errc::kSystem) {
    problem = process_.last_refusal_text();
    return std::unexpected(welcome->error());
  }
  if (!*welcome && welcome->error().code != Errc::kDeviceFatal) {
    problem = "the agent sent a message that this library does not understand";
    return std::unexpected(welcome->error());
  }
  if (*welcome && !(*welcome)->refusal.empty()) {
    problem = (*welcome)->refusal;
    should_retry = (*welcome)->should_retry;
    return fail(Errc::kPermission, "the agent refused");
  }
  // An agent may also die after its Welcome.
  if (!*welcome || !process_.connected()) {
    problem = "the agent ended during the first exchange";
    should_retry = true;
    return fail(Errc::kUnreachable, "no agent");
  }
  return {};
}

// Cleans up after the agent's death.  If memory runs out, this function throws before it has
// finished, and the next receive() calls it again.
void Client::handle_agent_loss(Time now) {
  agent_loss_unfinished_ = true;
  needs_flush_ = true;
  joined_.store(false);
  agent_.close();
  data_.close();
  process_.on_agent_died(now);
  links_.handle_wakes_and_closes();
  watches_.remove_lanes();
  agent_loss_unfinished_ = false;
}

// ---- Driver::Work

bool Client::receive(Time now, std::optional<os::UdpReceiver::Poll> poll_mode) {
  if (agent_loss_unfinished_) handle_agent_loss(now);
  if (agent_.take_message_note()) {
    needs_flush_ = true;
    receive_messages(now);
  }
  const bool any_packets = poll_mode && receive_packets(now, *poll_mode);
  if (process_.deadline() <= now) {
    needs_flush_ = true;
    process_.on_timer(os::now());
  }
  return any_packets;
}

// Polls the lanes and the sockets.  Polling the sockets costs system calls.  So if a program polls
// and has lanes, polls the sockets only from time to time, unless packets came by the sockets a
// moment ago.
bool Client::receive_packets(Time now, os::UdpReceiver::Poll poll_mode) {
  constexpr Duration kSocketPollEvery = std::chrono::microseconds(20);
  constexpr Duration kBusyFor = std::chrono::microseconds(200);
  const bool lane_packets = process_.receive_lanes(now);
  if (lane_packets) needs_flush_ = true;
  if (poll_mode == os::UdpReceiver::Poll::kLikely && !process_.lanes().empty() &&
      now < sockets_polled_at_ + kSocketPollEvery && now >= sockets_had_packets_at_ + kBusyFor) {
    return lane_packets;
  }
  const bool socket_packets = receive_from_sockets(now, poll_mode);
  sockets_polled_at_ = now;
  if (socket_packets) sockets_had_packets_at_ = now;
  return lane_packets || socket_packets;
}

bool Client::receive_from_sockets(Time now, os::UdpReceiver::Poll poll_mode) {
  bool any_packets = false;
  for (int polls = 0; polls < kSocketPollsMax; ++polls) {
    const auto take = [&](const link::Arrival& arrival) VB_NO_THREAD_SAFETY_ANALYSIS {
      needs_flush_ = true;
      process_.receive(arrival, now);
    };
    // flush() uses a later time, and the engine's time must never decrease.
    const auto send = [&]() VB_NO_THREAD_SAFETY_ANALYSIS {
      flush();
      now = os::now();
    };
    const auto received = data_.receive(
        now, poll_mode, take, [&] { return has_posts(); }, send);
    if (data_.take_dropped())
      process_.mark_status_outdated();  // so that the counters are shown before the next packet
    any_packets |= received.any_packets;
    if (!received.full) return any_packets;
    send();  // sends acknowledgements before the flood ends
  }
  unfinished_ = true;
  return any_packets;
}

void Client::flush() {
  const Time now = os::now();
  needs_flush_ = true;  // remains true if an exception ends this function
  if (data_.coalesces() && process_.may_hear_other_hosts()) data_.stop_coalescing();
  bool more = true;
  for (int bursts = 0; more && bursts < kBurstsPerFlush; ++bursts) {
    more = process_.transmit(data_.burst(), now);
    data_.send();
  }
  unfinished_ |= more;
  send_and_deliver(now);
  needs_flush_ = more;
}

void Client::deliver(Time now) {
  process_.deliver(now);
  send_and_deliver(now);
}

// Wakes peers, sends messages to the agent, delivers notices to the program, and writes counters to
// the table.
void Client::send_and_deliver(Time now) {
  links_.handle_wakes_and_closes();
  const std::array tables{qp_table_.fd.get(), links_.access_table_fd()};
  const std::size_t count = !qp_table_.fd ? 0 : tables[1] < 0 ? 1 : 2;
  agent_.flush(std::span(tables).first(count));
  deliver_notices(now);
  show_counters();
}

// Delivers nothing when the program exits: it takes no more events, and its handler that calls
// exit() may have interrupted a thread that has locked a channel.
void Client::deliver_notices(Time now) {
  while (!is_exiting_) {
    if (!undelivered_) {
      undelivered_ = process_.poll_notice();
      if (!undelivered_) break;
      describe(*undelivered_, now);
    }
    has_new_events_ |= channels_.dispatch(*undelivered_);
    undelivered_.reset();
  }
  while (const auto failure = process_.engine().poll_failure()) {
    if (diagnostics_.enabled()) diagnostics_.write(text_of(*failure, now - failure->since), now);
  }
}

// Describes a failure in words, for vb_last_error() and for `verbena run --verbose`.
void Client::describe(process::Notice& notice, Time now) {
  if (const auto* async = std::get_if<process::AsyncNotice>(&notice)) {
    if (async->type == kDeviceFatal)
      diagnostics_.write("the agent has died: all connections are lost", now);
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
  diagnostics_.write(*text, now);
}

// Writes the data path's counters to the table as often as the process writes its own.
void Client::show_counters() {
  if (process_.status_updated_at() == counters_shown_at_) return;
  counters_shown_at_ = process_.status_updated_at();
  data_.show_counters(diagnostics_, channels_,
                      {.sent = links_.wakes_sent(),
                       .receiver = driver_.receiver_wakes(),
                       .progress = driver_.progress_wakes()});
}

void Client::begin_iteration() { agent_.begin_iteration(); }

void Client::unpark() {
  watches_.clear_lanes();
  links_.clear_wakes();
  process_.lanes().unpark();
}

bool Client::end_iteration(Time now) {
  return agent_.end_iteration(std::exchange(has_new_events_, false), now);
}

void Client::after_iteration() {
  if (trim_is_pending_.load() && trim_is_pending_.exchange(false)) os::trim_heap();
}

void Client::on_ready(Watches::Kind kind) VB_NO_THREAD_SAFETY_ANALYSIS {
  if (kind == Watches::Kind::kAgent) agent_.note_message();
  if (kind == Watches::Kind::kReaper) {
    const Driving lock(driver_);
    agent_.reap_ended_agents();
  }
}

// ---- messages of the agent

void Client::receive_messages(Time now) {
  for (;;) {
    auto datagram = agent_.receive();
    if (!datagram) return handle_agent_loss(now);
    if (!*datagram) return;
    auto rest = (*datagram)->messages;
    auto fds = std::move((*datagram)->fds);
    try {
      while (!rest.empty()) {
        const auto message = ipc::take_message(rest);
        if (!message) return handle_agent_loss(now);
        if (show_if_remark(*message, now)) continue;
        // Takes the descriptors first, because the completion of the request may use the sockets.
        const bool complete =
            take_descriptors(*message, std::exchange(fds, {})) && (*datagram)->complete;
        if (!process_.on_message(*message, now, complete)) return handle_agent_loss(now);
      }
    } catch (const std::bad_alloc&) {
      // The message is lost, but a thread may wait for it.  So ends the connection, which wakes
      // that thread.
      agent_.shut_down();
      throw;
    }
  }
}

// If the message is a remark for the user (ipc::UserNotice), writes its text by Diagnostics, and
// returns true.
bool Client::show_if_remark(std::span<const std::byte> message, Time now) {
  const auto envelope = ipc::open(message);
  if (!envelope || envelope->type != ipc::Type::kUserNotice) return false;
  if (const auto remark = ipc::decode<ipc::UserNotice>(*envelope)) {
    diagnostics_.write(remark->text, now);
  }
  return true;
}

// Takes the descriptors that came with a message.  Returns false if the sockets of a Leased message
// are missing, unexpected or unusable.
bool Client::take_descriptors(std::span<const std::byte> message, std::vector<os::Fd> fds) {
  const auto envelope = ipc::open(message);
  if (!envelope) return true;  // the process reports the error
  if (envelope->type == ipc::Type::kLeased) {
    if (process_.lanes().has_uplink())
      return fds.empty();  // a program with an uplink gets no sockets
    // All other hosts expect packets on port 4791 only.  If this program has another port, it can
    // reach only this host.
    std::function<bool(const Gid&)> is_of_this_host;
    if (process_.udp_port() != wire::kRoceUdpPort) {
      is_of_this_host = [this](const Gid& address) VB_NO_THREAD_SAFETY_ANALYSIS {
        return process_.lanes().is_of_this_host(address);
      };
    }
    data_.set_destination(process_.udp_port(), std::move(is_of_this_host));
    return data_.add(std::move(fds)).has_value();
  }
  if (envelope->type == ipc::Type::kLane) {
    if (const auto lane = ipc::decode<ipc::Lane>(*envelope)) {
      if (lane->lane == ipc::Lane::kUplink) data_.stop_sending();
      // If add() fails, the lane has no memory, and the process refuses it.
      (void)links_.add(*lane, std::move(fds)).has_value();
    }
    return true;
  }
  if (envelope->type == ipc::Type::kWelcome && !fds.empty()) {
    data_.start_capture(fds[0].get());
    process_.lanes().set_observer(&data_.lane_observer());
  }
  return true;
}

// ---- commands

// Waits until the accesses have ended.  Polls, because the end of an access wakes no thread: the
// initiator would have to find out at each end whether a thread waits.
void Client::wait_for_end_of(std::vector<link::Lanes::Access> accesses) {
  const NoCancellation no_cancellation;  // for sleep_for()
  constexpr int kShortWaits = 200;
  constexpr auto kPause = std::chrono::milliseconds(1);
  for (int i = 0;; ++i) {
    {
      const Driving lock(driver_);
      if (process_.lanes().remove_ended_accesses(accesses)) return;
    }
    if (i < kShortWaits) {
      os::yield_processor();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
}

void Client::begin_command() {
  driver_.send_deferred();
  needs_flush_ = true;  // remains true if an exception skips finish_command()
}

void Client::finish_command() {
  try {
    if (agent_.is_time_to_listen()) receive_messages(os::now());
  } catch (const std::bad_alloc&) {
    watches_.wake();
  }
  driver_.try_flush();
  // Lets the progress thread trim the heap, so that the program does not wait for that.
  if (heap_trim_.is_due(process_.engine().qp_count())) {
    trim_is_pending_.store(true);
    watches_.wake();
  }
}

void Client::forget(vb_request& request) {
  const Driving lock(driver_);
  submitted_.erase(&request);
}

int Client::cancel(RequestQueue& queue, vb_request& request, bool* was_done) {
  // Completions run under the lock.  So if the request is not done when this function has the lock,
  // its completion never runs.
  const Driving lock(driver_);
  const bool found = queue.cancel(request, was_done);
  submitted_.erase(&request);
  return found ? 0 : EINVAL;
}

void Client::send_all_queued(std::chrono::milliseconds timeout) {
  const NoCancellation no_cancellation;
  AgentLink::set_will_take_more_events(false);
  const Time deadline = os::now() + timeout;
  const Driving lock(driver_, timeout);
  if (!lock) return;
  is_exiting_ = true;
  for (;;) {
    driver_.try_flush();
    if (agent_.all_sent() || os::now() >= deadline) break;
    agent_.wait_until_writable(deadline);
  }
  process_.update_status_now(os::now());  // the agent adds these counters to those of the port
  show_counters();
}

void Client::flush_capture(std::chrono::milliseconds timeout) {
  const NoCancellation no_cancellation;
  PendingResult<ipc::Done> answer;
  Started<ipc::Done> started;
  std::optional<AgentLink::AwaitedAnswer> awaited;
  {
    const Driving lock(driver_, timeout);
    if (!lock) return;
    started = process_.flush_capture(
        [&answer](Result<ipc::Done> result) { answer.set(std::move(result)); });
    awaited.emplace(agent_);
    driver_.try_flush();
  }
  if (std::holds_alternative<Pending>(started)) {
    std::unique_lock waiting(answer.mutex);
    answer.available.wait_for(waiting, timeout, [&] { return answer.result.has_value(); });
  }
  const Driving lock(driver_);
  awaited.reset();
  started.emplace<Pending>();
}

std::string Client::explain(const Error& error) {
  const std::string& agent_text = process_.last_refusal_text();
  if (error.from_agent && !agent_text.empty()) {
    diagnostics_.write(agent_text, os::now());
    return agent_text;
  }
  std::string text = *error.context != '\0' ? error.context : to_string(error.code);
  if (is_program_error(error.code)) diagnostics_.write_refusal(text, os::now());
  return text;
}

}  // namespace verbena::client
