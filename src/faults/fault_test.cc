#include "faults/fault.h"

#include <gtest/gtest.h>

#include <chrono>
#include <utility>

namespace verbena::faults {
namespace {

using namespace std::chrono_literals;

Fault fault(std::string_view text, std::optional<std::uint64_t> seed = {}) {
  const auto parsed = parse_fault(split_words(text), seed);
  EXPECT_TRUE(parsed.has_value()) << text << ": " << parsed.error();
  return parsed.value_or(Fault{});
}

std::string error_text(std::string_view text, std::optional<std::uint64_t> seed = {}) {
  const auto parsed = parse_fault(split_words(text), seed);
  return parsed ? "no error" : parsed.error();
}

TEST(Fault, ParsesLinksAndNodesWithTheirStates) {
  EXPECT_EQ(fault("link a red down"), (Fault{.kind = Kind::kLinkDown, .a = "a", .b = "red"}));
  EXPECT_EQ(fault("link a red up").kind, Kind::kLinkUp);
  EXPECT_EQ(fault("node a off"), (Fault{.kind = Kind::kNodeOff, .a = "a"}));
  EXPECT_EQ(fault("node a on").kind, Kind::kNodeOn);
  EXPECT_EQ(fault("node a paused").kind, Kind::kNodePaused);
}

TEST(Fault, ParsesTheValuesAfterTheState) {
  EXPECT_EQ(fault("link a red lossy 2.5").lost_per_million, 25'000u);
  EXPECT_EQ(fault("link a red slow 1.5ms").delay, 1500us);
  const Fault flapping = fault("link a red flapping 50ms 2s");
  EXPECT_EQ(flapping.down, 50ms);
  EXPECT_EQ(flapping.up, 2s);
  EXPECT_FALSE(flapping.has_seed);
  EXPECT_EQ(fault("link a red mtu 1500").mtu_bytes, 1500u);
  EXPECT_EQ(fault("link a red mtu default").mtu_bytes, 0u);
  const Fault removed = fault("node a pkey 0x8001 removed");
  EXPECT_EQ(removed.kind, Kind::kPkeyRemoved);
  EXPECT_EQ(removed.pkey, Pkey{0x8001});
  EXPECT_EQ(fault("node a pkey 32769 added").kind, Kind::kPkeyAdded);
  EXPECT_EQ(fault("node a pkey 32769 added").pkey, Pkey{0x8001});
}

TEST(Fault, OnlyRandomFaultsTakeASeed) {
  EXPECT_EQ(fault("link a red lossy 2", 7).seed, 7u);
  EXPECT_EQ(fault("link a red lossy 2").seed, 1u);
  EXPECT_TRUE(fault("link a red flapping 1s 1s", 7).has_seed);
  EXPECT_EQ(error_text("link a red down", 7), "only lossy and flapping accept a seed");
}

TEST(Fault, QuotedNamesMayContainSpaces) {
  EXPECT_EQ(split_words("link 'Switch of rack 1'  Hca1 down "),
            (std::vector<std::string>{"link", "Switch of rack 1", "Hca1", "down"}));
  EXPECT_EQ(split_words("'open"), (std::vector<std::string>{"open"}));
  EXPECT_TRUE(split_words("  ").empty());
}

TEST(Fault, ParsingTheTextOfAFaultGivesTheSameFault) {
  for (const char* text :
       {"link a red down", "link a red up", "link 'a b' red lossy 2.5", "link a red lossy 100",
        "link a red lossy 0.0001", "link a red slow 1500us", "link a red flapping 50ms 2s",
        "link a red mtu 1500", "link a red mtu default", "node a off", "node a on", "node a paused",
        "node a pkey 32769 removed", "node a pkey 1 added"}) {
    EXPECT_EQ(text_of(fault(text)), text);
  }
}

TEST(Fault, InvalidWordsGiveAnError) {
  const std::pair<const char*, const char*> cases[]{
      {"", "a fault begins with link or node"},
      {"switch a off", "a fault begins with link or node"},
      {"link a down", "a fault of a link is: link A B down, up, lossy, slow, flapping or mtu"},
      {"link a b broken",
       "'broken' is not a state of a link: use down, up, lossy, slow, flapping or mtu"},
      {"node a down", "'down' is not a state of a node: use off, on, paused or pkey"},
      {"node a", "a fault of a node is: node NODE off, on, paused or pkey"},
      {"link a b down now", "too many words: 'now'"},
      {"link a b flapping 1s 1s 1s", "too many words: '1s'"},
      {"link a b lossy", "lossy needs the percentage of packets that are lost"},
      {"link a b lossy 101", "the percentage of lost packets must be 0 to 100"},
      {"link a b lossy -1", "the percentage of lost packets must be 0 to 100"},
      {"link a b lossy nan", "the percentage of lost packets must be 0 to 100"},
      {"link a b lossy 2x", "the percentage of lost packets must be 0 to 100"},
      {"link a b slow 5", "'5' is not a delay: use 0 to 10s, such as 250us, 5ms or 0.1s"},
      {"link a b slow 11s", "'11s' is not a delay: use 0 to 10s, such as 250us, 5ms or 0.1s"},
      {"link a b flapping 0 1s", "'0' is not a period: use 1ms to 3600s, such as 50ms or 2s"},
      {"link a b flapping 1s 2h", "'2h' is not a period: use 1ms to 3600s, such as 50ms or 2s"},
      {"link a b mtu 0", "'0' is not an MTU: use a number of bytes, or default"},
      {"node a pkey 0x8000 removed",
       "'0x8000' is not a P_Key: a P_Key is 0x1 to 0xffff, and its lower 15 bits are not 0"},
      {"node a pkey 0x18001 added",
       "'0x18001' is not a P_Key: a P_Key is 0x1 to 0xffff, and its lower 15 bits are not 0"},
      {"node a pkey 0x8001 gone", "a P_Key is removed or added, not 'gone'"},
      {"node a pkey 0x8001", "pkey needs a P_Key, and removed or added"},
  };
  for (const auto& [text, error] : cases) EXPECT_EQ(error_text(text), error) << text;
}

TEST(Fault, LimitsTheNumberAndTheLengthOfWords) {
  EXPECT_EQ(error_text("link a b c d e f"), "too many words: 'f'");
  EXPECT_EQ(error_text("node " + std::string(kWordBytesMax, 'x') + " off"), "no error");
  EXPECT_EQ(error_text("node " + std::string(kWordBytesMax + 1, 'x') + " off"),
            "a word is longer than 128 bytes");
}

TEST(Fault, ParsesAndFormatsDurations) {
  for (const auto& [text, duration] : {std::pair<const char*, Duration>{"0", 0ns},
                                       {"250us", 250us},
                                       {"5ms", 5ms},
                                       {"90s", 90s},
                                       {"7ns", 7ns}}) {
    EXPECT_EQ(parse_duration(text), duration);
    EXPECT_EQ(duration_text(duration), text);
  }
  EXPECT_EQ(parse_duration("0.25s"), 250ms);
  for (const char* text : {"", "s", "5", "5 ms", "-5ms", "1e3s", "99999999999999s", "1.2.3s"}) {
    EXPECT_FALSE(parse_duration(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace verbena::faults
