#pragma once

#include <array>
#include <cstddef>
#include <new>
#include <span>
#include <type_traits>

namespace verbena::client {

// Holds memory for N objects on the stack and leaves it unset.  Posting and polling convert few
// objects at a time, and setting all N objects would cost more than the conversion.  Read an object
// only after it was assigned.
template <class T, std::size_t N>
class UnsetArray {
  // C++ creates objects of implicit-lifetime types in an array of bytes.
  static_assert(std::is_aggregate_v<T> && std::is_trivially_copyable_v<T>);

 public:
  UnsetArray() {}  // NOLINT(modernize-use-equals-default): must not set the bytes

  std::span<T> all() { return {std::launder(reinterpret_cast<T*>(bytes_.data())), N}; }

 private:
  alignas(T) std::array<std::byte, N * sizeof(T)> bytes_;
};

}  // namespace verbena::client
