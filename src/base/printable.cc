#include "base/printable.h"

#include <cstddef>
#include <cstdint>

namespace verbena {
namespace {

struct Character {
  std::uint32_t code_point = 0;
  std::size_t bytes = 0;  // 0: not UTF-8
};

// Decodes the first character of `text`.  Overlong forms and surrogates are not UTF-8.  REQUIRES:
// `text` is not empty.
Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  std::uint32_t code_point = lead & (0x7fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0u) != 0x80u) return {};
    code_point = code_point << 6 | (byte(i) & 0x3fu);
  }
  // A smaller code point would have a shorter form.  The index is the length in bytes.
  constexpr std::uint32_t kCodePointMin[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code_point >= 0xd800 && code_point <= 0xdfff;
  if (code_point < kCodePointMin[bytes] || code_point > 0x10ffff || is_surrogate) return {};
  return {code_point, bytes};
}

// Returns true for control characters, line and paragraph separators, and characters that change
// the direction of writing.
bool is_harmful(std::uint32_t code_point) {
  const auto within = [&](std::uint32_t first, std::uint32_t last) {
    return code_point >= first && code_point <= last;
  };
  return code_point < 0x20 || within(0x7f, 0x9f) || within(0x2028, 0x202e) ||
         within(0x2066, 0x2069);
}

void append_hex(std::string& out, std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (const char byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    out += "\\x";
    out += kDigits[value >> 4];
    out += kDigits[value & 0xf];
  }
}

// Writes harmful bytes as \xNN, and a backslash before each character that is in `marked`.
std::string escaped(std::string_view text, std::string_view marked) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto [code_point, bytes] = first_character(text);
    const std::string_view character = text.substr(0, bytes == 0 ? 1 : bytes);
    text.remove_prefix(character.size());
    if (bytes == 0 || is_harmful(code_point)) {
      append_hex(out, character);
      continue;
    }
    if (marked.find(character) != std::string_view::npos) out += '\\';
    out += character;
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) { return escaped(text, {}); }

std::string printable_name(std::string_view name) { return escaped(name, "\\\"'"); }

}  // namespace verbena
