// Parses arbitrary bytes as a transport packet.  parse_transport() must drop the bytes with a
// reason, or return a packet that does not change when it is written and parsed again.
//
// fuzz: runs 1000000

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "wire/headers.h"
#include "wire/icrc.h"

namespace {

using namespace verbena;
using namespace verbena::wire;

std::vector<std::byte> write(const TransportPacket& packet) {
  std::vector<std::byte> bytes(header_bytes(packet.bth.opcode) + packet.payload.size() +
                               packet.bth.pad_count);
  const std::size_t at = write_headers(bytes, packet);
  VB_CHECK(at == header_bytes(packet.bth.opcode));
  std::ranges::copy(packet.payload, bytes.begin() + static_cast<std::ptrdiff_t>(at));
  return bytes;
}

void check_packet(std::span<const std::byte> bytes) {
  const auto packet = parse_transport(bytes);
  if (!packet) {
    const Drop reason = drop_reason(packet.error());
    VB_CHECK(reason != Drop::kNone && reason < Drop::kCount);
    return;
  }
  VB_CHECK(bytes.size() ==
           header_bytes(packet->bth.opcode) + packet->payload.size() + packet->bth.pad_count);
  VB_CHECK(packet->payload.empty() ||
           (packet->payload.data() >= bytes.data() &&
            packet->payload.data() + packet->payload.size() <= bytes.data() + bytes.size()));
  const auto written = write(*packet);
  VB_CHECK(written.size() == bytes.size());
  const auto parsed_again = parse_transport(written);
  VB_CHECK(parsed_again.has_value());
  VB_CHECK(parsed_again->bth == packet->bth && parsed_again->deth == packet->deth &&
           parsed_again->reth == packet->reth && parsed_again->atomic == packet->atomic &&
           parsed_again->atomic_ack == packet->atomic_ack && parsed_again->aeth == packet->aeth &&
           parsed_again->xrc == packet->xrc && parsed_again->immediate == packet->immediate &&
           parsed_again->invalidate_r_key == packet->invalidate_r_key);
  VB_CHECK(std::ranges::equal(parsed_again->payload, packet->payload));
  VB_CHECK(write(*parsed_again) == written);
}

// find_identification() must find the identification from any ICRC, even if inputs.identification
// is a different number.
void check_icrc(std::span<const std::byte> bytes) {
  const auto split = split_icrc(bytes);
  if (!split || bytes.size() > 0xff00) return;
  IcrcInputs inputs{.source = ipv4_gid(split->icrc), .destination = ipv4_gid(1)};
  inputs.identification = static_cast<std::uint16_t>(split->icrc);
  const std::uint32_t sum = icrc(inputs, split->bth_to_pad);
  inputs.identification = static_cast<std::uint16_t>(split->icrc >> 16);
  VB_CHECK(find_identification(inputs, split->bth_to_pad, sum) ==
           static_cast<std::uint16_t>(split->icrc));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  check_packet(bytes);
  check_icrc(bytes);
  return 0;
}
