#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "hca/engine.h"
#include "wire/headers.h"
#include "wire/ip.h"

// Provides this layer's tests with two engines, a wire with virtual time and injected faults, and
// packets as text.  A test decides for each packet by its number if it is lost, duplicated or
// delayed.
namespace verbena::hca::testing {

inline constexpr Duration kLatency = std::chrono::microseconds(5);
inline constexpr Duration kSecond = std::chrono::seconds(1);

inline Gid gid_of(std::uint32_t host) { return wire::ipv4_gid(0x0a000000 + host); }
// Returns the second address of a host.
inline Gid other_gid_of(std::uint32_t host) { return wire::ipv4_gid(0x0a010000 + host); }

// Owns one engine with a protection domain, a CQ and a registered memory region.
class Host {
 public:
  static constexpr std::uint32_t kAllAccess = access::kLocalWrite | access::kRemoteWrite |
                                              access::kRemoteRead | access::kRemoteAtomic |
                                              access::kWindowBind;

  explicit Host(std::uint32_t n, std::size_t memory_bytes = 4 << 20,
                const Personality& personality = kConnectX)
      : number(n),
        engine({}, Random(n), personality),
        block(static_cast<std::byte*>(std::calloc(memory_bytes, 1)), &std::free),
        memory(block.get(), memory_bytes) {
    pd = engine.create_pd().value();
    cq = engine.create_cq(512, 100 + number).value();
    mr = engine.register_mr(pd, address(0), memory.size(), address(0), kAllAccess).value();
  }
  std::uint64_t address(std::size_t offset) const {
    return reinterpret_cast<std::uintptr_t>(memory.data()) + offset;
  }
  Sge sge(std::size_t offset, std::size_t bytes) const {
    return {address(offset), static_cast<std::uint32_t>(bytes), mr.lkey};
  }
  // Writes a pattern that depends on the position and on `salt`.
  void fill(std::size_t offset, std::size_t bytes, std::uint8_t salt) {
    for (std::size_t i = 0; i < bytes; ++i) {
      memory[offset + i] = static_cast<std::byte>(salt + i * 7 + (i >> 8));
    }
  }
  // Polls all completions.
  std::vector<WorkCompletion> poll() {
    std::vector<WorkCompletion> out(512);
    out.resize(engine.poll_cq(cq, out).value());
    return out;
  }
  // Returns all events since the last call.
  std::vector<Event> events() {
    std::vector<Event> out;
    while (auto event = engine.poll_event()) out.push_back(*event);
    return out;
  }

