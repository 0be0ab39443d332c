#include "agent/agent.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>
#include <variant>

#include "os/address.h"
#include "os/clock.h"
#include "os/entropy.h"

namespace verbena::agent {
namespace {

// A host may have no addresses.  But if the kernel does not answer, the host is broken.
std::vector<os::Interface> interfaces_at_start() {
  auto interfaces = os::interfaces();
  if (!interfaces) throw std::runtime_error("the kernel does not tell the host's addresses");
  return std::move(*interfaces);
}

node::Node::Config node_config(const Agent::Options& options) {
  return {.node_guid = node_guid(interfaces_at_start(), machine_id()),
          .build = options.build,
          .pid = static_cast<std::uint32_t>(::getpid()),
          .trace = options.trace};
}

}  // namespace

Agent::Agent(asio::io_context& loop, os::UnixListener listener, Options options, Log log)
    : loop_(loop),
      options_(std::move(options)),
      log_(std::move(log)),
      started_(os::now()),
      random_(os::random_key()),
      node_(node_config(options_), random_.fork()),
      captures_(loop, random_.fork(), [this](const std::string& text) { log_.line(text); }),
      port_files_(loop),
      listener_(std::move(listener)),
      signals_(loop, SIGTERM, SIGINT, SIGHUP),
      node_timer_(loop,
                  [this] {
                    node_.on_timer(os::now());
                    pump();
                    heap_.trim_if_due(node_.endpoints());
                  }),
      idle_timer_(loop, [this] { on_idle(); }),
      accept_timer_(loop, [this] { listening_.read(true); }),
      hello_timer_(loop, [this] { on_hello_timer(); }),
      port_timer_(loop,
                  [this] {
                    open_port();
                    pump();
                  }),
      port_files_timer_(loop, [this] { refresh_port_files(); }),
      again_(loop, [this] { pump(); }),
      routes_(loop, [this](std::uint64_t token, const Result<node::HostRoute>& route) {
        node_.routed(token, route, os::now());
        pump();
      }) {
  signals_.async_wait([this](const asio::error_code& failed, int) {
    if (!failed) stop("told to by a signal");
  });
  // Create the monitor before reading the addresses, so that no change is missed in between.
  if (auto monitor = os::InterfaceMonitor::create()) {
    monitor_ = std::move(*monitor);
    monitoring_ = Watch(loop_, monitor_->fd(), [this] {
      if (monitor_->drain()) refresh_addresses();
    });
  }
  open_port();
  await_port();
  refresh_addresses();
  listening_ = Watch(loop_, listener_->fd(), [this] { on_listener(); });
  log_.line(fmt::format("build {} serves; {}", options_.build,
                        port_ ? "port 4791 is open" : "no port: " + why_no_port_));
}

Agent::~Agent() = default;

void Agent::open_port() {
  Port::Options options;
  if (options_.bind) {
    options.address = options_.bind->address;
    options.interface = options_.bind->interface;
  }
  std::string problem;
  auto port = Port::open(
      loop_, options, captures_, [this] { on_packets(); }, problem);
  if (port) {
    if (!why_no_port_.empty()) log_.line("port 4791 is open now");
    port_ = std::move(*port);
    tell_port();
    why_no_port_.clear();
    node_.set_port(std::nullopt, os::now());
    count_port_down();
    port_timer_.cancel();
    return;
  }
  port_taken_ = port.error().code == Errc::kAddressInUse;
  port_timer_.at(os::now() + kPortRetry);  // no event tells when the holder closes the port
  const std::string why = problem.empty() ? port.error().context : problem;
  if (why == why_no_port_) return;
  why_no_port_ = why;
  node_.set_port(why_no_port_, os::now());
}

// Waits for the port.  Binding it fails until programs whose agent has died have closed their
// sockets of the port.  They do so within milliseconds after they notice, but no event tells the
// agent.  So it retries as long as the holder may be such a program and is not stopped.
void Agent::await_port() {
  const Time deadline = os::now() + kPortTimeout;
  auto pause = std::chrono::milliseconds(1);
  while (!port_ && port_taken_ && os::now() < deadline) {
    const auto holder = os::udp_port_holder(wire::kRoceUdpPort);
    if (holder.held && (!holder.ours || holder.stopped)) return;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds(50));
    open_port();
  }
}

