// Makes the MAD packets of a barrage.  A barrage is random packets that a host must survive
// (barrage.h).
#include <algorithm>

#include "barrage.h"
#include "wire/cm.h"
#include "wire/mad.h"
#include "wire/rdma_ip_cm.h"

namespace verbena::wire_bench {
namespace {

namespace cm = wire::cm;
using wire::MadHeader;

constexpr std::size_t kLocalIdOffset = wire::kMadHeaderBytes;  // in most CM messages
constexpr std::size_t kRemoteIdOffset = kLocalIdOffset + 4;
constexpr std::size_t kDreqQpnOffset = kLocalIdOffset + 8;

void put32(std::span<std::byte> out, std::uint32_t value) {
  for (std::size_t i = 0; i < 4; ++i) out[i] = static_cast<std::byte>(value >> 8 * (3 - i));
}

}  // namespace

void Barrage::make_mad_packet() {
  wire::TransportPacket packet;
  packet.bth.opcode = one_in(16) ? wire::Opcode::kUdSendOnlyImm : wire::Opcode::kUdSendOnly;
  packet.bth.destination_qpn = wire::kGsiQpn;
  packet.bth.psn = {random_.next32() & kMask24};
  packet.deth = {one_in(32) ? Qkey{random_.next32()} : wire::kGsiQkey, Qpn{1}};
  body_.resize(wire::header_bytes(packet.bth.opcode));
  wire::write_headers(body_, packet);
  if (one_in(16)) headers_.source = target_.stranger.address(!wire::is_ipv4(headers_.source));
  headers_.destination = target_.victim.address(!wire::is_ipv4(headers_.source));
  const std::size_t at = body_.size();
  add_random(wire::kMadBytes);
  const auto mad = std::span(body_).subspan(at);
  if (one_in(6)) {  // writes a MAD of any class, method and version
    const auto any_class = static_cast<wire::MgmtClass>(below(256));
    const MadHeader header{
        .base_version = static_cast<std::uint8_t>(one_in(4) ? below(256) : 1),
        .mgmt_class = one_in(2) ? wire::MgmtClass::kCommunication : any_class,
        .class_version = static_cast<std::uint8_t>(one_in(2) ? below(256) : 2),
        .response = one_in(4),
        .method = static_cast<wire::Method>(one_in(2) ? below(128) : 1 + below(3)),
        .attribute_id = static_cast<std::uint16_t>(one_in(2) ? below(65536) : 1 + below(2))};
    std::ranges::copy(wire::encode(header), mad.begin());
  } else {
    write_cm_mad();
  }
  if (one_in(8)) flip_bits();
  if (one_in(32)) body_.resize(at + 4 * below(128));  // makes the length of the MAD wrong
  // About one of 64 frames has a wrong ICRC.
  write_frame(!one_in(64));
}

// Replaces the last 256 bytes of body_ by a CM message of a random kind.  Three of four REQs have
// plausible fields.  The other messages often have the ids of a connection that exists, and most of
// their other bytes are random.
void Barrage::write_cm_mad() {
  const auto mad = std::span(body_).last(wire::kMadBytes);
  const auto attribute =
      static_cast<cm::AttributeId>(one_in(16) ? below(65536) : 0x10 + below(0x0b));
  MadHeader header = cm::mad_header(attribute, random_.next());
  if (one_in(32)) header.class_version = static_cast<std::uint8_t>(below(256));
  if (attribute == cm::AttributeId::kReq && !one_in(4)) {
    cm::Req req{.local_comm_id = {static_cast<std::uint32_t>(1 + below(1024))},
                .service_id = wire::rdma_cm_service_id(
                    wire::kServiceProtocolTcp,
                    one_in(8) ? static_cast<std::uint16_t>(below(65536)) : target_.port),
                .local_ca_guid = {1 + below(4)},
                .local_qpn = {static_cast<std::uint32_t>(0x500000 + below(1024))},
                .responder_resources = static_cast<std::uint8_t>(below(256)),
                .initiator_depth = static_cast<std::uint8_t>(below(256)),
                .remote_cm_response_timeout = static_cast<std::uint8_t>(below(32)),
                .starting_psn = {random_.next32() & kMask24},
                .local_cm_response_timeout = static_cast<std::uint8_t>(below(32)),
                .retry_count = static_cast<std::uint8_t>(below(8)),
                .pkey = wire::kDefaultPkey,
                .path_mtu = static_cast<std::uint8_t>(one_in(8) ? below(16) : 1 + below(5)),
                .max_cm_retries = static_cast<std::uint8_t>(below(16)),
                .primary_path = {.local_gid = headers_.source, .remote_gid = headers_.destination}};
    const auto private_header = wire::encode(wire::rdma_ip_cm_header(
        headers_.source, headers_.destination, static_cast<std::uint16_t>(below(65536))));
    std::ranges::copy(private_header, req.private_data.begin());
    std::ranges::copy(cm::encode_mad(header, req), mad.begin());
    return;
  }
  header.attribute_id = static_cast<std::uint16_t>(attribute);
  std::ranges::copy(wire::encode(header), mad.begin());
  const auto slot = below(Target::kConnectionsMax);
  if (one_in(4) || target_.connections.empty()) {  // the ids may be of different connections
    put32(mad.subspan(kLocalIdOffset), choose_id(false));  // usually chooses one of our ids
    put32(mad.subspan(kRemoteIdOffset),
          choose_id(true));  // usually chooses one of the target's ids
  } else {
    const auto& connection = target_.connections[slot % target_.connections.size()];
    put32(mad.subspan(kLocalIdOffset), connection.our_id.value != 0
                                           ? connection.our_id.value
                                           : 0x700 + connection.target_id.value % 64);
    put32(mad.subspan(kRemoteIdOffset), connection.target_id.value);
    if (attribute == cm::AttributeId::kDreq)
      put32(mad.subspan(kDreqQpnOffset), connection.qpn.value << 8);
  }
}

}  // namespace verbena::wire_bench
