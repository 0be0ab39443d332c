#pragma once

#include <sys/types.h>

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/captures.h"
#include "agent/connection.h"
#include "agent/host.h"
#include "agent/log.h"
#include "agent/port.h"
#include "agent/port_files.h"
#include "agent/routes.h"
#include "agent/watch.h"
#include "base/random.h"
#include "node/node.h"
#include "os/heap.h"
#include "os/interfaces.h"
#include "os/shared_memory.h"
#include "os/unix_channel.h"

namespace verbena::agent {

// verbenad: a node::Node between real programs and the real network.  It adds no protocol.
//
//   programs --> Connection --.                        .--> Connection --> programs
//   UDP 4791 --> Port ---------+--> Node --> pump() ---+--> Port --> UDP
//   addresses, timer ---------'                        '--> timer; leases, routes
//
// After each input pump() takes what the node has to say and sets the timer.  Packets of this host
// for itself are input at once; so that they keep nobody waiting, and no more comes of them than
// programs can read meanwhile, a turn has so many bursts, and the rest is another turn's.
//
// It goes when nobody has needed it for a while: no program, no capture, no files of the port's
// counters, and the node is idle, and
// a tool that it has welcomed has had the time to ask and to be answered.  Then
// the port and the name are let go first, in this order, and only then the process ends: whoever
// comes at that moment is not lost here but starts another agent, which finds both free.
//
// One thread: the loop's.
class Agent final : public Connection::Owner {
 public:
  static constexpr std::size_t kClientsMax = 1024;  // welcomed: programs and tools
  // Beyond those, that have not said Hello.  The oldest of them that has said nothing yet makes
  // room for the next, so that connections without a word keep no program out.
  static constexpr std::size_t kWaitingMax = 128;
  static constexpr std::size_t kAcceptsPerTurn = 64;
  static constexpr int kBurstsPerTurn = 4;
  static constexpr std::size_t kFewInputs = 2;
  static constexpr Duration kAcceptPause = std::chrono::milliseconds(100);
  // From the connection to Hello, which stand side by side in a program.
  static constexpr Duration kHelloPatience = std::chrono::seconds(5);
  // From there until a tool has asked all that it wants to know.
  static constexpr Duration kToolPatience = std::chrono::seconds(5);
  // What programs that lost their agent have to notice it in, and close their sockets.
  static constexpr Duration kPortPatience = std::chrono::seconds(2);
  static constexpr Duration kPortRetry = std::chrono::seconds(1);
  // The first program has just started us and may be slow.
  static constexpr Duration kFirstIdleMin = std::chrono::seconds(2);

  struct Options {
    std::string build{};
    std::optional<BindAddress> bind{};
    Duration idle = std::chrono::seconds(10);
    bool trace = false;
  };

  Agent(asio::io_context& loop, os::UnixListener listener, Options options, Log log);
  ~Agent() override;

 private:
  enum class Role : std::uint8_t { kNew, kProgram, kTool };
  struct Session {
    Session(asio::io_context& loop, os::UnixChannel channel, std::uint64_t id, Agent& agent)
        : connection(loop, std::move(channel), id, agent, agent.limits_met_) {}

    Connection connection;
    Role role = Role::kNew;
    Time hello_by = kNever;
    Time awaited_until{};        // of a tool: we do not go before, while it is here
    std::uint32_t pid = 0;       // as we see it
    std::uint32_t said_pid = 0;  // as it sees itself: in a process namespace of its own
    std::string name{};
    os::Fd pidfd{};
    std::optional<node::ClientId> client{};  // of a program
    os::Fd qp_table{};
    std::optional<std::uint64_t> capture{};  // that a tool has started
    os::Mapping mapped_table{};              // qp_table, mapped when its counters are first read
  };