void Agent::refresh_addresses() {
  const auto interfaces = os::interfaces();
  if (!interfaces) {
    log_.line(fmt::format("the host's addresses: {} ({})", interfaces.error().context,
                          std::strerror(interfaces.error().detail)));
    return;
  }
  std::optional<Gid> bound;
  if (options_.bind) bound = options_.bind->address;
  const auto addresses = host_addresses(*interfaces, bound);
  node_.on_addresses(addresses, os::now());
  count_port_down();
  if (!port_) open_port();  // the host may now have the address to bind
  own_addresses_.clear();
  for (const auto& address : addresses) own_addresses_.push_back(address.gid);
  loopback_up_ =
      std::ranges::any_of(*interfaces, [](const os::Interface& i) { return i.loopback && i.up; });
  tell_port();
  pump();
}

void Agent::tell_port() {
  if (port_) port_->set_own_addresses(own_addresses_, loopback_up_);
}

void Agent::pump() {
  if (pump_some()) again_.schedule();
  node_timer_.at(node_.deadline());
  update_idle();
}

// Pumps, and sends messages at once if there was little input and there are few receivers: those
// programs probably wait for them.  Under load messages are joined instead, to save system calls.
void Agent::pump_after(std::size_t inputs) {
  sessions_sent_to_.clear();
  pump();
  if (inputs > kFewInputs || sessions_sent_to_.size() > kFewInputs) return;
  for (const std::uint64_t id : sessions_sent_to_) sessions_.at(id)->connection.flush();
}

// Carries out outputs and sends packets, up to kBurstsPerTurn bursts.  Returns true if there are
// more.
bool Agent::pump_some() {
  bool more = true;
  for (int bursts = 0; more && bursts < kBurstsPerTurn; ++bursts) {
    while (auto output = node_.poll()) {
      std::visit([this]<class O>(O&& o) { act(std::forward<O>(o)); }, std::move(*output));
    }
    more = node_.transmit(burst_, os::now());
    if (burst_.empty()) continue;
    more = true;
    if (port_) {
      const Time now = os::now();
      for (const link::Arrival& arrival : port_->send(burst_, now)) node_.receive(arrival, now);
    }
    burst_.clear();
  }
  return more;
}

void Agent::act(node::Node::ToClient&& output) {
  const auto found = session_of_client_.find(output.client);
  std::vector<int> fds;
  if (output.sockets && port_) fds = port_->sockets_of(*output.sockets);
  if (output.lane) fds = lane_descriptors(output);
  if (found != session_of_client_.end()) {
    sessions_.at(found->second)->connection.send(std::move(output.message), fds);
    if (sessions_sent_to_.size() <= kFewInputs) sessions_sent_to_.push_back(found->second);
  }
  if (output.sockets && port_) port_->passed_on(*output.sockets);
}

void Agent::act(node::Node::LeaseWanted&& output) {
  if (!output.sockets) {
    const auto with_sockets = [&](std::uint16_t range) { return port_ && port_->has_range(range); };
    node_.leased(output.token, plain_ranges_.lease(random_, output.avoid, with_sockets), os::now());
    return;
  }
  if (!port_) {
    node_.leased(output.token, fail(Errc::kBadState, "the port is down"), os::now());
    return;
  }
  output.avoid.insert(output.avoid.end(), plain_ranges_.leased().begin(),
                      plain_ranges_.leased().end());
  node_.leased(output.token, port_->lease(random_, output.avoid), os::now());
}

void Agent::act(node::Node::LaneWanted&& output) {
  auto memory = os::create_shared_memory("verbena-lane", link::Lane::kBytes);
  if (memory) lane_memory_[output.lane] = std::move(memory->fd);
  if (!memory) log_.line(fmt::format("a lane: {}", memory.error().context));
  node_.lane_made(output.lane,
                  memory ? Result<void>() : Result<void>(std::unexpected(memory.error())));
}

void Agent::act(node::Node::LaneHandedOver&& output) { lane_memory_.erase(output.lane); }

// Returns the eventfd that wakes a program for its lanes.
Result<int> Agent::wake_of(node::ClientId client) {
  const auto found = session_of_client_.find(client);
  if (found == session_of_client_.end()) return fail(Errc::kBadHandle, "no such program");
  auto& wake = sessions_.at(found->second)->wake;
  if (!wake) wake = VB_TRY(os::WakeFd::create());
  return wake->fd();
}