  const std::uint32_t number;
  Engine engine;
  const std::unique_ptr<std::byte, void (*)(void*)>
      block;  // comes from calloc(), so that untouched pages take no memory
  const std::span<std::byte> memory;
  PdHandle pd;
  CqHandle cq;
  MrInfo mr;
};

// Formats a packet: in "SEND_FIRST 5 256 A", 5 is the PSN, 256 is the number of payload bytes, and
// A is the AckReq bit.  For a READ the number is that of the requested bytes.  For a NAK, its code
// follows the word: "NAK1 5".
inline std::string text(std::span<const std::byte> bytes) {
  const auto packet = wire::parse_transport(bytes);
  if (!packet) return "malformed";
  static const std::map<wire::Operation, const char*> names = {
      {wire::Operation::kSendFirst, "SEND_FIRST"},
      {wire::Operation::kSendMiddle, "SEND_MIDDLE"},
      {wire::Operation::kSendLast, "SEND_LAST"},
      {wire::Operation::kSendLastImm, "SEND_LAST_IMM"},
      {wire::Operation::kSendOnly, "SEND_ONLY"},
      {wire::Operation::kSendOnlyImm, "SEND_ONLY_IMM"},
      {wire::Operation::kWriteFirst, "WRITE_FIRST"},
      {wire::Operation::kWriteMiddle, "WRITE_MIDDLE"},
      {wire::Operation::kWriteLast, "WRITE_LAST"},
      {wire::Operation::kWriteLastImm, "WRITE_LAST_IMM"},
      {wire::Operation::kWriteOnly, "WRITE_ONLY"},
      {wire::Operation::kWriteOnlyImm, "WRITE_ONLY_IMM"},
      {wire::Operation::kReadRequest, "READ"},
      {wire::Operation::kReadResponseFirst, "RESP_FIRST"},
      {wire::Operation::kReadResponseMiddle, "RESP_MIDDLE"},
      {wire::Operation::kReadResponseLast, "RESP_LAST"},
      {wire::Operation::kReadResponseOnly, "RESP_ONLY"},
      {wire::Operation::kAcknowledge, "ACK"},
      {wire::Operation::kAtomicAcknowledge, "ATOMIC_ACK"},
      {wire::Operation::kCompareSwap, "CMP_SWAP"},
      {wire::Operation::kFetchAdd, "FETCH_ADD"},
      {wire::Operation::kSendLastInvalidate, "SEND_LAST_INV"},
      {wire::Operation::kSendOnlyInvalidate, "SEND_ONLY_INV"},
      {wire::Operation::kAtomicWrite, "ATOMIC_WRITE"}};
  const auto op = packet->bth.opcode;
  const auto name = names.find(wire::operation_of(op));
  std::string out = name == names.end() ? "?" : name->second;
  if (op == wire::Opcode::kRcAcknowledge) {
    if (wire::kind(packet->aeth) == wire::AethKind::kRnrNak) out = "RNR_NAK";
    if (wire::kind(packet->aeth) == wire::AethKind::kNak) {
      out = "NAK" + std::to_string(wire::code(packet->aeth));
    }
  }
  out += " " + std::to_string(packet->bth.psn.value);
  if (op == wire::Opcode::kRcReadRequest) {
    out += " " + std::to_string(packet->reth.dma_length_bytes);
  } else if (wire::has_payload(op)) {
    out += " " + std::to_string(packet->payload.size());
  }
  if (packet->bth.acknowledge_request) out += " A";
  return out;
}

// Tells the wire how many copies of a packet arrive, and how much later than usual they arrive.
struct PacketOutcome {
  unsigned copies = 1;
  Duration delay{};
};

// Models the receive buffer of a socket, and the thread that reads from it.  Packets are lost while
// the buffer is full.  A host without an Inbox receives each packet at once.
struct Inbox {
  std::uint64_t capacity_bytes = 0;
  Duration service{};  // the time that the thread needs for one packet
  // Returns the bytes that Linux charges for a packet.  A buffer of 212,992 bytes holds about 200
  // small packets or 50 of 4 KiB.
  static std::uint64_t charge(std::size_t bytes) { return std::max<std::uint64_t>(1024, bytes); }

  Time busy_until{};
  std::uint64_t queued_bytes = 0;
  std::uint64_t lost = 0;
};

// Connects hosts in virtual time, and delivers packets by their destination address.
class Wire {
 public:
  struct InFlight {
    link::Address address;
    std::vector<std::byte> bytes;
    bool is_in_inbox = false;
  };

  void attach(Host& host) { hosts_.push_back(&host); }

  // Handles all packets and deadlines that are due at `end` or before.
  void run_until(Time end) {
    while (true) {
      do {
        for (Host* host : hosts_) drain(*host);
      } while (lanes && lanes());
      Time next = in_flight_.empty() ? kNever : in_flight_.begin()->first.first;
      for (Host* host : hosts_) next = std::min(next, host->engine.deadline());
      if (next > end) break;
      now = std::max(now, next);
      for (Host* host : hosts_) host->engine.on_timer(now);
      while (!in_flight_.empty() && in_flight_.begin()->first.first <= now) {
        InFlight packet = std::move(in_flight_.begin()->second);
        in_flight_.erase(in_flight_.begin());
        arrive(std::move(packet));
      }
    }
    if (end != kNever) now = std::max(now, end);
  }
  void run(Duration time = 10 * kSecond) { run_until(now + time); }

