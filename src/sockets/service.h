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

// Implements the socket service, verbena-sockets: connects a broker::Broker with real programs.  It
// adds no decisions of its own, and no data of a connection passes through it.
//
// A program's claim to hold an end of a connection is checked against the kernel's table of
// sockets, by name and cookie.  Programs send no copy of the socket's descriptor: a copy on its way
// to a stopped service would keep a connection open that the program has closed.
//
// A service of an ordinary user serves that user.  Root's serves all users, because all trust it.
// At root's service, a program can claim only sockets that its user has made or accepted, and a
// tool sees only the connections of its own user's programs.
//
// The service ends when no program has been connected for a while.  Its death harms no connection:
// the memory belongs to the programs that have mapped it, and new connections stay on TCP until a
// program has started another service.
//
// Only the loop's thread uses the service.
class Service final : public Session::Owner {
 public:
  static constexpr std::size_t kSessionsMax = 4096;
  static constexpr std::size_t kSessionsOfOtherUserMax = 1024;
  static constexpr std::size_t kAcceptsPerTurn = 64;
  static constexpr Duration kAcceptPause = std::chrono::milliseconds(100);
  static constexpr Duration kHelloTimeout = std::chrono::seconds(5);
  // The service looks for idle rings in at most this many connections before it does other work.
  static constexpr std::size_t kRingsPerTurn = 64;
  // While no connection moves bytes, the pause between looks grows, up to this many times
  // ring_idle.
  static constexpr int kRingPausesMax = 12;
  // The service waits at least this long for the first program, which may be slow.
  static constexpr Duration kFirstIdleMin = std::chrono::seconds(2);

  struct Options {
    std::string build{};
    Duration idle = std::chrono::seconds(10);
    // A ring is idle if no byte enters it for this time.
    Duration ring_idle = std::chrono::seconds(5);
  };

  // Throws std::runtime_error if the kernel's table of sockets cannot be queried.
  Service(asio::io_context& loop, os::UnixListener listener, Options options, agent::Log log);
  ~Service() override;

 private:
  void on_listener();
  void on_message(Session& from, std::span<const std::byte> message,
                  std::vector<os::Fd> fds) override;
  void on_turn_end() override { pump(); }
  void on_session_end(Session& session) override;

  void hello(Session& session, std::span<const std::byte> message, std::vector<os::Fd> fds);
  void serve_program(Session& session, std::span<const std::byte> message);
  void serve_tool(Session& session, std::span<const std::byte> message);
  void list(Session& tool);
  broker::Row row_of(const broker::Broker::End& end);
  // Returns true if the session may see and claim sockets of all users.
  bool may_use_all_sockets(const Session& session) const { return session.uid == uid_; }
  bool has_room_for(std::uint32_t uid) const;
  void accept_report(const Session& session, const broker::Report& report);
  void refuse_report(Session& session, const broker::Report& report);
  // Returns true if the kernel knows the socket, and if the session's user may claim it.
  bool is_valid_claim(const Session& session, const broker::Report& report);

  void pump();
  std::optional<PairMemory> make_memory();
  void act(const broker::Broker::MakeMemory& output);
  void act(const broker::Broker::SendMemory& output);
  void act(const broker::Broker::SendUnknown& output);
  void act(const broker::Broker::Release& output);
  void act(const broker::Broker::CheckSocket& output);

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
  os::TcpTable tcp_;
  broker::Broker broker_{};
  Tracing::Memories memory_{};
  RingSizes ring_sizes_{};
  broker::PairId last_checked_pair_ = 0;
  std::uint64_t active_rings_ = 0;  // rings that bytes have entered, in this round of looks
  std::uint64_t given_back_bytes_ = 0;
  Tracing::Sessions sessions_{};
  Tracing tracing_{broker_, memory_, sessions_};
  std::optional<os::UnixListener> listener_;
  asio::signal_set signals_;
  agent::Watch listening_{};
  agent::Timer look_timer_;
  agent::Timer ring_timer_;
  agent::Timer trace_timer_;
  agent::Timer idle_timer_;
  agent::Timer accept_timer_;
  agent::Timer hello_timer_;
  std::uint64_t next_session_ = 1;
  std::uint64_t claims_refused_ = 0;
  broker::Traffic ended_traffic_{};  // traffic of released pairs, in both directions
  bool has_served_ = false;          // a program is or was connected
  std::uint32_t uid_;
};

}  // namespace verbena::sockets
