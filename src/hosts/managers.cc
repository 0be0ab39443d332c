#include "hosts/managers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "os/clock.h"

namespace verbena::hosts {
namespace {

std::string port_text(const subnet::Topology& topology, subnet::PortRef port) {
  return fmt::format("{}:{}", topology.nodes[port.node].name, port.port);
}

// Finds the HCA with this name, and returns its first port that has a cable.
std::expected<subnet::PortRef, std::string> manager_port(const subnet::Topology& topology,
                                                         const std::string& name) {
  const auto node = topology.find(name);
  if (!node || !topology.nodes[*node].is_hca()) {
    return std::unexpected(fmt::format("there is no HCA '{}' for a subnet manager", name));
  }
  for (std::uint8_t number = 1; number <= topology.nodes[*node].ports; ++number) {
    const subnet::PortRef port{.node = *node, .port = number};
    if (topology.link_at(port)) return port;
  }
  return std::unexpected(fmt::format("the HCA '{}' has no cable for a subnet manager", name));
}

}  // namespace

std::expected<std::unique_ptr<Managers>, std::string> Managers::create(asio::io_context& loop,
                                                                       const subnet::Subnet& subnet,
                                                                       ResolvesAddresses resolves,
                                                                       Options options,
                                                                       const agent::Log& log) {
  std::vector<subnet::PortRef> ports;
  for (const std::string& node : options.nodes) {
    const auto port = manager_port(subnet.topology(), node);
    if (!port) return std::unexpected(port.error());
    ports.push_back(*port);
  }
  auto directory = os::ScratchDirectory::create(options.scratch, "verbena-fabric-");
  if (!directory) {
    return std::unexpected(fmt::format("cannot create a directory for OpenSM's files in {}: {}: {}",
                                       options.scratch, directory.error().context,
                                       std::strerror(directory.error().detail)));
  }
  std::unique_ptr<Managers> managers(new Managers(loop, subnet, std::move(resolves),
                                                  std::move(options), std::move(*directory),
                                                  std::move(ports), log));
  if (const std::string problem = managers->start(loop); !problem.empty()) {
    return std::unexpected(problem);
  }
  return managers;
}

Managers::Managers(asio::io_context& loop, const subnet::Subnet& subnet, ResolvesAddresses resolves,
                   Options options, os::ScratchDirectory directory,
                   std::vector<subnet::PortRef> ports, agent::Log log)
    : subnet_(subnet),
      options_(std::move(options)),
      log_(std::move(log)),
      ports_(std::move(ports)),
      links_(subnet, ports_),
      resolves_(std::move(resolves)),
      hca_ports_(links_.hca_ports()),
      directory_(std::move(directory)),
      timer_(loop, [this] { on_timer(); }) {}

// Starts OpenSM on each node of the options.  Returns a problem as a line for the user, or an empty
// text.
std::string Managers::start(asio::io_context& loop) {
  for (std::size_t i = 0; i < options_.nodes.size(); ++i) {
    const std::string& node = options_.nodes[i];
    const std::string node_directory = directory_.path() + "/" + node;
    std::error_code error;
    if (!std::filesystem::create_directory(node_directory, error)) {
      return fmt::format("cannot create {}: {}", node_directory, error.message());
    }
    const subnet::PortRef port = ports_[i];
    auto process = ManagerProcess::start(
        loop,
        {.program = options_.program,
         .fabric = options_.fabric,
         .node = node,
         .port_guid = subnet_.topology().nodes[port.node].port_guid(port.port),
         .directory = node_directory,
         .held_fd = directory_.held_fd()},
        [this, i] { on_end(i); });
    if (!process) return process.error();
    log_.line(fmt::format("OpenSM (pid {}) starts at {}", (*process)->pid(),
                          port_text(subnet_.topology(), port)));
    processes_.push_back(std::move(*process));
  }
  return "";
}

void Managers::on_end(std::size_t manager) {
  const ManagerProcess& process = *processes_[manager];
  log_.line(fmt::format("OpenSM (pid {}) on '{}' has ended: {}", process.pid(), process.node(),
                        process.end_text()));
  if (all_ended()) answer_all(why_not_up(end_texts()));
}

// Returns how the managers have ended, as text.
std::string Managers::end_texts() const {
  std::vector<std::string> texts;
  for (const auto& process : processes_) {
    texts.push_back(
        fmt::format("OpenSM on '{}' has ended: {}", process->node(), process->end_text()));
  }
  return fmt::format("{}", fmt::join(texts, "; "));
}

bool Managers::all_ended() const {
  return std::ranges::all_of(processes_, [](const auto& process) { return process->has_ended(); });
}

bool Managers::resolves_or_is_down(subnet::PortRef port) const {
  return subnet_.state(port) != subnet::PortState::kActive || resolves_(port);
}

// A call that returns false is cheap, because it begins with the port that was missing before.
bool Managers::is_up() {
  if (!links_.are_all_active()) return false;
  const auto is_ready = [this](subnet::PortRef port) { return resolves_or_is_down(port); };
  if (first_unresolved_ < hca_ports_.size() && !is_ready(hca_ports_[first_unresolved_])) {
    return false;
  }
  const auto unresolved = std::ranges::find_if_not(hca_ports_, is_ready);
  first_unresolved_ = static_cast<std::size_t>(unresolved - hca_ports_.begin());
  return unresolved == hca_ports_.end();
}

void Managers::ports_changed() {
  if (was_up_ && waiters_.empty()) return;
  if (!is_up()) return;
  if (!std::exchange(was_up_, true)) {
    log_.line("the subnet is up: all ports with a link are active, and addresses are resolved");
  }
  answer_all("");
}

void Managers::await_subnet(Time deadline, Done done) {
  if (is_up()) return done("");
  if (all_ended()) return done(why_not_up(end_texts()));
  if (waiters_.size() == kWaitersMax) return done("too many commands wait for the subnet already");
  waiters_.push_back({.deadline = deadline, .done = std::move(done)});
  timer_.at(std::min(timer_.deadline(), deadline));
}

void Managers::on_timer() {
  const Time now = os::now();
  std::vector<Waiter> expired;
  Time next_deadline = kNever;
  for (Waiter& waiter : std::exchange(waiters_, {})) {
    if (waiter.deadline > now) next_deadline = std::min(next_deadline, waiter.deadline);
    (waiter.deadline > now ? waiters_ : expired).push_back(std::move(waiter));
  }
  timer_.at(next_deadline);
  for (Waiter& waiter : expired) waiter.done(why_not_up("the subnet did not come up in time"));
}

void Managers::answer_all(const std::string& problem) {
  timer_.cancel();
  for (Waiter& waiter : std::exchange(waiters_, {})) waiter.done(problem);
}

std::string Managers::why_not_up(const std::string& beginning) const {
  std::vector<subnet::PortRef> ports = links_.inactive_ports(kPortsNamedMax + 1);
  const char* problem = "not active";
  if (ports.empty()) {
    problem = "not in the broadcast group of IPoIB";
    for (const subnet::PortRef port : hca_ports_) {
      if (ports.size() <= kPortsNamedMax && !resolves_or_is_down(port)) ports.push_back(port);
    }
  }
  std::vector<std::string> names;
  for (const subnet::PortRef port : ports) names.push_back(port_text(subnet_.topology(), port));
  if (names.size() > kPortsNamedMax) names.back() = "...";
  return fmt::format("{}; {}: {}", beginning, problem, fmt::join(names, ", "));
}

// Derives the state of a manager from its port.  The master writes its own LID as the SM LID of all
// ports, also of its own port.
std::string Managers::state_of(std::size_t manager) const {
  const ManagerProcess& process = *processes_[manager];
  if (process.has_ended()) return "ended: " + process.end_text();
  const subnet::PortStatus port = subnet_.status(ports_[manager]);
  if ((port.capability_mask & wire::port_capability::kIsSm) == 0) return "starting";
  if (port.sm_lid.value == 0) return "discovering";
  return port.sm_lid == port.lid ? "master" : "standby";
}

std::vector<ipc::ManagerStatus> Managers::status() const {
  std::vector<ipc::ManagerStatus> all;
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    const ManagerProcess& process = *processes_[i];
    all.push_back({.node = process.node(),
                   .pid = static_cast<std::uint32_t>(process.pid()),
                   .state = state_of(i),
                   .directory = process.directory()});
  }
  return all;
}

}  // namespace verbena::hosts
