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

// Holds a value, or a line for the user that describes a failure.
template <class T>
using Answer = std::expected<T, std::string>;

// Connects a tool to an agent, or to the process of a fabric.  The agent is the one that serves
// this user, or the one of the virtual host that the environment names.  Sends one request at a
// time.  All calls but wait_for_remark() block for a limited time.
class AgentConnection {
 public:
  // Tells the agent the kind of its client.  Tools only send requests.  Programs also own objects
  // at the agent, which the agent removes when the program ends.
  enum class Role : std::uint8_t { kTool, kProgram };

  // Connects to the agent.  Returns nothing if there is none.
  static Answer<std::optional<AgentConnection>> find(Role role = Role::kTool);
  // Connects to the process of a fabric.  Returns nothing if the fabric is not up.
  static Answer<std::optional<AgentConnection>> find_fabric(const std::string& fabric);
  // Connects to the agent.  If there is none, starts verbenad in `library_directory`.  If that file
  // cannot be executed, starts the program whose path is in $VERBENA_AGENT.  Fails on a virtual
  // host without an agent.
  static Answer<AgentConnection> find_or_start(const std::string& library_directory);

  // Returns the agent's pid, as the kernel reports it.
  pid_t pid() const { return pid_; }
  const ipc::Welcome& welcome() const { return welcome_; }
  // Limits the time of each later request.  The default is 10 s.
  void set_timeout(Duration timeout) { timeout_ = timeout; }

  // Waits until the agent sends a remark for this program's user (ipc::UserNotice), and returns its
  // text.  Fails when the agent ends.  May wait for ever.  REQUIRES: the connection has the role
  // kProgram.
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

  // Names the socket of an agent, and the user who must own the agent's process.
  struct AgentSocket {
    std::string name;
    uid_t owner;
  };

  // Connects once to the socket and exchanges Hello and Welcome.  If the agent refuses, `text`
  // receives the reason.
  static Answer<Outcome> send_hello(const AgentSocket& socket, Role role,
                                    AgentConnection& connection, std::string& text, Time deadline);
  // Tries again until there is a connection, there is no agent, the agent has refused twice, or the
  // deadline has passed.  If an agent is about to end, waits until it has ended.
  static Answer<std::optional<AgentConnection>> find(const AgentSocket& socket, Role role,
                                                     Time deadline);
  // Connects to root's agent for all users, if this process may use it.  Otherwise connects to the
  // agent of this user or virtual host.
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
