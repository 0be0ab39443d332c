#include "cli/socket_services.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "os/agent_name.h"
#include "verbena_build.h"

namespace verbena::cli {

std::vector<std::string> socket_service_names() {
  std::vector<std::string> names{os::socket_service_name()};
  if (std::string root = os::root_socket_service_name(); root != names[0]) {
    names.push_back(std::move(root));
  }
  return names;
}

Answer<std::optional<os::UnixChannel>> find_socket_service(const std::string& name, Time deadline) {
  auto channel = os::UnixChannel::connect(name, deadline);
  if (!channel && channel.error().code == Errc::kUnreachable) return std::nullopt;
  // A stranger with the name of root's service does not prevent that this user has a service.
  const bool is_own = name == os::socket_service_name();
  if (!channel && channel.error().code == Errc::kPermission && !is_own) return std::nullopt;
  if (!channel) {
    return std::unexpected(
        fmt::format("cannot reach the socket service: {}", channel.error().context));
  }
  constexpr uid_t kRoot = 0;
  if (!channel->check_peer_uid(::geteuid()) && !channel->check_peer_uid(kRoot)) {
    if (!is_own) return std::nullopt;
    return std::unexpected(
        fmt::format("the name '{}' is held by {}", name, os::describe_name_owner(*channel)));
  }
  const broker::Hello hello{.build = broker::text_field<broker::kBuildBytes>(verbena_build_id()),
                            .pid = static_cast<std::uint32_t>(::getpid()),
                            .is_tool = 1,
                            .program = broker::text_field<broker::kNameBytes>("verbena")};
  std::array<std::byte, broker::kMessageBytesMax> buffer;
  std::vector<os::Fd> fds;
  if (!channel->send(broker::bytes_of(hello), {}, deadline)) return std::nullopt;
  const auto bytes = channel->receive(buffer, fds, deadline);
  if (!bytes && bytes.error().code == Errc::kTimedOut) {
    return std::unexpected("the socket service does not answer");
  }
  if (!bytes || *bytes == 0) return std::nullopt;  // the service was about to end
  const auto welcome = broker::decode<broker::Welcome>(std::span(buffer).first(*bytes));
  if (!welcome || welcome->refused != 0) {
    return std::unexpected("the socket service is of another build");
  }
  return std::optional(std::move(*channel));
}

std::string socket_name_text(const broker::SocketName& name) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  const bool v4 = std::equal(kMapped.begin(), kMapped.end(), name.address.begin());
  const std::uint8_t* address = name.address.data() + (v4 ? kMapped.size() : 0);
  ::inet_ntop(v4 ? AF_INET : AF_INET6, address, text.data(), text.size());
  return v4 ? fmt::format("{}:{}", text.data(), name.port)
            : fmt::format("[{}]:{}", text.data(), name.port);
}

}  // namespace verbena::cli