  // Puts all packets in flight that the host is ready to send.
  void drain(Host& host) {
    bool more = true;
    while (more) {
      more = host.engine.transmit(burst_, now);
      for (const auto& packet : burst_.packets()) {
        const auto bytes = burst_.transport(packet);
        if (keep_log) log.push_back(std::to_string(host.number) + ": " + text(bytes));
        const PacketOutcome fate = faults ? faults(count, bytes) : PacketOutcome{};
        ++count;
        for (unsigned i = 0; i < fate.copies; ++i) {
          in_flight_.emplace(std::pair(now + kLatency + fate.delay, sequence_++),
                             InFlight{packet.address, {bytes.begin(), bytes.end()}});
        }
      }
      burst_.clear();
    }
  }

  Time now{std::chrono::seconds(1)};
  std::uint64_t count = 0;  // the number of packets that were sent
  // Decides the fate of each packet by its number and bytes.
  std::function<PacketOutcome(std::uint64_t number, std::span<const std::byte>)> faults;
  std::map<std::uint32_t, Inbox> inboxes;  // by host number; a host without an entry has no limit
  std::set<Gid> unreachable;               // no packet arrives at these addresses
  std::function<void(Host&)> on_arrival;   // called after an engine received a packet
  std::function<void(std::span<std::byte>)> tamper;  // may change an arriving packet
  std::function<bool()> lanes;  // delivers the packets of lanes; returns false if there were none
  bool keep_log = false;
  std::vector<std::string> log;

 private:
  void arrive(InFlight packet) {
    for (Host* host : hosts_) {
      const bool is_multicast = wire::is_multicast(packet.address.destination);
      const Gid& to = packet.address.destination;
      if (!is_multicast && to != gid_of(host->number) && to != other_gid_of(host->number)) continue;
      if (unreachable.contains(to)) continue;
      const auto inbox = inboxes.find(host->number);
      if (inbox != inboxes.end() && !passes(inbox->second, packet)) continue;
      if (tamper) tamper(packet.bytes);
      host->engine.receive({packet.address, packet.bytes}, now);
      if (on_arrival) on_arrival(*host);
    }
  }
  // Returns true if the packet arrives now.  Otherwise the inbox drops it because it is full, or
  // queues it behind earlier packets.
  bool passes(Inbox& inbox, InFlight& packet) {
    const std::uint64_t charge = Inbox::charge(packet.bytes.size());
    if (packet.is_in_inbox) {
      inbox.queued_bytes -= charge;
      return true;
    }
    if (inbox.queued_bytes + charge > inbox.capacity_bytes) {
      ++inbox.lost;
      return false;
    }
    inbox.queued_bytes += charge;
    inbox.busy_until = std::max(inbox.busy_until, now) + inbox.service;
    packet.is_in_inbox = true;
    in_flight_.emplace(std::pair(inbox.busy_until, sequence_++), std::move(packet));
    return false;
  }

