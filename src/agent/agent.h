#pragma once

#include <sys/types.h>

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/captures.h"
#include "agent/connection.h"
#include "agent/log.h"
#include "agent/network.h"
#include "agent/port_files.h"
#include "agent/program_counters.h"
#include "agent/watch.h"
#include "base/random.h"
#include "ipc/counters.h"
#include "ipc/tool_messages.h"
#include "node/node.h"
#include "os/clock.h"
#include "os/event_fd.h"
#include "os/heap.h"
#include "os/shared_memory.h"
#include "os/unix_channel.h"

namespace verbena::agent {

// Implements the agent (verbenad).  The agent connects a node::Node with real programs and with a
// Network: the kernel's network, or the network of a fabric if the agent serves a virtual host.
// The agent adds no protocol of its own.
//
//   programs --> Connection --.                        .--> Connection --> programs
//   packets --> Network -------+--> Node --> pump() ---+--> Network --> packets
//   addresses, timer ---------'                        '--> timer; leases, routes
//
// After each input, pump() carries out the node's outputs and sets the timer.  Packets from this
// host to itself become input at once.  pump() handles at most kBurstsPerPump bursts and leaves the
// rest to a later call from the loop, so that it neither delays other handlers of the loop nor
// produces events faster than programs can read them.
//
// Usually the agent serves one user.  The agent that root starts for all users (Options::all_users)
// trusts programs of other users less than programs of root: they get no sockets of the port
// (relay.h), see only programs of their own user, cannot stop the agent, and cannot make it write
// to files that they could not write themselves.
//
// The agent ends when nobody has needed it for a while: there is no program, no capture and no
// directory whose counter files it updates (port_files.h), the node is idle, and every connected
// tool has had time to send its requests and get the replies.  The agent first releases the port
// and then the name of its listening socket, and only then ends the process.  So a program that
// connects at that moment fails and starts another agent, which finds the port and the name free.
// The agent of a virtual host does not end by itself.
//
// Only the loop's thread uses it.
class Agent final : public Connection::Owner, private Network::User {
 public:
  static constexpr std::size_t kClientsMax = 1024;  // programs and tools that have sent Hello
  // Limits the connections that have not sent Hello yet.  At this limit, a new connection replaces
  // the oldest one that has sent nothing, so that silent connections do not block programs.
  static constexpr std::size_t kNewSessionsMax = 128;
  static constexpr std::size_t kAcceptsPerEvent = 64;  // then the loop handles other events
  static constexpr int kBurstsPerPump = 4;
  // pump_after() sends messages at once if it handles at most this many inputs, and if at most
  // this many messages result.
  static constexpr std::size_t kSendAtOnceMax = 2;
  static constexpr Duration kAcceptPause = std::chrono::milliseconds(100);  // after a failed accept
  // Limits the time from the connection to Hello.  A program sends Hello as soon as it is
  // connected.
  static constexpr Duration kHelloTimeout = std::chrono::seconds(5);
  // A tool has this time from its Hello to send its requests before the agent ends.
  static constexpr Duration kToolTimeout = std::chrono::seconds(5);
  // The agent waits at least this long for the program that has started it, which may be slow.
  static constexpr Duration kFirstProgramWaitMin = std::chrono::seconds(2);
  static constexpr std::size_t kClientsOfUserMax = 256;  // connections of one other user

  struct Options {
    std::string build{};
    // The agent ends when nobody has needed it for this time.  Without a time, it does not end
    // by itself.
    std::optional<Duration> idle = std::chrono::seconds(10);
    bool belongs_to_fabric =
        false;  // only its fabric ends it, with stop(); signals and programs do not
    bool all_users = false;
    bool trace = false;
  };

  // Throws std::runtime_error if the network cannot determine the host's identity.
  Agent(asio::io_context& loop, os::UnixListener listener, std::unique_ptr<Network> network,
        Options options, Log log);
  ~Agent() override;

  // Disconnects all programs, ends all captures, and stops the loop.
  void stop(const char* why);
  // Returns the number of programs that are connected.
  std::size_t programs() const;

 private:
  enum class Role : std::uint8_t { kNew, kProgram, kTool };
  struct Session {
    Session(asio::io_context& loop, os::UnixChannel channel, std::uint64_t id, Agent& agent)
        : connection(loop, std::move(channel), id, agent, agent.limit_counters_) {}

    Connection connection;
    Role role = Role::kNew;
    Time hello_deadline = kNever;
    Time served_until{};    // the agent does not end before this time while the tool is connected
    std::uint32_t pid = 0;  // in the agent's PID namespace
    std::uint32_t pid_in_own_namespace = 0;  // in the PID namespace of the process itself
    os::Peer user{};  // user and group of the process; user.pid is 0 if the agent cannot see it
    std::string name{};
    os::Fd pidfd{};
    std::optional<node::ClientId> client{};  // programs only
    os::Fd qp_table{};
    os::Fd access_table{};                   // lets other programs access this program's memory
    std::optional<std::uint64_t> capture{};  // the capture that this tool has started
    os::Mapping mapped_table{};              // qp_table, mapped when its counters are first read
    ProgramCounters counters{os::now()};     // as read from the table
    std::optional<os::WakeFd> wake{};        // wakes this program when a lane has packets for it
  };