  // ---- agent.cc: life, and the node's outputs
  void on_signal();
  void open_port();
  void tell_port();
  void await_port();
  void refresh_addresses();
  void pump();
  bool pump_some();
  void pump_after(std::size_t inputs);
  void act(node::Node::ToClient&& output);
  void act(node::Node::LeaseWanted&& output);
  void act(node::Node::RouteWanted&& output);
  void act(node::Node::Membership&& output);
  void act(node::Node::RangeFree&& output);
  void act(node::Node::StateChanged&& output);
  void on_packets();
  void update_idle();
  void on_idle();
  bool needed() const;
  Time may_go_at(Time now) const;
  void say_all();
  void let_go();  // of the port and the name
  void stop(const char* why);

  // ---- sessions.cc: programs and tools
  void on_listener();
  bool make_room();
  void received(Connection& from, const ipc::Envelope& envelope, std::span<const std::byte> message,
                std::vector<os::Fd> fds) override;
  void heard(Connection&, std::size_t messages) override;
  void ended(Connection& connection, const std::string& why) override;
  void on_hello_timer();
  void hello(Session& session, const ipc::Envelope& envelope, std::vector<os::Fd> fds);
  // Why it is not served, or empty.
  std::string refusal(const Session& session, const std::string& build);
  Result<os::Fd> pidfd_of(const Session& session, std::vector<os::Fd>& fds) const;
  void welcome(Session& session, std::uint64_t request, const ipc::Hello& hello);
  void refuse(Session& session, std::uint64_t request, std::string text);
  void serve(Session& session, const ipc::Envelope& envelope, std::vector<os::Fd> fds);
  void start_capture(Session& session, const ipc::Envelope& envelope, std::vector<os::Fd> fds);
  void show_port(Session& session, const ipc::Envelope& envelope, std::vector<os::Fd> fds);
  Result<os::Fd> process_named(const Session& session, std::uint32_t pid) const;
  std::size_t welcomed() const;
  std::size_t programs() const;

  // ---- report.cc: what tools ask
  ipc::StatusReply status() const;
  void processes(Session& session, const ipc::Envelope& envelope);
  std::vector<ipc::NamedCount> counters() const;
  static void add_counters(Session& session, CounterSums& sums);
  std::vector<ipc::NamedCount> port_values();
  void count_port_down();
  void refresh_port_files();

  asio::io_context& loop_;
  Options options_;
  Log log_;
  Time started_;
  Random random_;
  node::Node node_;
  link::Burst burst_{};
  Captures captures_;
  PortFiles port_files_;
  CounterSums gone_programs_{};  // the counters of programs that have left, added up
  bool port_was_active_ = false;
  std::uint64_t times_down_ = 0;
  std::uint64_t port_files_refused_ = 0;
  std::optional<os::UnixListener> listener_;
  std::unique_ptr<Port> port_{};
  std::vector<Gid> own_addresses_{};
  bool loops_ = false;
  std::string why_no_port_{};
  bool port_taken_ = false;  // by somebody else; not: no such address
  std::optional<os::InterfaceMonitor> monitor_{};

  std::map<std::uint64_t, std::unique_ptr<Session>> sessions_{};
  std::map<node::ClientId, std::uint64_t> session_of_client_{};
  std::vector<std::uint64_t> spoken_to_{};  // since an input: sessions, the first few
  std::uint64_t next_session_ = 1;
  bool served_ = false;   // somebody was here
  bool overdue_ = false;  // idle for long enough; may_go_at() says when it goes
  std::uint64_t clients_refused_ = 0;
  std::uint64_t captures_refused_ = 0;
  Connection::LimitsMet limits_met_{};

  asio::signal_set signals_;
  Timer node_timer_;
  os::HeapTrim heap_;
  Timer idle_timer_;
  Timer accept_timer_;
  Timer hello_timer_;
  Timer port_timer_;
  Timer port_files_timer_;
  Soon again_;
  Watch listening_{};
  Watch monitoring_{};
  Routes routes_;
};

}  // namespace verbena::agent