  std::vector<Host*> hosts_;
  link::Burst burst_;
  std::map<std::pair<Time, std::uint64_t>, InFlight> in_flight_;
  std::uint64_t sequence_ = 0;
};

struct Options {
  Mtu mtu = Mtu::k1024;
  Psn psn_a{1000}, psn_b{2000};
  std::uint8_t timeout = 14;  // 67 ms
  std::uint8_t retry_count = 7;
  std::uint8_t rnr_retry = 7;
  std::uint8_t min_rnr_timer = 12;  // 640 us
  std::uint8_t peer_rnr_retries = 0;
  std::uint8_t rd_atomic = 4;
  QpCaps caps{.max_send_wr = 64,
              .max_recv_wr = 64,
              .max_send_sge = 4,
              .max_recv_sge = 4,
              .max_inline_bytes = 256};
  bool signal_all = false;
  QpType type = QpType::kRc;  // kRc or kUc
  std::uint16_t pkey_index = 0;
  std::vector<Pkey> pkeys_a{wire::kDefaultPkey}, pkeys_b{wire::kDefaultPkey};
};

// Creates a QP for a connection, in RESET: RC, or UC if `o` says so.
inline QpHandle create_connected_qp(Host& host, const Options& o, Qpn qpn) {
  return host.engine
      .create_qp({.type = o.type,
                  .pd = host.pd,
                  .send_cq = host.cq,
                  .recv_cq = host.cq,
                  .caps = o.caps,
                  .signal_all = o.signal_all,
                  .cookie = 500 + qpn.value},
                 qpn)
      .value();
}

inline constexpr std::uint32_t kToInit =
    attribute::kState | attribute::kPkeyIndex | attribute::kPort | attribute::kAccessFlags;
inline constexpr std::uint32_t kToRtr = attribute::kState | attribute::kPath | attribute::kPathMtu |
                                        attribute::kDestinationQpn | attribute::kRqPsn |
                                        attribute::kMaxDestRdAtomic | attribute::kMinRnrTimer;
inline constexpr std::uint32_t kToRts = attribute::kState | attribute::kSqPsn |
                                        attribute::kTimeout | attribute::kRetryCount |
                                        attribute::kRnrRetry | attribute::kMaxRdAtomic;
// The transitions of UC QPs do not have these attributes.
inline constexpr std::uint32_t kReliableAttributes =
    attribute::kMaxDestRdAtomic | attribute::kMinRnrTimer | attribute::kTimeout |
    attribute::kRetryCount | attribute::kRnrRetry | attribute::kMaxRdAtomic;

inline QpAttributes attributes_for(const Host& self, const Host& peer, const Options& o,
                                   Qpn peer_qpn, Psn own_psn, Psn peer_psn) {
  QpAttributes a;
  a.path_mtu = o.mtu;
  a.access_flags = access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic;
  a.path.address = {
      .source = gid_of(self.number), .destination = gid_of(peer.number), .source_port = 0xc123};
  a.destination_qpn = peer_qpn;
  a.pkey_index = o.pkey_index;
  a.rq_psn = peer_psn;
  a.sq_psn = own_psn;
  a.timeout = o.timeout;
  a.retry_count = o.retry_count;
  a.rnr_retry = o.rnr_retry;
  a.min_rnr_timer = o.min_rnr_timer;
  a.peer_rnr_retries = o.peer_rnr_retries;
  a.max_rd_atomic = a.max_dest_rd_atomic = o.rd_atomic;
  return a;
}

// Brings the QP from RESET to this state, which is at most RTS.
inline void bring_to_state(Host& host, QpHandle qp, QpAttributes a, QpState state, Time now = {}) {
  for (const auto& [to, mask] :
       {std::pair(QpState::kInit, kToInit), std::pair(QpState::kRtr, kToRtr),
        std::pair(QpState::kRts, kToRts)}) {
    if (to > state) break;
    a.state = to;
    const bool uc = host.engine.query_qp(qp)->init.type == QpType::kUc;
    host.engine.modify_qp(qp, a, uc ? mask & ~kReliableAttributes : mask, now).value();
  }
}

inline constexpr Qkey kUdQkey{0x01234567};

// Creates a UD QP in RTS.
inline QpHandle create_ud(Host& host, Qpn qpn, Qkey qkey = kUdQkey) {
  const QpHandle qp = host.engine
                          .create_qp({.type = QpType::kUd,
                                      .pd = host.pd,
                                      .send_cq = host.cq,
                                      .recv_cq = host.cq,
                                      .caps = {.max_send_wr = 16,
                                               .max_recv_wr = 16,
                                               .max_send_sge = 2,
                                               .max_recv_sge = 2,
                                               .max_inline_bytes = 64}},
                                     qpn)
                          .value();
  QpAttributes a;
  a.qkey = qkey;
  for (const auto& [state, mask] :
       {std::pair(QpState::kInit, attribute::kPkeyIndex | attribute::kPort | attribute::kQkey),
        std::pair(QpState::kRtr, 0u), std::pair(QpState::kRts, attribute::kSqPsn)}) {
    a.state = state;
    host.engine.modify_qp(qp, a, attribute::kState | mask, {}).value();
  }
  return qp;
}

// Connects two hosts by one QP each.
struct Pair {
  explicit Pair(const Options& options = {}, const Personality& personality = kConnectX)
      : o(options), a(1, 4 << 20, personality), b(2, 4 << 20, personality) {
    wire.attach(a);
    wire.attach(b);
    a.engine.set_pkeys(o.pkeys_a).value();
    b.engine.set_pkeys(o.pkeys_b).value();
    qa = create_connected_qp(a, o, Qpn{0x11});
    qb = create_connected_qp(b, o, Qpn{0x22});
    bring_to_state(a, qa, attributes_for(a, b, o, Qpn{0x22}, o.psn_a, o.psn_b), QpState::kRts);
    bring_to_state(b, qb, attributes_for(b, a, o, Qpn{0x11}, o.psn_b, o.psn_a), QpState::kRts);
  }

