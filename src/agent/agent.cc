#include "agent/agent.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <utility>
#include <variant>

#include "ipc/lane_messages.h"
#include "os/address.h"
#include "os/clock.h"
#include "os/entropy.h"

namespace verbena::agent {
namespace {

// Returns the first port that users other than root may bind.  The RDMA CM uses the limit of TCP.
std::uint16_t unprivileged_port_start() {
  std::uint16_t start = 1024;
  std::ifstream("/proc/sys/net/ipv4/ip_unprivileged_port_start") >> start;
  return start;
}

node::Node::Config node_config(const Network& network, const Agent::Options& options) {
  const Network::Identity identity = network.identity();
  return {
      .node_guid = identity.node_guid,
      .devices = identity.devices,
      .build = options.build,
      .pid = static_cast<std::uint32_t>(::getpid()),
      .unprivileged_port_start = options.all_users ? unprivileged_port_start() : std::uint16_t{0},
      .own_user = ::geteuid(),
      .sa = identity.sa,
      .trace = options.trace};
}

}  // namespace

Agent::Agent(asio::io_context& loop, os::UnixListener listener, std::unique_ptr<Network> network,
             Options options, Log log)
    : loop_(loop),
      options_(std::move(options)),
      log_(std::move(log)),
      started_(os::now()),
      random_(os::random_key()),
      network_(std::move(network)),
      node_(node_config(*network_, options_), random_.fork()),
      captures_(loop, random_.fork(),
                [this](const std::string& text) {
                  log_.line(text);
                  update_idle();
                }),
      port_files_(loop, [this] { update_idle(); }),
      listener_(std::move(listener)),
      signals_(loop),
      node_timer_(loop,
                  [this] {
                    node_.on_timer(os::now());
                    pump();
                    heap_trim_.trim_if_due(node_.endpoints());
                  }),
      idle_timer_(loop, [this] { on_idle_timer(); }),
      accept_timer_(loop, [this] { listener_watch_.read(true); }),
      hello_timer_(loop, [this] { on_hello_timer(); }),
      port_files_timer_(loop, [this] { refresh_port_files(); }),
      pump_later_(loop, [this] { pump(); }) {
  if (!options_.belongs_to_fabric) {
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) signals_.add(signal);
    signals_.async_wait([this](const asio::error_code& failed, int) {
      if (!failed) stop("stopped by a signal");
    });
  }
  network_->open(*this);
  listener_watch_ = Watch(loop_, listener_->fd(), [this] { on_listener(); });
  log_.line(fmt::format("the agent of build {} started; {}", options_.build, network_->state()));
}

Agent::~Agent() = default;

// ---- the network -------------------------------------------------------------------------------

void Agent::addresses_changed(const std::vector<node::HostAddress>& addresses) {
  node_.on_addresses(addresses, os::now());
  track_port_state();
  pump();
}

void Agent::port_changed(const std::optional<std::string>& down_reason, const ipc::Reach& reach) {
  node_.set_port(down_reason, os::now(), reach);
  track_port_state();
  pump();
}

void Agent::port_state_changed(PortId port, const node::PortState& state) {
  VB_CHECK(node_.set_port_state(port, state, os::now()).has_value());
  track_port_state();
  pump();
}

void Agent::arrived(std::span<const link::Arrival> arrivals) {
  const Time now = os::now();
  for (const link::Arrival& arrival : arrivals) node_.receive(arrival, now);
  pump_after(arrivals.size());
}

void Agent::on_route(std::uint64_t token, const Result<node::HostRoute>& route) {
  node_.on_route(token, route, os::now());
  pump();
}

void Agent::notify_user(node::ClientId client, const std::string& text) {
  const auto found = session_of_client_.find(client);
  if (found == session_of_client_.end()) return;
  sessions_.at(found->second)->connection.send(ipc::encode(0, ipc::UserNotice{text}));
}

// ---- the node's outputs ------------------------------------------------------------------------

void Agent::pump() {
  if (pump_some()) pump_later_.schedule();
  node_timer_.at(node_.deadline());
  update_idle();
}

// Calls pump().  If there were few inputs and few messages to programs, sends the messages at once,
// because the programs probably wait for them.  Otherwise the messages stay queued for a moment, so
// that several are sent as one datagram, which saves system calls.
void Agent::pump_after(std::size_t inputs) {
  sessions_sent_to_.clear();
  pump();
  if (inputs > kSendAtOnceMax || sessions_sent_to_.size() > kSendAtOnceMax) return;
  for (const std::uint64_t id : sessions_sent_to_) sessions_.at(id)->connection.flush();
}

