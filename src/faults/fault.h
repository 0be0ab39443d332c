#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/strong.h"
#include "base/time.h"

// Defines the words with which commands, files and programs describe a fault of a fabric:
//
//   link A B down                 node NODE off
//   link A B up                   node NODE paused
//   link A B lossy PERCENT        node NODE on
//   link A B slow DELAY           node NODE pkey 0x8001 removed
//   link A B flapping DOWN UP     node NODE pkey 0x8001 added
//   link A B mtu BYTES|default
//
// Commands, files and programs all use this parser, so the words have the same meaning everywhere.
// The parser does not know which links and nodes exist.  The fabric looks up their names.
namespace verbena::faults {

inline constexpr std::size_t kWordsMax = 6;
inline constexpr std::size_t kWordBytesMax = 128;
inline constexpr Duration kDelayMax = std::chrono::seconds(10);

// The numbers of these enumerators are a part of the messages between programs of one build.
enum class Kind : std::uint8_t {
  kLinkDown,
  kLinkUp,
  kLinkLossy,
  kLinkSlow,
  kLinkFlapping,
  kLinkMtu,
  kNodeOff,
  kNodeOn,
  kNodePaused,
  kPkeyRemoved,
  kPkeyAdded,
};

// Returns true for a fault of a link, and false for a fault of a node.
bool is_link_fault(Kind kind);

struct Fault {
  Kind kind{};
  std::string a{};                     // a node, or one end of a link
  std::string b{};                     // the other end of the link
  std::uint32_t lost_per_million = 0;  // for kLinkLossy: lost packets per million
  Duration delay{};                    // for kLinkSlow
  Duration down{};                     // for kLinkFlapping: how long the link is down each time
  Duration up{};                       // for kLinkFlapping: how long the link is up each time
  std::uint32_t mtu_bytes = 0;         // for kLinkMtu; 0 restores the original MTU
  Pkey pkey{};                         // for kPkeyRemoved and kPkeyAdded
  bool has_seed = false;   // the user gave a seed, which makes the periods of kLinkFlapping random
  std::uint64_t seed = 0;  // determines the lost packets of kLinkLossy and the random periods

  friend bool operator==(const Fault&, const Fault&) = default;
};

// Parses the words of a fault.  The error is a message for the user.
std::expected<Fault, std::string> parse_fault(std::span<const std::string> words,
                                              std::optional<std::uint64_t> seed);

// Formats a fault as text.  parse_fault() gives the same fault for the words of this text and the
// same seed, unless a name contains a quotation mark.
std::string text_of(const Fault& fault);

// Splits a text at its spaces.  A word that begins with a single quote ends at the next one, and
// may contain spaces.
std::vector<std::string> split_words(std::string_view text);

// Parses a duration such as "250us", "5ms", "1.5s" or "0".  Returns nullopt for other texts.
std::optional<Duration> parse_duration(std::string_view text);
// Formats a duration as a text that parse_duration() accepts.
std::string duration_text(Duration duration);

}  // namespace verbena::faults
