#include "faults/fault.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "faults/flaps.h"
#include "faults/loss.h"

namespace verbena::faults {
namespace {

using ParseResult = std::expected<Fault, std::string>;
using Words = std::span<const std::string>;

struct Unit {
  std::string_view name;
  std::int64_t nanoseconds;
};
constexpr std::array<Unit, 4> kUnits{
    {{"s", 1'000'000'000}, {"ms", 1'000'000}, {"us", 1'000}, {"ns", 1}}};

std::string in_quotes(std::string_view text) { return "'" + std::string(text) + "'"; }

std::unexpected<std::string> parse_error(std::string text) {
  return std::unexpected(std::move(text));
}

// Parses a whole word as a number.
template <class Number>
std::optional<Number> parse_number(std::string_view word, auto... base_or_format) {
  Number value{};
  const auto [end, error] =
      std::from_chars(word.data(), word.data() + word.size(), value, base_or_format...);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

std::optional<double> parse_decimal(std::string_view word) {
  const auto value = parse_number<double>(word, std::chars_format::fixed);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

// The following set_...() functions parse a word and store its value in the fault or in `out`.
// They return an error message for the user, or nullopt.
std::optional<std::string> set_loss(Fault& fault, const std::string& word) {
  const auto percent = parse_decimal(word);
  if (!percent || *percent < 0 || *percent > 100)
    return "the percentage of lost packets must be 0 to 100";
  fault.lost_per_million = static_cast<std::uint32_t>(std::lround(*percent * 10'000));
  return std::nullopt;
}

std::optional<std::string> set_delay(Fault& fault, const std::string& word) {
  const auto delay = parse_duration(word);
  if (!delay || *delay > kDelayMax) {
    return in_quotes(word) + " is not a delay: use 0 to " + duration_text(kDelayMax) +
           ", such as 250us, 5ms or 0.1s";
  }
  fault.delay = *delay;
  return std::nullopt;
}

std::optional<std::string> set_period(Duration& out, const std::string& word) {
  const auto period = parse_duration(word);
  if (!period || *period < Flaps::kPeriodMin || *period > Flaps::kPeriodMax) {
    return in_quotes(word) + " is not a period: use " + duration_text(Flaps::kPeriodMin) + " to " +
           duration_text(Flaps::kPeriodMax) + ", such as 50ms or 2s";
  }
  out = *period;
  return std::nullopt;
}

std::optional<std::string> set_mtu(Fault& fault, const std::string& word) {
  if (word == "default") return std::nullopt;
  const auto bytes = parse_number<std::uint32_t>(word, 10);
  if (!bytes || *bytes == 0)
    return in_quotes(word) + " is not an MTU: use a number of bytes, or default";
  fault.mtu_bytes = *bytes;
  return std::nullopt;
}

std::optional<std::string> set_pkey(Fault& fault, std::string_view word) {
  constexpr std::uint16_t kPartition = 0x7fff;
  const bool is_hex = word.starts_with("0x");
  const auto value = parse_number<std::uint16_t>(word.substr(is_hex ? 2 : 0), is_hex ? 16 : 10);
  if (!value || (*value & kPartition) == 0) {
    return in_quotes(word) +
           " is not a P_Key: a P_Key is 0x1 to 0xffff, and its lower 15 bits are not 0";
  }
  fault.pkey = Pkey{*value};
  return std::nullopt;
}

struct State {
  std::string_view word;
  Kind kind;
  std::size_t value_count;  // the number of words after the state
  const char* value_names;  // describes these words in an error message
};
constexpr std::array<State, 6> kLinkStates{{
    {"down", Kind::kLinkDown, 0, ""},
    {"up", Kind::kLinkUp, 0, ""},
    {"lossy", Kind::kLinkLossy, 1, "the percentage of packets that are lost"},
    {"slow", Kind::kLinkSlow, 1, "a delay, such as 5ms"},
    {"flapping", Kind::kLinkFlapping, 2, "how long the link is down and up, such as 50ms 2s"},
    {"mtu", Kind::kLinkMtu, 1, "a number of bytes, or default"},
}};
constexpr std::array<State, 4> kNodeStates{{
    {"off", Kind::kNodeOff, 0, ""},
    {"on", Kind::kNodeOn, 0, ""},
    {"paused", Kind::kNodePaused, 0, ""},
    {"pkey", Kind::kPkeyRemoved, 2, "a P_Key, and removed or added"},
}};

std::string list_text(std::span<const State> states) {
  std::string text;
  for (const State& state : states) {
    if (!text.empty()) text += &state == &states.back() ? " or " : ", ";
    text += state.word;
  }
  return text;
}

std::string quote_if_needed(const std::string& name) {
  const bool is_plain = !name.empty() && name.find(' ') == std::string::npos;
  return is_plain ? name : "'" + name + "'";
}

// Formats a number of millionths as a percentage, such as "2.5".
std::string percent_text(std::uint32_t per_million) {
  constexpr std::uint32_t kPerPercent = 10'000;
  std::string fraction = std::to_string(kPerPercent + per_million % kPerPercent).substr(1);
  fraction.resize(fraction.find_last_not_of('0') + 1);
  const std::string whole = std::to_string(per_million / kPerPercent);
  return fraction.empty() ? whole : whole + "." + fraction;
}

// Parses the words after the state.  Returns an error message for the user, or nullopt.
std::optional<std::string> set_values(Fault& fault, Words values) {
  switch (fault.kind) {
    case Kind::kLinkLossy: return set_loss(fault, values[0]);
    case Kind::kLinkSlow: return set_delay(fault, values[0]);
    case Kind::kLinkMtu: return set_mtu(fault, values[0]);
    case Kind::kLinkFlapping: {
      auto error = set_period(fault.down, values[0]);
      return error ? error : set_period(fault.up, values[1]);
    }
    case Kind::kPkeyRemoved:
    case Kind::kPkeyAdded:
      if (values[1] != "removed" && values[1] != "added") {
        return "a P_Key is removed or added, not " + in_quotes(values[1]);
      }
      if (values[1] == "added") fault.kind = Kind::kPkeyAdded;
      return set_pkey(fault, values[0]);
    case Kind::kLinkDown:
    case Kind::kLinkUp:
    case Kind::kNodeOff:
    case Kind::kNodeOn:
    case Kind::kNodePaused: return std::nullopt;
  }
  return std::nullopt;
}

ParseResult parse_state(Fault fault, std::span<const State> states, std::string_view subject,
                        Words words, std::optional<std::uint64_t> seed) {
  const auto state = std::ranges::find(states, words[0], &State::word);
  if (state == states.end()) {
    return parse_error(in_quotes(words[0]) + " is not a state of a " + std::string(subject) +
                       ": use " + list_text(states));
  }
  const Words values = words.subspan(1);
  if (values.size() < state->value_count) {
    return parse_error(std::string(state->word) + " needs " + state->value_names);
  }
  if (values.size() > state->value_count) {
    return parse_error("too many words: " + in_quotes(values[state->value_count]));
  }
  fault.kind = state->kind;
  const bool takes_seed = fault.kind == Kind::kLinkLossy || fault.kind == Kind::kLinkFlapping;
  if (seed && !takes_seed) return parse_error("only lossy and flapping accept a seed");
  fault.has_seed = seed.has_value();
  fault.seed = seed.value_or(takes_seed ? 1 : 0);
  if (const auto error = set_values(fault, values)) return parse_error(*error);
  return fault;
}

}  // namespace

std::expected<Fault, std::string> parse_fault(Words words, std::optional<std::uint64_t> seed) {
  if (words.size() > kWordsMax)
    return parse_error("too many words: " + in_quotes(words[kWordsMax]));
  for (const std::string& word : words) {
    if (word.size() > kWordBytesMax) return parse_error("a word is longer than 128 bytes");
  }
  const std::string_view subject = words.empty() ? "" : std::string_view(words[0]);
  if (subject == "link") {
    if (words.size() < 4)
      return parse_error("a fault of a link is: link A B " + list_text(kLinkStates));
    return parse_state({.a = words[1], .b = words[2]}, kLinkStates, subject, words.subspan(3),
                       seed);
  }
  if (subject == "node") {
    if (words.size() < 3)
      return parse_error("a fault of a node is: node NODE " + list_text(kNodeStates));
    return parse_state({.a = words[1]}, kNodeStates, subject, words.subspan(2), seed);
  }
  return parse_error("a fault begins with link or node");
}

bool is_link_fault(Kind kind) {
  return std::ranges::find(kLinkStates, kind, &State::kind) != kLinkStates.end();
}

std::string text_of(const Fault& fault) {
  const bool concerns_link = is_link_fault(fault.kind);
  std::string text = (concerns_link ? "link " : "node ") + quote_if_needed(fault.a);
  if (concerns_link) text += " " + quote_if_needed(fault.b);
  // kNodeStates has a single entry for kPkeyRemoved and kPkeyAdded.
  const Kind kind_in_table = fault.kind == Kind::kPkeyAdded ? Kind::kPkeyRemoved : fault.kind;
  for (const auto& states :
       {std::span<const State>(kLinkStates), std::span<const State>(kNodeStates)}) {
    const auto state = std::ranges::find(states, kind_in_table, &State::kind);
    if (state != states.end()) text += " " + std::string(state->word);
  }
  switch (fault.kind) {
    case Kind::kLinkLossy: return text + " " + percent_text(fault.lost_per_million);
    case Kind::kLinkSlow: return text + " " + duration_text(fault.delay);
    case Kind::kLinkFlapping:
      return text + " " + duration_text(fault.down) + " " + duration_text(fault.up);
    case Kind::kLinkMtu:
      return text + " " + (fault.mtu_bytes == 0 ? "default" : std::to_string(fault.mtu_bytes));
    case Kind::kPkeyRemoved: return text + " " + std::to_string(fault.pkey.value) + " removed";
    case Kind::kPkeyAdded: return text + " " + std::to_string(fault.pkey.value) + " added";
    case Kind::kLinkDown:
    case Kind::kLinkUp:
    case Kind::kNodeOff:
    case Kind::kNodeOn:
    case Kind::kNodePaused: return text;
  }
  return text;
}

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    if (text.empty()) return words;
    const bool is_quoted = text.front() == '\'';
    if (is_quoted) text.remove_prefix(1);
    const std::size_t end = std::min(text.find(is_quoted ? '\'' : ' '), text.size());
    words.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

std::optional<Duration> parse_duration(std::string_view text) {
  if (text == "0") return Duration{};
  const std::size_t number_length = std::min(text.find_first_not_of("0123456789."), text.size());
  const auto unit = std::ranges::find(kUnits, text.substr(number_length), &Unit::name);
  const auto value = parse_decimal(text.substr(0, number_length));
  if (unit == kUnits.end() || !value) return std::nullopt;
  constexpr double kNanosecondsMax = 1e18;
  const double nanoseconds = *value * static_cast<double>(unit->nanoseconds);
  if (nanoseconds > kNanosecondsMax) return std::nullopt;
  return Duration(std::llround(nanoseconds));
}

std::string duration_text(Duration duration) {
  for (const Unit& unit : kUnits) {
    if (duration.count() != 0 && duration.count() % unit.nanoseconds == 0) {
      return std::to_string(duration.count() / unit.nanoseconds) + std::string(unit.name);
    }
  }
  return "0";
}

}  // namespace verbena::faults
