#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/counter_names.h"
#include "base/error.h"
#include "base/time.h"
#include "mad/agents.h"
#include "mad/mad.h"
#include "mad/rmpp_receiver.h"
#include "mad/rmpp_sender.h"

namespace verbena::mad {

// Serves the agents of one port, as Linux's ib_mad does: hands received MADs to agents, repeats
// requests until the response or the timeout comes, and splits and joins messages by RMPP.
//
// A response, or a segment of a response, is accepted only while its request is pending.  Each
// new segment restarts the timeout and the retries of the request.  A request that has segments
// itself is not repeated any more when all of them are acknowledged.  An agent for which the port
// does no RMPP gets every segment, because the first segment has ended the request.
//
// The class has no clock and does no I/O: the owner passes the time, and takes packets and messages
// after each call.  Only one thread at a time may use a port.
class ManagementPort {
 public:
  static constexpr std::size_t kTransactionsMax = 65536;  // requests and RMPP messages under way
  static constexpr std::size_t kReceiversMax = 1024;  // messages that are arriving or just arrived
  static constexpr std::size_t kMessageBytesMax = std::size_t{64} << 20;
  static constexpr std::size_t kReceiverBytesMax = std::size_t{256} << 20;  // in all receivers
  // The next three times are those of Linux, which does not know the packet lifetime either (vol1
  // 13.6.3).  All segments of a message must arrive within kReceiverTimeout.
  static constexpr Duration kReceiverTimeout = std::chrono::seconds(40);
  // A message that has arrived is acknowledged again for this long, if its segments are repeated.
  static constexpr Duration kReceiverLinger = std::chrono::seconds(10);
  static constexpr Duration kAckTimeoutMax = std::chrono::seconds(2);
  // While a response arrives, its request is repeated only if no segment has arrived for this long.
  // So the sender of the response can repeat a segment twice.
  static constexpr Duration kSegmentGapMax = 2 * kAckTimeoutMax + std::chrono::milliseconds(500);

  ManagementPort() = default;
  // Agents get the numbers after `last_agent`.
  explicit ManagementPort(AgentNumber last_agent) : agents_(last_agent) {}

  Result<AgentNumber> add_agent(const Registration& registration) {
    return agents_.add(registration);
  }
  // Removes an agent with its requests and messages, without any report.  Returns false if there is
  // no such agent.
  bool remove_agent(AgentNumber agent);

  struct Request {
    Address to{};
    Duration timeout{};  // 0: no response is expected
    std::uint32_t retries = 0;
    std::uint64_t cookie = 0;      // returned with the report of a timeout
    std::vector<std::byte> mad{};  // begins with the MAD header; with RMPP, the whole message
  };
  // Sends a request, a response or another MAD.  The upper half of a request's transaction id
  // becomes the agent's number.  Fails with kBadHandle: no such agent; kInvalidArgument: the length
  // is wrong; kBusy: the transaction id is in use; kNoResources: kTransactionsMax
  // messages are under way.
  Result<void> send(AgentNumber agent, Request request, Time now);
  // Cancels the agent's request whose transaction id has the lower half `transaction`.  No report
  // follows.  A response that next_message() has not returned yet is dropped, and the sender of a
  // response that is still arriving gets an Abort.  Returns false if there is no such request.
  bool cancel(AgentNumber agent, wire::MgmtClass mgmt_class, std::uint32_t transaction);

  struct Arrival {
    Qpn destination_qpn{};
    Address from{};
    std::span<const std::byte, wire::kMadBytes> mad;
  };
  void receive(const Arrival& arrival, Time now);

  // Returns the time at which on_timer() has to be called.
  Time deadline() const;
  void on_timer(Time now);

  // Returns the next MAD that the owner has to send.
  std::optional<SendMad> next_packet();

  struct Message {
    AgentNumber agent{};
    // If true, a message that the agent sent got no answer in time, or the peer aborted it.  This
    // report has only the MAD header and the cookie of that message, and in `from` its destination.
    bool timed_out = false;
    std::uint64_t cookie = 0;
    Address from{};
    std::vector<std::byte> mad{};
  };
  std::optional<Message> next_message();

  struct Counters {
    std::uint64_t sent = 0;
    std::uint64_t retries = 0;
    std::uint64_t timeouts = 0;
    std::uint64_t cancelled = 0;
    std::uint64_t received = 0;
    std::uint64_t delivered = 0;
    std::uint64_t wrong_base_version = 0;
    std::uint64_t wrong_qp = 0;         // an SMP to QP1, or another MAD to QP0
    std::uint64_t without_agent = 0;    // a request that no agent wants
    std::uint64_t without_request = 0;  // a response that no request waits for
    std::uint64_t segments_received = 0;
    std::uint64_t segments_dropped = 0;
    std::uint64_t aborts_sent = 0;
    std::uint64_t aborts_received = 0;
    friend bool operator==(const Counters&, const Counters&) = default;
  };
  const Counters& counters() const { return counters_; }

