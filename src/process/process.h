#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/handle.h"
#include "base/operation.h"
#include "base/random.h"
#include "base/time.h"
#include "hca/engine.h"
#include "ipc/messages.h"
#include "ipc/qp_table.h"
#include "process/connection.h"
#include "process/qp_numbers.h"
#include "rdmacm/types.h"

namespace verbena::process {

// What a consumer is told, in order.
struct CqNotice {
  std::uint64_t cookie = 0;
};
struct AsyncNotice {
  std::uint32_t type = 0;  // enum ibv_event_type
  std::uint64_t cookie = 0;
};
struct CmNotice {
  ConnectionHandle id{};
  std::uint64_t cookie = 0;   // of `id`
  ConnectionHandle new_id{};  // CONNECT_REQUEST
  bool unanswered = false;    // a request brought `id`, and the program has not accepted it
  std::string why{};          // of a failure, in words: the agent's, if it has refused
  std::uint64_t group = 0;    // MULTICAST_JOIN, MULTICAST_ERROR: the cookie of join_multicast()
  std::uint64_t arg = 0;      // of an event that the program has written itself
  rdmacm::Event event{};
};
using Notice = std::variant<CqNotice, AsyncNotice, CmNotice>;

// One program's half of the stack, as one object: its engine, the QPN range it has leased, and the
// near ends of its RDMA CM ids.  The other half is node::Node; between them go ipc messages.
//
// Pure: packets, messages and time come in; packets, messages and notices are pulled.  A program
// runs it between real sockets (client), a simulation between simulated ones (fabric).
//
// Commands are asynchronous requests: done at once, or Pending until the agent has answered.  A
// completion runs inside on_message(), never inside the call that started it.  Creating, changing
// and destroying QPs, CQs and MRs asks the agent nothing, but for the first QP, which leases the
// range.
//
// Nor does a connection's usual way wait for the agent: creating an id, resolving from no address
// given, connecting, accepting, rejecting, disconnecting.  What can be wrong with the call is seen
// here; what only the agent can see (a limit of the host's, say) comes as the event of that step's
// failure.
//
// The agent may die, and another one be joined: hello() again.  For the program it is an adapter
// that was unplugged and is back.
//   * Until then, commands for the agent fail with kDeviceFatal.
//   * QPs of before are in the error state for good, with numbers that no new QP has; they can be
//     asked about and destroyed.  Ids of before answer kDeviceFatal, and can be destroyed.
//   * PDs, MRs, CQs and address handles are the program's own and stay as they are.
//   * What new QPs and ids need is leased and made anew.
//   * Peers of connections of before hear from the new agent that they are over.
//
// Threads: one at a time (the owner's lock), but for the engine's direct calls.
class Process {
 public:
  // Messages for an agent that does not read; beyond, requests about ids fail with kNoResources.
  static constexpr std::size_t kUnreadMax = std::size_t{4} * rdmacm::kIdsPerOwnerMax;

  struct Config {
    hca::Limits limits{};
    hca::Personality personality{};
    std::string build{};
    std::uint32_t pid = 0;
    std::uint64_t capture = 0;  // capture that the program belongs to, 0 none
    std::uint32_t ids_max = rdmacm::kIdsPerOwnerMax;
  };

  // A message for the agent.  With `qp_table`, the table's descriptor goes along; with `hello`, the
  // program's pidfd.
  struct ToAgent {
    ipc::Bytes message{};
    bool asks = false;  // wants a reply
    bool hello = false;
    bool qp_table = false;
  };

  Process(const Config& config, Random random);
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Where rows for `verbena ps` go; outlives the process object.  Before the first QP.
  void set_qp_table(std::span<std::byte> memory);

  hca::Engine& engine() { return engine_; }
  const hca::Engine& engine() const { return engine_; }

