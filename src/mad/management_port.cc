#include "mad/management_port.h"

#include <algorithm>
#include <utility>

#include "wire/rmpp.h"

namespace verbena::mad {

using wire::MadHeader;
using wire::Method;
using wire::MgmtClass;

namespace {

// A message that is sent has at least the headers of MAD and RMPP, as in Linux.
constexpr std::size_t kSentBytesMin = wire::kMadHeaderBytes + wire::kRmppHeaderBytes;

MadHeader header_of(std::span<const std::byte> mad) {
  return wire::decode_exact<MadHeader>(mad.first<wire::kMadHeaderBytes>());
}

wire::RmppHeader rmpp_of(std::span<const std::byte> mad) {
  return wire::decode_exact<wire::RmppHeader>(
      mad.subspan<wire::kMadHeaderBytes, wire::kRmppHeaderBytes>());
}

bool is_get_or_set(Method method) { return method == Method::kGet || method == Method::kSet; }

Mad padded(std::span<const std::byte> bytes) {
  VB_CHECK(bytes.size() <= wire::kMadBytes);
  Mad mad{};
  std::ranges::copy(bytes, mad.begin());
  return mad;
}

std::size_t hash_key(std::uint64_t id, AgentNumber agent, MgmtClass mgmt_class, Lid peer) {
  std::uint64_t value = id ^ std::uint64_t{agent.value} << 20 ^
                        std::uint64_t{static_cast<std::uint8_t>(mgmt_class)} << 52 ^
                        std::uint64_t{peer.value} << 36;
  value *= 0x9e3779b97f4a7c15;
  return static_cast<std::size_t>(value ^ value >> 32);
}

}  // namespace

std::size_t ManagementPort::KeyHash::operator()(const TransactionKey& key) const {
  return hash_key(key.id, key.agent, key.mgmt_class, key.peer);
}

std::size_t ManagementPort::KeyHash::operator()(const ReceiverKey& key) const {
  return hash_key(key.id, key.agent, key.mgmt_class, key.peer);
}

ManagementPort::TransactionKey ManagementPort::key_of(AgentNumber agent, const MadHeader& header,
                                                      const Address& peer, bool response) {
  TransactionKey key{.id = header.transaction_id, .agent = agent, .mgmt_class = header.mgmt_class};
  if (!response) return key;
  key.response = true;
  key.peer = peer.path.destination_lid;
  if (peer.path.carries_gids()) key.peer_gid = peer.path.destination;
  return key;
}

// Returns the key of our message that an arrived MAD answers.  The addresses of an arrived MAD lead
// back to its sender.
ManagementPort::TransactionKey ManagementPort::key_answered_by(AgentNumber agent,
                                                               const MadHeader& header,
                                                               const Address& from) {
  return key_of(agent, header, from, !is_response(header));
}

void ManagementPort::set_due(const TransactionKey& key, Transaction& transaction, Time due) {
  if (transaction.due != kNever) transactions_due_.erase({transaction.due, key});
  transaction.due = due;
  if (due != kNever) transactions_due_.emplace(due, key);
}

void ManagementPort::set_due(const ReceiverKey& key, Receiver& receiver, Time due) {
  if (receiver.due != kNever) receivers_due_.erase({receiver.due, key});
  receiver.due = due;
  if (due != kNever) receivers_due_.emplace(due, key);
}

void ManagementPort::erase(const TransactionKey& key) {
  const auto found = transactions_.find(key);
  set_due(key, found->second, kNever);
  transactions_.erase(found);
}

void ManagementPort::erase(const ReceiverKey& key) {
  const auto found = receivers_.find(key);
  set_due(key, found->second, kNever);
  receiver_bytes_ -= found->second.memory_bytes;
  receivers_.erase(found);
}

bool ManagementPort::remove_agent(AgentNumber agent) {
  if (!agents_.remove(agent)) return false;
  std::vector<TransactionKey> transaction_keys;
  for (const auto& [key, transaction] : transactions_) {
    if (key.agent == agent) transaction_keys.push_back(key);
  }
  for (const auto& key : transaction_keys) erase(key);
  std::vector<ReceiverKey> receiver_keys;
  for (const auto& [key, receiver] : receivers_) {
    if (key.agent == agent) receiver_keys.push_back(key);
  }
  for (const auto& key : receiver_keys) erase(key);
  std::erase_if(messages_, [&](const Message& message) { return message.agent == agent; });
  return true;
}

// ---- sending ------------------------------------------------------------------------------------

void ManagementPort::send_packet(const Address& to, const Mad& mad) {
  ++counters_.sent;
  packets_.push_back({.to = to, .mad = mad});
}

Result<void> ManagementPort::send(AgentNumber agent, Request request, Time now) {
  const Registration* registration = agents_.find(agent);
  if (registration == nullptr) return fail(Errc::kBadHandle, "no such agent");
  if (request.mad.size() < kSentBytesMin || request.mad.size() > kMessageBytesMax) {
    return fail(Errc::kInvalidArgument, "a MAD of this length cannot be sent");
  }
  MadHeader header = header_of(request.mad);
  // Programs set only the Active flag of the RMPP header.  OpenSM leaves even the version at 0.
  const bool segmented = registration->port_does_rmpp() && wire::has_rmpp(header.mgmt_class) &&
                         rmpp_of(request.mad).active;
  const std::size_t header_bytes = wire::class_header_bytes(header.mgmt_class);
  if (segmented ? request.mad.size() < header_bytes : request.mad.size() > wire::kMadBytes) {
    return fail(Errc::kInvalidArgument, "a MAD of this length cannot be sent");
  }
  if (!is_response(header)) {
    header.transaction_id = std::uint64_t{agent.value} << 32 | (header.transaction_id & 0xffffffff);
    wire::encode_to(std::span(request.mad).first<wire::kMadHeaderBytes>(), header);
  }
  const TransactionKey key = key_of(agent, header, request.to, is_response(header));
  if (transactions_.contains(key)) return fail(Errc::kBusy, "the transaction id is in use");
  if (!segmented && request.timeout <= Duration{}) {
    send_packet(request.to, padded(request.mad));
    return {};
  }
  if (transactions_.size() >= kTransactionsMax) {
    return fail(Errc::kNoResources, "too many pending requests of a port");
  }
  Transaction& transaction =
      transactions_.emplace(key, Transaction{.request = std::move(request)}).first->second;
  transaction.retries_left = transaction.request.retries;
  if (segmented) {
    transaction.segments.emplace(std::exchange(transaction.request.mad, {}), header_bytes);
    transaction.request.mad = transaction.segments->headers();
    send_segments(key, transaction, now);
    return {};
  }
  send_packet(transaction.request.to, padded(transaction.request.mad));
  set_due(key, transaction, now + transaction.request.timeout);
  return {};
}

// Sends all segments that the window allows, and waits for an ACK.
void ManagementPort::send_segments(const TransactionKey& key, Transaction& transaction, Time now) {
  while (transaction.segments->may_send()) {
    send_packet(transaction.request.to, transaction.segments->next_segment());
  }
  const Duration timeout = transaction.request.timeout;
  set_due(key, transaction,
          now + (timeout > Duration{} ? std::min(timeout, kAckTimeoutMax) : kAckTimeoutMax));
}

bool ManagementPort::cancel(AgentNumber agent, MgmtClass mgmt_class, std::uint32_t transaction) {
  const TransactionKey key{.id = std::uint64_t{agent.value} << 32 | transaction,
                           .agent = agent,
                           .mgmt_class = mgmt_class};
  if (const auto found = transactions_.find(key); found != transactions_.end()) {
    drop_response(found->second);
    erase(key);
    ++counters_.cancelled;
    return true;
  }
  // The request may have ended, while its response or its timeout still waits in messages_.
  const auto dropped = std::erase_if(messages_, [&](const Message& message) {
    if (message.agent != agent) return false;
    const MadHeader header = header_of(message.mad);
    return header.transaction_id == key.id && header.mgmt_class == mgmt_class &&
           (message.timed_out || is_response(header));
  });
  if (dropped != 0) ++counters_.cancelled;
  return dropped != 0;
}

ManagementPort::Receiver* ManagementPort::find_arriving_response(const Transaction& transaction) {
  if (!transaction.response) return nullptr;
  const auto found = receivers_.find(*transaction.response);
  if (found == receivers_.end() || found->second.segments.is_complete()) return nullptr;
  return &found->second;
}

void ManagementPort::drop_response(Transaction& transaction) {
  if (const Receiver* receiver = find_arriving_response(transaction)) {
    send_abort(receiver->from, receiver->first_segment, wire::RmppStatus::kTotalTimeTooLong);
    erase(ReceiverKey(*transaction.response));
  }
  transaction.response.reset();
}

void ManagementPort::expire(const TransactionKey& key, Time now) {
  Transaction& transaction = transactions_.at(key);
  if (const Receiver* receiver = find_arriving_response(transaction)) {
    const Time until = receiver->last_arrival + kSegmentGapMax;
    if (now < until) return set_due(key, transaction, until);
    // Drops the segments of the response that has stopped.  The repeated request asks for a new
    // response, which may differ.
    drop_response(transaction);
  }
  if (transaction.retries_left == 0) {
    ++counters_.timeouts;
    return fail_transaction(key);
  }
  --transaction.retries_left;
  ++counters_.retries;
  if (transaction.segments) {
    transaction.segments->rewind();
    return send_segments(key, transaction, now);
  }
  send_packet(transaction.request.to, padded(transaction.request.mad));
  set_due(key, transaction, now + transaction.request.timeout);
}

// Reports a message that got no answer.  On Linux, if the receiver aborts a message, the program
// gets no report and waits forever.  Here the program gets the report of a timeout.
void ManagementPort::fail_transaction(const TransactionKey& key) {
  Request& request = transactions_.at(key).request;
  request.mad.resize(wire::kMadHeaderBytes);
  messages_.push_back({.agent = key.agent,
                       .timed_out = true,
                       .cookie = request.cookie,
                       .from = request.to,
                       .mad = std::move(request.mad)});
  erase(key);
}

void ManagementPort::expire(const ReceiverKey& key) {
  const Receiver& receiver = receivers_.at(key);
  if (!receiver.segments.is_complete()) {
    send_abort(receiver.from, receiver.first_segment, wire::RmppStatus::kTotalTimeTooLong);
  }
  erase(key);
}

Time ManagementPort::deadline() const {
  Time earliest = kNever;
  if (!transactions_due_.empty()) earliest = transactions_due_.begin()->first;
  if (!receivers_due_.empty()) earliest = std::min(earliest, receivers_due_.begin()->first);
  return earliest;
}

void ManagementPort::on_timer(Time now) {
  while (!transactions_due_.empty() && transactions_due_.begin()->first <= now) {
    expire(TransactionKey(transactions_due_.begin()->second), now);
  }
  while (!receivers_due_.empty() && receivers_due_.begin()->first <= now) {
    expire(ReceiverKey(receivers_due_.begin()->second));
  }
}

std::optional<SendMad> ManagementPort::next_packet() {
  if (packets_.empty()) return std::nullopt;
  SendMad packet = std::move(packets_.front());
  packets_.pop_front();
  return packet;
}

std::optional<ManagementPort::Message> ManagementPort::next_message() {
  if (messages_.empty()) return std::nullopt;
  Message message = std::move(messages_.front());
  messages_.pop_front();
  return message;
}

// ---- receiving ----------------------------------------------------------------------------------

void ManagementPort::receive(const Arrival& arrival, Time now) {
  ++counters_.received;
  const MadHeader header = header_of(arrival.mad);
  if (header.base_version != wire::kMadBaseVersion) {
    ++counters_.wrong_base_version;
    return;
  }
  if (is_subnet_management(header.mgmt_class) != (arrival.destination_qpn == wire::kSmiQpn)) {
    ++counters_.wrong_qp;
    return;
  }
  AgentNumber agent{static_cast<std::uint32_t>(header.transaction_id >> 32)};
  if (!is_response(header)) agent = agents_.find_for_request(header, arrival.mad);
  const Registration* registration = agents_.find(agent);
  if (registration == nullptr) return refuse(arrival, header);

  const bool is_segment = wire::has_rmpp(header.mgmt_class) && rmpp_of(arrival.mad).active;
  if (is_segment && registration->port_does_rmpp()) {
    return receive_segment(agent, header, arrival, now);
  }
  std::vector<std::byte> mad(arrival.mad.begin(), arrival.mad.end());
  if (is_segment && is_response(header) &&
      !transactions_.contains(key_answered_by(agent, header, arrival.from))) {
    // An agent for which the port does no RMPP gets all segments.  The first segment has ended the
    // request.
    ++counters_.delivered;
    messages_.push_back({.agent = agent, .from = arrival.from, .mad = std::move(mad)});
    return;
  }
  deliver(agent, header, arrival.from, std::move(mad));
}

// Answers a Get or Set that no agent wants, because its sender waits (vol1 13.4.5).  On QP0 the SMA
// answers such requests.
void ManagementPort::refuse(const Arrival& arrival, const MadHeader& header) {
  if (is_response(header)) {
    ++counters_.without_request;
    return;
  }
  ++counters_.without_agent;
  if (arrival.destination_qpn == wire::kSmiQpn || !is_get_or_set(header.method)) return;
  MadHeader answer = header;
  answer.response = true;
  answer.method = Method::kGet;
  answer.status = wire::mad_status::kMethodAttributeNotSupported;
  Mad mad = padded(arrival.mad);
  wire::encode_to(std::span(mad).first<wire::kMadHeaderBytes>(), answer);
  send_packet(arrival.from, mad);
}

void ManagementPort::deliver(AgentNumber agent, const MadHeader& header, const Address& from,
                             std::vector<std::byte> mad) {
  if (is_response(header)) {
    const TransactionKey key = key_answered_by(agent, header, from);
    if (!transactions_.contains(key)) {
      ++counters_.without_request;
      return;
    }
    erase(key);
  }
  ++counters_.delivered;
  messages_.push_back({.agent = agent, .from = from, .mad = std::move(mad)});
}

// ---- RMPP ---------------------------------------------------------------------------------------

void ManagementPort::receive_segment(AgentNumber agent, const MadHeader& header,
                                     const Arrival& arrival, Time now) {
  using wire::RmppStatus;
  const auto rmpp = rmpp_of(arrival.mad);
  if (rmpp.version != wire::kRmppVersion) {
    return abort_transaction(agent, header, arrival, RmppStatus::kUnsupportedVersion);
  }
  switch (rmpp.type) {
    case wire::RmppType::kData: return receive_data(agent, header, arrival, now);
    case wire::RmppType::kAck: return receive_ack(agent, header, arrival, now);
    case wire::RmppType::kStop:
    case wire::RmppType::kAbort: {
      ++counters_.aborts_received;
      const TransactionKey key = key_answered_by(agent, header, arrival.from);
      if (const auto found = transactions_.find(key);
          found != transactions_.end() && found->second.segments) {
        fail_transaction(key);
      }
      return;
    }
    case wire::RmppType::kNone: break;
  }
  abort_transaction(agent, header, arrival, RmppStatus::kBadType);
}

void ManagementPort::receive_data(AgentNumber agent, const MadHeader& header,
                                  const Arrival& arrival, Time now) {
  ++counters_.segments_received;
  const auto rmpp = rmpp_of(arrival.mad);
  if (rmpp.status != wire::RmppStatus::kNormal) {
    return send_abort(arrival.from, arrival.mad, wire::RmppStatus::kBadStatus);
  }
  if ((rmpp.segment == 1) != rmpp.first) {
    return send_abort(arrival.from, arrival.mad, wire::RmppStatus::kBadSegment);
  }
  const ReceiverKey key{
      .id = header.transaction_id,
      .agent = agent,
      .mgmt_class = header.mgmt_class,
      .response = header.response,
      .method = header.method,
      .peer = arrival.from.path.destination_lid,
      .peer_gid = arrival.from.path.carries_gids() ? arrival.from.path.destination : Gid{},
      .peer_qpn = arrival.from.remote_qpn};
  Receiver* receiver = find_or_add_receiver(key, rmpp, arrival, now);
  if (receiver == nullptr) return;
  receiver->last_arrival = now;
  const auto outcome = receiver->segments.accept(rmpp, arrival.mad);
  receiver_bytes_ += receiver->segments.memory_bytes() - receiver->memory_bytes;
  receiver->memory_bytes = receiver->segments.memory_bytes();
  if (outcome == RmppReceiver::Outcome::kTooLong || receiver_bytes_ > kReceiverBytesMax) {
    send_abort(arrival.from, arrival.mad, wire::RmppStatus::kResourcesExhausted);
    return erase(key);
  }
  if (outcome == RmppReceiver::Outcome::kDropped) {
    ++counters_.segments_dropped;
    return;
  }
  if (is_response(header)) {
    const TransactionKey request = key_answered_by(agent, header, arrival.from);
    if (const auto pending = transactions_.find(request); pending != transactions_.end()) {
      // The request has arrived, so it need not be repeated while segments arrive.
      pending->second.retries_left = pending->second.request.retries;
      pending->second.response = key;
      set_due(request, pending->second, now + pending->second.request.timeout);
    }
  }
  if (outcome == RmppReceiver::Outcome::kStored) return;
  send_ack(arrival.from, arrival.mad, receiver->segments.last_contiguous_segment(),
           receiver->segments.window());
  if (outcome != RmppReceiver::Outcome::kComplete) return;
  std::vector<std::byte> message = receiver->segments.take_message();
  receiver_bytes_ -= receiver->memory_bytes;
  receiver->memory_bytes = 0;
  set_due(key, *receiver, now + kReceiverLinger);
  deliver(agent, header, arrival.from, std::move(message));
}

ManagementPort::Receiver* ManagementPort::find_or_add_receiver(const ReceiverKey& key,
                                                               const wire::RmppHeader& rmpp,
                                                               const Arrival& arrival, Time now) {
  if (const auto found = receivers_.find(key); found != receivers_.end()) return &found->second;
  const MadHeader header = header_of(arrival.mad);
  const bool is_expected = !is_response(header) ||
                           transactions_.contains(key_answered_by(key.agent, header, arrival.from));
  if (!is_expected) ++counters_.without_request;
  if (!is_expected || rmpp.segment != 1) {
    ++counters_.segments_dropped;
    return nullptr;
  }
  if (receivers_.size() >= kReceiversMax) {
    // Replaces the receiver of the oldest complete message, because such a receiver only repeats
    // its last ACK.
    const auto complete_receiver = std::ranges::find_if(receivers_due_, [&](const auto& due) {
      return receivers_.at(due.second).segments.is_complete();
    });
    if (complete_receiver == receivers_due_.end()) {
      send_abort(arrival.from, arrival.mad, wire::RmppStatus::kResourcesExhausted);
      return nullptr;
    }
    erase(ReceiverKey(complete_receiver->second));
  }
  Receiver& receiver =
      receivers_
          .emplace(key, Receiver{.segments = RmppReceiver(wire::class_header_bytes(key.mgmt_class),
                                                          kMessageBytesMax),
                                 .from = arrival.from,
                                 .first_segment = padded(arrival.mad)})
          .first->second;
  set_due(key, receiver, now + kReceiverTimeout);
  return &receiver;
}

void ManagementPort::receive_ack(AgentNumber agent, const MadHeader& header, const Arrival& arrival,
                                 Time now) {
  const auto rmpp = rmpp_of(arrival.mad);
  if (rmpp.status != wire::RmppStatus::kNormal) {
    return abort_transaction(agent, header, arrival, wire::RmppStatus::kBadStatus);
  }
  const TransactionKey key = key_answered_by(agent, header, arrival.from);
  const auto found = transactions_.find(key);
  if (found == transactions_.end() || !found->second.segments) return;
  Transaction& transaction = found->second;
  switch (transaction.segments->acknowledge(rmpp.segment, rmpp.length_or_window)) {
    case RmppSender::Ack::kOld: return;
    case RmppSender::Ack::kBadWindow:
      return abort_transaction(agent, header, arrival, wire::RmppStatus::kWindowTooSmall);
    case RmppSender::Ack::kBeyond:
      return abort_transaction(agent, header, arrival, wire::RmppStatus::kSegmentTooBig);
    case RmppSender::Ack::kProgress:
      transaction.retries_left = transaction.request.retries;
      return send_segments(key, transaction, now);
    case RmppSender::Ack::kComplete: break;
  }
  if (transaction.request.timeout <= Duration{} || key.response) return erase(key);
  // The request has arrived, so its response is expected now.  The request cannot be repeated any
  // more, because only its headers are left.  The ACK of segment 0 lets the peer send the response
  // (vol1 13.6.6.3).
  transaction.segments.reset();
  transaction.retries_left = transaction.request.retries = 0;
  set_due(key, transaction, now + transaction.request.timeout);
  send_ack(arrival.from, arrival.mad, 0, 1);
}

// Sends the peer a MAD of RMPP without data.  Copies the headers of `peer_mad`, which the peer has
// sent.
void ManagementPort::send_rmpp(const Address& to,
                               std::span<const std::byte, wire::kMadBytes> peer_mad,
                               wire::RmppHeader rmpp) {
  MadHeader header = header_of(peer_mad);
  header.response = !header.response;
  rmpp.first = rmpp.last = false;
  Mad mad = padded(peer_mad.first(wire::class_header_bytes(header.mgmt_class)));
  wire::encode_to(std::span(mad).first<wire::kMadHeaderBytes>(), header);
  wire::encode_to(std::span(mad).subspan<wire::kMadHeaderBytes, wire::kRmppHeaderBytes>(), rmpp);
  send_packet(to, mad);
}

void ManagementPort::send_ack(const Address& to,
                              std::span<const std::byte, wire::kMadBytes> peer_mad,
                              std::uint32_t segment, std::uint32_t window) {
  wire::RmppHeader rmpp = rmpp_of(peer_mad);
  rmpp.type = wire::RmppType::kAck;
  rmpp.segment = segment;
  rmpp.length_or_window = window;
  send_rmpp(to, peer_mad, rmpp);
}

// Sends a Stop if this host lacks resources, otherwise an Abort.
void ManagementPort::send_abort(const Address& to,
                                std::span<const std::byte, wire::kMadBytes> peer_mad,
                                wire::RmppStatus reason) {
  ++counters_.aborts_sent;
  wire::RmppHeader rmpp = rmpp_of(peer_mad);
  rmpp.version = wire::kRmppVersion;
  rmpp.type = reason == wire::RmppStatus::kResourcesExhausted ? wire::RmppType::kStop
                                                              : wire::RmppType::kAbort;
  rmpp.status = reason;
  rmpp.segment = 0;
  rmpp.length_or_window = 0;
  send_rmpp(to, peer_mad, rmpp);
}

// Ends the message that we send in this transaction, if there is one, and sends the peer an Abort.
void ManagementPort::abort_transaction(AgentNumber agent, const MadHeader& header,
                                       const Arrival& arrival, wire::RmppStatus reason) {
  const TransactionKey key = key_answered_by(agent, header, arrival.from);
  if (const auto found = transactions_.find(key);
      found != transactions_.end() && found->second.segments) {
    fail_transaction(key);
  }
  send_abort(arrival.from, arrival.mad, reason);
}

}  // namespace verbena::mad
