#include "hosts/service.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <utility>

#include "interfaces/interfaces.h"
#include "os/clock.h"

namespace verbena::hosts {

Service::Service(asio::io_context& loop, os::UnixListener listener, Options options,
                 const agent::Log& log)
    : loop_(loop),
      options_(std::move(options)),
      log_(log.named(options_.name)),
      started_(os::now()),
      listener_(std::move(listener)),
      signals_(loop, SIGTERM, SIGINT, SIGHUP),
      accept_timer_(loop, [this] { listener_watch_.read(true); }),
      tool_timer_(loop, [this] { close_slow_tools(); }) {
  signals_.async_wait([this](const asio::error_code& failed, int) {
    if (!failed) stop("stopped by a signal");
  });
  listener_watch_ = agent::Watch(loop_, listener_.fd(), [this] { on_listener(); });
}

Service::~Service() = default;

std::expected<std::unique_ptr<Service>, std::string> Service::create(asio::io_context& loop,
                                                                     os::UnixListener listener,
                                                                     plan::Fabric fabric,
                                                                     Options options,
                                                                     const agent::Log& log) {
  std::unique_ptr<Service> service(new Service(loop, std::move(listener), std::move(options), log));
  auto nodes = HostNodes::create(loop, std::move(fabric), service->node_options(), log);
  if (!nodes) return std::unexpected(std::move(nodes.error()));
  HostNodes& hosts = **nodes;
  service->breakable_ = std::make_unique<BreakableHosts>(
      hosts.network(), [&hosts](HostIndex host) { hosts.report_links(host); });
  service->faults_ = std::make_unique<Faults>(loop, *service->breakable_);
  service->nodes_ = std::move(*nodes);
  service->begin_faults();
  return service;
}

std::expected<std::unique_ptr<Service>, std::string> Service::create(asio::io_context& loop,
                                                                     os::UnixListener listener,
                                                                     subnet::Topology topology,
                                                                     Options options,
                                                                     const agent::Log& log) {
  std::unique_ptr<Service> service(new Service(loop, std::move(listener), std::move(options), log));
  auto nodes = SubnetNodes::create(loop, std::move(topology), service->node_options(), log);
  if (!nodes) return std::unexpected(std::move(nodes.error()));
  SubnetNodes& hcas = **nodes;
  service->breakable_ = std::make_unique<BreakableSubnet>(hcas);
  service->faults_ = std::make_unique<Faults>(loop, *service->breakable_);
  service->nodes_ = std::move(*nodes);
  if (const Options& own_options = service->options_; !own_options.managers.empty()) {
    const auto resolves = [&hcas](subnet::PortRef port) { return hcas.resolves_addresses(port); };
    auto managers = Managers::create(loop, hcas.subnet(), resolves,
                                     {.program = own_options.opensm,
                                      .nodes = own_options.managers,
                                      .fabric = own_options.name,
                                      .scratch = own_options.scratch},
                                     service->log_);
    if (!managers) return std::unexpected(managers.error());
    service->managers_ = std::move(*managers);
    hcas.when_ports_change([raw = service.get()] { raw->managers_->ports_changed(); });
  }
  service->begin_faults();
  return service;
}

void Service::begin_faults() {
  if (options_.faults.empty()) return;
  const auto begin = [this](const std::string&) {
    schedule_ = std::make_unique<FaultSchedule>(loop_, *faults_, std::move(options_.faults), log_);
  };
  if (!managers_) return begin("");
  managers_->await_subnet(os::now() + ipc::kAwaitSubnetMax, begin);
}

// ---- tools --------------------------------------------------------------------------------------

void Service::on_listener() {
  for (;;) {
    auto channel = listener_.accept();
    if (!channel) {
      if (os::would_block(channel.error())) return;
      // Probably this process can open no more descriptors.  Pause, because otherwise the loop
      // would spin on the pending connection.
      log_.line(fmt::format("accept: {}", std::strerror(channel.error().detail)));
      listener_watch_.read(false);
      return accept_timer_.at(os::now() + kAcceptPause);
    }
    // Any user may connect to an abstract name.  This function closes the connections of other
    // users, and those above the limit, at once.
    if (!channel->check_peer_uid(::geteuid()) || tools_.size() >= kToolsMax) continue;
    const std::uint64_t id = next_tool_id_++;
    auto tool = std::make_unique<Tool>(loop_, std::move(*channel), id, *this);
    tool->close_at = os::now() + kToolTimeout;
    if (tool_timer_.deadline() == kNever) tool_timer_.at(tool->close_at);
    tools_.emplace(id, std::move(tool));
  }
}

// Ends connections of tools that are open for too long, because kToolsMax limits their number.  A
// connection closes as soon as its replies are sent.
void Service::close_slow_tools() {
  Time next_close = kNever;
  for (const auto& [id, tool] : tools_) {
    if (tool->close_at <= os::now()) {
      tool->connection.finish();
    } else {
      next_close = std::min(next_close, tool->close_at);
    }
  }
  tool_timer_.at(next_close);
}

void Service::ended(agent::Connection& connection, const std::string&) {
  tools_.erase(connection.id());
}

void Service::received(agent::Connection& from, const ipc::Envelope& envelope,
                       std::span<const std::byte>, std::vector<os::Fd>) {
  Tool& tool = *tools_.at(from.id());
  if (!tool.handshake_done) return handle_hello(tool, envelope);
  switch (envelope.type) {
    case ipc::Type::kShowFabric: return show_fabric(tool, envelope);
    case ipc::Type::kAwaitSubnet: return await_subnet(tool, envelope);
    case ipc::Type::kShowLog: return show_log(tool, envelope);
    case ipc::Type::kSetFault: return set_fault(tool, envelope);
    case ipc::Type::kShowInterfaces: return show_interfaces(tool, envelope);
    case ipc::Type::kStop:
      from.reply_result(envelope.request, {});
      return stop("stopped by 'verbena fabric down'");
    default:
      return from.reply_result(envelope.request,
                               fail(Errc::kNotSupported, "a fabric does not support this request"));
  }
}

void Service::handle_hello(Tool& tool, const ipc::Envelope& envelope) {
  // Only the first field of a Hello from another build can be decoded.
  std::string build;
  ipc::Reader(envelope.body)(build);
  ipc::Welcome reply{.agent_pid = static_cast<std::uint32_t>(::getpid()), .build = options_.build};
  tool.handshake_done = envelope.type == ipc::Type::kHello && build == options_.build;
  if (!tool.handshake_done)
    reply.refusal = "the fabric runs another build; stop it with 'verbena fabric down'";
  tool.connection.reply(envelope.request, reply);
  if (!tool.handshake_done) tool.connection.finish();
}

void Service::show_fabric(Tool& tool, const ipc::Envelope& envelope) {
  const auto request = ipc::decode<ipc::ShowFabric>(envelope);
  if (!request)
    return tool.connection.reply_result(envelope.request, std::unexpected(request.error()));
  ipc::FabricReply reply{.pid = static_cast<std::uint32_t>(::getpid()),
                         .name = options_.name,
                         .file = options_.file,
                         .uptime = os::now() - started_};
  std::size_t host = request->first_host;
  for (; host < nodes_->size() && reply.hosts.size() < ipc::kHostsPerReply; ++host) {
    reply.hosts.push_back(nodes_->status(host));
  }
  reply.more = host < nodes_->size();
  nodes_->add_counters(reply.counters);
  if (managers_) reply.managers = managers_->status();
  reply.faults = faults_->status();
  if (reply.faults.size() > ipc::kFaultsShownMax) {
    reply.faults_left_out = static_cast<std::uint32_t>(reply.faults.size() - ipc::kFaultsShownMax);
    reply.faults.resize(ipc::kFaultsShownMax);
  }
  tool.connection.reply(envelope.request, reply);
}

void Service::show_interfaces(Tool& tool, const ipc::Envelope& envelope) {
  const auto request = ipc::decode<ipc::ShowInterfaces>(envelope);
  if (!request)
    return tool.connection.reply_result(envelope.request, std::unexpected(request.error()));
  for (std::size_t host = 0; host < nodes_->size(); ++host) {
    if (nodes_->name(host) != request->host) continue;
    return tool.connection.reply(
        envelope.request, ipc::InterfacesReply{interfaces::to_text(nodes_->interfaces(host))});
  }
  tool.connection.reply_result(envelope.request,
                               fail(Errc::kAddressNotFound, "no host has this name"));
}

void Service::await_subnet(Tool& tool, const ipc::Envelope& envelope) {
  const auto request = ipc::decode<ipc::AwaitSubnet>(envelope);
  if (!request)
    return tool.connection.reply_result(envelope.request, std::unexpected(request.error()));
  if (!managers_) {
    return tool.connection.reply_result(
        envelope.request, fail(Errc::kNotSupported, "the fabric runs no subnet manager"));
  }
  const Duration limit = std::clamp(request->limit, Duration{}, ipc::kAwaitSubnetMax);
  tool.close_at = std::max(tool.close_at, os::now() + limit + kToolTimeout);
  managers_->await_subnet(
      os::now() + limit,
      [this, id = tool.connection.id(), number = envelope.request](const std::string& problem) {
        const auto found = tools_.find(id);
        if (found == tools_.end()) return;
        found->second->connection.reply(number, ipc::SubnetState{problem});
      });
}

void Service::show_log(Tool& tool, const ipc::Envelope& envelope) {
  const auto request = ipc::decode<ipc::ShowLog>(envelope);
  if (!request)
    return tool.connection.reply_result(envelope.request, std::unexpected(request.error()));
  agent::Log::StoredLines stored = log_.stored_lines(request->first_line, ipc::kLinesPerReply);
  tool.connection.reply(envelope.request, ipc::LogReply{.next_line = stored.next,
                                                        .more = stored.more,
                                                        .lines = std::move(stored.lines)});
}

void Service::set_fault(Tool& tool, const ipc::Envelope& envelope) {
  const auto request = ipc::decode<ipc::SetFault>(envelope);
  if (!request)
    return tool.connection.reply_result(envelope.request, std::unexpected(request.error()));
  const auto state = faults_->set(request->fault);
  if (!state) {
    return tool.connection.reply(envelope.request, ipc::FaultReply{.problem = state.error()});
  }
  log_.line(*state);
  tool.connection.reply(envelope.request, ipc::FaultReply{.text = *state});
}

void Service::stop(const char* why) {
  log_.line(fmt::format("ends: {}", why));
  for (const auto& [id, tool] : tools_) tool->connection.flush();
  nodes_->stop(why);
  loop_.stop();
}

}  // namespace verbena::hosts
