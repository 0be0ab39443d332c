#pragma once

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/log.h"
#include "agent/watch.h"
#include "broker/broker.h"
#include "os/tcp_table.h"
#include "os/unix_channel.h"
#include "sockets/pair_memory.h"
#include "sockets/ring_sizes.h"
#include "sockets/session.h"
#include "sockets/tracing.h"

namespace verbena::sockets {

// Implements the socket service, verbena-sockets: connects programs with a broker::Broker, which
// finds the two ends of each connection.  No data of a connection passes through the service.
//
// A program claims that it has one end of a connection.  The service checks this claim in the
// kernel's table of sockets, by name, cookie and user.  Programs send no copy of the socket's
// descriptor: a copy in transit to a stopped service would keep a connection open that the program
// has closed.
//
// The service of an ordinary user serves that user.  The service of root serves all users, because
// all users trust root.  At root's service, a program of an ordinary user can claim only sockets
// that its user has made or accepted, and a tool of an ordinary user sees only the connections of
// that user's programs.
//
// The service ends when no program has been connected for some time.  The end of the service harms
// no connection: programs keep the memory that they have mapped, and new connections stay on TCP
// until a program has started another service.
//
// Only the thread of the event loop may use the service.
class Service final : public Session::Owner {
 public:
  static constexpr std::size_t kSessionsMax = 4096;
  static constexpr std::size_t kSessionsOfOtherUserMax = 1024;
  static constexpr std::size_t kAcceptsPerWakeup = 64;
  static constexpr Duration kAcceptPause = std::chrono::milliseconds(100);
  static constexpr Duration kHelloTimeout = std::chrono::seconds(5);
  // The service releases the idle rings of at most this many connections before it does other work.
  static constexpr std::size_t kConnectionsPerWakeup = 64;
  // While no connection moves bytes, the pause between two rounds of all connections grows up to
  // ring_idle times this factor.
  static constexpr int kRingPauseFactorMax = 12;
  // The service waits at least this long for its first program, which may be slow to connect.
  static constexpr Duration kFirstProgramWaitMin = std::chrono::seconds(2);

  struct Options {
    std::string build{};
    // The service ends if no program has been connected for this time.
    Duration idle = std::chrono::seconds(10);
    // A ring is idle if it is empty and no byte has entered it for this time.
    Duration ring_idle = std::chrono::seconds(5);
  };

  // Throws std::runtime_error if the kernel's table of sockets cannot be queried.
  Service(asio::io_context& loop, os::UnixListener listener, Options options, agent::Log log);
  ~Service() override;

 private:
  void on_listener();
  void on_message(Session& from, std::span<const std::byte> message,
                  std::vector<os::Fd> fds) override;
  void on_messages_end() override { pump(); }
  void on_session_end(Session& session) override;

  void on_hello(Session& session, std::span<const std::byte> message, std::vector<os::Fd> fds);
  void serve_program(Session& session, std::span<const std::byte> message);
  void serve_tool(Session& session, std::span<const std::byte> message);
  void send_list(Session& tool);
  broker::Row row_of(const broker::Broker::End& end);
  // Returns true if the session may see and claim sockets of all users.
  bool may_use_all_sockets(const Session& session) const { return session.uid == uid_; }
  // Returns true if a program of this user may connect now.
  bool may_connect(std::uint32_t uid) const;
  void accept_report(const Session& session, const broker::Report& report);
  void refuse_report(Session& session, const broker::Report& report);
  // Returns true if the kernel's table has the socket, and if the session's user may claim it.
  bool is_valid_claim(const Session& session, const broker::Report& report);

  void pump();
  std::optional<PairMemory> make_memory();
  void perform(const broker::Broker::MakeMemory& output);
  void perform(const broker::Broker::SendMemory& output);
  void perform(const broker::Broker::SendUnknown& output);
  void perform(const broker::Broker::Release& output);
  void perform(const broker::Broker::CheckSocket& output);

  void on_ring_timer();
  void on_trace_timer();
  bool is_needed() const;
  void update_idle();
  void on_idle();
  void on_hello_timer();
  void stop(const char* why);

  asio::io_context& loop_;
  Options options_;
  Duration ring_pause_;
  agent::Log log_;
  os::TcpTable tcp_table_;
  broker::Broker broker_{};
  Tracing::Memories memories_{};
  RingSizes ring_sizes_{};
  broker::PairId last_checked_pair_ = 0;
  // Counts the rings of the current round that bytes have entered since the previous round.
  std::uint64_t active_rings_ = 0;
  std::uint64_t given_back_bytes_ = 0;  // bytes that idle rings have given back since the start
  Tracing::Sessions sessions_{};
  Tracing tracing_{broker_, memories_, sessions_};
  std::optional<os::UnixListener> listener_;
  asio::signal_set signals_;
  agent::Watch listener_watch_{};
  agent::Timer broker_timer_;
  agent::Timer ring_timer_;
  agent::Timer trace_timer_;
  agent::Timer idle_timer_;
  agent::Timer accept_timer_;
  agent::Timer hello_timer_;
  std::uint64_t next_session_ = 1;
  std::uint64_t claims_refused_ = 0;
  broker::Traffic ended_traffic_{};  // traffic of released pairs, in both directions
  bool has_had_program_ = false;     // a program is or was connected
  std::uint32_t uid_;
};

}  // namespace verbena::sockets