  // ---- agent.cc: start, end, and the node's outputs
  void addresses_changed(const std::vector<node::HostAddress>& addresses) override;
  void port_changed(const std::optional<std::string>& down_reason,
                    const ipc::Reach& reach) override;
  void port_state_changed(PortId port, const node::PortState& state) override;
  void arrived(std::span<const link::Arrival> arrivals) override;
  void on_route(std::uint64_t token, const Result<node::HostRoute>& route) override;
  void notify_user(node::ClientId client, const std::string& text) override;
  Captures& captures() override { return captures_; }
  void log(std::string_view text) override { log_.line(text); }
  void pump();
  bool pump_some();
  void pump_after(std::size_t inputs);
  void carry_out(node::Node::ToClient&& output);
  void carry_out(node::Node::LeaseRequest&& output);
  void carry_out(node::Node::LaneMemoryRequest&& output);
  void carry_out(node::Node::LaneHandedOver&& output);
  void carry_out(node::Node::RouteRequest&& output);
  void carry_out(node::Node::Membership&& output);
  void carry_out(node::Node::RangeReleased&& output);
  void carry_out(node::Node::StateChanged&& output);
  // Gives the program an uplink if it needs one and has none.  An uplink is the lane between this
  // process and a program without sockets (ipc::Lane::kUplink).
  void attach_uplink(node::ClientId client, std::uint16_t range);
  void update_idle();
  void on_idle_timer();
  bool is_needed() const;
  Time may_end_at(Time now) const;
  void send_all();
  void release_port_and_name();

  struct LaneParts {
    os::Fd memory;
    // Holds the ends by which the two programs wake each other, if they have different users.
    std::vector<os::WakeSocket> ends{};
  };

  std::vector<int> lane_descriptors(const node::Node::ToClient& output);
  static Result<std::vector<int>> lane_descriptors_across_users(LaneParts& parts);
  Result<int> wake_fd_of(node::ClientId client);
  const Session* session_of(node::ClientId client) const;

  // ---- sessions.cc: programs and tools
  void on_listener();
  bool free_new_session_slot();
  bool may_connect(const os::Peer& peer) const;
  // Returns true for another user's session, which has fewer rights than the agent's own user.
  static bool is_guest(const Session& session);
  // Returns true if the session's user may see the program of another session.
  static bool may_see(const Session& session, const Session& other);
  void received(Connection& from, const ipc::Envelope& envelope, std::span<const std::byte> message,
                std::vector<os::Fd> fds) override;
  void received_all(Connection&, std::size_t messages) override;
  void ended(Connection& connection, const std::string& why) override;
  void on_hello_timer();
  void handle_hello(Session& session, const ipc::Envelope& envelope, std::vector<os::Fd> fds);
  // Returns the reason why the agent refuses the program; empty if it serves the program.  If the
  // program has another build, and the agent serves one user and has no program and no capture,
  // also releases the port and the name of the listening socket.
  std::string reason_to_refuse(const Session& session, const std::string& build);
  // Returns a text that names the limit of open files if it leaves no room for a program.
  std::string reason_of_files() const;
  Result<os::Fd> pidfd_of(const Session& session, std::vector<os::Fd>& fds) const;
  void welcome(Session& session, std::uint64_t request, const ipc::Hello& hello);
  void refuse(Session& session, std::uint64_t request, std::string text);
  void serve(Session& session, const ipc::Envelope& envelope, std::vector<os::Fd> fds);
  void start_capture(Session& session, const ipc::Envelope& envelope, std::vector<os::Fd> fds);
  void update_port_files(Session& session, const ipc::Envelope& envelope, std::vector<os::Fd> fds);
  void show_sa(Session& session, const ipc::Envelope& envelope);
  void flush_sa(Session& session, const ipc::Envelope& envelope);
  Result<os::Fd> open_process(const Session& session, std::uint32_t pid) const;
  std::size_t welcomed_sessions() const;

  // ---- report.cc: requests of tools
  ipc::StatusReply status() const;
  void list_processes(Session& session, const ipc::Envelope& envelope);
  std::vector<ipc::NamedCount> counters() const;
  static void add_counters(Session& session, CounterSums& sums);
  std::uint64_t implausible_counts() const;
  std::vector<ipc::NamedCount> port_counter_values();
  void track_port_state();
  void refresh_port_files();

  asio::io_context& loop_;
  Options options_;
  Log log_;
  Time started_;
  Random random_;
  std::unique_ptr<Network> network_;
  node::Node node_;
  link::Burst burst_{};
  Captures captures_;
  PortFiles port_files_;
  CounterSums ended_program_counters_{};  // added up over all programs that have ended
  std::uint64_t implausible_counts_of_ended_programs_ = 0;
  bool port_was_active_ = false;
  std::uint64_t times_down_ = 0;
  std::uint64_t port_files_refused_ = 0;
  std::optional<os::UnixListener> listener_;

  std::map<std::uint64_t, std::unique_ptr<Session>> sessions_{};
  std::map<node::ClientId, std::uint64_t> session_of_client_{};
  std::map<node::LaneId, LaneParts> lane_parts_{};
  // Holds the receivers of the first few messages that were sent since pump_after() was called.  A
  // session occurs once for each message.
  std::vector<std::uint64_t> sessions_sent_to_{};
  std::uint64_t next_session_ = 1;
  bool was_needed_ = false;    // something has needed the agent at least once
  bool idle_expired_ = false;  // the agent was idle long enough, and ends at may_end_at()
  std::uint64_t clients_refused_ = 0;
  std::uint64_t captures_refused_ = 0;
  Connection::LimitCounters limit_counters_{};

  asio::signal_set signals_;
  Timer node_timer_;
  os::HeapTrim heap_trim_;
  Timer idle_timer_;
  Timer accept_timer_;
  Timer hello_timer_;
  Timer port_files_timer_;
  DeferredCall pump_later_;
  Watch listener_watch_{};
};

}  // namespace verbena::agent
