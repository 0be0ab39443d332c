// Checks the formats of RoCEv2, of CM messages and of the RDMA IP CM against frames of Linux.  Each
// RoCEv2 frame of tests/captures is parsed and encoded again, which must give the same bytes.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "wire/cm.h"
#include "wire/headers.h"
#include "wire/icrc.h"
#include "wire/ip.h"
#include "wire/mad.h"
#include "wire/rdma_ip_cm.h"
#include "wire/source_port.h"
#include "wire/test_captures.h"

namespace verbena::wire {
namespace {

using Bytes = std::vector<std::byte>;
using testing::captures;
using testing::read_pcap;

std::vector<std::filesystem::path> capture_files() {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(captures(), error)) {
    if (entry.path().extension() == ".pcap") files.push_back(entry.path());
  }
  EXPECT_FALSE(error) << captures() << " does not exist: set VB_SOURCE to the source tree";
  std::ranges::sort(files);
  return files;
}

struct Counts {
  int frames = 0;
  int roce_frames = 0;
  int ipv6_frames = 0;    // RoCEv2 frames over IPv6
  int padded_frames = 0;  // RoCEv2 frames with pad bytes
  int mads = 0;
  int ip_cm_headers = 0;
  int from_req_ports = 0;  // RC packets from a source port that the flow label of a REQ determines
  std::set<Opcode> opcodes;
  std::map<Drop, int> dropped;
};

// Holds the UDP source ports that source_port() computes from the flow labels of REQs.
using Ports = std::set<std::uint16_t>;

void check_ip_cm_header(const cm::Message& message, const Frame& frame, Counts& counts,
                        Ports& ports) {
  ServiceId service_id;
  std::span<const std::byte> private_data;
  if (const auto* req = std::get_if<cm::Req>(&message)) {
    service_id = req->service_id;
    private_data = req->private_data;
    EXPECT_EQ(req->primary_path.local_gid, frame.headers.source);
    EXPECT_EQ(req->primary_path.remote_gid, frame.headers.destination);
    EXPECT_EQ(req->alternate_path, cm::Path{});
  } else if (const auto* sidr = std::get_if<cm::SidrReq>(&message)) {
    service_id = sidr->service_id;
    private_data = sidr->private_data;
  } else {
    return;
  }
  const auto service = rdma_cm_service(service_id);
  ASSERT_TRUE(service.has_value());
  EXPECT_EQ(rdma_cm_service_id(service->ip_protocol, service->port), service_id);

  const auto header = decode<RdmaIpCmHeader>(private_data);
  ASSERT_TRUE(header.has_value());
  EXPECT_TRUE(std::ranges::equal(encode(*header), private_data.first(kRdmaIpCmHeaderBytes)));
  const auto ip_addresses = addresses(*header);
  ASSERT_TRUE(ip_addresses.has_value());
  EXPECT_EQ(ip_addresses->source, frame.headers.source);
  EXPECT_EQ(ip_addresses->destination, frame.headers.destination);
  EXPECT_EQ(rdma_ip_cm_header(ip_addresses->source, ip_addresses->destination, header->source_port),
            *header);
  ++counts.ip_cm_headers;

  if (const auto* req = std::get_if<cm::Req>(&message)) {
    EXPECT_EQ(req->primary_path.flow_label,
              connection_flow_label(header->source_port, service->port));
    ports.insert(source_port(req->primary_path.flow_label));
  }
}

void check_mad(std::span<const std::byte> mad, const Frame& frame, Counts& counts, Ports& ports) {
  ASSERT_EQ(mad.size(), kMadBytes);
  const auto header = decode<MadHeader>(mad);
  ASSERT_TRUE(header.has_value());
  EXPECT_EQ(*header, cm::mad_header(static_cast<cm::AttributeId>(header->attribute_id),
                                    header->transaction_id));
  const auto message = cm::decode_message(header->attribute_id, mad.subspan(kMadHeaderBytes));
  ASSERT_TRUE(message.has_value()) << header->attribute_id;
  EXPECT_TRUE(std::ranges::equal(cm::encode_mad(*header, *message), mad))
      << cm::to_string(cm::attribute_id(*message));
  ++counts.mads;
  check_ip_cm_header(*message, frame, counts, ports);
}

void check_icrc(const Frame& frame, const IcrcSplit& split) {
  const IcrcInputs inputs = icrc_inputs(frame.headers);
  EXPECT_EQ(icrc(inputs, split.bth_to_pad), split.icrc);

  // A UDP socket does not report the identification, so find_identification() must compute it.
  IcrcInputs socket_inputs = inputs;
  socket_inputs.identification = 0;
  EXPECT_EQ(find_identification(socket_inputs, split.bth_to_pad, split.icrc),
            inputs.identification);
  EXPECT_EQ(find_identification(socket_inputs, split.bth_to_pad, split.icrc ^ 0x10000),
            std::nullopt);
}

// Encodes a frame again from its parsed values.
Bytes reencode(const Frame& frame, const TransportPacket& packet) {
  const std::size_t roce_bytes =
      header_bytes(packet.bth.opcode) + packet.payload.size() + pad_count(packet.payload.size());
  Bytes bytes(frame_header_bytes(frame.headers.destination) + roce_bytes + kIcrcBytes);
  const std::size_t begin = write_frame_headers(bytes, frame.headers, roce_bytes + kIcrcBytes);
  const auto roce = std::span(bytes).subspan(begin, roce_bytes);
  const std::size_t payload_at = write_headers(roce, packet);
  std::ranges::copy(packet.payload, roce.subspan(payload_at).begin());
  store_icrc(std::span(bytes).subspan(begin + roce_bytes), icrc(icrc_inputs(frame.headers), roce));
  return bytes;
}

void check_roce(const Bytes& bytes, const Frame& frame, Counts& counts, Ports& ports) {
  const auto split = split_icrc(frame.udp_payload);
  ASSERT_TRUE(split.has_value());
  check_icrc(frame, *split);
  const auto packet = parse_transport(split->bth_to_pad);
  ASSERT_TRUE(packet.has_value()) << to_string(drop_reason(packet.error()));
  EXPECT_EQ(packet->bth.pad_count, pad_count(packet->payload.size()));

  Bytes reencoded = reencode(frame, *packet);
  if (reencoded.size() < bytes.size()) reencoded.resize(bytes.size());  // adds Ethernet padding
  EXPECT_EQ(reencoded, bytes);

  ++counts.roce_frames;
  counts.ipv6_frames += is_ipv4(frame.headers.source) ? 0 : 1;
  counts.padded_frames += packet->bth.pad_count != 0 ? 1 : 0;
  counts.opcodes.insert(packet->bth.opcode);
  if (packet->bth.destination_qpn == kGsiQpn) {
    EXPECT_EQ(packet->deth.qkey, kGsiQkey);
    check_mad(packet->payload, frame, counts, ports);
  } else if (transport_of(packet->bth.opcode) == Transport::kRc) {
    counts.from_req_ports += ports.contains(frame.headers.source_port) ? 1 : 0;
  }
}

Counts check_capture(const std::filesystem::path& file) {
  Counts counts;
  Ports ports;
  for (const Bytes& bytes : read_pcap(file)) {
    SCOPED_TRACE(file.filename().string() + " frame " + std::to_string(++counts.frames));
    const auto frame = parse_frame(bytes);
    if (!frame) {
      ++counts.dropped[drop_reason(frame.error())];
    } else if (frame->headers.destination_port == kRoceUdpPort) {
      check_roce(bytes, *frame, counts, ports);
    }
    if (::testing::Test::HasFailure()) break;  // one frame with failures is enough
  }
  return counts;
}

TEST(Captures, LinuxFramesAreParsedAndReproducedByteForByte) {
  Counts total;
  int files = 0;
  for (const auto& file : capture_files()) {
    const Counts counts = check_capture(file);
    ASSERT_FALSE(HasFailure());
    ++files;
    total.frames += counts.frames;
    total.roce_frames += counts.roce_frames;
    total.ipv6_frames += counts.ipv6_frames;
    total.padded_frames += counts.padded_frames;
    total.mads += counts.mads;
    total.ip_cm_headers += counts.ip_cm_headers;
    total.from_req_ports += counts.from_req_ports;
    total.opcodes.insert(counts.opcodes.begin(), counts.opcodes.end());
    for (const auto& [reason, count] : counts.dropped) total.dropped[reason] += count;
  }
  std::printf(
      "%d captures, %d frames: %d RoCEv2 (%d IPv6, %d padded, %d from a REQ's port),\n"
      "%d CM MADs, %d RDMA IP CM headers, %zu opcodes\n",
      files, total.frames, total.roce_frames, total.ipv6_frames, total.padded_frames,
      total.from_req_ports, total.mads, total.ip_cm_headers, total.opcodes.size());
  for (const auto& [reason, count] : total.dropped)
    std::printf("  %d %s\n", count, to_string(reason));

  // The test must not pass if it finds no frames.  tshark counted the first two numbers.
  EXPECT_GE(total.roce_frames, 1939);
  EXPECT_GE(total.mads, 160);
  EXPECT_GE(files, 28);
  EXPECT_GE(total.ipv6_frames, 29);
  EXPECT_GE(total.padded_frames, 16);
  EXPECT_GE(total.ip_cm_headers, 45);
  EXPECT_GE(total.from_req_ports, 1164);
  EXPECT_GE(total.opcodes.size(), 25u);
}

}  // namespace
}  // namespace verbena::wire
