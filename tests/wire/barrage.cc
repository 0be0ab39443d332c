#include "barrage.h"

#include <algorithm>
#include <array>
#include <utility>

#include "wire/icrc.h"
#include "wire/mad.h"

namespace verbena::wire_bench {
namespace {

using Kind = Barrage::Kind;
using wire::Opcode;
using wire::Transport;

// Lists the kinds of the runs of one cycle, in order.
constexpr std::array kSchedule{
    Kind::kGrid,    Kind::kTraffic, Kind::kGrid,    Kind::kMad,     Kind::kGrid,
    Kind::kTraffic, Kind::kGrid,    Kind::kTraffic, Kind::kCapture, Kind::kGrid,
    Kind::kGrid,    Kind::kMad,     Kind::kTraffic, Kind::kGrid,    Kind::kCapture,
    Kind::kTraffic, Kind::kGrid,    Kind::kMad,     Kind::kCapture, Kind::kFraming,
};
constexpr std::uint64_t kGridRuns = 8;  // in one cycle
constexpr std::size_t kNoiseBytes = 256 * 1024;
constexpr std::uint64_t kSmallMax = 96;  // the largest length in every second pass of the grid
// The number of lengths and this number are coprime, so the passes of the grid use every length.
constexpr std::uint64_t kLengthStride = 619;

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  a ^= b * 0x9e3779b97f4a7c15u;
  a = (a ^ (a >> 30)) * 0xbf58476d1ce4e5b9u;
  a = (a ^ (a >> 27)) * 0x94d049bb133111ebu;
  return a ^ (a >> 31);
}

// Returns the index in the grid of the packet with this number.  Only packets of kind kGrid count.
std::uint64_t grid_index(std::uint64_t number) {
  const std::uint64_t run = number / Barrage::kPacketsPerRun;
  const std::uint64_t index_in_cycle = run % kSchedule.size();
  const auto before =
      std::count(kSchedule.begin(), kSchedule.begin() + static_cast<std::ptrdiff_t>(index_in_cycle),
                 Kind::kGrid);
  return (run / kSchedule.size() * kGridRuns + static_cast<std::uint64_t>(before)) *
             Barrage::kPacketsPerRun +
         number % Barrage::kPacketsPerRun;
}

void put16(std::span<std::byte> out, std::size_t at, std::uint64_t value) {
  out[at] = static_cast<std::byte>(value >> 8);
  out[at + 1] = static_cast<std::byte>(value);
}

// Returns UDP's checksum over IPv4 or IPv6 (RFC 768, RFC 8200 8.1).
std::uint16_t udp_checksum(std::span<const std::byte> addresses, std::span<const std::byte> udp) {
  std::uint64_t sum = wire::kIpProtocolUdp + udp.size();
  const auto add = [&](std::span<const std::byte> bytes) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      sum += std::to_integer<std::uint64_t>(bytes[i]) << (i % 2 == 0 ? 8 : 0);
    }
  };
  add(addresses);
  add(udp);
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  const auto out = static_cast<std::uint16_t>(~sum);
  return out == 0 ? std::uint16_t{0xffff} : out;
}

}  // namespace

const char* to_string(Kind kind) {
  switch (kind) {
    case Kind::kGrid: return "grid";
    case Kind::kTraffic: return "traffic";
    case Kind::kCapture: return "capture";
    case Kind::kMad: return "mad";
    case Kind::kFraming: return "framing";
    case Kind::kCount: break;
  }
  return "?";
}

Barrage::Barrage(std::uint64_t seed, const Target& target, std::vector<Bytes> captured)
    : seed_(seed), target_(target) {
  for (const Bytes& bytes : captured) {
    const auto frame = wire::parse_frame(bytes);
    if (!frame || frame->headers.destination_port != wire::kRoceUdpPort) continue;
    captured_.emplace_back(frame->udp_payload.begin(), frame->udp_payload.end());
  }
  Random noise(mix(seed, ~std::uint64_t{0}));
  noise_.resize(kNoiseBytes);
  for (std::byte& byte : noise_) byte = static_cast<std::byte>(noise.below(256));
  body_.reserve(kFrameBytesMax);
  frame_.reserve(kFrameBytesMax);
}

