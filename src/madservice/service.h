#pragma once

#include <asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/watch.h"
#include "base/error.h"
#include "ipc/counters.h"
#include "madservice/session.h"
#include "os/unix_channel.h"
#include "subnet/subnet.h"
#include "umad/node.h"

namespace verbena::madservice {

// Connects programs that use libibumad with the HCAs of a simulated subnet.  Each HCA has its
// own socket.  Programs get the name of the socket from os::mad_socket_name().
//
// The owner pulls deliveries from the subnet, and passes the MADs among them to receive().
// Whenever the service may have sent MADs into the subnet, it calls `on_sent`, so that the owner
// pulls deliveries again.
//
// Only the loop's thread uses the service.
class Service final : public Session::Owner {
 public:
  static constexpr std::size_t kSessionsMax = 8192;
  static constexpr std::size_t kAcceptsPerWakeup = 64;
  static constexpr Duration kAcceptPause = std::chrono::milliseconds(100);

  // `build` is the build ID that programs must send in their Hello.  REQUIRES: the subnet outlives
  // the service.
  Service(asio::io_context& loop, subnet::Subnet& subnet, std::string build,
          std::move_only_function<void()> on_sent);
  ~Service() override;

  // Serves the programs of an HCA at a socket with this name.  kAddressInUse: another process uses
  // the name.
  Result<void> serve(const std::string& socket_name, std::uint32_t hca, std::string device);

  // Receives a MAD that has arrived at one of the HCAs.
  void receive(const subnet::MadDelivery& arrival);

  // Returns the number of connections that programs have with the service of an HCA.
  std::size_t programs(std::uint32_t hca) const;
  void add_counters(std::vector<ipc::NamedCount>& out) const;

 private:
  struct ServedHca {
    umad::Node node;
    os::UnixListener listener;
    agent::Watch listener_watch{};
  };

  void on_listener(std::uint32_t hca);
  bool on_message(Session& from, std::span<const std::byte> message,
                  std::vector<os::Fd> fds) override;
  void on_sm_file(Session& session, bool is_open) override;
  void on_session_end(Session& session) override;

  bool handle_hello(Session& session, std::span<const std::byte> message);
  bool handle_send(Session& session, std::span<const std::byte> message, std::vector<os::Fd> fds);
  umad::Node& node_of(const Session& session) { return hcas_.at(session.node)->node; }
  void on_timer();
  // Calls `on_sent`, because the node may have sent MADs, and delivers the node's MADs for
  // programs.
  void pump(umad::Node& node);
  // Delivers the node's MADs for programs, and sets the timer.
  void deliver_mads(umad::Node& node);

  asio::io_context& loop_;
  subnet::Subnet& subnet_;
  std::string build_;
  std::move_only_function<void()> on_sent_;
  std::map<std::uint32_t, std::unique_ptr<ServedHca>> hcas_{};  // by index in the topology
  std::map<std::uint64_t, std::unique_ptr<Session>> sessions_{};
  std::uint64_t next_session_id_ = 1;
  std::uint64_t mads_lost_ = 0;  // the number of lost MADs of ended sessions
  agent::Timer timer_;
  agent::Timer accept_timer_;
};

}  // namespace verbena::madservice
