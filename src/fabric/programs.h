#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "fabric/rc_endpoint.h"
#include "fabric/sim_process.h"
#include "process/process.h"
#include "rdmacm/types.h"

// Implements two programs that do the same as rping.  They are state machines that react to the
// notices and completions of a Process.  They check every byte, and report violations of the
// stack's guarantees.
namespace verbena::fabric {

// Owns the objects that both programs need: a protection domain and one CQ for all endpoints.
class Verbs {
 public:
  explicit Verbs(SimProcess& sim_process);
  void open();
  void close();
  bool is_open() const { return static_cast<bool>(pd); }
  // Calls on_completion() for every completion, and arms the CQ for the next completions.
  void poll(auto&& on_completion) {
    bool is_armed = false;
    for (;;) {
      std::array<hca::WorkCompletion, 16> completions{};
      const unsigned count =
          sim_process_.require("poll_cq", sim_process_.engine().poll_cq(cq, completions));
      for (unsigned i = 0; i < count; ++i) on_completion(completions[i]);
      if (count != 0) continue;
      if (is_armed) return;
      sim_process_.require("arm_cq", sim_process_.engine().arm_cq(cq, false));
      is_armed = true;
    }
  }

  hca::PdHandle pd{};
  hca::CqHandle cq{};

 private:
  SimProcess& sim_process_;
};

// Counts the events that one side has received for one connection.
struct Outcome {
  std::uint32_t established = 0;
  std::uint32_t disconnected = 0;
  std::uint32_t rejected = 0;
  std::uint32_t unreachable = 0;
  std::uint32_t device_removed = 0;
  std::int32_t status = 0;  // the status of the last event that was counted
  void count(const rdmacm::Event& event);
  bool has_ended() const { return disconnected + rejected + unreachable + device_removed > 0; }
};

// Describes an operation of a client on its connection.
struct Operation {
  enum class Kind : std::uint8_t { kSend, kWrite, kRead } kind{};  // the server echoes each SEND
  std::uint32_t bytes = 0;
};

// Connects, carries out its operations, and then disconnects or waits for the server to disconnect.
class Client final : public Program {
 public:
  enum class State : std::uint8_t {
    kStarting,
    kResolvingAddress,
    kCreatingQp,
    kConnecting,
    kWorking,
    kDisconnecting,
    kDone,
  };
  struct Config {
    rdmacm::SocketAddress server{};
    std::vector<Operation> operations{};  // a READ reads the data of the last WRITE before it
    std::uint32_t window = 1;             // the maximum number of pending operations
    bool server_disconnects = false;      // after the last operation, which must be a SEND
    std::uint64_t salt = 0;               // determines the data of the messages
    rdmacm::SocketAddress source{};       // with family 0, the stack chooses the source
  };

  Client(SimProcess& sim_process, Config config);
  void start() override;
  void on_notice(const process::Notice& notice) override;

  State state() const { return state_; }
  const Outcome& outcome() const { return outcome_; }
  bool finished() const { return state_ == State::kDone; }
  // Returns true if all operations have completed.
  bool succeeded() const { return completed_count_ == config_.operations.size(); }
  SimProcess& sim_process() { return sim_process_; }
  // Returns the number of IBV_EVENT_DEVICE_FATAL notices.
  std::uint32_t device_fatal_count() const { return device_fatal_count_; }
  // Returns the time of the event that ended the connection.
  Time ended_at() const { return ended_at_; }
  // Returns the time of the connect() call.
  Time connect_called_at() const { return connect_called_at_; }
  // Returns the port of the connection.  The port is known after the route to the
  // server is resolved.
  PortId port() const { return port_; }
  // Returns all events of ports, in the order of their arrival.
  const std::vector<process::AsyncNotice>& port_events() const { return port_events_; }

 private:
  void on_cm_event(const rdmacm::Event& event);
  void create_qp();
  void connect(hca::QpHandle qp);
  void start_operations();
  void start_operation(std::uint32_t operation);
  void on_completion(const hca::WorkCompletion& completion);
  void on_echo(const RcEndpoint::CompletedRequest& request);
  void check_read(std::uint32_t operation);
  void complete_part(std::uint32_t operation);
  void disconnect();
  void finish();
  std::uint64_t salt_of(std::uint32_t operation) const {
    return config_.salt + std::uint64_t{operation} * 13;
  }

  SimProcess& sim_process_;
  Config config_;
  Verbs verbs_;
  State state_ = State::kStarting;
  process::ConnectionHandle id_{};
  std::optional<RcEndpoint> endpoint_{};
  RemoteMemory server_memory_{};
  Outcome outcome_{};
  Time connect_called_at_{};
  Time ended_at_{};
  std::uint32_t device_fatal_count_ = 0;
  PortId port_{};
  std::vector<process::AsyncNotice> port_events_{};

  std::uint32_t next_operation_ = 0;  // the next operation to start
  // pending_ maps each pending operation to the number of its missing parts.
  std::map<std::uint32_t, std::uint32_t> pending_{};
  std::deque<std::uint32_t> sends_without_echo_{};  // SENDs whose echo has not arrived
  std::uint32_t completed_count_ = 0;
};

// Listens, accepts every connection, echoes each SEND, and lets clients read and write its memory.
class Server final : public Program {
 public:
  enum class State : std::uint8_t { kStarting, kBinding, kListening, kDone };
  // Names the state of one connection.
  enum class PeerState : std::uint8_t { kCreatingQp, kAccepting, kConnected, kDisconnecting };
  struct Config {
    rdmacm::SocketAddress address{};
    std::uint32_t clients = 1;  // the server ends after this number of connections
  };

  Server(SimProcess& sim_process, const Config& config);
  void start() override;
  void on_notice(const process::Notice& notice) override;

  State state() const { return state_; }
  // Returns the state of each connection that is not destroyed.
  std::vector<PeerState> peers() const;
  bool finished() const { return state_ == State::kDone; }
  // Returns the outcomes of connections that have ended.
  const std::vector<Outcome>& outcomes() const { return outcomes_; }
  // Returns the port of each connection request, in the order of their arrival.
  const std::vector<PortId>& ports() const { return ports_; }
  SimProcess& sim_process() { return sim_process_; }

 private:
  struct Peer {
    PeerState state = PeerState::kCreatingQp;
    std::unique_ptr<RcEndpoint> endpoint{};
    std::uint32_t remaining_sends = 0;  // SENDs of the client that have not arrived
    bool server_disconnects = false;    // true: the server disconnects after its last echo
    std::uint32_t pending_echoes = 0;   // echoes that were posted but have not completed
    std::uint32_t next_out_slot = 0;
    bool is_creating_qp = true;
    Outcome outcome{};
  };

  void on_connect_request(const process::CmNotice& notice);
  void accept(process::ConnectionHandle id, hca::QpHandle qp);
  void on_peer_event(process::ConnectionHandle id, const rdmacm::Event& event);
  void on_completion(const hca::WorkCompletion& completion);
  void echo(Peer& peer, const RcEndpoint::CompletedRequest& request);
  void disconnect(process::ConnectionHandle id, Peer& peer);
  void destroy_finished_peers();
  void finish();

  SimProcess& sim_process_;
  Config config_;
  Verbs verbs_;
  State state_ = State::kStarting;
  process::ConnectionHandle listener_{};
  std::map<process::ConnectionHandle, Peer> peers_{};
  std::map<std::uint32_t, process::ConnectionHandle> peer_of_endpoint_{};
  std::uint32_t next_endpoint_ = 1;
  std::vector<Outcome> outcomes_{};
  std::vector<PortId> ports_{};
};

}  // namespace verbena::fabric