Barrage::Packet Barrage::packet_at(std::uint64_t number) {
  random_ = Random(mix(seed_, number));
  Kind kind = kSchedule[number / kPacketsPerRun % kSchedule.size()];
  if (kind == Kind::kCapture && captured_.empty()) kind = Kind::kMad;
  if (kind == Kind::kTraffic && target_.qps.empty()) kind = Kind::kMad;
  headers_ = {.source_mac = kPeerMac, .destination_mac = kVictimMac};
  body_.clear();
  is_intact_ = true;
  set_peer_addresses(/*is_ipv6=*/one_in(2));
  switch (kind) {
    case Kind::kGrid: make_grid_packet(number); break;
    case Kind::kTraffic: make_traffic_packet(number); break;
    case Kind::kCapture: make_capture_packet(); break;
    case Kind::kFraming: make_framing_packet(); break;
    case Kind::kMad:
    case Kind::kCount: make_mad_packet(); break;
  }
  return {frame_, kind, is_intact_};
}

// ---- parts --------------------------------------------------------------------------------------

void Barrage::add_random(std::size_t bytes) {
  const auto at = static_cast<std::ptrdiff_t>(below(noise_.size() - bytes));
  body_.insert(body_.end(), noise_.begin() + at,
               noise_.begin() + at + static_cast<std::ptrdiff_t>(bytes));
}

// Writes the headers, a random payload and its pad into the body.  REQUIRES: a known opcode.
void Barrage::write_body(const wire::TransportPacket& packet, std::size_t payload_bytes) {
  wire::TransportPacket out = packet;
  out.bth.pad_count = wire::pad_count(payload_bytes);
  body_.resize(wire::header_bytes(out.bth.opcode));
  wire::write_headers(body_, out);
  add_random(payload_bytes);
  body_.resize(body_.size() + out.bth.pad_count);
}

void Barrage::flip_bits() {
  if (body_.empty()) return;
  for (std::uint64_t i = 1 + below(8); i > 0; --i) {
    // Mutates headers more often than payloads, because most checks are about headers.
    const std::size_t mutable_bytes =
        one_in(2) ? std::min<std::size_t>(body_.size(), 44) : body_.size();
    body_[below(mutable_bytes)] ^= static_cast<std::byte>(1u << below(8));
  }
}

std::uint32_t Barrage::choose_id(bool wants_target_id) {
  const auto slot = below(Target::kConnectionsMax);
  const auto random_value = static_cast<std::uint32_t>(random_.next());
  if (target_.connections.empty() || random_value % 8 == 0) return random_value % 16;
  const auto& connection = target_.connections[slot % target_.connections.size()];
  return wants_target_id ? connection.target_id.value : connection.our_id.value;
}

Target::Region Barrage::choose_region() {
  const auto slot = below(64);
  Target::Region region;
  if (!target_.regions.empty()) region = target_.regions[slot % target_.regions.size()];
  switch (below(16)) {
    case 0: region.r_key ^= 1u << below(32); break;
    case 1: region.address += below(2) * region.bytes - 1; break;  // crosses an edge of the region
    case 2: region.address = random_.next(); break;
    default: break;
  }
  return region;
}

Psn Barrage::choose_psn_near(Psn psn) {
  switch (below(16)) {
    case 0: return psn + 1;
    case 1: return psn - 1;
    case 2: return psn + static_cast<std::uint32_t>(below(256));
    case 3: return psn - static_cast<std::uint32_t>(below(256));
    case 4: return psn + 0x7fffff;
    case 5: return psn + 0x800000;
    case 6: return {random_.next32() & kMask24};
    default: return psn;
  }
}

