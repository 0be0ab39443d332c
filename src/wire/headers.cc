#include "wire/headers.h"

namespace verbena::wire {
namespace {

// Decodes headers one after the other.  REQUIRES: the bytes contain all headers that are read.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <Message M>
  M read() {
    const M message = decode_exact<M>(rest_.first<kSize<M>>());
    rest_ = rest_.subspan<kSize<M>>();
    return message;
  }

 private:
  std::span<const std::byte> rest_;
};

// Encodes headers one after the other.
class Writer {
 public:
  explicit Writer(std::span<std::byte> out) : rest_(out) {}

  template <Message M>
  void write(const M& message) {
    encode_to(rest_, message);
    rest_ = rest_.subspan<kSize<M>>();
  }

 private:
  std::span<std::byte> rest_;
};

// Decodes the headers that `bits` selects (properties::Entry).  REQUIRES: the reader has the bytes
// of these headers.  The function has a single return variable, so that the compiler constructs it
// directly in the memory of the caller.
Result<TransportPacket> decode_headers(const Bth& bth, std::uint32_t bits, Reader reader,
                                       std::span<const std::byte> payload) {
  Result<TransportPacket> result(std::in_place);
  TransportPacket& packet = *result;
  packet.bth = bth;
  if (bits & properties::kXrcEth) packet.xrc = reader.read<XrcEth>();
  if (bits & properties::kDeth) packet.deth = reader.read<Deth>();
  if (bits & properties::kReth) packet.reth = reader.read<Reth>();
  if (bits & properties::kAtomicEth) packet.atomic = reader.read<AtomicEth>();
  if (bits & properties::kAeth) packet.aeth = reader.read<Aeth>();
  if (bits & properties::kAtomicAckEth) packet.atomic_ack = reader.read<AtomicAckEth>();
  if (bits & properties::kImmDt) packet.immediate = reader.read<ImmDt>().immediate;
  if (bits & properties::kIeth) packet.invalidate_r_key = reader.read<Ieth>().r_key;
  packet.payload = payload;
  return result;
}

}  // namespace

Result<TransportPacket> parse_transport(std::span<const std::byte> bth_to_pad) {
  return parse_transport(bth_to_pad, bth_to_pad);
}

Result<TransportPacket> parse_transport(std::span<const std::byte> bth_to_pad,
                                        std::span<const std::byte> headers) {
  if (bth_to_pad.size() < kSize<Bth>) return drop(Drop::kTooShort);
  if (bth_to_pad.size() % 4 != 0) return drop(Drop::kNotMultipleOfFour);

  Reader reader(headers);
  const Bth bth = reader.read<Bth>();
  const properties::Entry entry = properties::of(bth.opcode);
  if (entry.bits == 0) return drop(Drop::kUnknownOpcode);
  if (bth.transport_version != 0) return drop(Drop::kTransportVersion);
  if (bth_to_pad.size() < entry.header_bytes) return drop(Drop::kTooShort);
  const std::size_t body_bytes = bth_to_pad.size() - entry.header_bytes;
  if (bth.pad_count > body_bytes) return drop(Drop::kPadTooLong);
  if (body_bytes != 0 && !(entry.bits & properties::kPayload))
    return drop(Drop::kPayloadNotAllowed);
  return decode_headers(bth, entry.bits, reader,
                        bth_to_pad.subspan(entry.header_bytes, body_bytes - bth.pad_count));
}

std::size_t write_headers(std::span<std::byte> out, const TransportPacket& packet) {
  const properties::Entry entry = properties::of(packet.bth.opcode);
  VB_CHECK(entry.bits != 0 && out.size() >= entry.header_bytes);

  Writer writer(out);
  writer.write(packet.bth);
  if (entry.bits & properties::kXrcEth) writer.write(packet.xrc);
  if (entry.bits & properties::kDeth) writer.write(packet.deth);
  if (entry.bits & properties::kReth) writer.write(packet.reth);
  if (entry.bits & properties::kAtomicEth) writer.write(packet.atomic);
  if (entry.bits & properties::kAeth) writer.write(packet.aeth);
  if (entry.bits & properties::kAtomicAckEth) writer.write(packet.atomic_ack);
  if (entry.bits & properties::kImmDt) writer.write(ImmDt{packet.immediate});
  if (entry.bits & properties::kIeth) writer.write(Ieth{packet.invalidate_r_key});
  return entry.header_bytes;
}

}  // namespace verbena::wire
