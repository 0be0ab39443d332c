#pragma once

#include <sys/types.h>

#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/time.h"
#include "ipc/messages.h"
#include "os/fd.h"
#include "os/unix_channel.h"

namespace verbena::client {

// Holds a value, or a message for the user in one line.
template <class T>
using Answer = std::expected<T, std::string>;

// Connects a tool to an agent, or to the process of a fabric.  The agent is the one that serves
// this user, or the virtual host that the environment names.  Sends one request at a time.  Calls
// block for a limited time.
class AgentConnection {
 public:
  // Tells the agent the kind of its client.  Tools only send requests.  Programs also own objects
  // at the agent, which end with the program.
  enum class Role : std::uint8_t { kTool, kProgram };

  // Connects to the agent.  Returns nothing if there is none.
  static Answer<std::optional<AgentConnection>> find(Role role = Role::kTool);
  // Connects to the process of a fabric.  Returns nothing if the fabric is not up.
  static Answer<std::optional<AgentConnection>> find_fabric(const std::string& fabric);
  // Connects to the agent.  If there is none, starts one: verbenad in `library_directory`, or else
  // the program that $VERBENA_AGENT names.
  static Answer<AgentConnection> find_or_start(const std::string& library_directory);

  // Returns the agent's pid, as the kernel reports it.
  pid_t pid() const { return pid_; }
  const ipc::Welcome& welcome() const { return welcome_; }
  // Limits the time of each later request.  The default is 10 s.
  void set_timeout(Duration timeout) { timeout_ = timeout; }

  // Waits until the agent sends a remark for this program's user, and returns its text.  Fails when
  // the agent ends.  REQUIRES: our role is kProgram.
  Answer<std::string> wait_for_remark();

  // Sends a request and waits for its reply.  `received_fds` gets the descriptors of the reply.
  template <class Reply, class Request>
  Answer<Reply> ask(const Request& request, std::span<const int> fds = {},
                    std::vector<os::Fd>* received_fds = nullptr) {
    Answer<Bytes> message = exchange(ipc::encode(next_request_, request), fds, received_fds);
    if (!message) return std::unexpected(message.error());
    const auto envelope = ipc::open(*message);
    if (envelope->type == ipc::Type::kDone && Reply::kType != ipc::Type::kDone) {
      return std::unexpected(problem_in(*envelope));
    }
    auto reply = ipc::decode<Reply>(*envelope);
    if constexpr (Reply::kType == ipc::Type::kDone) {
      if (reply && reply->failed) return std::unexpected(problem_in(*envelope));
    }
    if (!reply) return std::unexpected(std::string("the agent sent a reply of another type"));
    return std::move(*reply);
  }

 private:
  using Bytes = std::vector<std::byte>;
  enum class Outcome : std::uint8_t { kConnected, kNoAgent, kConnectionLost, kRefused };

  AgentConnection() = default;

  // Names a socket, and the user whose process must hold it.
  struct Place {
    std::string name;
    uid_t holder;
  };

  // Connects once to the socket and sends Hello.  `text` is the reason if the agent refuses.
  static Answer<Outcome> greet(const Place& place, Role role, AgentConnection& out,
                               std::string& text, Time deadline);
  // Tries until it is clear whether there is an agent.  If an agent is about to end, waits for
  // that.
  static Answer<std::optional<AgentConnection>> find(const Place& place, Role role, Time deadline);
  // Looks for root's agent for all users, and then for the one of this user or virtual host.
  static Answer<std::optional<AgentConnection>> find_any(Role role, Time deadline);
  Answer<Bytes> exchange(Bytes message, std::span<const int> fds,
                         std::vector<os::Fd>* received_fds);
  static std::string problem_in(const ipc::Envelope& done);

  os::UnixChannel channel_{};
  pid_t pid_ = 0;
  ipc::Welcome welcome_{};
  std::uint64_t next_request_ = 1;
  Duration timeout_ = std::chrono::seconds(10);
};

}  // namespace verbena::client