// Fills in all headers that an opcode may have, mostly with values that are right for the QP.
wire::TransportPacket Barrage::headers_for(const Target::Qp& qp, Opcode opcode) {
  wire::TransportPacket packet;
  packet.bth.opcode = opcode;
  packet.bth.destination_qpn = qp.qpn;
  packet.bth.psn = wire::is_request(opcode) || qp.transport != Transport::kRc ? qp.expected_psn
                                                                              : qp.requester_psn;
  packet.bth.acknowledge_request = one_in(4);
  packet.bth.solicited_event = one_in(4);
  packet.bth.migration_request = !one_in(4);
  const Target::Region region = choose_region();
  packet.reth = {region.address, region.r_key,
                 static_cast<std::uint32_t>(one_in(8) ? random_.next() : below(3 * qp.mtu))};
  packet.atomic = {region.address & ~std::uint64_t{7}, region.r_key, random_.next(),
                   random_.next()};
  packet.deth = {one_in(4) ? Qkey{random_.next32()} : target_.qkey, qp.peer_qpn};
  packet.aeth = {static_cast<std::uint8_t>(below(256)), static_cast<std::uint32_t>(below(64))};
  packet.immediate = packet.invalidate_r_key = random_.next32();
  packet.xrc.srq = {random_.next32() & kMask24};
  return packet;
}

void Barrage::set_peer_addresses(bool is_ipv6) {
  headers_.source = target_.peer.address(is_ipv6);
  headers_.destination = target_.victim.address(is_ipv6);
  headers_.source_port = static_cast<std::uint16_t>(0xc000 + below(0x4000));
}

// Redirects a packet to a QP that does not exist, if it could reach a QP of another program
// (Target::spared).  Does not redirect packets from the peer's address.  The other programs' QPs
// ignore such packets, because these QPs are connected to the stranger's address.
void Barrage::redirect_from_spared() {
  if (body_.size() < 8) return;
  const Qpn to{std::to_integer<std::uint32_t>(body_[5]) << 16 |
               std::to_integer<std::uint32_t>(body_[6]) << 8 |
               std::to_integer<std::uint32_t>(body_[7])};
  if (std::ranges::find(target_.spared, to) == target_.spared.end()) return;
  if (headers_.source == target_.peer.ipv4 || headers_.source == target_.peer.ipv6) return;
  body_[5] = std::byte{0xff};
}

// Changes the port of a packet that could be a REQ for the listener of another program
// (Target::spared_port).
void Barrage::avoid_spared_port() {
  for (const Opcode opcode : {Opcode::kUdSendOnly, Opcode::kUdSendOnlyImm}) {
    // The service id is in bytes 8 to 15 of a REQ, and its last two bytes are the port.
    const std::size_t at = wire::header_bytes(opcode) + wire::kMadHeaderBytes + 14;
    if (target_.spared_port == 0 || body_.size() < at + 2) continue;
    const unsigned port =
        std::to_integer<unsigned>(body_[at]) << 8 | std::to_integer<unsigned>(body_[at + 1]);
    if (port == target_.spared_port) body_[at] ^= std::byte{0xff};
  }
}

void Barrage::write_frame(bool has_right_icrc) {
  redirect_from_spared();
  avoid_spared_port();
  const std::size_t before = wire::frame_header_bytes(headers_.destination);
  frame_.resize(before + body_.size() + wire::kIcrcBytes);
  wire::write_frame_headers(frame_, headers_, body_.size() + wire::kIcrcBytes);
  std::ranges::copy(body_, frame_.begin() + static_cast<std::ptrdiff_t>(before));
  std::uint32_t sum = 0;
  if (body_.size() >= wire::kSize<wire::Bth>) sum = wire::icrc(icrc_inputs(headers_), body_);
  if (!has_right_icrc) sum ^= random_.next32() | 1;
  wire::store_icrc(std::span(frame_).last(wire::kIcrcBytes), sum);
}