  // ---- the agent ----
  // The connection is there; Hello is the first message.  REQUIRES: not connected().
  Started<ipc::Welcome> hello(Completion<ipc::Welcome> done);
  // A message of the agent.  Malformed ones are an error, after which the agent is not to be
  // trusted: treat it as gone.  `complete`: with its descriptors.  A range without its sockets goes
  // back, and whoever wanted it is told kSystem, EMFILE.
  Result<void> on_message(std::span<const std::byte> message, Time now, bool complete = true);
  std::optional<ToAgent> poll_message();
  std::size_t messages() const { return to_agent_.size(); }
  // All of them may wait a moment, for an owner that sends several together: nobody waits for an
  // answer, and should the program end before, its peers hear that from the agent.
  bool messages_may_wait() const { return !in_haste_; }
  // Joins the next message to this one, if they may travel together.
  bool poll_another(ToAgent& message);
  // The kernel did not take its descriptors (ETOOMANYREFS): whoever asked is told kSystem, EMFILE.
  Result<void> on_unsent(const ToAgent& message);
  // Everything that waits fails with kDeviceFatal; QPs go to the error state; one device-fatal
  // notice, and one of removal for each id.  To be called again if it threw for want of memory.
  void on_agent_gone(Time now);
  bool connected() const { return device_.has_value(); }
  // As of the last word of the agent.  REQUIRES: connected().
  const ipc::Device& device() const { return *device_; }
  // A QP of ours may get packets from other hosts.  Never false again.
  bool hears_others() const { return hears_others_; }
  // The upper 12 bits of this program's QPNs; one range, or more if it has very many QPs.
  std::span<const std::uint16_t> ranges() const { return numbers_.ranges(); }
  // The text of the agent's last refusal, for an Error that is from_agent.
  const std::string& last_text() const { return last_text_; }

  // ---- commands ----
  Started<hca::QpHandle> create_qp(const hca::QpInit& init, Time now,
                                   Completion<hca::QpHandle> done);
  Result<void> modify_qp(hca::QpHandle qp, const hca::QpAttributes& attributes, std::uint32_t mask,
                         Time now);
  Result<void> destroy_qp(hca::QpHandle qp, Time now);
  // As hca::Engine::attach_multicast(), and the sockets of the QP's range become members: on one
  // interface of the host, or (0) on all, also on those that come later.
  Started<ipc::Done> attach_multicast(hca::QpHandle qp, const Gid& group, std::uint32_t interface,
                                      Completion<ipc::Done> done);
  // From all interfaces.  Asks nobody: the agent is told.
  Result<void> detach_multicast(hca::QpHandle qp, const Gid& group);
  // For an id that is bound to the device: its QP, if it has one and `receives`, is attached on the
  // id's interface, and MULTICAST_JOIN says where to send to; or MULTICAST_ERROR.  Events name
  // `cookie`, which is to be another one for each join of an id.
  Result<void> join_multicast(ConnectionHandle id, const Gid& group, bool receives,
                              std::uint64_t cookie);
  // Asks nobody.  No event of the join will come any more.
  Result<void> leave_multicast(ConnectionHandle id, std::uint64_t cookie);
  // The flow of an address handle or path: addresses and marks from the GID table.
  Result<hca::Path> path(std::uint32_t sgid_index, const Gid& destination, std::uint32_t flow_label,
                         std::uint8_t traffic_class, std::uint8_t hop_limit) const;

