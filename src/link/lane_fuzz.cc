// The input contains writes of a hostile peer to the memory of a lane, and calls of both sides.
// Checks that no call accesses memory outside of the lane, and that all packets are in the lane's
// memory.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>

#include "link/burst.h"
#include "link/lane.h"
#include "sim/fuzz_input.h"
#include "wire/ip.h"

namespace verbena::link {
namespace {

struct alignas(4096) Memory {
  std::array<std::byte, Lane::kBytes> bytes;
};

// Writes the frame of each packet, as a capture does.
class FrameWriter final : public LaneObserver {
 public:
  void on_packet(Direction, const Address& address, std::span<const std::byte> transport) override {
    std::array<std::byte, Lane::kPacketBytesMax + Burst::kIcrcBytes> datagram;
    const auto used = std::span(datagram).first(transport.size() + Burst::kIcrcBytes);
    std::ranges::copy(transport, used.begin());
    seal(address, used, 0);
    std::array<std::byte, CaptureRing::kFrameBytesMax> frame;
    if (frame_bytes(address, used.size()) > frame.size()) return;
    VB_CHECK(write_frame(frame, address, 0, used) == frame_bytes(address, used.size()));
  }
};

void check_arrival(const Arrival& arrival, const Memory& memory) {
  const auto* const first = memory.bytes.data();
  VB_CHECK(arrival.transport.data() >= first);
  VB_CHECK(arrival.transport.data() + arrival.transport.size() <= first + Lane::kBytes);
  VB_CHECK(arrival.transport.size() <= Lane::kPacketBytesMax);
  VB_CHECK(arrival.transport.size() >= Lane::kPacketBytesMin);
  VB_CHECK(arrival.headers.size() == std::min(arrival.transport.size(), Lane::kHeaderBytesMax));
  VB_CHECK(arrival.address.port.device < kDevicesMax);
  VB_CHECK(arrival.address.port.number - 1u < kPortsPerDeviceMax);
}

void receive(Lane& lane, const Memory& memory) {
  std::size_t packets = 0;
  constexpr std::size_t kMax = 64;
  const auto check = [&]<class Record>(const Record& record) {
    if constexpr (std::is_same_v<Record, ExecutedRecord>) {
      VB_CHECK(record.psns != 0);
      VB_CHECK(record.kind <= ExecutedRecord::Kind::kWriteBeforeImmediate);
      return;
    } else {
      check_arrival(record, memory);
    }
    ++packets;
  };
  const std::size_t returned_packets = lane.receive(kMax, check);
  VB_CHECK(packets == returned_packets && packets <= kMax);
}

void run(sim::FuzzInput input) {
  static const std::unique_ptr<Memory> memory = std::make_unique<Memory>();
  // Clears the controls and the first bytes of both rings.  The input can write to the controls and
  // to the first bytes of the ring that this side reads.
  constexpr std::size_t kWritableBytes = 1024;
  for (const std::size_t ring : {std::size_t{0}, Lane::kRingBytes}) {
    std::memset(memory->bytes.data() + ring, 0, Lane::kControlBytes + kWritableBytes);
  }
  Lane lane = *Lane::attach(memory->bytes, Lane::Side::kFirst);
  Lane peer = *Lane::attach(memory->bytes, Lane::Side::kSecond);
  FrameWriter frame_writer;
  lane.set_observer(&frame_writer);
  lane.allow_access(input.take<std::uint8_t>() % 2 == 0);
  const Address address{.source = wire::ipv4_gid(1), .destination = wire::ipv4_gid(2)};
  const auto send = [&](Lane& sender, std::uint16_t port) {
    Address packet_address = address;
    packet_address.source_port = port;
    if (port % 4 == 3) {
      packet_address.link_layer = LinkLayer::kInfiniband;
      packet_address.destination_lid.value = port;
      packet_address.has_grh = port % 8 == 3;
    }
    if (sender.prepare(packet_address))
      sender.commit(Lane::kPacketBytesMin + port % (Lane::kPacketBytesMax / 2));
  };
  while (!input.empty()) {
    switch (input.take<std::uint8_t>() % 9) {
      case 0: send(lane, input.take<std::uint16_t>()); break;
      case 1: send(peer, input.take<std::uint8_t>()); break;
      case 2: receive(lane, *memory); break;
      case 3: lane.finish(); break;
      case 4: lane.flush(); break;
      case 5: lane.park(); break;
      case 6: (void)lane.peer_has_consumed(input.take<std::uint32_t>()); break;
      case 7:
        if (peer.prepare_executed()) {
          const auto psns = input.take<std::uint8_t>();
          peer.commit(ExecutedRecord{.psns = psns, .kind = ExecutedRecord::Kind{psns % 4u}});
        }
        break;
      default: {
        const auto place = input.take<std::uint16_t>();
        const auto value = input.take<std::uint64_t>();
        const std::size_t offset = place % (kWritableBytes / 8) * 8;
        const std::size_t base = place >> 15 == 0 ? 0 : Lane::kControlBytes + Lane::kRingBytes;
        std::memcpy(memory->bytes.data() + base + offset, &value, sizeof value);
      }
    }
  }
}

}  // namespace
}  // namespace verbena::link

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  verbena::link::run(verbena::sim::FuzzInput(std::span(data, size)));
  return 0;
}