// ---- grid ---------------------------------------------------------------------------------------

std::uint64_t Barrage::grid_length(std::uint64_t pass) {
  return pass % 2 == 0 ? pass / 2 % (kSmallMax + 1)
                       : pass / 2 * kLengthStride % (kBodyBytesMax + 1);
}

void Barrage::make_grid_packet(std::uint64_t number) {
  const std::array others{Qpn{0},        Qpn{1},        Qpn{2},
                          Qpn{0xfffffe}, Qpn{0xffffff}, Qpn{random_.next32() & kMask24}};
  const std::uint64_t index = grid_index(number);
  const auto opcode = static_cast<Opcode>(index % 256);
  std::uint64_t slot = index / 256;
  const std::uint64_t slots =
      target_.qps.size() + target_.absent.size() + target_.spared.size() + others.size();
  std::uint64_t bytes = grid_length(slot / slots);
  slot %= slots;

  Target::Qp qp{.qpn = {}, .peer_qpn = {0x123456}, .is_ipv6 = one_in(2)};
  if (slot < target_.qps.size()) {
    qp = target_.qps[slot];
  } else if ((slot -= target_.qps.size()) < target_.absent.size()) {
    qp.qpn = target_.absent[slot];
  } else if ((slot -= target_.absent.size()) < target_.spared.size()) {
    qp.qpn = target_.spared[slot];
  } else {
    qp.qpn = others[slot - target_.spared.size()];
  }
  set_peer_addresses(qp.is_ipv6);
  if (one_in(8)) headers_.source = target_.stranger.address(qp.is_ipv6);

  wire::TransportPacket packet = headers_for(qp, opcode);
  packet.bth.psn = choose_psn_near(packet.bth.psn);
  if (one_in(16)) packet.bth.pkey = {static_cast<std::uint16_t>(one_in(2) ? 0x7fff : below(65536))};
  if (one_in(32)) packet.bth.transport_version = static_cast<std::uint8_t>(below(16));
  if (qp.qpn == wire::kGsiQpn && !one_in(4)) packet.deth.qkey = wire::kGsiQkey;
  // `bytes` is the length after the BTH.  For some packets it becomes the length after all headers,
  // so that all headers are present.
  if (wire::is_known(opcode) && one_in(4)) {
    bytes = std::min(kBodyBytesMax, (wire::has_payload(opcode) ? bytes : 0) +
                                        wire::header_bytes(opcode) - wire::kSize<wire::Bth>);
  }
  if (wire::is_known(opcode)) {
    body_.resize(wire::header_bytes(opcode));
    wire::write_headers(body_, packet);
  } else {
    const auto bth = wire::encode(packet.bth);
    body_.assign(bth.begin(), bth.end());
  }
  const std::size_t body_bytes = wire::kSize<wire::Bth> + bytes;
  if (body_.size() > body_bytes) body_.resize(body_bytes);
  add_random(body_bytes - body_.size());
  if (one_in(4)) {
    packet.bth.pad_count = static_cast<std::uint8_t>(below(4));
  } else {
    packet.bth.pad_count = wire::pad_count(bytes);
    body_.resize(body_.size() + packet.bth.pad_count);
  }
  std::ranges::copy(wire::encode(packet.bth), body_.begin());
  write_frame(!one_in(16));
}

// ---- traffic ------------------------------------------------------------------------------------

// Describes a run of packets: messages, or answers to messages.
struct Barrage::Exchange {
  Target::Qp qp{};
  enum class Type : std::uint8_t { kSend, kWrite, kRead, kAnswers, kAtomic, kDatagrams } type{};
  std::uint32_t packets = 1;
  std::uint32_t last_bytes = 0;
  bool has_immediate = false;
  bool invalidates = false;
  Target::Region region{};
  std::uint32_t faulty_index = 0;  // the index of the faulty packet
};