  // Asks nobody: the agent hears of it with the first request.
  Result<ConnectionHandle> create_id(std::uint32_t port_space, std::uint32_t qp_type,
                                     std::uint64_t cookie);
  // Never waits for the peer, nor for the agent: the near end is gone at once.
  Result<void> destroy_id(ConnectionHandle id);
  void step_begins(ConnectionHandle id, Connection::Step step, Time now);
  Result<void> set_cookie(ConnectionHandle id, std::uint64_t cookie);
  Started<ipc::Bound> bind(ConnectionHandle id, const rdmacm::SocketAddress& address,
                           Completion<ipc::Bound> done);
  Started<ipc::Done> resolve_address(ConnectionHandle id, const rdmacm::SocketAddress& source,
                                     const rdmacm::SocketAddress& destination, Duration timeout,
                                     Completion<ipc::Done> done);
  // Done at once, and so is its event.
  Started<ipc::Done> resolve_route(ConnectionHandle id);
  // `filter`: of an id without a port space.
  Started<ipc::Done> listen(ConnectionHandle id, int backlog, const rdmacm::Filter& filter,
                            Completion<ipc::Done> done);
  Started<ipc::Done> listen(ConnectionHandle id, int backlog, Completion<ipc::Done> done) {
    return listen(id, backlog, {}, std::move(done));
  }
  Started<ipc::Done> connect(ConnectionHandle id, const rdmacm::ConnParam& param,
                             Completion<ipc::Done> done);
  Started<ipc::Done> accept(ConnectionHandle id, const rdmacm::ConnParam& param, Time now,
                            Completion<ipc::Done> done);
  Started<ipc::Done> reject(ConnectionHandle id, const rdmacm::Refusal& refusal,
                            Completion<ipc::Done> done);
  Started<ipc::Done> establish(ConnectionHandle id, std::span<const std::byte> private_data,
                               Time now, Completion<ipc::Done> done);
  Started<ipc::Done> disconnect(ConnectionHandle id, std::span<const std::byte> private_data,
                                Time now, Completion<ipc::Done> done);
  Started<ipc::Done> disconnect(ConnectionHandle id, Time now, Completion<ipc::Done> done) {
    return disconnect(id, {}, now, std::move(done));
  }
  // Of an id without a port space: offers the peer another path, and answers to one.  The id's QP
  // has it when both sides have agreed.
  Started<ipc::Done> load_path(ConnectionHandle id, const rdmacm::PathInfo& path,
                               std::span<const std::byte> private_data, Completion<ipc::Done> done);
  Started<ipc::Done> answer_path(ConnectionHandle id, const rdmacm::PathAnswer& answer, Time now,
                                 Completion<ipc::Done> done);
  // COMM_EST seen by the program itself (rdma_notify).
  Result<void> notify(ConnectionHandle id);
  Started<ipc::Done> set_option(ConnectionHandle id, std::uint32_t level, std::uint32_t option,
                                std::uint64_t value, Completion<ipc::Done> done);
  Started<ipc::Done> flush_capture(Completion<ipc::Done> done);

  // Gives the id a QP, or (none) takes it away.  A new one goes to INIT; one that another id had is
  // that one's no more.
  Result<void> set_qp(ConnectionHandle id, hca::QpHandle qp, Time now);
  // What a program that moves its QP itself needs for the state.
  struct Transition {
    hca::QpAttributes attributes{};
    std::uint32_t mask = 0;
  };
  Result<Transition> transition(ConnectionHandle id, hca::QpState to) const;
  Result<const Connection*> connection(ConnectionHandle id) const;
  // When the table was last brought up to date; for counters that its owner adds.
  Time shown() const { return shown_; }
  // Those have changed: the table is to be brought up to date although nothing of its own has.
  void show_soon() { show_ = true; }
  // The table is brought up to date at once: for the last time, perhaps.
  void show_now(Time now);

  // ---- packets and time ----
  void receive(const link::Arrival& arrival, Time now);
  bool transmit(link::Burst& burst, Time now);
  // Makes completions and notices available, as transmit() does, and sends nothing.
  void deliver(Time now);
  void on_timer(Time now);
  Time deadline() const;
  std::optional<Notice> poll_notice();

 private:
  // A request that the agent has not answered yet.  nullptr: it never will.
  using Waiting = std::move_only_function<void(const ipc::Envelope*)>;

