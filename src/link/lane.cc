#include "link/lane.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace verbena::link {
namespace {

// The kind of a record consists of a type in the upper byte and the slot of an address in the lower
// byte.  Records of kExecutedType have no slot.
constexpr std::uint16_t kAddressType = 1 << 8;
constexpr std::uint16_t kPacketType = 2 << 8;
constexpr std::uint16_t kExecutedType = 3 << 8;
constexpr std::uint16_t kTypeMask = 0xff00;
constexpr std::uint16_t kSlotMask = 0x00ff;

// Writes and reads the fields of an address, one after the other.
class Fields {
 public:
  explicit Fields(std::byte* at) : at_(at) {}
  template <class Value>
  void write(const Value& value) {
    std::memcpy(at_, &value, sizeof value);
    at_ += sizeof value;
  }
  template <class Value>
  void read(Value& value) {
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
  }

 private:
  std::byte* at_;
};

// A record of kAddressType has one of these sizes, depending on the link layer of the address.
constexpr std::size_t kEthernetBytes = 1 + 2 * sizeof(Gid) + 4 + 2 + 4 + 1 + 1;
constexpr std::size_t kInfinibandBytes = kEthernetBytes + 2 * sizeof(Lid) + 4;
constexpr std::uint32_t kFlowLabelMax = 0xfffff;
constexpr std::uint8_t kServiceLevelMax = 15;

std::size_t slot_of(const Address& address, std::size_t slots) {
  const auto low = [](const Gid& gid) { return std::to_integer<std::size_t>(gid.bytes[15]); };
  return (address.source_port + low(address.source) + 3 * low(address.destination) +
          address.source_lid.value + std::size_t{3} * address.destination_lid.value) %
         slots;
}

std::size_t record_bytes(const Address& address) {
  return address.is_infiniband() ? kInfinibandBytes : kEthernetBytes;
}

void write_address(Fields& fields, const Address& address) {
  fields.write(address.link_layer);
  fields.write(address.source);
  fields.write(address.destination);
  fields.write(address.interface);
  fields.write(address.source_port);
  fields.write(address.flow_label);
  fields.write(address.traffic_class);
  fields.write(address.hop_limit);
  if (!address.is_infiniband()) return;
  fields.write(address.source_lid);
  fields.write(address.destination_lid);
  fields.write(address.service_level);
  fields.write(static_cast<std::uint8_t>(address.has_grh));
  fields.write(address.port.device);
  fields.write(address.port.number);
}

// Returns none if the size, the link layer, or an InfiniBand field of the record is invalid.
std::optional<Address> read_address(std::span<const std::byte> record) {
  std::array<std::byte, kInfinibandBytes> copy{};
  if (record.size() != kEthernetBytes && record.size() != kInfinibandBytes) return {};
  std::memcpy(copy.data(), record.data(), record.size());
  Fields fields(copy.data());
  std::uint8_t link_layer = 0;
  Address address;
  fields.read(link_layer);
  fields.read(address.source);
  fields.read(address.destination);
  fields.read(address.interface);
  fields.read(address.source_port);
  fields.read(address.flow_label);
  fields.read(address.traffic_class);
  fields.read(address.hop_limit);
  const bool infiniband = record.size() == kInfinibandBytes;
  address.link_layer = infiniband ? LinkLayer::kInfiniband : LinkLayer::kEthernet;
  if (link_layer != std::to_underlying(address.link_layer)) return {};
  if (!infiniband) return address;
  std::uint8_t has_grh = 0;
  fields.read(address.source_lid);
  fields.read(address.destination_lid);
  fields.read(address.service_level);
  fields.read(has_grh);
  fields.read(address.port.device);
  fields.read(address.port.number);
  address.has_grh = has_grh != 0;
  const bool is_valid = address.flow_label <= kFlowLabelMax &&
                        address.service_level <= kServiceLevelMax && has_grh <= 1 &&
                        address.port.device < kDevicesMax && address.port.number >= 1 &&
                        address.port.number <= kPortsPerDeviceMax;
  return is_valid ? std::optional(address) : std::nullopt;
}

}  // namespace

Result<Lane> Lane::attach(std::span<std::byte> memory, Side side) {
  if (memory.size() != kBytes) {
    return fail(Errc::kInvalidArgument, "lane: the memory has the wrong size");
  }
  auto* const controls = reinterpret_cast<ring::Control*>(memory.data());
  const std::size_t own = side == Side::kFirst ? 0 : 1;
  const auto data = [&](std::size_t ring) {
    return memory.subspan(kControlBytes + ring * kRingBytes, kRingBytes);
  };
  const auto out = VB_TRY(ring::Producer::attach(&controls[own], data(own)));
  const auto in = VB_TRY(ring::Consumer::attach(&controls[1 - own], data(1 - own)));
  static_assert(2 * sizeof(ring::Control) + 2 * sizeof(Announcement) <= kControlBytes);
  auto* const announcements = reinterpret_cast<Announcement*>(&controls[2]);
  return Lane(out, in, &announcements[own], &announcements[1 - own]);
}

