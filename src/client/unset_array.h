#pragma once

#include <array>
#include <cstddef>
#include <new>
#include <span>
#include <type_traits>

namespace verbena::client {

// Reserves memory for N objects on the stack without initialising it.  Posting and polling convert
// few objects at a time, so initialising all N objects would cost more than the conversion.  Read
// an object only after you have assigned it.
template <class T, std::size_t N>
class UnsetArray {
  // Only implicit-lifetime types are allowed, because C++ creates their objects in an array of
  // bytes.
  static_assert(std::is_aggregate_v<T> && std::is_trivially_copyable_v<T>);

 public:
  UnsetArray() {}  // NOLINT(modernize-use-equals-default): must not initialise the bytes

  std::span<T> all() { return {std::launder(reinterpret_cast<T*>(bytes_.data())), N}; }

 private:
  alignas(T) std::array<std::byte, N * sizeof(T)> bytes_;
};

}  // namespace verbena::client
