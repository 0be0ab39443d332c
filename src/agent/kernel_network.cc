#include "agent/kernel_network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

#include "ipc/counters.h"
#include "os/clock.h"
#include "os/entropy.h"

namespace verbena::agent {
namespace {

// A host may have no addresses.  But if the kernel does not answer, the host is broken.
std::vector<os::Interface> interfaces_at_start() {
  auto interfaces = os::interfaces();
  if (!interfaces) throw std::runtime_error("cannot read the host's addresses from the kernel");
  return std::move(*interfaces);
}

}  // namespace

KernelNetwork::KernelNetwork(asio::io_context& loop, std::optional<BindAddress> bind)
    : loop_(loop),
      bind_(bind),
      port_timer_(loop, [this] { retry_port(); }),
      routes_(loop, [this](std::uint64_t token, const Result<node::HostRoute>& route) {
        if (user_ != nullptr) user_->on_route(token, check_reachable(route));
      }) {}

Network::Identity KernelNetwork::identity() const {
  return {.node_guid = node_guid(interfaces_at_start(), machine_id())};
}

void KernelNetwork::open(User& user) {
  user_ = &user;
  // Create the monitor before reading the addresses, so that no change is missed in between.
  if (auto monitor = os::InterfaceMonitor::create()) {
    monitor_ = std::move(*monitor);
    monitor_watch_ = Watch(loop_, monitor_->fd(), [this] {
      if (monitor_->drain()) refresh_addresses();
    });
  }
  open_port();
  wait_for_port();
  open_alternative_port(false);
  refresh_addresses();
}

void KernelNetwork::close() {
  port_timer_.cancel();
  relay_.reset();
  port_.reset();
  user_ = nullptr;
}

std::string KernelNetwork::state() const {
  if (!port_) return "no port: " + why_no_port_;
  return why_only_this_host_.empty() ? "port 4791 is open" : "no port 4791: " + why_only_this_host_;
}

void KernelNetwork::retry_port() {
  open_port();
  open_alternative_port(true);
}

Result<std::unique_ptr<Port>> KernelNetwork::try_port(std::uint16_t number, std::string& problem) {
  Port::Options options{.port = number};
  if (bind_) {
    options.address = bind_->address;
    options.interface = bind_->interface;
  }
  const auto readable = [this] {
    if (user_ != nullptr) user_->arrived(port_->receive(os::now()));
  };
  return Port::open(loop_, options, user_->captures(), readable, problem);
}

void KernelNetwork::use_port(std::unique_ptr<Port> port) {
  port_ = std::move(port);
  why_no_port_.clear();
  update_port_addresses();
  user_->port_changed(std::nullopt, {.udp_port = port_->number(),
                                     .why_only_this_host = why_only_this_host_,
                                     .uses_kernel_routes = !bind_});
}

void KernelNetwork::open_port() {
  if (user_ == nullptr || has_roce_port()) return;
  if (port_ && port_->leases() != 0) {
    port_timer_.at(os::now() + kPortRetry);  // programs have sockets of the alternative port
    return;
  }
  std::string problem;
  auto port = try_port(wire::kRoceUdpPort, problem);
  if (port) {
    if (!why_no_port_.empty() || port_) user_->log("port 4791 is open now");
    port_timer_.cancel();
    why_only_this_host_.clear();
    return use_port(std::move(*port));
  }
  port_taken_ = port.error().code == Errc::kAddressInUse;
  port_timer_.at(os::now() + kPortRetry);  // no event tells when the holder closes the port
  if (port_) return;
  const std::string why = problem.empty() ? port.error().context : problem;
  if (why == why_no_port_) return;
  why_no_port_ = why;
  user_->port_changed(why_no_port_);
}

// Opens an alternative port if another socket is bound to port 4791.  Does nothing if the socket
// belongs to a stopped program of this user, because such a program closes its sockets of a dead
// agent when it continues.  If `should_wait_for_own_programs` is set, also does nothing if the
// socket belongs to any other program of this user.
void KernelNetwork::open_alternative_port(bool should_wait_for_own_programs) {
  if (port_ || !port_taken_) return;
  const auto holder = os::udp_port_holder(wire::kRoceUdpPort);
  if (holder.is_of_this_user && (holder.is_stopped || should_wait_for_own_programs)) return;
  constexpr int kTries = 16;
  constexpr std::uint64_t kFirstPort = 0x8000,
                          kPortCount = 0x4000;  // source ports of senders are higher
  Random random(os::random_key());
  for (int i = 0; i < kTries; ++i) {
    std::string problem;
    auto port =
        try_port(static_cast<std::uint16_t>(kFirstPort + random.below(kPortCount)), problem);
    if (!port) continue;
    why_only_this_host_ = why_no_port_;
    user_->log("only programs of this host can be reached: " + why_only_this_host_);
    return use_port(std::move(*port));
  }
}

// Waits for the port.  Binding the port fails until programs whose agent has died have closed their
// sockets of the port.  They close the sockets within milliseconds after they notice the death, but
// no event tells this agent.  So this function retries as long as the holder may be such a program
// and is not stopped.
void KernelNetwork::wait_for_port() {
  const Time deadline = os::now() + kPortTimeout;
  auto pause = std::chrono::milliseconds(1);
  while (!port_ && port_taken_ && os::now() < deadline) {
    const auto holder = os::udp_port_holder(wire::kRoceUdpPort);
    if (holder.is_bound && (!holder.is_of_this_user || holder.is_stopped)) return;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds(50));
    open_port();
  }
}

