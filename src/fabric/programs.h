#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "fabric/line.h"
#include "fabric/seat.h"
#include "process/process.h"
#include "rdmacm/types.h"

// Two programs that do what rping does, as state machines over a Process: they react to notices and
// completions, check every byte, and complain when the stack breaks a promise.
namespace verbena::fabric {

// What both begin and end with: a protection domain and one CQ for all lines.
class Verbs {
 public:
  explicit Verbs(Seat& seat);
  void open();
  void close();
  bool is_open() const { return static_cast<bool>(pd); }
  // Every completion there is, and the CQ is armed again.
  void poll(auto&& take) {
    bool armed = false;
    for (;;) {
      std::array<hca::WorkCompletion, 16> done{};
      const unsigned count = seat_.sure("poll_cq", seat_.engine().poll_cq(cq, done));
      for (unsigned i = 0; i < count; ++i) take(done[i]);
      if (count != 0) continue;
      if (armed) return;
      seat_.sure("arm_cq", seat_.engine().arm_cq(cq, false));
      armed = true;
    }
  }

  hca::PdHandle pd{};
  hca::CqHandle cq{};

 private:
  Seat& seat_;
};

// What happened to one connection, as one side was told.
struct Story {
  std::uint32_t established = 0;
  std::uint32_t disconnected = 0;
  std::uint32_t rejected = 0;
  std::uint32_t unreachable = 0;
  std::uint32_t device_removed = 0;
  std::int32_t status = 0;  // of the last of them
  void count(const rdmacm::Event& event);
  bool over() const { return disconnected + rejected + unreachable + device_removed > 0; }
};

// What a client does on its connection, one after another or some at a time.
struct Operation {
  enum class Kind : std::uint8_t { kSend, kWrite, kRead } kind{};  // the server echoes a SEND
  std::uint32_t bytes = 0;
};

// Connects, carries out its operations, and disconnects, or waits for the server to do so.
class Client final : public Program {
 public:
  enum class State : std::uint8_t {
    kStarting,
    kResolvingAddress,
    kMakingQp,
    kConnecting,
    kWorking,
    kDisconnecting,
    kDone,
  };
  struct Config {
    rdmacm::SocketAddress server{};
    std::vector<Operation> operations{};  // a READ reads what the last WRITE before it wrote
    std::uint32_t window = 1;             // operations under way at a time
    bool server_hangs_up = false;         // after the last SEND; then that is the last operation
    std::uint64_t salt = 0;
  };

  Client(Seat& seat, Config config);
  void start() override;
  void on_notice(const process::Notice& notice) override;

  State state() const { return state_; }
  const Story& story() const { return story_; }
  bool finished() const { return state_ == State::kDone; }
  // All operations were carried out.
  bool succeeded() const { return completed_ == config_.operations.size(); }
  Seat& seat() { return seat_; }
  std::uint32_t device_fatal() const { return device_fatal_; }  // notices of it
  Time told_at() const { return told_; }                        // of the event that ended it
  Time asked_at() const { return asked_; }                      // of connect()

 private:
  void on_cm(const rdmacm::Event& event);
  void make_qp();
  void connect(hca::QpHandle qp);
  void advance();
  void begin(std::uint32_t operation);
  void on_completion(const hca::WorkCompletion& completion);
  void on_echo(const Line::Done& done);
  void check_read(std::uint32_t operation);
  void part_done(std::uint32_t operation);
  void hang_up();
  void finish();
  std::uint64_t salt_of(std::uint32_t operation) const {
    return config_.salt + std::uint64_t{operation} * 13;
  }

  Seat& seat_;
  Config config_;
  Verbs verbs_;
  State state_ = State::kStarting;
  process::ConnectionHandle id_{};
  std::optional<Line> line_{};
  RemoteMemory server_memory_{};
  Story story_{};
  Time asked_{};
  Time told_{};
  std::uint32_t device_fatal_ = 0;

  std::uint32_t next_ = 0;                              // operation
  std::map<std::uint32_t, std::uint32_t> under_way_{};  // operation -> parts not done
  std::deque<std::uint32_t> echoes_{};                  // SENDs whose echo has not come
  std::uint32_t completed_ = 0;
};

// Listens, takes every connection, echoes what is sent, and lets its memory be read and written.
class Server final : public Program {
 public:
  enum class State : std::uint8_t { kStarting, kBinding, kListening, kDone };
  // Of one connection.
  enum class PeerState : std::uint8_t { kMakingQp, kAccepting, kConnected, kDisconnecting };
  struct Config {
    rdmacm::SocketAddress address{};
    std::uint32_t clients = 1;  // leaves after so many connections are over
  };

  Server(Seat& seat, const Config& config);
  void start() override;
  void on_notice(const process::Notice& notice) override;

  State state() const { return state_; }
  std::vector<PeerState> peers() const;
  bool finished() const { return state_ == State::kDone; }
  // Of connections that are over.
  const std::vector<Story>& stories() const { return stories_; }
  Seat& seat() { return seat_; }

 private:
  struct Peer {
    PeerState state = PeerState::kMakingQp;
    std::unique_ptr<Line> line{};
    std::uint32_t sends_left = 0;  // of the client
    bool hang_up = false;          // after its last one
    std::uint32_t echoes = 0;      // not completed
    std::uint32_t next_out = 0;
    bool making_qp = true;
    Story story{};
  };

  void on_request(const process::CmNotice& notice);
  void accept(process::ConnectionHandle id, hca::QpHandle qp);
  void on_peer(process::ConnectionHandle id, const rdmacm::Event& event);
  void on_completion(const hca::WorkCompletion& completion);
  void echo(Peer& peer, const Line::Done& done);
  void hang_up(process::ConnectionHandle id, Peer& peer);
  void settle();
  void finish();

  Seat& seat_;
  Config config_;
  Verbs verbs_;
  State state_ = State::kStarting;
  process::ConnectionHandle listener_{};
  std::map<process::ConnectionHandle, Peer> peers_{};
  std::map<std::uint32_t, process::ConnectionHandle> peer_of_line_{};
  std::uint32_t next_line_ = 1;
  std::vector<Story> stories_{};
};

}  // namespace verbena::fabric
