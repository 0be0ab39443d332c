#pragma once

#include <array>
#include <cstddef>

namespace verbena::preload {

// Holds objects in static memory that is zero at first.  The memory exists before any
// constructor has run, costs no page until it is written, and is never destroyed, so that signal
// handlers and constructors of other libraries may use it.  REQUIRES: zeros are a valid T.
template <class T, std::size_t kCount>
class ZeroedArray {
 public:
  T& operator[](std::size_t index) { return data()[index]; }
  T* data() { return reinterpret_cast<T*>(bytes_.data()); }
  T* begin() { return data(); }
  T* end() { return data() + kCount; }

 private:
  alignas(T) std::array<std::byte, kCount * sizeof(T)> bytes_{};
};

}  // namespace verbena::preload
