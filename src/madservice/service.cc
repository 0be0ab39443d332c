#include "madservice/service.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "ipc/counters.h"
#include "os/clock.h"
#include "os/shared_memory.h"

namespace verbena::madservice {

using ipc::umad::Hello;
using ipc::umad::Reply;

namespace {

Reply error_reply(const Error& error) { return {.error = to_errno(error), .text = error.context}; }

}  // namespace

Service::Service(asio::io_context& loop, subnet::Subnet& subnet, std::string build,
                 std::move_only_function<void()> on_sent)
    : loop_(loop),
      subnet_(subnet),
      build_(std::move(build)),
      on_sent_(std::move(on_sent)),
      timer_(loop, [this] { on_timer(); }),
      accept_timer_(loop, [this] {
        for (auto& [hca, served] : hcas_) served->listener_watch.read(true);
      }) {}

Service::~Service() = default;

Result<void> Service::serve(const std::string& socket_name, std::uint32_t hca, std::string device) {
  os::UnixListener listener = VB_TRY(os::UnixListener::listen(socket_name));
  auto served =
      std::make_unique<ServedHca>(umad::Node(subnet_, hca, std::move(device)), std::move(listener));
  served->listener_watch =
      agent::Watch(loop_, served->listener.fd(), [this, hca] { on_listener(hca); });
  hcas_[hca] = std::move(served);
  return {};
}

void Service::on_listener(std::uint32_t hca) {
  ServedHca& served = *hcas_.at(hca);
  for (std::size_t i = 0; i < kAcceptsPerWakeup; ++i) {
    auto channel = served.listener.accept();
    if (!channel) {
      if (os::would_block(channel.error())) return;
      // The process probably has no free descriptors.  The listener pauses, because otherwise the
      // loop would spin until a descriptor is free.
      served.listener_watch.read(false);
      accept_timer_.at(os::now() + kAcceptPause);
      return;
    }
    // Any user may connect to an abstract name.  Connections of other users are closed at once.
    if (!channel->check_peer_uid(::geteuid()) || sessions_.size() >= kSessionsMax) continue;
    const std::uint64_t id = next_session_id_++;
    auto session = std::make_unique<Session>(loop_, std::move(*channel), id, *this);
    session->node = hca;
    sessions_.emplace(id, std::move(session));
  }
}

bool Service::on_message(Session& from, std::span<const std::byte> message,
                         std::vector<os::Fd> fds) {
  const auto type = ipc::umad::type_of(message);
  if (!type) return false;
  if (!from.has_completed_hello)
    return *type == ipc::umad::Type::kHello && handle_hello(from, message);
  umad::Node& node = node_of(from);
  switch (*type) {
    case ipc::umad::Type::kQuery:
      from.answer(ipc::umad::Devices{.devices = {node.describe()}});
      return true;
    case ipc::umad::Type::kRegister: {
      const auto request = ipc::umad::decode<ipc::umad::Register>(message);
      if (!request) return false;
      from.answer(node.add_agent(from.id(), *request));
      return true;
    }
    case ipc::umad::Type::kUnregister: {
      const auto request = ipc::umad::decode<ipc::umad::Unregister>(message);
      if (!request) return false;
      from.answer(node.remove_agent(from.id(), *request));
      return true;
    }
    case ipc::umad::Type::kSend: return handle_send(from, message, std::move(fds));
    default: return false;
  }
}

bool Service::handle_hello(Session& session, std::span<const std::byte> message) {
  const auto hello = ipc::umad::decode<Hello>(message);
  if (!hello) return false;
  if (hello->build != build_) {
    session.answer(
        Reply{.error = ELIBBAD, .text = "libibumad and the fabric are from different builds"});
    return true;
  }
  umad::Node& node = node_of(session);
  if (hello->purpose == Hello::Purpose::kQuery) {
    session.answer(Reply{});
  } else if (hello->purpose == Hello::Purpose::kMads) {
    if (const auto result = node.open(session.id(), hello->device, hello->port); !result) {
      session.answer(error_reply(result.error()));
      return true;
    }
    auto mads = session.open_mads();
    if (!mads) return false;
    session.answer(Reply{}, mads->fd());
  } else {
    if (!node.has_port(hello->device, hello->port)) {
      session.answer(Reply{.error = EINVAL, .text = "no such device or port"});
      return true;
    }
    const auto file = session.open_sm_file();
    if (!file) return false;
    session.answer(Reply{}, *file);
  }
  session.has_completed_hello = true;
  session.port = hello->port;
  return true;
}

bool Service::handle_send(Session& session, std::span<const std::byte> message,
                          std::vector<os::Fd> fds) {
  const auto request = ipc::umad::decode_send(message);
  if (!request || request->in_memory != !fds.empty()) return false;
  os::Mapping memory;
  std::span<const std::byte> mad = request->mad;
  if (request->in_memory) {
    auto mapped =
        os::map_shared(fds.front().get(), wire::kMadBytes, ipc::umad::kMadBytesMax, false);
    if (!mapped) return false;
    memory = *std::move(mapped);
    mad = memory.bytes();  // the node copies the bytes before it checks them
  }
  umad::Node& node = node_of(session);
  session.answer(node.send(session.id(), request->header, mad, os::now()));
  pump(node);
  return true;
}

void Service::on_sm_file(Session& session, bool is_open) {
  if (session.has_open_sm_file == is_open) return;
  session.has_open_sm_file = is_open;
  umad::Node& node = node_of(session);
  node.set_sm_file_open(session.port, is_open, os::now());
  pump(node);
}

void Service::on_session_end(Session& session) {
  umad::Node& node = node_of(session);
  if (session.has_open_sm_file) node.set_sm_file_open(session.port, false, os::now());
  node.close(session.id());
  mads_lost_ += session.lost_mads();
  sessions_.erase(session.id());
  pump(node);
}

std::size_t Service::programs(std::uint32_t hca) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      sessions_, [&](const auto& session) { return session.second->node == hca; }));
}

void Service::add_counters(std::vector<ipc::NamedCount>& out) const {
  mad::ManagementPort::Counters sum;
  for (const auto& [hca, served] : hcas_) served->node.add_counters(sum);
  for (const auto& [member, name] : mad::kManagementCounterNames) {
    out.push_back({name, sum.*member});
  }
  std::uint64_t lost_mads = mads_lost_;
  for (const auto& [id, session] : sessions_) lost_mads += session->lost_mads();
  out.push_back({"management_messages_lost", lost_mads});
}

void Service::receive(const subnet::MadDelivery& arrival) {
  const auto served = hcas_.find(arrival.port.node);
  if (served == hcas_.end()) return;
  served->second->node.receive(arrival, os::now());
  deliver_mads(served->second->node);
}

void Service::on_timer() {
  const Time now = os::now();
  for (auto& [hca, served] : hcas_) {
    if (served->node.deadline() <= now) served->node.on_timer(now);
  }
  on_sent_();
  for (auto& [hca, served] : hcas_) deliver_mads(served->node);
}

void Service::pump(umad::Node& node) {
  on_sent_();
  deliver_mads(node);
}

void Service::deliver_mads(umad::Node& node) {
  while (auto output = node.next_output()) {
    const auto session = sessions_.find(output->session);
    if (session == sessions_.end()) continue;
    session->second->deliver(output->header, std::move(output->mad));
  }
  timer_.at(std::min(timer_.deadline(), node.deadline()));
}

}  // namespace verbena::madservice
