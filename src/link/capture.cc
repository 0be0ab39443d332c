#include "link/capture.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "link/infiniband.h"
#include "wire/icrc.h"
#include "wire/infiniband.h"
#include "wire/ip.h"
#include "wire/vcrc.h"

namespace verbena::link {
namespace {

struct RecordHeader {
  std::uint32_t frame_bytes;
  std::uint16_t direction;
  std::uint16_t link_layer;
  std::int64_t time_ns;
};
static_assert(sizeof(RecordHeader) == 16);

constexpr std::uint64_t padded(std::uint64_t bytes) { return (bytes + 7) & ~std::uint64_t{7}; }

// Derives a locally administered MAC address, because a socket does not return the real one.
wire::MacAddress mac_of(const Gid& gid) {
  wire::MacAddress mac{std::byte{0x02}, std::byte{0x00}};
  std::copy(gid.bytes.end() - 4, gid.bytes.end(), mac.begin() + 2);
  return mac;
}

}  // namespace

// `head` and `tail` are positions: they count bytes since the ring was created, and never wrap.
// Only the writer changes `tail`, and only the reader changes `head`.
struct CaptureRing::Control {
  std::atomic<std::uint64_t> tail;
  std::atomic<std::uint64_t> dropped;
  alignas(64) std::atomic<std::uint64_t> head;
};
static_assert(sizeof(std::uint64_t) == sizeof(std::atomic<std::uint64_t>));
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

CaptureRing::CaptureRing(std::span<std::byte> memory) {
  VB_CHECK(memory.size() == kBytes);
  // Zeroed bytes are a valid Control: an empty ring.
  control_ = std::launder(reinterpret_cast<Control*>(memory.data()));
  data_ = memory.subspan(sizeof(Control));
}

void CaptureRing::copy_in(std::uint64_t position, std::span<const std::byte> bytes) {
  const std::size_t begin = position % data_.size();
  const std::size_t first = std::min(bytes.size(), data_.size() - begin);
  std::memcpy(data_.data() + begin, bytes.data(), first);
  std::memcpy(data_.data(), bytes.data() + first, bytes.size() - first);
}

void CaptureRing::copy_out(std::uint64_t position, std::span<std::byte> bytes) const {
  const std::size_t begin = position % data_.size();
  const std::size_t first = std::min(bytes.size(), data_.size() - begin);
  std::memcpy(bytes.data(), data_.data() + begin, first);
  std::memcpy(bytes.data() + first, data_.data(), bytes.size() - first);
}

void CaptureRing::write(Time time, Direction direction, const Address& address,
                        std::uint16_t identification, std::span<const std::byte> datagram) {
  const std::size_t bytes = frame_bytes(address, datagram.size());
  const std::uint64_t record_size = sizeof(RecordHeader) + padded(bytes);
  const std::uint64_t tail = control_->tail.load(std::memory_order_relaxed);
  const std::uint64_t used = tail - control_->head.load(std::memory_order_acquire);
  if (bytes > kFrameBytesMax || used > data_.size() || data_.size() - used < record_size) {
    control_->dropped.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  std::array<std::byte, kFrameBytesMax> frame;
  write_frame(frame, address, identification, datagram);
  const RecordHeader header{
      static_cast<std::uint32_t>(bytes), static_cast<std::uint16_t>(direction),
      static_cast<std::uint16_t>(address.link_layer), time.time_since_epoch().count()};
  copy_in(tail, std::as_bytes(std::span(&header, 1)));
  copy_in(tail + sizeof header, std::span(frame).first(bytes));
  control_->tail.store(tail + record_size, std::memory_order_release);
}

Result<std::optional<CaptureRecord>> CaptureRing::read() {
  const std::uint64_t head = control_->head.load(std::memory_order_relaxed);
  const std::uint64_t used = control_->tail.load(std::memory_order_acquire) - head;
  if (used == 0) return std::optional<CaptureRecord>{};
  if (used < sizeof(RecordHeader) || used > data_.size()) {
    return fail(Errc::kMalformed, "capture ring: invalid positions");
  }
  RecordHeader header{};
  copy_out(head, std::as_writable_bytes(std::span(&header, 1)));
  const std::uint64_t record_size = sizeof header + padded(header.frame_bytes);
  if (header.frame_bytes > kFrameBytesMax || record_size > used ||
      (header.direction != 1 && header.direction != 2) ||
      header.link_layer > static_cast<std::uint16_t>(LinkLayer::kInfiniband)) {
    return fail(Errc::kMalformed, "capture ring: an invalid record");
  }
  CaptureRecord record{Time(Duration(header.time_ns)), static_cast<Direction>(header.direction),
                       std::vector<std::byte>(header.frame_bytes),
                       static_cast<LinkLayer>(header.link_layer)};
  copy_out(head + sizeof header, record.frame);
  control_->head.store(head + record_size, std::memory_order_release);
  return std::optional(std::move(record));
}

std::uint64_t CaptureRing::dropped() const {
  return control_->dropped.load(std::memory_order_relaxed);
}

bool CaptureRing::is_filling_up() const {
  return control_->tail.load(std::memory_order_relaxed) -
             control_->head.load(std::memory_order_relaxed) >
         data_.size() / 2;
}

std::size_t frame_bytes(const Address& address, std::size_t datagram_bytes) {
  return datagram_bytes + (address.is_infiniband()
                               ? wire::route_header_bytes(address.has_grh) + wire::kVcrcBytes
                               : wire::frame_header_bytes(address.destination));
}

namespace {

std::size_t write_infiniband_frame(std::span<std::byte> out, const Address& address,
                                   std::span<const std::byte> transport) {
  const std::vector<std::byte> packet = seal_infiniband(address, transport);
  std::ranges::copy(packet, out.begin());
  wire::store_vcrc(out.subspan(packet.size()), wire::vcrc(packet));
  return packet.size() + wire::kVcrcBytes;
}

}  // namespace

std::size_t write_frame(std::span<std::byte> out, const Address& address,
                        std::uint16_t identification, std::span<const std::byte> datagram) {
  if (address.is_infiniband()) {
    return write_infiniband_frame(out, address, datagram.first(datagram.size() - wire::kIcrcBytes));
  }
  const std::size_t headers =
      wire::write_frame_headers(out,
                                {.source_mac = mac_of(address.source),
                                 .destination_mac = mac_of(address.destination),
                                 .source = address.source,
                                 .destination = address.destination,
                                 .source_port = address.source_port,
                                 .identification = identification,
                                 .tos = address.traffic_class,
                                 .ttl = address.hop_limit},
                                datagram.size());
  std::ranges::copy(datagram, out.subspan(headers).begin());
  return headers + datagram.size();
}

}  // namespace verbena::link