void KernelNetwork::refresh_addresses() {
  if (user_ == nullptr) return;
  const auto interfaces = os::interfaces();
  if (!interfaces) {
    return user_->log(fmt::format("the host's addresses: {} ({})", interfaces.error().context,
                                  std::strerror(interfaces.error().detail)));
  }
  std::optional<Gid> bound;
  if (bind_) bound = bind_->address;
  const auto addresses = host_addresses(*interfaces, bound);
  own_addresses_.clear();
  for (const auto& address : addresses) own_addresses_.push_back(address.gid);
  loopback_up_ =
      std::ranges::any_of(*interfaces, [](const os::Interface& i) { return i.loopback && i.up; });
  update_port_addresses();
  user_->addresses_changed(addresses);
  retry_port();  // the host may now have the address to bind
}

void KernelNetwork::update_port_addresses() {
  if (port_) port_->set_own_addresses(own_addresses_, loopback_up_);
}

std::span<const link::Arrival> KernelNetwork::send(link::Burst& burst, Time now) {
  if (!port_) return {};
  return port_->send(burst, now);
}

// Refuses routes to other hosts if another process has port 4791, because the other hosts would
// send their answers to port 4791.
Result<node::HostRoute> KernelNetwork::check_reachable(Result<node::HostRoute> route) const {
  if (!route || route->loopback || why_only_this_host_.empty()) return route;
  return fail(Errc::kAddressNotFound, "another program has UDP port 4791", ENETUNREACH);
}

Network::Answer KernelNetwork::route(const node::Node::RouteRequest& request) {
  node::Node::RouteRequest bound = request;
  if (!request.source && bind_) bound.source = bind_->address;
  auto answer = routes_.ask(bound);
  if (!answer || wire::is_multicast(request.destination)) return answer;
  answer = check_reachable(std::move(*answer));
  if (!*answer && !why_only_this_host_.empty()) {
    user_->notify_user(request.client,
                       "only programs of this host can be reached: " + why_only_this_host_);
  }
  return answer;
}

Result<std::uint16_t> KernelNetwork::lease(Random& random,
                                           const node::Node::LeaseRequest& request) {
  if (!request.sockets) {
    const auto has_sockets = [&](std::uint16_t range) { return port_ && port_->has_range(range); };
    return socketless_ranges_.lease(random, request.avoid, has_sockets);
  }
  if (!port_) return fail(Errc::kBadState, "the port is down");
  std::vector<std::uint16_t> avoid = request.avoid;
  avoid.insert(avoid.end(), socketless_ranges_.leased_ranges().begin(),
               socketless_ranges_.leased_ranges().end());
  return port_->lease(random, avoid);
}

void KernelNetwork::release(std::uint16_t range) {
  if (socketless_ranges_.release(range)) return;
  if (relay_) relay_->release(range);
  if (port_) port_->release(range);
}

std::vector<int> KernelNetwork::sockets_of(std::uint16_t range) const {
  return port_ ? port_->sockets_of(range) : std::vector<int>();
}

void KernelNetwork::release_passed_descriptors(std::uint16_t range) {
  if (port_) port_->release_passed_descriptors(range);
  if (relay_) relay_->release_passed_descriptors();
}

// Makes no uplink for a program of this user, because such a program gets sockets.
Result<std::vector<int>> KernelNetwork::attach(node::ClientId client, std::uint16_t range,
                                               std::optional<int> wake) {
  if (wake || !port_) return std::vector<int>();
  // The sockets are taken first, so that the program does not get them if anything fails.
  auto sockets = port_->take_sockets(range);
  if (!relay_) relay_ = VB_TRY(Relay::create(loop_));
  return relay_->attach(client, std::move(sockets));
}

Result<void> KernelNetwork::set_members(std::uint16_t range, const Gid& group,
                                        std::span<const std::uint32_t> interfaces) {
  if (!port_) return fail(Errc::kBadState, "the port is down");
  return port_->set_members(range, group, interfaces);
}

void KernelNetwork::add_counters(std::vector<ipc::NamedCount>& out) const {
  if (port_) {
    port_->add_counters(out);
  } else {
    out.push_back({"data_packets", 0});
  }
  if (relay_) relay_->add_counters(out);
}

}  // namespace verbena::agent
