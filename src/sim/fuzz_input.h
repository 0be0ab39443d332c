#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace verbena::sim {

// Cuts the input of a fuzz target into numbers.
class FuzzInput {
 public:
  explicit FuzzInput(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  // Takes the next number from the input.  If the input is too short, the missing bytes are zero.
  template <class Number>
  Number take() {
    Number value{};
    const std::size_t n = std::min(sizeof value, bytes_.size());
    std::memcpy(&value, bytes_.data(), n);
    bytes_ = bytes_.subspan(n);
    return value;
  }

 private:
  std::span<const std::uint8_t> bytes_;
};

}  // namespace verbena::sim