// Returns the descriptors of ipc::Lane; none if there are none left, and the program then refuses
// the lane.
std::vector<int> Agent::lane_descriptors(const node::Node::ToClient& output) {
  const auto memory = lane_memory_.find(*output.lane);
  const auto own = wake_of(output.client);
  const auto other = wake_of(output.peer);
  if (memory == lane_memory_.end() || !own || !other) return {};
  return {memory->second.get(), *own, *other};
}

void Agent::act(node::Node::RouteWanted&& output) {
  if (!output.source && options_.bind) output.source = options_.bind->address;
  if (const auto route = routes_.ask(output)) node_.routed(output.token, *route, os::now());
}

void Agent::act(node::Node::Membership&& output) {
  Result<void> result = fail(Errc::kBadState, "the port is down");
  if (port_) result = port_->set_members(output.range, output.group, output.interfaces);
  if (!result && output.token == 0) {
    log_.line(fmt::format("multicast group {}: {}", os::address_text(output.group),
                          result.error().context));
  }
  node_.joined(output.token, result);
}

void Agent::act(node::Node::StateChanged&& output) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(output.after).count();
  log_.line(fmt::format("cm {:08x} {} -> {} after {} us, QP 0x{:06x} of {} with {} (id {:08x})",
                        output.local_id.value, cm::to_string(output.from), cm::to_string(output.to),
                        us, output.local_qpn.value, os::address_text(output.local),
                        os::address_text(output.remote), output.remote_id.value));
}

void Agent::act(node::Node::RangeFree&& output) {
  if (!plain_ranges_.release(output.range) && port_) port_->release(output.range);
}

void Agent::on_packets() {
  const Time now = os::now();
  const auto arrivals = port_->receive(now);
  for (const link::Arrival& arrival : arrivals) node_.receive(arrival, now);
  pump_after(arrivals.size());
}

// Returns true if the agent must not end.  Tools do not count, nor do new connections, which may be
// tools: somebody who runs `verbena ps` every second must not keep the agent alive.  They only
// delay its end, see may_end_at().
bool Agent::needed() const {
  const bool somebody = std::ranges::any_of(
      sessions_, [](const auto& s) { return s.second->role == Role::kProgram; });
  return somebody || !captures_.empty() || !port_files_.empty() || !node_.idle();
}

// Returns the time at which the agent may end if nobody needs it.  A new connection prevents it
// until it says Hello, closes or times out.  A tool gets time for its requests, so that `verbena
// ps` does not lose its agent.
Time Agent::may_end_at(Time now) const {
  Time at = now;
  for (const auto& [id, session] : sessions_) {
    switch (session->role) {
      case Role::kNew: return kNever;
      case Role::kTool: at = std::max(at, session->served_until); break;
      case Role::kProgram: break;
    }
  }
  return at;
}

void Agent::update_idle() {
  if (needed()) {
    served_ = true;
    idle_expired_ = false;
    idle_timer_.cancel();
  } else if (idle_expired_) {
    idle_timer_.at(may_end_at(os::now()));
  } else if (idle_timer_.deadline() == kNever) {
    const Duration wait = served_ ? options_.idle : std::max(options_.idle, kFirstIdleMin);
    idle_timer_.at(os::now() + wait);
  }
}

void Agent::on_idle() {
  idle_expired_ = true;
  on_listener();  // accept connections that have just come
  const Time now = os::now();
  if (needed() || may_end_at(now) > now) return update_idle();
  stop("nobody needs it");
}

void Agent::send_all() {
  while (port_ && pump_some()) {
  }
}

void Agent::release_port_and_name() {
  send_all();
  port_.reset();
  listening_ = Watch();
  accept_timer_.cancel();
  listener_.reset();
}

void Agent::stop(const char* why) {
  log_.line(fmt::format("ends: {}", why));
  // Disconnect all programs' connections now, so that their peers need not wait for a timeout.
  for (const auto& [client, session] : session_of_client_) {
    node_.gone(client, os::now());
    send_all();
  }
  while (node_.flush_disconnects(os::now())) send_all();
  session_of_client_.clear();
  idle_timer_.cancel();
  node_timer_.cancel();
  hello_timer_.cancel();
  port_timer_.cancel();
  port_files_timer_.cancel();
  release_port_and_name();
  captures_.finish_all(os::now());
  loop_.stop();
}

}  // namespace verbena::agent
