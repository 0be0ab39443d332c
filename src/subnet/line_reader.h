#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

namespace verbena::subnet {

// Reads one line of a netlist from the left.  Each read skips blanks first.  A failed read leaves
// the position at the error.
class LineReader {
 public:
  explicit LineReader(std::string_view line) : line_(line) {}

  std::size_t column() const { return position_ + 1; }
  void skip_blanks() {
    while (position_ < line_.size() && is_blank(line_[position_])) ++position_;
  }
  bool at_end() {
    skip_blanks();
    return position_ == line_.size();
  }
  char next() const { return position_ < line_.size() ? line_[position_] : '\0'; }
  std::string_view rest() const { return line_.substr(position_); }
  bool read_char(char expected) {
    skip_blanks();
    if (next() != expected) return false;
    ++position_;
    return true;
  }
  // Reads letters, digits, '_', and '?', which ibnetdiscover prints for a value that it does not
  // know.
  std::string_view read_word() {
    skip_blanks();
    const std::size_t begin = position_;
    while (position_ < line_.size() && is_word(line_[position_])) ++position_;
    return line_.substr(begin, position_ - begin);
  }
  std::optional<std::uint64_t> read_number(int base) {
    skip_blanks();
    if (base == 16 && line_.substr(position_).starts_with("0x")) position_ += 2;
    std::uint64_t number = 0;
    const char* const begin = line_.data() + position_;
    const auto [end, error] = std::from_chars(begin, line_.data() + line_.size(), number, base);
    if (error != std::errc{}) return std::nullopt;
    position_ += static_cast<std::size_t>(end - begin);
    return number;
  }
  std::optional<std::string_view> read_quoted() {
    if (!read_char('"')) return std::nullopt;
    return read_until(line_.find('"', position_));
  }
  // Reads a text up to the last quote of the line, because a text that is not ours may contain
  // quotes.
  std::optional<std::string_view> read_quoted_to_last() {
    if (!read_char('"')) return std::nullopt;
    const std::size_t end = line_.rfind('"');
    return read_until(end < position_ ? std::string_view::npos : end);
  }
  void skip_past_last_quote() {
    if (const std::size_t quote = line_.rfind('"'); quote != std::string_view::npos) {
      position_ = std::max(position_, quote + 1);
    }
  }

 private:
  static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
  static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '?';
  }
  std::optional<std::string_view> read_until(std::size_t end) {
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view text = line_.substr(position_, end - position_);
    position_ = end + 1;
    return text;
  }

  std::string_view line_;
  std::size_t position_ = 0;
};

}  // namespace verbena::subnet
