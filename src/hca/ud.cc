#include "hca/ud.h"

#include <array>

#include "hca/operations.h"
#include "wire/infiniband.h"
#include "wire/ip.h"

namespace verbena::hca {
namespace {

using Header = std::array<std::byte, UdTransport::kGrhBytes>;

// ConnectX reports the network type of a datagram by these service levels.
constexpr std::uint8_t kUdpIpv6 = 9, kUdpIpv4 = 10;

std::uint8_t service_level(const link::Arrival& arrival, const Personality& personality) {
  if (arrival.address.is_infiniband()) return arrival.address.service_level;
  if (!personality.reports_network) return 0;
  return wire::is_ipv4(arrival.address.destination) ? kUdpIpv4 : kUdpIpv6;
}

// Returns the GRH of a packet on InfiniBand, or zeros if the packet has none.
Header route_header(const link::Arrival& arrival) {
  const link::Address& address = arrival.address;
  Header out{};
  if (!address.has_grh) return out;
  wire::encode_to(std::span(out),
                  wire::Ipv6Header{.traffic_class = address.traffic_class,
                                   .flow_label = address.flow_label,
                                   .payload_length = static_cast<std::uint16_t>(
                                       arrival.transport.size() + link::Burst::kIcrcBytes),
                                   .next_header = wire::kGrhNextHeaderBth,
                                   .hop_limit = address.hop_limit,
                                   .source = address.source,
                                   .destination = address.destination});
  return out;
}

// Rebuilds the network header of a received packet.
Header network_header(const link::Arrival& arrival) {
  const link::Address& address = arrival.address;
  if (address.is_infiniband()) return route_header(arrival);
  const auto udp_bytes = static_cast<std::uint16_t>(
      wire::kSize<wire::UdpHeader> + arrival.transport.size() + link::Burst::kIcrcBytes);
  Header out{};
  if (!wire::is_ipv4(address.destination)) {
    wire::encode_to(std::span(out), wire::Ipv6Header{.traffic_class = address.traffic_class,
                                                     .payload_length = udp_bytes,
                                                     .hop_limit = address.hop_limit,
                                                     .source = address.source,
                                                     .destination = address.destination});
    return out;
  }
  wire::Ipv4Header header;
  header.tos = address.traffic_class;
  header.total_length = static_cast<std::uint16_t>(wire::kSize<wire::Ipv4Header> + udp_bytes);
  header.ttl = address.hop_limit;
  header.source = wire::ipv4_address(address.source);
  header.destination = wire::ipv4_address(address.destination);
  header.checksum = wire::ipv4_checksum(wire::encode(header));
  wire::encode_to(std::span(out).subspan(20), header);
  return out;
}

}  // namespace

UdTransport::UdTransport(QpCore& core, SendQueue& sends, ReceiveSource& receives)
    : core_(core), sends_(sends), receives_(receives) {}

void UdTransport::start() {
  next_psn_ = core_.attributes.sq_psn;
  sends_in_burst_ = 0;
}

Verdict UdTransport::complete_send(const SendWqe& wqe, WcStatus status) {
  const bool good = status == WcStatus::kSuccess;
  const bool signaled = !good || core_.init.signal_all || (wqe.flags & send_flag::kSignaled) != 0;
  const WorkCompletion completion{.wr_id = wqe.wr_id,
                                  .status = status,
                                  .opcode = WcOpcode::kSend,
                                  .byte_len = wqe.length,
                                  .qpn = core_.qpn};
  core_.shared.count_send(completion);
  const WqeSlot slot = sends_.release();
  const bool added = !signaled || core_.shared.complete(core_.send_cq, completion, slot, !good);
  return good && added ? Verdict::kContinue : Verdict::kError;
}

Verdict UdTransport::complete_sent() {
  Verdict verdict = Verdict::kContinue;
  while (sends_in_burst_ > 0) {
    --sends_in_burst_;
    const SendWqe& wqe = sends_.at(sends_.head());
    if (complete_send(wqe, WcStatus::kSuccess) == Verdict::kError) verdict = Verdict::kError;
  }
  return verdict;
}

Verdict UdTransport::transmit(link::Burst& burst, unsigned quota, bool begin_new, bool* more) {
  while (begin_new && sends_in_burst_ < sends_.size() && quota > 0) {
    const SendWqe& wqe = sends_.at(sends_.head() + sends_in_burst_);
    const auto& target = sends_.extra<DatagramTarget>(wqe);
    core_.choose_lane(target.address, target.qpn);
    if (!core_.prepare_space(burst, target.address)) break;
    --quota;
    if (wqe.length > kPayloadBytesMax) return fail_send(wqe, WcStatus::kLocalLengthError);
    // Packets may be sent only from the port of the QP (vol1 11.2.5.2).
    if (target.address.port != core_.port() && !core_.is_gsi()) {
      return fail_send(wqe, WcStatus::kLocalQpOperationError);
    }

    // A Q_Key with the top bit set stands for the QP's own Q_Key, which may be privileged
    // (vol1 10.2.5).
    const bool own_qkey = (target.qkey.value >> 31) != 0;
    wire::TransportPacket packet;
    packet.bth.opcode =
        wqe.opcode == WrOpcode::kSendImm ? wire::Opcode::kUdSendOnlyImm : wire::Opcode::kUdSendOnly;
    packet.bth.solicited_event = (wqe.flags & send_flag::kSolicited) != 0;
    packet.bth.destination_qpn = target.qpn;
    packet.bth.psn = next_psn_;
    packet.deth = {own_qkey ? core_.attributes.qkey : target.qkey, core_.qpn};
    packet.immediate = wqe.immediate;
    // Checks the keys of copied bytes again, because they may have become invalid after the post.
    const bool added =
        (!wqe.is_copied() || core_.shared.memory.are_valid(core_.pd, SendQueue::sges(wqe), 0)) &&
        emit(core_, burst, target.address, packet, wqe.length,
             [&](std::span<std::byte> out) { return copy_data(core_, wqe, 0, out); });
    if (!added) return fail_send(wqe, WcStatus::kLocalProtectionError);
    next_psn_ = next_psn_ + 1;
    ++sends_in_burst_;
  }
  *more = begin_new && sends_in_burst_ < sends_.size();
  return Verdict::kContinue;
}

// Fails the send, but only after the sends before it are complete.
Verdict UdTransport::fail_send(const SendWqe& wqe, WcStatus status) {
  return sends_in_burst_ > 0 ? Verdict::kContinue : complete_send(wqe, status);
}

Verdict UdTransport::receive(const wire::TransportPacket& packet, const link::Arrival& arrival) {
  Counters& counters = core_.shared.counters;
  if (packet.deth.qkey != core_.attributes.qkey) {
    ++counters[Counter::kDropBadQkey];
    return Verdict::kContinue;
  }
  if (receives_.empty()) {
    ++counters[Counter::kDropNoReceive];
    return Verdict::kContinue;
  }
  const RecvWqe& wqe = receives_.head();
  const std::uint64_t bytes = kGrhBytes + packet.payload.size();
  if (bytes > wqe.length) {
    ++counters[Counter::kDropTooLong];
    return Verdict::kContinue;
  }
  const Memory& memory = core_.shared.memory;
  const Header header = network_header(arrival);
  const auto sges = RecvQueue::sges(wqe);
  const bool copied =
      memory.scatter(receives_.pd(), sges, 0, header) == CopyFault::kNone &&
      memory.scatter(receives_.pd(), sges, kGrhBytes, packet.payload) == CopyFault::kNone;
  const bool has_immediate = wire::carries_immediate(packet.bth.opcode);
  WorkCompletion completion{.wr_id = wqe.wr_id,
                            .opcode = WcOpcode::kReceive,
                            .service_level = service_level(arrival, core_.shared.personality),
                            .byte_len = static_cast<std::uint32_t>(bytes),
                            .immediate = has_immediate ? packet.immediate : 0,
                            .qpn = core_.qpn,
                            .source_qpn = packet.deth.source_qpn,
                            .source_lid = arrival.address.source_lid,
                            .destination_path_bits = core_.shared.ports.path_bits(
                                core_.port(), arrival.address.destination_lid),
                            .flags = (arrival.address.carries_gids() ? wc_flag::kGrh : 0) |
                                     (has_immediate ? wc_flag::kWithImm : 0)};
  if (!copied) completion.status = WcStatus::kLocalProtectionError;
  const WqeSlot slot = receives_.release();
  const bool added =
      core_.shared.complete(core_.recv_cq, completion, slot, packet.bth.solicited_event || !copied);
  return copied && added ? Verdict::kContinue : Verdict::kError;
}

}  // namespace verbena::hca
