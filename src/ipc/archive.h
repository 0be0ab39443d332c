#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/handle.h"
#include "base/strong.h"
#include "base/time.h"

// Encodes values as bytes, and decodes them, for messages between processes of one build on one
// machine.  Fields are in the order in which fields() lists them.  Integers are in host order,
// without padding.  A reader checks every length.  If a value is missing, the message is
// kMalformed.
namespace verbena::ipc {

// Limits the length of a text in a message.
inline constexpr std::size_t kTextBytesMax = 1024;
// Limits the number of elements of a list in a message.
inline constexpr std::size_t kListMax = 1024;

// is_bytes is true for lists of bytes or characters.  Such lists are copied as a block.
template <class Values>
inline constexpr bool is_bytes =
    sizeof(typename std::remove_cvref_t<Values>::value_type) == 1 &&
    !std::is_same_v<typename std::remove_cvref_t<Values>::value_type, bool> &&
    std::is_trivially_copyable_v<typename std::remove_cvref_t<Values>::value_type>;

// Encodes values.  A struct can be part of a message if it lists its members for Writer and Reader:
//   void fields(auto& a) { a(id, address, backlog); }
class Writer {
 public:
  // Allocates `bytes` bytes.  The buffer grows if the values need more.
  explicit Writer(std::size_t bytes = 0) : bytes_(bytes) {}

  void operator()(auto&... values) { (write(values), ...); }
  // Moves the encoded bytes out of the writer.
  std::vector<std::byte> take() {
    bytes_.resize(std::exchange(size_, 0));
    return std::move(bytes_);
  }

 private:
  void append(std::span<const std::byte> raw) {
    if (raw.empty()) return;
    if (bytes_.size() - size_ < raw.size()) bytes_.resize(2 * (size_ + raw.size()));
    std::memcpy(bytes_.data() + size_, raw.data(), raw.size());
    size_ += raw.size();
  }
  template <class T>
  void write(T& value) {
    if constexpr (requires { value.fields(*this); }) {
      value.fields(*this);
    } else if constexpr (std::is_enum_v<T>) {
      auto number = static_cast<std::underlying_type_t<T>>(value);
      write(number);
    } else if constexpr (std::is_integral_v<T>) {
      append(std::as_bytes(std::span(&value, 1)));
    } else if constexpr (requires { value.value; }) {  // Strong, Psn, Handle
      write(value.value);
    } else if constexpr (std::is_same_v<T, Gid>) {
      write(value.bytes);
    } else if constexpr (std::is_same_v<T, Duration>) {
      auto count = value.count();
      write(count);
    } else if constexpr (requires { value.push_back(value[0]); }) {  // string, vector
      auto count = static_cast<std::uint32_t>(value.size());
      write(count);
      write_all(value);
    } else if constexpr (requires { std::tuple_size<T>::value; }) {  // array
      write_all(value);
    } else {
      fields(*this, value);  // rdmacm's types, in values.h
    }
  }
  void write_all(auto& values) {
    if constexpr (is_bytes<decltype(values)>) {
      append(std::as_bytes(std::span(values)));
    } else {
      for (auto& element : values) write(element);
    }
  }

  std::vector<std::byte> bytes_;  // the first size_ bytes are written
  std::size_t size_ = 0;
};

// Decodes values.  If a value is missing or too long, that value and all later values are invalid.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  void operator()(auto&... values) { (read(values), ...); }
  // Returns true if no value was missing or too long, and no bytes remain.
  bool complete() const { return good_ && bytes_.empty(); }
  // Returns false if a value was missing or too long.
  bool good() const { return good_; }

 private:
  template <class T>
  void read(T& value) {
    if constexpr (requires { value.fields(*this); }) {
      value.fields(*this);
    } else if constexpr (std::is_same_v<T, bool>) {
      std::uint8_t number = 0;
      read(number);
      value = number != 0;
    } else if constexpr (std::is_enum_v<T>) {
      std::underlying_type_t<T> number{};
      read(number);
      value = static_cast<T>(number);
    } else if constexpr (std::is_integral_v<T>) {
      const auto raw = std::as_writable_bytes(std::span(&value, 1));
      read_raw(raw);
    } else if constexpr (requires { value.value; }) {
      read(value.value);
    } else if constexpr (std::is_same_v<T, Gid>) {
      read(value.bytes);
    } else if constexpr (std::is_same_v<T, Duration>) {
      Duration::rep count{};
      read(count);
      value = Duration(count);
    } else if constexpr (requires { value.push_back(value[0]); }) {
      std::uint32_t count = 0;
      read(count);
      const std::size_t limit = std::is_same_v<T, std::string> ? kTextBytesMax : kListMax;
      // Each element needs at least one byte.
      if (count > limit || count > bytes_.size()) good_ = false;
      if (!good_) return;
      value.resize(count);
      read_all(value);
    } else if constexpr (requires { std::tuple_size<T>::value; }) {
      read_all(value);
    } else {
      fields(*this, value);
    }
  }
  void read_all(auto& values) {
    if constexpr (is_bytes<decltype(values)>) {
      read_raw(std::as_writable_bytes(std::span(values)));
    } else {
      for (auto& element : values) read(element);
    }
  }

  void read_raw(std::span<std::byte> out) {
    if (!good_ || bytes_.size() < out.size()) {
      good_ = false;
      return;
    }
    if (!out.empty()) std::memcpy(out.data(), bytes_.data(), out.size());
    bytes_ = bytes_.subspan(out.size());
  }

  std::span<const std::byte> bytes_;
  bool good_ = true;
};

}  // namespace verbena::ipc