// Carries out outputs and sends packets, up to kBurstsPerPump bursts.  Returns true if there are
// more.
bool Agent::pump_some() {
  bool more = true;
  for (int bursts = 0; more && bursts < kBurstsPerPump; ++bursts) {
    while (auto output = node_.poll()) {
      std::visit([this]<class O>(O&& o) { carry_out(std::forward<O>(o)); }, std::move(*output));
    }
    more = node_.transmit(burst_, os::now());
    if (burst_.empty()) continue;
    more = true;
    const Time now = os::now();
    for (const link::Arrival& arrival : network_->send(burst_, now)) node_.receive(arrival, now);
    burst_.clear();
  }
  return more;
}

void Agent::carry_out(node::Node::ToClient&& output) {
  const auto found = session_of_client_.find(output.client);
  std::vector<int> fds;
  if (output.sockets) {
    attach_uplink(output.client, *output.sockets);
    fds = network_->sockets_of(*output.sockets);
  }
  if (output.lane) fds = lane_descriptors(output);
  if (found != session_of_client_.end()) {
    sessions_.at(found->second)->connection.send(std::move(output.message), fds);
    if (sessions_sent_to_.size() <= kSendAtOnceMax) sessions_sent_to_.push_back(found->second);
  }
  if (output.sockets) network_->release_passed_descriptors(*output.sockets);
}

// Lets packets for the range reach the program.  If the program needs an uplink and none can be
// made, the program returns the range.
void Agent::attach_uplink(node::ClientId client, std::uint16_t range) {
  const auto found = session_of_client_.find(client);
  if (found == session_of_client_.end()) return;
  Session& session = *sessions_.at(found->second);
  const bool from_other_user = is_guest(session);
  std::optional<int> wake;
  if (!from_other_user) {
    const auto wake_fd = wake_fd_of(client);
    if (!wake_fd) return;
    wake = *wake_fd;
  }
  const auto fds = network_->attach(client, range, wake);
  if (!fds) return log_.line(fmt::format("cannot make an uplink: {}", fds.error().context));
  if (fds->empty()) return;
  session.connection.send(
      ipc::encode(0, ipc::Lane{.lane = ipc::Lane::kUplink, .other_user = from_other_user}), *fds);
}

void Agent::carry_out(node::Node::LeaseRequest&& output) {
  node_.on_lease(output.token, network_->lease(random_, output), os::now());
}

void Agent::carry_out(node::Node::LaneMemoryRequest&& output) {
  auto memory = os::create_shared_memory("verbena-lane", link::Lane::kBytes);
  if (memory) lane_parts_.emplace(output.lane, LaneParts{.memory = std::move(memory->fd)});
  if (!memory) log_.line(fmt::format("cannot make a lane: {}", memory.error().context));
  node_.on_lane_memory(output.lane,
                       memory ? Result<void>() : Result<void>(std::unexpected(memory.error())));
}

void Agent::carry_out(node::Node::LaneHandedOver&& output) { lane_parts_.erase(output.lane); }

const Agent::Session* Agent::session_of(node::ClientId client) const {
  const auto found = session_of_client_.find(client);
  return found == session_of_client_.end() ? nullptr : sessions_.at(found->second).get();
}

// Returns the eventfd that wakes a program when one of its lanes has packets.
Result<int> Agent::wake_fd_of(node::ClientId client) {
  const auto found = session_of_client_.find(client);
  if (found == session_of_client_.end()) return fail(Errc::kBadHandle, "no such program");
  auto& wake = sessions_.at(found->second)->wake;
  if (!wake) wake = VB_TRY(os::WakeFd::create());
  return wake->fd();
}

// Returns the descriptors of an ipc::Lane message.  If this process can open no more descriptors,
// returns none, and the program then refuses the lane.
std::vector<int> Agent::lane_descriptors(const node::Node::ToClient& output) {
  const auto parts = lane_parts_.find(*output.lane);
  const Session* const session = session_of(output.client);
  const Session* const peer = session_of(output.peer);
  if (parts == lane_parts_.end() || session == nullptr || peer == nullptr) return {};
  if (session->user.uid != peer->user.uid) {
    return lane_descriptors_across_users(parts->second).value_or(std::vector<int>());
  }
  const auto own = wake_fd_of(output.client);
  const auto other = wake_fd_of(output.peer);
  if (!own || !other) return {};
  std::vector<int> fds{parts->second.memory.get(), *own, *other};
  if (peer->access_table) fds.push_back(peer->access_table.get());
  return fds;
}

