#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "base/handle.h"
#include "base/strong.h"
#include "base/time.h"

// Values as bytes, for messages between processes of one build on one machine: fields in the order
// in which fields() names them, integers in host order without padding.  A reader never believes a
// length: what is not there is kMalformed.
namespace verbena::ipc {

// The text in a message, at most.
inline constexpr std::size_t kTextBytesMax = 1024;
// Elements of a list in a message, at most.
inline constexpr std::size_t kListMax = 1024;

// A struct becomes a message part by naming its members:
//   void fields(auto& a) { a(id, address, backlog); }
class Writer {
 public:
  void operator()(auto&... values) { (put(values), ...); }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  template <class T>
  void put(T& value) {
    if constexpr (requires { value.fields(*this); }) {
      value.fields(*this);
    } else if constexpr (std::is_enum_v<T>) {
      auto number = static_cast<std::underlying_type_t<T>>(value);
      put(number);
    } else if constexpr (std::is_integral_v<T>) {
      const auto raw = std::as_bytes(std::span(&value, 1));
      bytes_.insert(bytes_.end(), raw.begin(), raw.end());
    } else if constexpr (std::is_same_v<T, std::byte>) {
      bytes_.push_back(value);
    } else if constexpr (requires { value.value; }) {  // Strong, Psn, Handle
      put(value.value);
    } else if constexpr (std::is_same_v<T, Gid>) {
      put(value.bytes);
    } else if constexpr (std::is_same_v<T, Duration>) {
      auto count = value.count();
      put(count);
    } else if constexpr (requires { value.push_back(value[0]); }) {  // string, vector
      auto count = static_cast<std::uint32_t>(value.size());
      put(count);
      for (auto& element : value) put(element);
    } else if constexpr (requires { std::tuple_size<T>::value; }) {  // array
      for (auto& element : value) put(element);
    } else {
      fields(*this, value);  // of values that know nothing of messages: values.h
    }
  }

  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  void operator()(auto&... values) { (get(values), ...); }
  // Everything was there and nothing is left over.
  bool complete() const { return good_ && bytes_.empty(); }
  bool good() const { return good_; }

 private:
  template <class T>
  void get(T& value) {
    if constexpr (requires { value.fields(*this); }) {
      value.fields(*this);
    } else if constexpr (std::is_same_v<T, bool>) {
      std::uint8_t number = 0;
      get(number);
      value = number != 0;
    } else if constexpr (std::is_enum_v<T>) {
      std::underlying_type_t<T> number{};
      get(number);
      value = static_cast<T>(number);
    } else if constexpr (std::is_integral_v<T>) {
      const auto raw = std::as_writable_bytes(std::span(&value, 1));
      take(raw);
    } else if constexpr (std::is_same_v<T, std::byte>) {
      take(std::span(&value, 1));
    } else if constexpr (requires { value.value; }) {
      get(value.value);
    } else if constexpr (std::is_same_v<T, Gid>) {
      get(value.bytes);
    } else if constexpr (std::is_same_v<T, Duration>) {
      Duration::rep count{};
      get(count);
      value = Duration(count);
    } else if constexpr (requires { value.push_back(value[0]); }) {
      std::uint32_t count = 0;
      get(count);
      const std::size_t limit = std::is_same_v<T, std::string> ? kTextBytesMax : kListMax;
      if (count > limit || count > bytes_.size()) good_ = false;  // an element has a byte at least
      if (!good_) return;
      value.resize(count);
      for (auto& element : value) get(element);
    } else if constexpr (requires { std::tuple_size<T>::value; }) {
      for (auto& element : value) get(element);
    } else {
      fields(*this, value);
    }
  }

  void take(std::span<std::byte> out) {
    if (!good_ || bytes_.size() < out.size()) {
      good_ = false;
      return;
    }
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = bytes_[i];
    bytes_ = bytes_.subspan(out.size());
  }

  std::span<const std::byte> bytes_;
  bool good_ = true;
};

}  // namespace verbena::ipc
