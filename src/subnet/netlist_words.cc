#include "subnet/netlist_words.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <system_error>
#include <utility>

namespace verbena::subnet {
namespace {

constexpr std::array<std::pair<std::string_view, LinkSpeed>, 9> kSpeedNames{{
    {"SDR", LinkSpeed::kSdr},
    {"DDR", LinkSpeed::kDdr},
    {"QDR", LinkSpeed::kQdr},
    {"FDR10", LinkSpeed::kFdr10},
    {"FDR", LinkSpeed::kFdr},
    {"EDR", LinkSpeed::kEdr},
    {"HDR", LinkSpeed::kHdr},
    {"NDR", LinkSpeed::kNdr},
    {"XDR", LinkSpeed::kXdr},
}};
// The widest width is last.
constexpr std::array<std::pair<unsigned, LinkWidth>, 5> kWidths{{
    {1, LinkWidth::k1x},
    {2, LinkWidth::k2x},
    {4, LinkWidth::k4x},
    {8, LinkWidth::k8x},
    {12, LinkWidth::k12x},
}};
constexpr std::size_t kGuidDigits = 16;

char letter_of(NodeType type) {
  if (type == NodeType::kSwitch) return 'S';
  return type == NodeType::kRouter ? 'R' : 'H';
}

std::optional<Guid> guid_of_digits(std::string_view digits) {
  Guid guid;
  const auto [stop, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), guid.value, 16);
  if (error != std::errc{} || stop != digits.data() + digits.size()) return std::nullopt;
  return guid;
}

bool is_upper_case(char c) { return c >= 'A' && c <= 'Z'; }

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

std::optional<LinkWidth> width_of_lanes(std::uint64_t lanes) {
  const auto found = std::ranges::find(kWidths, lanes, [](const auto& w) { return w.first; });
  return found == kWidths.end() ? std::nullopt : std::optional(found->second);
}

unsigned lanes_of(LinkWidth width) {
  return std::ranges::find(kWidths, width, [](const auto& w) { return w.second; })->first;
}

std::optional<LinkWidth> widest(std::uint64_t mask) {
  std::optional<LinkWidth> found;
  for (const auto& [lanes, width] : kWidths) {
    if ((mask & static_cast<std::uint64_t>(width)) == 0) continue;
    found = width;
    mask &= ~static_cast<std::uint64_t>(width);
  }
  return mask == 0 ? found : std::nullopt;
}

std::optional<LinkSpeed> speed_named(std::string_view name) {
  const auto found = std::ranges::find(kSpeedNames, name, [](const auto& s) { return s.first; });
  return found == kSpeedNames.end() ? std::nullopt : std::optional(found->second);
}

std::string_view name_of(LinkSpeed speed) {
  return std::ranges::find(kSpeedNames, speed, [](const auto& s) { return s.second; })->first;
}

bool looks_like_speed(std::string_view word) {
  while (!word.empty() && is_digit(word.back())) word.remove_suffix(1);
  return word.size() > 2 && word.ends_with("DR") && std::ranges::all_of(word, is_upper_case);
}

std::optional<LinkSpeed> fastest(std::uint64_t mask) {
  if (mask == 0 || mask > 7) return std::nullopt;
  return static_cast<LinkSpeed>(std::bit_width(mask) - 1);
}

std::optional<LinkSpeed> fastest_extended(std::uint64_t mask) {
  if (mask == 0 || mask > 15) return std::nullopt;
  return static_cast<LinkSpeed>(std::to_underlying(LinkSpeed::kFdr) + std::bit_width(mask) - 1);
}

std::optional<Guid> guid_in_id(std::string_view id) {
  if (id.size() != kGuidDigits + 2 || id[1] != '-') return std::nullopt;
  if (id[0] != 'H' && id[0] != 'S' && id[0] != 'R') return std::nullopt;
  return guid_of_digits(id.substr(2));
}

std::optional<Guid> parse_guid(std::string_view text) {
  return text.starts_with("0x") ? guid_of_digits(text.substr(2)) : guid_in_id(text);
}

std::string id_of(NodeType type, Guid guid) {
  std::array<char, kGuidDigits> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), guid.value, 16).ptr;
  const auto count = static_cast<std::size_t>(end - digits.data());
  return std::string{letter_of(type), '-'} + std::string(kGuidDigits - count, '0') +
         std::string(digits.data(), count);
}

bool is_remark(std::string_view line) {
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  if (line.starts_with("Non-Chassis Nodes")) return true;
  const std::string_view first = line.substr(0, line.find_first_of(" \t\r"));
  if (first == "Chassis") return true;
  // A message begins with the name of its program or source.  No line of a topology has a colon in
  // its first word.
  const std::size_t colon = first.find(':');
  const std::string_view name = first.substr(0, colon);
  constexpr std::array<std::string_view, 4> kNodes{"Switch", "Hca", "Ca", "Rt"};
  return colon != std::string_view::npos && colon != 0 &&
         first.find_first_of("\"[=#") == std::string_view::npos && !name.ends_with("guid") &&
         std::ranges::find(kNodes, name) == kNodes.end();
}

}  // namespace verbena::subnet