void Barrage::make_traffic_packet(std::uint64_t number) {
  const std::uint64_t run = number / kPacketsPerRun;
  Random plan(mix(seed_ ^ 0x7a1c, run));
  Exchange exchange;
  // These choices depend only on the run.  So all packets of a run go to the same QP and belong to
  // the same messages, although `target_` learns new PSNs between them.
  exchange.qp = target_.qps[plan.below(4096) % target_.qps.size()];
  switch (exchange.qp.transport) {
    case Transport::kUd: exchange.type = Exchange::Type::kDatagrams; break;
    case Transport::kUc: exchange.type = static_cast<Exchange::Type>(plan.below(2)); break;
    default: exchange.type = static_cast<Exchange::Type>(plan.below(5)); break;
  }
  exchange.packets = static_cast<std::uint32_t>(1 + plan.below(kPacketsPerRun));
  exchange.last_bytes = static_cast<std::uint32_t>(1 + plan.below(exchange.qp.mtu));
  exchange.has_immediate = plan.below(4) == 0;
  exchange.invalidates = exchange.qp.transport == Transport::kRc && plan.below(8) == 0;
  std::swap(random_, plan);  // choose_region() uses random_
  exchange.region = choose_region();
  std::swap(random_, plan);
  exchange.faulty_index = static_cast<std::uint32_t>(plan.below(2 * kPacketsPerRun));
  set_peer_addresses(exchange.qp.is_ipv6);
  make_message(exchange, static_cast<std::uint32_t>(number % kPacketsPerRun));
}

void Barrage::make_message(const Exchange& exchange, std::uint32_t index) {
  using enum wire::Operation;
  if (exchange.type == Exchange::Type::kAnswers) return make_answer(exchange.qp);
  // The run repeats the message until the run ends.  The PSN is the one that `target_` has learned
  // last.  If the QP has not answered the last packet, this packet has the same PSN.
  const std::uint32_t at = index % exchange.packets;
  const bool is_first = at == 0, is_last = at + 1 == exchange.packets;
  std::size_t bytes = is_last ? exchange.last_bytes : exchange.qp.mtu;
  wire::Operation operation{};
  switch (exchange.type) {
    case Exchange::Type::kSend:
    case Exchange::Type::kAnswers:
      operation = is_first && is_last ? (exchange.has_immediate ? kSendOnlyImm : kSendOnly)
                  : is_last           ? (exchange.has_immediate ? kSendLastImm : kSendLast)
                                      : (is_first ? kSendFirst : kSendMiddle);
      if (is_last && exchange.invalidates)
        operation = is_first ? kSendOnlyInvalidate : kSendLastInvalidate;
      break;
    case Exchange::Type::kAtomic:
      operation = std::array{kCompareSwap, kFetchAdd, kAtomicWrite}[below(3)];
      bytes = operation == kAtomicWrite ? 8 : 0;
      break;
    case Exchange::Type::kWrite:
      operation = is_first && is_last ? (exchange.has_immediate ? kWriteOnlyImm : kWriteOnly)
                  : is_last           ? (exchange.has_immediate ? kWriteLastImm : kWriteLast)
                                      : (is_first ? kWriteFirst : kWriteMiddle);
      break;
    case Exchange::Type::kRead:
      operation = kReadRequest;
      bytes = 0;
      break;
    case Exchange::Type::kDatagrams:
      operation = exchange.has_immediate ? kSendOnlyImm : kSendOnly;
      break;
  }
  wire::TransportPacket packet =
      headers_for(exchange.qp, wire::opcode_of(exchange.qp.transport, operation));
  // UC has no acknowledgements from which `target_` could learn the PSN, so count the packets here.
  if (exchange.qp.transport == Transport::kUc) packet.bth.psn = packet.bth.psn + index;
  if (exchange.type == Exchange::Type::kAtomic) packet.atomic.virtual_address &= ~std::uint64_t{7};
  packet.reth = {exchange.region.address, exchange.region.r_key,
                 exchange.type == Exchange::Type::kRead
                     ? static_cast<std::uint32_t>(below(4) * exchange.last_bytes)
                 : operation == kAtomicWrite
                     ? 8
                     : (exchange.packets - 1) * exchange.qp.mtu + exchange.last_bytes};
  packet.bth.acknowledge_request = true;  // `target_` learns the PSN from the acknowledgement
  packet.deth.qkey = target_.qkey;
  const bool is_faulty = index == exchange.faulty_index;
  if (is_faulty) {
    switch (below(4)) {
      case 0: packet.bth.psn = choose_psn_near(packet.bth.psn); break;
      case 1: bytes = wire::has_payload(packet.bth.opcode) ? below(exchange.qp.mtu + 1) : 0; break;
      case 2: packet.reth.dma_length_bytes = random_.next32(); break;
      default: break;
    }
  }
  write_body(packet, bytes);
  if (is_faulty && one_in(4)) flip_bits();
  write_frame(true);
}