  template <class Reply, class Message>
  Pending ask(Message message, Completion<Reply> done, bool qp_table = false);
  // As ask(), for an id; refuses what find_alive() refuses.
  template <class Reply, class Message>
  Started<Reply> ask_for(ConnectionHandle id, Message message, Completion<Reply> done);
  // Done at once, and the id stands at `next`: what the agent has against it will be its event.
  template <class Message>
  Started<ipc::Done> tell(Connection& connection, Connection::Stage next, Message message);
  // A request that nobody waits for.
  enum class Haste : bool { kNone, kSome };
  template <class Message>
  void say(Message message, Haste haste = Haste::kSome);
  Result<Connection*> find(ConnectionHandle id) const;
  // Refuses stale handles, those of a dead agent's time, and whoever asks an agent that is stuck.
  Result<Connection*> find_alive(ConnectionHandle id);
  Connection* find_named(rdmacm::IdHandle agent_id, ConnectionHandle& handle) const;
  void make(Connection& connection);
  // And the id is the program's own from then on.
  Completion<ipc::Done> answered(ConnectionHandle id, Completion<ipc::Done> done);
  Completion<ipc::Done> then(ConnectionHandle id, Connection::Stage stage,
                             Completion<ipc::Done> done) const;
  Result<void> check_qp(Qpn qpn) const;
  Result<void> move_qp(hca::QpHandle qp, const hca::QpAttributes& attributes, std::uint32_t mask,
                       Time now);
  void add_range(std::uint16_t range);
  // By a QP, also one of a dead agent's time.
  auto in_use() const {
    return [this](Qpn qpn) { return engine_.find_qp(qpn).has_value(); };
  }
  void lease();
  void on_leased(const Result<ipc::Leased>& leased);
  void hand_over();
  std::vector<std::uint16_t> ranges_in_use() const;
  Result<void> on_reply(const ipc::Envelope& envelope, bool complete);
  Result<void> refuse(std::uint64_t request, std::string text);
  void on_device(ipc::Device device);
  Result<void> check_alive(hca::QpHandle qp) const;
  void drain_engine(Time now);
  void on_qp_event(const hca::QpEvent& event);
  void show_qps(Time now);
  void show_counters();
  void all_to_error(Time now);
  void on_event(const rdmacm::Event& event, Time now, std::string why = {});
  void on_refused(const ipc::Refused& refused, Time now);
  void on_request_event(const rdmacm::Event& event);
  Result<void> connect_qp(ConnectionHandle id, Time now);
  void establish_id(Connection& connection, CmNotice& notice, Time now);
  // What the QP is to get for another path, whose interface and label are filled in; none for a QP
  // that the program moves itself.
  struct OtherPath {
    rdmacm::PathInfo path{};
    hca::QpAttributes attributes{};
  };
  Result<OtherPath> other_path(const Connection& connection, rdmacm::PathInfo path) const;
  Result<void> load(Connection& connection, const OtherPath& other, Time now);
  void load_agreed(Connection& connection, CmNotice& notice, Time now);
  void on_migrated(Qpn qpn);
  void take_qp_from(Connection& connection);
  // Whose sockets are members of which group on which interface.
  struct Membership {
    std::uint16_t range = 0;
    Gid group{};
    std::uint32_t interface = 0;
    friend auto operator<=>(const Membership&, const Membership&) = default;
  };
  void forget_member(const Membership& membership, Qpn qpn);
  void report_join(ConnectionHandle id, std::uint64_t cookie, const Result<ipc::Done>& attached);
  void leave(Connection::Group& group);
  Result<void> prepare_qp(ConnectionHandle id, const hca::Engine::QpInfo& info, Time now);
  Result<void> to_error(Connection& connection, Time now);

  Config config_;
  Random random_;
  hca::Engine engine_;
  std::optional<ipc::Device> device_{};
  QpNumbers numbers_{};
  bool hears_others_ = false;
  std::string last_text_{};

  // Of those who want a QP while a lease is under way: one lease serves them all.
  struct QpWanted {
    hca::QpInit init{};
    Completion<hca::QpHandle> done{};
  };
  std::map<std::uint64_t, QpWanted> qps_wanted_{};
  std::uint64_t next_wanted_ = 1;
  bool leasing_ = false;

  std::map<Membership, std::set<Qpn>> memberships_{};  // by the QPs that want it

  // Connections of dead agents whose peers have not been told; at most ids_max.
  std::vector<rdmacm::PendingDisconnect> pending_disconnects_{};

  std::uint64_t next_request_ = 1;
  std::map<std::uint64_t, Waiting> waiting_{};
  Pending lease_{};
  Pending handing_over_{};
  std::deque<ToAgent> to_agent_{};
  bool in_haste_ = false;  // one of them

  Slots<Connection> connections_;
  std::map<rdmacm::IdHandle, ConnectionHandle> by_agent_id_{};  // of those that it has named
  std::map<std::uint32_t, ConnectionHandle> by_qpn_{};
  std::deque<Notice> notices_{};

  std::optional<ipc::QpTable> table_{};
  std::vector<hca::QpRow> rows_{};
  std::vector<std::uint32_t> counters_{};  // their places in the table, in the order of showing
  std::uint64_t ids_refused_ = 0;
  std::uint64_t qpns_refused_ = 0;
  std::uint64_t messages_refused_ = 0;
  std::size_t rows_shown_ = 0;
  Time shown_{};
  bool show_ = false;
};

}  // namespace verbena::process
