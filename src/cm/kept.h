#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "mad/mad.h"
#include "wire/cm.h"

namespace verbena::cm {

// A message as it was sent, to be sent again.  Without the zeros at its end: a host keeps one for
// each of its connections, and most of a MAD is room for private data.
class Kept {
 public:
  Kept() = default;
  Kept(wire::cm::AttributeId id, const mad::Mad& mad) : id_(id) {
    const auto said =
        std::find_if(mad.rbegin(), mad.rend(), [](std::byte byte) { return byte != std::byte{0}; });
    bytes_.assign(mad.begin(), said.base());
  }

  wire::cm::AttributeId id() const { return id_; }
  mad::Mad mad() const {
    mad::Mad whole{};
    std::ranges::copy(bytes_, whole.begin());
    return whole;
  }

 private:
  wire::cm::AttributeId id_{};
  std::vector<std::byte> bytes_{};
};

}  // namespace verbena::cm
