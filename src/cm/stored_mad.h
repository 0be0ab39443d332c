#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "mad/mad.h"
#include "wire/cm.h"

namespace verbena::cm {

// Stores a message that was sent, so that the message can be repeated.  The zeros at the end of the
// message are not stored, because a host stores one message for each connection, and most of a MAD
// is unused space for private data.
class StoredMad {
 public:
  StoredMad() = default;
  StoredMad(wire::cm::AttributeId id, const mad::Mad& mad) : id_(id) {
    const auto last =
        std::find_if(mad.rbegin(), mad.rend(), [](std::byte byte) { return byte != std::byte{0}; });
    bytes_.assign(mad.begin(), last.base());
  }

  wire::cm::AttributeId id() const { return id_; }
  mad::Mad mad() const {
    mad::Mad whole{};
    std::ranges::copy(bytes_, whole.begin());
    return whole;
  }

 private:
  wire::cm::AttributeId id_{};  // tells which message it is, for example a REQ
  std::vector<std::byte> bytes_{};
};

}  // namespace verbena::cm
