#pragma once

#include <array>
#include <cstddef>

// Converts hex text to bytes, for tests: hex<"0400 ffff">() returns four bytes.  hex() ignores
// spaces, '|' and newlines.  The digits are lower case.  Text with other characters does not
// compile.
namespace verbena::wire {

template <std::size_t Length>
struct HexText {
  char text[Length]{};

  // NOLINTNEXTLINE: implicit, so that a literal can be a template argument.
  consteval HexText(const char (&literal)[Length]) {
    for (std::size_t i = 0; i < Length; ++i) text[i] = literal[i];
  }
  // Returns the value of a hex digit, or -1 for another character.
  static constexpr int digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
  }
  constexpr std::size_t digit_count() const {
    std::size_t count = 0;
    for (char c : text) count += digit(c) >= 0 ? 1 : 0;
    return count;
  }
};

template <HexText Text>
consteval auto hex() {
  static_assert(Text.digit_count() % 2 == 0, "half a byte");
  std::array<std::byte, Text.digit_count() / 2> bytes{};
  std::size_t digit_index = 0;
  for (char c : Text.text) {
    const int value = Text.digit(c);
    if (value < 0) {
      if (c != ' ' && c != '|' && c != '\n' && c != '\0') throw "not a hex digit";
      continue;
    }
    std::byte& byte = bytes[digit_index++ / 2];
    byte = byte << 4 | static_cast<std::byte>(value);
  }
  return bytes;
}

}  // namespace verbena::wire