  // Posts a SEND of host a.
  Result<void> send(std::uint64_t id, std::size_t offset, std::size_t bytes,
                    std::uint32_t flags = send_flag::kSignaled) {
    const Sge sge = a.sge(offset, bytes);
    return a.engine.post_send(
        qa, {.wr_id = id, .opcode = WrOpcode::kSend, .flags = flags, .sges = {&sge, 1}});
  }
  // Posts a request of host a, which reads or writes the memory of host b from `remote` on.
  Result<void> rdma(WrOpcode opcode, std::uint64_t id, std::size_t offset, std::size_t remote,
                    std::size_t bytes, std::uint32_t flags = send_flag::kSignaled) {
    const Sge sge = a.sge(offset, bytes);
    return a.engine.post_send(qa, {.wr_id = id,
                                   .opcode = opcode,
                                   .flags = flags,
                                   .sges = {&sge, 1},
                                   .immediate = 0x12345678,
                                   .remote_address = b.address(remote),
                                   .r_key = b.mr.rkey});
  }
  // Posts a receive of host b.
  Result<void> receive(std::uint64_t id, std::size_t offset, std::size_t bytes) {
    const Sge sge = b.sge(offset, bytes);
    return b.engine.post_recv(qb, {.wr_id = id, .sges = {&sge, 1}});
  }
  // Returns true if the hosts have equal bytes at these offsets of their memory.
  bool same(std::size_t at_a, std::size_t at_b, std::size_t bytes) const {
    return std::equal(a.memory.begin() + static_cast<std::ptrdiff_t>(at_a),
                      a.memory.begin() + static_cast<std::ptrdiff_t>(at_a + bytes),
                      b.memory.begin() + static_cast<std::ptrdiff_t>(at_b));
  }
  QpState state_a() const { return a.engine.query_qp(qa).value().attributes.state; }
  QpState state_b() const { return b.engine.query_qp(qb).value().attributes.state; }

  Options o;
  Wire wire;
  Host a, b;
  QpHandle qa, qb;
};

// Encodes a packet.  Each byte of its payload is `value`.
inline std::vector<std::byte> packet_of(wire::TransportPacket p, std::size_t payload_bytes,
                                        std::byte value = std::byte{0x5a}) {
  std::vector<std::byte> out(wire::header_bytes(p.bth.opcode));
  p.bth.pad_count = wire::pad_count(payload_bytes);
  wire::write_headers(out, p);
  out.insert(out.end(), payload_bytes, value);
  out.insert(out.end(), p.bth.pad_count, std::byte{0});
  return out;
}

// Simulates one host whose peer, number 2, is the test itself: the test writes each packet and
// reads each response.  The host's PSNs begin at 1000, the peer's at 2000.
struct HostUnderTest {
  explicit HostUnderTest(const Options& options = {}, QpState state = QpState::kRts) : o(options) {
    peer.number = 2;
    qp = create_connected_qp(host, o, Qpn{0x11});
    QpAttributes a = attributes_for(host, host, o, Qpn{0x22}, o.psn_a, o.psn_b);
    a.path.address.destination = gid_of(peer.number);
    bring_to_state(host, qp, a, state);
  }

