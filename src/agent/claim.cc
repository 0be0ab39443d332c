#include "agent/claim.h"

#include <fmt/format.h>

#include <cstring>
#include <thread>

#include "os/clock.h"
#include "os/socket_owner.h"

namespace verbena::agent {

std::expected<std::optional<os::UnixListener>, std::string> claim_name(const std::string& name,
                                                                       uid_t uid, Time deadline) {
  for (;;) {
    auto listener = os::UnixListener::listen(name);
    if (listener) return std::move(*listener);
    if (listener.error().code != Errc::kAddressInUse) {
      return std::unexpected(fmt::format("cannot listen on '{}': {} ({})", name,
                                         listener.error().context,
                                         std::strerror(listener.error().detail)));
    }
    // The kernel completes a connection without the listener's help, so success proves only that
    // somebody listens on the name.
    if (const auto other = os::UnixChannel::connect(name, deadline)) {
      const auto peer = other->peer();
      if (peer && peer->uid == uid) return std::nullopt;
      return std::unexpected(
          fmt::format("the name '{}' is held by {}", name, os::describe_name_owner(*other)));
    }
    // A socket that is only bound, or whose backlog is full, tells nobody its owner.
    if (const auto owner = os::find_name_owner(name); owner && *owner != uid) {
      return std::unexpected(
          fmt::format("the name '{}' is held by {}", name, os::describe_stranger(*owner)));
    }
    if (os::now() >= deadline) {
      return std::unexpected(
          fmt::format("another process has the name '{}', but does not listen on it", name));
    }
    // The agent that has the name either has not called listen() yet, or has just ended.  There is
    // no event to wait for.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace verbena::agent
