#include "ipc/messages.h"

namespace verbena::ipc {

Result<Envelope> open(std::span<const std::byte> message) {
  constexpr std::size_t kHeader = sizeof(Type) + sizeof(std::uint64_t);
  if (message.size() < kHeader || message.size() > kMessageBytesMax) {
    return fail(Errc::kMalformed, "ipc: message of a wrong length");
  }
  Reader reader(message.first(kHeader));
  Envelope envelope;
  reader(envelope.type, envelope.request);
  envelope.body = message.subspan(kHeader);
  return envelope;
}

}  // namespace verbena::ipc