// Returns the descriptors of a lane between programs of different users.  The first call for the
// lane returns those for one program, and the second call returns those for the other program.
Result<std::vector<int>> Agent::lane_descriptors_across_users(LaneParts& parts) {
  if (!parts.ends.empty()) {  // this is the second call
    return std::vector{parts.memory.get(), parts.ends.back().fd()};
  }
  auto [first, second] = VB_TRY(os::WakeSocket::create_pair());
  parts.ends.push_back(std::move(first));
  parts.ends.push_back(std::move(second));
  return std::vector{parts.memory.get(), parts.ends.front().fd()};
}

void Agent::carry_out(node::Node::RouteRequest&& output) {
  if (const auto route = network_->route(output)) node_.on_route(output.token, *route, os::now());
}

void Agent::carry_out(node::Node::Membership&& output) {
  const auto result = network_->set_members(output.range, output.group, output.interfaces);
  if (!result && output.token == 0) {
    log_.line(fmt::format("multicast group {}: {}", os::address_text(output.group),
                          result.error().context));
  }
  node_.on_membership(output.token, result);
}

void Agent::carry_out(node::Node::StateChanged&& output) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(output.after).count();
  log_.line(fmt::format("cm {:08x} {} -> {} after {} us, QP 0x{:06x} of {} with {} (id {:08x})",
                        output.local_id.value, cm::to_string(output.from), cm::to_string(output.to),
                        us, output.local_qpn.value, os::address_text(output.local),
                        os::address_text(output.remote), output.remote_id.value));
}

void Agent::carry_out(node::Node::RangeReleased&& output) { network_->release(output.range); }

// Returns true if something needs the agent, so that it must not end.  Ignores tools, and also new
// connections, because they may belong to tools: a user who runs `verbena ps` every second must not
// keep the agent alive.  Tools and new connections only delay the agent's end; see may_end_at().
bool Agent::is_needed() const {
  const bool has_program = std::ranges::any_of(
      sessions_, [](const auto& s) { return s.second->role == Role::kProgram; });
  return has_program || !captures_.empty() || !port_files_.empty() || !node_.is_idle();
}

// Returns the earliest time at which the agent may end if nobody needs it.  A new connection delays
// the end until it sends Hello, closes or times out.  A tool gets time for its requests, so that
// the agent does not end while `verbena ps` uses it.
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
  if (!options_.idle) return;
  if (is_needed()) {
    was_needed_ = true;
    idle_expired_ = false;
    idle_timer_.cancel();
  } else if (idle_expired_) {
    idle_timer_.at(may_end_at(os::now()));
  } else if (idle_timer_.deadline() == kNever) {
    const Duration wait =
        was_needed_ ? *options_.idle : std::max(*options_.idle, kFirstProgramWaitMin);
    idle_timer_.at(os::now() + wait);
  }
}

void Agent::on_idle_timer() {
  idle_expired_ = true;
  on_listener();  // accept connections that have just arrived
  const Time now = os::now();
  if (is_needed() || may_end_at(now) > now) return update_idle();
  stop("no program needs the agent");
}

void Agent::send_all() {
  while (network_->is_open() && pump_some()) {
  }
}

void Agent::release_port_and_name() {
  send_all();
  network_->close();
  listener_watch_ = Watch();
  accept_timer_.cancel();
  listener_.reset();
}

void Agent::stop(const char* why) {
  log_.line(fmt::format("ends: {}", why));
  // Disconnect all programs' connections now, so that their peers need not wait for a timeout.
  for (const auto& [client, session] : session_of_client_) {
    node_.remove_program(client, os::now());
    send_all();
  }
  while (node_.flush_disconnects(os::now())) send_all();
  session_of_client_.clear();
  node_timer_.cancel();
  hello_timer_.cancel();
  port_files_timer_.cancel();
  release_port_and_name();
  captures_.finish_all(os::now());
  idle_timer_.cancel();  // the end of a capture may have set it
  loop_.stop();
}

}  // namespace verbena::agent