 private:
  // Identifies a message that was sent: a request by its transaction id, which is unique here, and
  // a response also by its receiver, because different requesters may choose the same id.
  struct TransactionKey {
    std::uint64_t id = 0;
    AgentNumber agent{};
    wire::MgmtClass mgmt_class{};
    bool response = false;
    Lid peer{};  // the receiver of a response; 0 for a request
    Gid peer_gid{};
    friend auto operator<=>(const TransactionKey&, const TransactionKey&) = default;
  };
  struct ReceiverKey {
    std::uint64_t id = 0;
    AgentNumber agent{};
    wire::MgmtClass mgmt_class{};
    bool response = false;
    wire::Method method{};
    Lid peer{};
    Gid peer_gid{};
    Qpn peer_qpn{};
    friend auto operator<=>(const ReceiverKey&, const ReceiverKey&) = default;
  };
  struct KeyHash {
    std::size_t operator()(const TransactionKey& key) const;
    std::size_t operator()(const ReceiverKey& key) const;
  };
  struct Transaction {
    Request request{};
    std::uint32_t retries_left = 0;
    Time due = kNever;
    std::optional<RmppSender> segments{};   // set until all segments are acknowledged
    std::optional<ReceiverKey> response{};  // the response of which segments have arrived
  };
  struct Receiver {
    RmppReceiver segments;
    Time due = kNever;
    Time last_arrival{};
    std::size_t memory_bytes = 0;
    Address from{};
    Mad first_segment{};
  };

  static TransactionKey key_of(AgentNumber agent, const wire::MadHeader& header,
                               const Address& peer, bool response);
  static TransactionKey key_answered_by(AgentNumber agent, const wire::MadHeader& header,
                                        const Address& from);

  void set_due(const TransactionKey& key, Transaction& transaction, Time due);
  void set_due(const ReceiverKey& key, Receiver& receiver, Time due);
  void erase(const TransactionKey& key);
  void erase(const ReceiverKey& key);
  void expire(const TransactionKey& key, Time now);
  void expire(const ReceiverKey& key);
  // Returns the response that is arriving for a request, or null if there is none.
  Receiver* find_arriving_response(const Transaction& transaction);
  // Drops the response that is arriving for a request, if there is one.
  void drop_response(Transaction& transaction);
  void fail_transaction(const TransactionKey& key);

  void send_packet(const Address& to, const Mad& mad);
  void send_segments(const TransactionKey& key, Transaction& transaction, Time now);
  void refuse(const Arrival& arrival, const wire::MadHeader& header);
  void deliver(AgentNumber agent, const wire::MadHeader& header, const Address& from,
               std::vector<std::byte> mad);

  void receive_segment(AgentNumber agent, const wire::MadHeader& header, const Arrival& arrival,
                       Time now);
  void receive_data(AgentNumber agent, const wire::MadHeader& header, const Arrival& arrival,
                    Time now);
  void receive_ack(AgentNumber agent, const wire::MadHeader& header, const Arrival& arrival,
                   Time now);
  Receiver* find_or_add_receiver(const ReceiverKey& key, const wire::RmppHeader& rmpp,
                                 const Arrival& arrival, Time now);
  void send_rmpp(const Address& to, std::span<const std::byte, wire::kMadBytes> peer_mad,
                 wire::RmppHeader rmpp);
  void send_ack(const Address& to, std::span<const std::byte, wire::kMadBytes> peer_mad,
                std::uint32_t segment, std::uint32_t window);
  void send_abort(const Address& to, std::span<const std::byte, wire::kMadBytes> peer_mad,
                  wire::RmppStatus reason);
  void abort_transaction(AgentNumber agent, const wire::MadHeader& header, const Arrival& arrival,
                         wire::RmppStatus reason);

  AgentTable agents_{};
  std::unordered_map<TransactionKey, Transaction, KeyHash> transactions_{};
  std::unordered_map<ReceiverKey, Receiver, KeyHash> receivers_{};
  std::set<std::pair<Time, TransactionKey>> transactions_due_{};
  std::set<std::pair<Time, ReceiverKey>> receivers_due_{};
  std::size_t receiver_bytes_ = 0;
  std::deque<SendMad> packets_{};
  std::deque<Message> messages_{};
  Counters counters_{};
};

inline constexpr auto kManagementCounterNames =
    std::to_array<MemberName<ManagementPort::Counters>>({
        {&ManagementPort::Counters::sent, "management_mads_sent"},
        {&ManagementPort::Counters::retries, "management_retries"},
        {&ManagementPort::Counters::timeouts, "management_timeouts"},
        {&ManagementPort::Counters::cancelled, "management_cancelled"},
        {&ManagementPort::Counters::received, "management_mads_received"},
        {&ManagementPort::Counters::delivered, "management_messages_delivered"},
        {&ManagementPort::Counters::wrong_base_version, "management_wrong_base_version"},
        {&ManagementPort::Counters::wrong_qp, "management_wrong_qp"},
        {&ManagementPort::Counters::without_agent, "management_without_agent"},
        {&ManagementPort::Counters::without_request, "management_without_request"},
        {&ManagementPort::Counters::segments_received, "rmpp_segments_received"},
        {&ManagementPort::Counters::segments_dropped, "rmpp_segments_dropped"},
        {&ManagementPort::Counters::aborts_sent, "rmpp_aborts_sent"},
        {&ManagementPort::Counters::aborts_received, "rmpp_aborts_received"},
    });
static_assert(names_every_counter(kManagementCounterNames));

}  // namespace verbena::mad
