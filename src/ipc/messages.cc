#include "ipc/messages.h"

namespace verbena::ipc {
namespace {

constexpr std::size_t kHeaderBytes = sizeof(std::uint32_t) + sizeof(Type) + sizeof(std::uint64_t);

}  // namespace

Result<Envelope> open(std::span<const std::byte> message) {
  if (message.size() < kHeaderBytes || message.size() > kMessageBytesMax) {
    return fail(Errc::kMalformed, "ipc: a message of a wrong length");
  }
  Reader reader(message.first(kHeaderBytes));
  std::uint32_t size = 0;
  Envelope envelope;
  reader(size, envelope.type, envelope.request);
  if (size != message.size()) return fail(Errc::kMalformed, "ipc: a message of a wrong length");
  envelope.body = message.subspan(kHeaderBytes);
  return envelope;
}

Result<std::span<const std::byte>> take_message(std::span<const std::byte>& datagram) {
  std::uint32_t size = 0;
  Reader reader(datagram);
  reader(size);
  if (!reader.good() || size < kHeaderBytes || size > datagram.size()) {
    return fail(Errc::kMalformed, "ipc: a datagram ends within a message");
  }
  const auto message = datagram.first(size);
  datagram = datagram.subspan(size);
  return message;
}

}  // namespace verbena::ipc