void Barrage::make_answer(const Target::Qp& qp) {
  constexpr std::array kAnswers{Opcode::kRcAcknowledge,        Opcode::kRcAcknowledge,
                                Opcode::kRcAcknowledge,        Opcode::kRcReadResponseFirst,
                                Opcode::kRcReadResponseMiddle, Opcode::kRcReadResponseLast,
                                Opcode::kRcReadResponseOnly,   Opcode::kRcAtomicAcknowledge};
  wire::TransportPacket packet = headers_for(qp, kAnswers[below(kAnswers.size())]);
  packet.bth.psn = choose_psn_near(packet.bth.psn + static_cast<std::uint32_t>(below(4)));
  switch (below(4)) {
    case 0: packet.aeth = wire::rnr_nak(0, static_cast<std::uint8_t>(1 + below(4))); break;
    case 1: packet.aeth = wire::nak(0, wire::NakCode::kPsnSequenceError); break;
    case 2: break;  // does not change the random AETH
    default: packet.aeth = wire::ack(static_cast<std::uint32_t>(below(64))); break;
  }
  const bool has_payload = wire::has_payload(packet.bth.opcode);
  write_body(packet, !has_payload ? 0 : one_in(4) ? below(qp.mtu + 1) : qp.mtu);
  write_frame(true);
}

// ---- capture ------------------------------------------------------------------------------------

void Barrage::make_capture_packet() {
  const Bytes& frame = captured_[below(captured_.size())];
  body_.assign(frame.begin(), frame.end() - wire::kIcrcBytes);
  auto bth = wire::decode<wire::Bth>(body_);
  if (bth && bth->destination_qpn != wire::kGsiQpn && !target_.qps.empty()) {
    const Target::Qp& qp = target_.qps[below(4096) % target_.qps.size()];
    set_peer_addresses(qp.is_ipv6);
    bth->destination_qpn = qp.qpn;
    bth->psn = choose_psn_near(wire::is_request(bth->opcode) ? qp.expected_psn : qp.requester_psn);
    std::ranges::copy(wire::encode(*bth), body_.begin());
    if (wire::carries_reth(bth->opcode) && body_.size() >= 28 && one_in(2)) {
      const auto region = choose_region();
      auto reth = wire::decode<wire::Reth>(std::span(body_).subspan(12));
      if (reth) {
        reth->virtual_address = region.address;
        reth->r_key = region.r_key;
        std::ranges::copy(wire::encode(*reth), body_.begin() + 12);
      }
    }
  }
  switch (below(6)) {
    case 0: break;
    case 1: body_.resize(below(body_.size() + 1)); break;
    case 2: {  // joins the beginning of one frame and the end of another frame
      const Bytes& other = captured_[below(captured_.size())];
      const auto cut = static_cast<std::ptrdiff_t>(below(std::min(frame.size(), other.size())));
      body_.resize(std::min(body_.size(), static_cast<std::size_t>(cut)));
      body_.insert(body_.end(), other.begin() + cut, other.end());
      break;
    }
    case 3: add_random(below(256)); break;
    default: flip_bits(); break;
  }
  if (one_in(8)) body_.resize(body_.size() & ~std::size_t{3});
  write_frame(!one_in(8));
}