  // Returns all packets that the host sends now, as text.
  std::vector<std::string> out() {
    std::vector<std::string> lines;
    for (bool more = true; more;) {
      more = host.engine.transmit(burst, now);
      for (const auto& packet : burst.packets()) lines.push_back(text(burst.transport(packet)));
      burst.clear();
    }
    return lines;
  }
  // Delivers a packet of the peer to the host, as the next three functions do.
  void deliver(wire::TransportPacket packet, std::size_t payload_bytes,
               std::byte value = std::byte{0x5a}) {
    packet.bth.destination_qpn = Qpn{0x11};
    host.engine.receive({{.source = gid_of(peer.number), .destination = gid_of(1)},
                         packet_of(packet, payload_bytes, value)},
                        now);
  }
  void request(wire::Opcode opcode, std::uint32_t psn, std::size_t bytes, bool ack_request = true,
               wire::Reth reth = {}) {
    wire::TransportPacket packet;
    packet.bth.opcode = opcode;
    packet.bth.psn = Psn{psn};
    packet.bth.acknowledge_request = ack_request;
    packet.reth = reth;
    deliver(packet, bytes);
  }
  void acknowledge(std::uint32_t psn, wire::Aeth aeth) {
    wire::TransportPacket packet;
    packet.bth.opcode = wire::Opcode::kRcAcknowledge;
    packet.bth.psn = Psn{psn};
    packet.aeth = aeth;
    deliver(packet, 0);
  }
  void response(wire::Opcode opcode, std::uint32_t psn, std::size_t bytes,
                std::byte value = std::byte{0x5a}) {
    wire::TransportPacket packet;
    packet.bth.opcode = opcode;
    packet.bth.psn = Psn{psn};
    packet.aeth = wire::ack(1);
    deliver(packet, bytes, value);
  }
  // Posts a send request of the host.
  void post(WrOpcode opcode, std::uint64_t id, std::size_t bytes, std::uint32_t flags = 0) {
    const Sge sge = host.sge(0, bytes);
    host.engine
        .post_send(qp, {.wr_id = id,
                        .opcode = opcode,
                        .flags = flags | send_flag::kSignaled,
                        .sges = {&sge, 1},
                        .remote_address = 0x10000,
                        .r_key = 0x77})
        .value();
  }
  // Posts a receive of the host.
  void receive(std::uint64_t id, std::size_t bytes) {
    const Sge sge = host.sge(0, bytes);
    host.engine.post_recv(qp, {.wr_id = id, .sges = {&sge, 1}}).value();
  }
  // Advances the time to the next deadline of the host.
  void wait_for_timer() {
    now = host.engine.deadline();
    host.engine.on_timer(now);
  }
  QpState state() const { return host.engine.query_qp(qp).value().attributes.state; }

  struct {
    std::uint32_t number = 0;
  } peer;
  Options o;
  Host host{1};
  QpHandle qp;
  link::Burst burst;
  Time now{std::chrono::seconds(1)};
};

// Formats completions: their ids in order, and the status of those that failed: "1 2 3:flushed".
inline std::string text(const std::vector<WorkCompletion>& completions) {
  std::string out;
  for (const auto& wc : completions) {
    if (!out.empty()) out += " ";
    out += std::to_string(wc.wr_id);
    if (wc.status != WcStatus::kSuccess) out += std::string(":") + to_string(wc.status);
  }
  return out;
}

}  // namespace verbena::hca::testing
