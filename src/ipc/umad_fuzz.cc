// Decodes any bytes as each kind of message between libibumad and the MAD service.  Encodes each
// decoded message, decodes the result, and encodes that again.  Both encodings must be equal.  Of a
// Send message, checks only the sizes of its parts.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

#include "ipc/umad_messages.h"

namespace {

using namespace verbena;
using namespace verbena::ipc::umad;

template <class Message>
void check(std::span<const std::byte> bytes) {
  const auto message = decode<Message>(bytes);
  if (!message) return;
  const auto encoded = encode(*message);
  const auto decoded = decode<Message>(encoded);
  VB_CHECK(decoded.has_value());
  VB_CHECK(encode(*decoded) == encoded);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  check<Hello>(bytes);
  check<Query>(bytes);
  check<Register>(bytes);
  check<Unregister>(bytes);
  check<Reply>(bytes);
  check<Devices>(bytes);
  if (const auto send = decode_send(bytes)) {
    VB_CHECK(!send->in_memory || send->mad.empty());
    VB_CHECK(send->mad.size() + kUserMadBytes + kSendPrefixBytes == bytes.size());
  }
  return 0;
}
