#include "link/lane.h"

#include <algorithm>
#include <cstring>

namespace verbena::link {
namespace {

// The kind of a record is its type and the slot of its address.
constexpr std::uint16_t kAddressType = 1 << 8;
constexpr std::uint16_t kPacketType = 2 << 8;
constexpr std::uint16_t kTypeMask = 0xff00;
constexpr std::uint16_t kSlotMask = 0x00ff;

// Writes and reads the fields of an address, one after the other.
class Fields {
 public:
  explicit Fields(std::byte* at) : at_(at) {}
  template <class Value>
  void put(const Value& value) {
    std::memcpy(at_, &value, sizeof value);
    at_ += sizeof value;
  }
  template <class Value>
  void take(Value& value) {
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
  }

 private:
  std::byte* at_;
};

constexpr std::size_t kAddressBytes = 2 * sizeof(Gid) + 4 + 2 + 4 + 1 + 1;

std::size_t slot_of(const Address& address, std::size_t slots) {
  const auto low = [](const Gid& gid) { return std::to_integer<std::size_t>(gid.bytes[15]); };
  return (address.source_port + low(address.source) + 3 * low(address.destination)) % slots;
}

}  // namespace

Result<Lane> Lane::attach(std::span<std::byte> memory, Side side) {
  if (memory.size() != kBytes) {
    return fail(Errc::kInvalidArgument, "lane: the memory has the wrong size");
  }
  auto* const controls = reinterpret_cast<ring::Control*>(memory.data());
  const std::size_t mine = side == Side::kFirst ? 0 : 1;
  const auto data = [&](std::size_t ring) {
    return memory.subspan(kControlBytes + ring * kRingBytes, kRingBytes);
  };
  const auto out = VB_TRY(ring::Producer::attach(&controls[mine], data(mine)));
  const auto in = VB_TRY(ring::Consumer::attach(&controls[1 - mine], data(1 - mine)));
  return Lane(out, in);
}

// ---- sending ------------------------------------------------------------------------------------

std::optional<std::span<std::byte>> Lane::prepare_record(std::size_t bytes) {
  const auto room = out_.prepare(bytes);
  if (!room) ended_ = true;
  if (!room || !*room) {
    was_full_ = true;
    return {};
  }
  return *room;
}

bool Lane::prepare(const Address& address) {
  room_ = {};
  if (ended_) return false;
  const std::size_t slot = slot_of(address, kAddresses);
  if (sent_[slot] != address && !send_address(slot, address)) return false;
  const auto room = prepare_record(kPacketBytesMax);
  if (!room) return false;
  room_ = *room;
  kind_ = static_cast<std::uint16_t>(kPacketType | slot);
  return true;
}

bool Lane::send_address(std::size_t slot, const Address& address) {
  const auto room = prepare_record(kAddressBytes);
  if (!room) return false;
  Fields fields(room->data());
  fields.put(address.source);
  fields.put(address.destination);
  fields.put(address.interface);
  fields.put(address.source_port);
  fields.put(address.flow_label);
  fields.put(address.traffic_class);
  fields.put(address.hop_limit);
  out_.commit(kAddressBytes, static_cast<std::uint16_t>(kAddressType | slot));
  sent_[slot] = address;
  return true;
}

void Lane::commit(std::size_t bytes) {
  VB_CHECK(bytes <= room_.size());
  if (observer_ != nullptr) {
    observer_->passed(Direction::kOut, *sent_[kind_ & kSlotMask], room_.first(bytes));
  }
  out_.commit(bytes, kind_);
  room_ = {};
}

// ---- receiving ----------------------------------------------------------------------------------

// Reads the oldest record: stores its address, or sets `arrival` to its packet.  Returns false if
// there is none.
bool Lane::next(std::optional<Arrival>& arrival) {
  arrival.reset();
  if (ended_) return false;
  const auto record = in_.peek();
  if (record && !*record) return false;
  ended_ = !record || !read(**record, arrival);
  return !ended_;
}

// Returns false if no Lane writes such a record.
bool Lane::read(const ring::Record& record, std::optional<Arrival>& arrival) {
  const std::uint16_t type = record.kind & kTypeMask;
  if (type == kAddressType) return store_address(record);
  const std::span<const std::byte> packet = record.payload;
  const std::size_t slot = record.kind & kSlotMask;
  if (type != kPacketType || slot >= kAddresses || !received_[slot] ||
      packet.size() < kPacketBytesMin || packet.size() > kPacketBytesMax) {
    return false;
  }
  const std::size_t copied = std::min(packet.size(), kHeaderBytesMax);
  std::memcpy(headers_.data(), packet.data(), copied);
  arrival.emplace(*received_[slot], packet, std::span(headers_).first(copied));
  return true;
}

bool Lane::store_address(const ring::Record& record) {
  const std::size_t slot = record.kind & kSlotMask;
  if (slot >= kAddresses || record.payload.size() != kAddressBytes) return false;
  std::array<std::byte, kAddressBytes> copy;
  std::memcpy(copy.data(), record.payload.data(), copy.size());
  Fields fields(copy.data());
  Address address;
  fields.take(address.source);
  fields.take(address.destination);
  fields.take(address.interface);
  fields.take(address.source_port);
  fields.take(address.flow_label);
  fields.take(address.traffic_class);
  fields.take(address.hop_limit);
  received_[slot] = address;
  return true;
}

// ---- sleeping -----------------------------------------------------------------------------------

bool Lane::park() {
  if (ended_) return true;
  if (!in_.park()) return false;
  if (!was_full_) return true;
  was_full_ = false;
  const auto has_room = out_.want_room(kPacketBytesMax);
  if (!has_room) ended_ = true;
  return has_room && !*has_room;
}

}  // namespace verbena::link