// ---- sending ------------------------------------------------------------------------------------

std::optional<std::span<std::byte>> Lane::prepare_record(std::size_t bytes) {
  const auto space = out_.prepare(bytes);
  if (!space) ended_ = true;
  if (!space || !*space) {
    was_full_ = true;
    return {};
  }
  return *space;
}

bool Lane::prepare(const Address& address) {
  packet_space_ = {};
  if (ended_) return false;
  const std::size_t slot = slot_of(address, kAddresses);
  if (sent_addresses_[slot] != address && !send_address(slot, address)) return false;
  const auto space = prepare_record(kPacketBytesMax);
  if (!space) return false;
  packet_space_ = *space;
  kind_ = static_cast<std::uint16_t>(kPacketType | slot);
  return true;
}

bool Lane::send_address(std::size_t slot, const Address& address) {
  const std::size_t bytes = record_bytes(address);
  const auto space = prepare_record(bytes);
  if (!space) return false;
  Fields fields(space->data());
  write_address(fields, address);
  out_.commit(bytes, static_cast<std::uint16_t>(kAddressType | slot));
  sent_addresses_[slot] = address;
  return true;
}

void Lane::commit(std::size_t bytes) {
  VB_CHECK(bytes <= packet_space_.size());
  if (observer_ != nullptr) {
    observer_->on_packet(Direction::kOut, *sent_addresses_[kind_ & kSlotMask],
                         packet_space_.first(bytes));
  }
  out_.commit(bytes, kind_);
  packet_space_ = {};
  must_flush_ = true;
}

bool Lane::prepare_executed() {
  packet_space_ = {};
  const auto space = ended_ ? std::nullopt : prepare_record(sizeof(ExecutedRecord));
  if (space) executed_space_ = *space;
  return space.has_value();
}

void Lane::commit(const ExecutedRecord& executed) {
  std::memcpy(executed_space_.data(), &executed, sizeof executed);
  out_.commit(sizeof executed, kExecutedType);
  ++unflushed_executed_;
}

void Lane::allow_access(bool allowed) {
  access_was_allowed_ = access_was_allowed_ || allowed;
  ring::SharedMemory::store_release(own_announcement_->allows_access, std::uint64_t{allowed});
  ring::SharedMemory::fence();
}

void Lane::begin_access() {
  ring::SharedMemory::store_relaxed(own_announcement_->access_number, ++accesses_);
  ring::SharedMemory::fence();
}

void Lane::leave() {
  ring::SharedMemory::store_release(own_announcement_->access_number, std::uint64_t{0});
}

// ---- receiving ----------------------------------------------------------------------------------

// Reads the oldest record.  If it contains an address, stores the address in received_addresses_.
// Otherwise sets `arrival` or received_executed_.
// Returns false if there is no record, or if the lane has ended.
bool Lane::read_next(std::optional<Arrival>& arrival) {
  arrival.reset();
  received_executed_.reset();
  if (ended_) return false;
  const auto record = in_.peek();
  if (record && !*record) return false;
  ended_ = !record || !interpret(**record, arrival);
  return !ended_;
}

// Returns false if the record is invalid, or if the peer may not send it.  The lane then ends.
bool Lane::interpret(const ring::Record& record, std::optional<Arrival>& arrival) {
  const std::uint16_t type = record.kind & kTypeMask;
  if (type == kAddressType) return store_address(record);
  if (type == kExecutedType) return access_was_allowed_ && store_executed(record);
  const std::span<const std::byte> packet = record.payload;
  const std::size_t slot = record.kind & kSlotMask;
  if (type != kPacketType || slot >= kAddresses || !received_addresses_[slot] ||
      packet.size() < kPacketBytesMin || packet.size() > kPacketBytesMax) {
    return false;
  }
  const std::size_t copied = std::min(packet.size(), kHeaderBytesMax);
  std::memcpy(headers_.data(), packet.data(), copied);
  arrival.emplace(*received_addresses_[slot], packet, std::span(headers_).first(copied));
  return true;
}

bool Lane::store_address(const ring::Record& record) {
  const std::size_t slot = record.kind & kSlotMask;
  if (slot >= kAddresses) return false;
  const auto address = read_address(record.payload);
  if (address) received_addresses_[slot] = address;
  return address.has_value();
}

bool Lane::store_executed(const ring::Record& record) {
  if (record.payload.size() != sizeof(ExecutedRecord)) return false;
  ExecutedRecord copy;
  std::memcpy(&copy, record.payload.data(), sizeof copy);
  received_executed_ = copy;
  return copy.psns != 0 && copy.kind <= ExecutedRecord::Kind::kWriteBeforeImmediate;
}

// ---- sleeping -----------------------------------------------------------------------------------

bool Lane::park() {
  if (ended_) return true;
  return in_.park() && park_for_space();
}

bool Lane::park_for_space() {
  if (ended_ || !was_full_) return true;
  was_full_ = false;
  const auto has_space = out_.request_wake_for_space(kPacketBytesMax);
  if (!has_space) ended_ = true;
  return has_space && !*has_space;
}

}  // namespace verbena::link