// ---- framing ------------------------------------------------------------------------------------

void Barrage::make_framing_packet() {
  const bool is_ud = one_in(2);
  Target::Qp qp{.transport = is_ud ? Transport::kUd : Transport::kRc,
                .qpn = wire::kGsiQpn,
                .is_ipv6 = one_in(2)};
  if (!target_.qps.empty() && !one_in(4)) qp = target_.qps[below(4096) % target_.qps.size()];
  set_peer_addresses(qp.is_ipv6);
  headers_.tos = static_cast<std::uint8_t>(below(256));
  headers_.ttl = static_cast<std::uint8_t>(1 + below(255));
  headers_.identification = static_cast<std::uint16_t>(below(65536));
  headers_.flow_label = static_cast<std::uint32_t>(below(1u << 20));
  const std::uint64_t change = below(12);
  if (change == 0) headers_.source = target_.victim.address(qp.is_ipv6);
  if (change == 1) headers_.source = Gid{};
  if (change == 2) headers_.source_port = static_cast<std::uint16_t>(below(1024));
  if (change == 3) headers_.destination_port = static_cast<std::uint16_t>(below(65536));
  if (change <= 1 && !qp.is_ipv6) {
    headers_.source = wire::ipv4_gid(change == 0 ? 0x7f000001 : 0xe0000001);
  }
  is_intact_ = change > 3;
  write_body(headers_for(qp, wire::opcode_of(qp.transport, wire::Operation::kSendOnly)),
             below(qp.mtu + 1));
  write_frame(true);
  const std::size_t ip = wire::kSize<wire::EthernetHeader>;
  if (change == 4 && !qp.is_ipv6) break_ipv4(ip);
  const std::size_t udp = wire::frame_header_bytes(headers_.destination) - 8;
  if (change >= 5 && change <= 8) break_udp(udp);
  if (change == 9) frame_.resize(frame_.size() + below(64));  // Ethernet padding
  if (change == 10) {
    frame_.resize(below(frame_.size()));
    is_intact_ = false;
  }
}

// Breaks the IPv4 header in one of four ways: a random header length, a fragment, a random total
// length, or a random checksum.
void Barrage::break_ipv4(std::size_t ip) {
  is_intact_ = false;
  const auto header = std::span(frame_).subspan(ip, 20);
  switch (below(4)) {
    case 0: header[0] = static_cast<std::byte>(0x40 | below(16)); break;
    case 1: put16(header, 6, below(0x4000)); break;
    case 2: put16(header, 2, below(65536)); break;
    default: put16(header, 10, below(65536)); return;
  }
  put16(header, 10, 0);
  put16(header, 10, wire::ipv4_checksum(header));
}

// Changes the UDP header in one of three ways: a right checksum, a random checksum, or a random
// length.
void Barrage::break_udp(std::size_t udp) {
  const auto header = std::span(frame_).subspan(udp);
  const bool is_v4 = wire::is_ipv4(headers_.destination);
  const std::size_t address_bytes = is_v4 ? 8 : 32;
  const auto addresses = std::span(frame_).subspan(udp - address_bytes, address_bytes);
  put16(header, 6, udp_checksum(addresses, header));
  switch (below(3)) {
    case 0: break;
    case 1:
      put16(header, 6, 1 + below(0xffff));
      is_intact_ = false;
      break;
    default:
      put16(header, 4, below(header.size() + 64));
      put16(header, 6, 0);
      is_intact_ = false;
      break;
  }
}

}  // namespace verbena::wire_bench
