#include "policy/rules.h"

#include <gtest/gtest.h>

#include <string>

namespace verbena::policy {
namespace {

broker::SocketName v4(std::array<std::uint8_t, 4> address, std::uint16_t port) {
  broker::SocketName name{.port = port};
  name.address[10] = name.address[11] = 0xff;
  std::ranges::copy(address, name.address.begin() + 12);
  return name;
}
broker::SocketName v6(std::uint8_t first_byte, std::uint8_t second_byte, std::uint16_t port) {
  broker::SocketName name{.port = port};
  name.address[0] = first_byte;
  name.address[1] = second_byte;
  return name;
}

Choice choose(const std::string& rules, Role role, const char* program,
              const broker::SocketName& name) {
  const auto parsed = Rules::parse(rules);
  EXPECT_TRUE(parsed) << parsed.error().text;
  return parsed ? parsed->choose(role, program, name) : Choice::kBoth;
}

std::string problem_with(const std::string& rules) {
  const auto parsed = Rules::parse(rules);
  return parsed ? "none" : std::to_string(parsed.error().line) + ": " + parsed.error().text;
}

TEST(Rules, TheFirstRuleThatMatchesDecides) {
  const std::string rules =
      "# ours\n\nuse tcp client ssh* *:22\nuse sdp client * *:22 # the rest\nlog min-level 9\n";
  EXPECT_EQ(choose(rules, Role::kClient, "ssh", v4({127, 0, 0, 1}, 22)), Choice::kTcp);
  EXPECT_EQ(choose(rules, Role::kClient, "nc", v4({127, 0, 0, 1}, 22)), Choice::kRing);
  EXPECT_EQ(choose(rules, Role::kClient, "nc", v4({127, 0, 0, 1}, 23)), Choice::kBoth);
  EXPECT_EQ(choose(rules, Role::kServer, "nc", v4({127, 0, 0, 1}, 22)), Choice::kBoth);
}

TEST(Rules, TheDefaultDecidesIfNoRuleMatches) {
  EXPECT_TRUE(Rules().have_no_effect());
  const auto rules = Rules::parse("use both server * *:80", Choice::kRing);
  ASSERT_TRUE(rules);
  EXPECT_FALSE(rules->have_no_effect());
  EXPECT_EQ(rules->choose(Role::kServer, "nginx", v4({1, 2, 3, 4}, 80)), Choice::kBoth);
  EXPECT_EQ(rules->choose(Role::kServer, "nginx", v4({1, 2, 3, 4}, 81)), Choice::kRing);
}

TEST(Rules, AnAddressWithAPrefixMatchesAllAddressesWithThePrefix) {
  const std::string rules = "use tcp listen * 10.64.0.0/10:*\nuse sdp listen * [fd00::]/9:*";
  EXPECT_EQ(choose(rules, Role::kServer, "a", v4({10, 127, 1, 1}, 5)), Choice::kTcp);
  EXPECT_EQ(choose(rules, Role::kServer, "a", v4({10, 128, 1, 1}, 5)), Choice::kBoth);
  EXPECT_EQ(choose(rules, Role::kServer, "a", v6(0xfd, 0x7f, 5)), Choice::kRing);
  EXPECT_EQ(choose(rules, Role::kServer, "a", v6(0xfd, 0x80, 5)), Choice::kBoth);
}

TEST(Rules, APortMayBeARange) {
  const std::string rules = "use tcp connect * 127.0.0.1:5000-5999";
  EXPECT_EQ(choose(rules, Role::kClient, "a", v4({127, 0, 0, 1}, 5000)), Choice::kTcp);
  EXPECT_EQ(choose(rules, Role::kClient, "a", v4({127, 0, 0, 1}, 5999)), Choice::kTcp);
  EXPECT_EQ(choose(rules, Role::kClient, "a", v4({127, 0, 0, 1}, 6000)), Choice::kBoth);
  EXPECT_EQ(choose(rules, Role::kClient, "a", v4({127, 0, 0, 2}, 5000)), Choice::kBoth);
}

TEST(Rules, ErrorsReportTheLineAndTheReason) {
  EXPECT_EQ(problem_with("use tcp client * *:22\nmatch all"),
            "2: 'match' is not a directive; the directives are use and log");
  EXPECT_EQ(problem_with("use tcp client *"),
            "1: a rule is: use sdp|tcp|both server|client PROGRAM ADDRESS:PORT, with * for any");
  EXPECT_EQ(problem_with("use udp client * *:1"), "1: 'udp' is not one of sdp, tcp and both");
  EXPECT_EQ(problem_with("use tcp peer * *:1"), "1: 'peer' is not one of server and client");
  EXPECT_EQ(problem_with("use tcp client * 10.1.1.1"),
            "1: '10.1.1.1' has no port; write 10.1.1.1:*");
  for (const char* address : {"10.1.1", "10.0.0.0/33", "[::1/64", "::1", "", "[::1]/129", "host"}) {
    EXPECT_EQ(
        problem_with("use tcp client * " + std::string(address) + ":1"),
        "1: '" + std::string(address) + "' is not an address; write *, 10.0.0.0/8 or [fe80::]/10");
  }
  for (const char* ports : {"65536", "2-1", "1-", "-", "x", "1-2-3", ""}) {
    EXPECT_EQ(problem_with("use tcp client * *:" + std::string(ports)),
              "1: '" + std::string(ports) + "' is neither a port, nor a range such as 5000-5999");
  }
  EXPECT_EQ(problem_with(std::string("use tcp\0", 8)), "1: there is a zero byte");
}

TEST(Rules, TooManyRulesAreRefused) {
  std::string too_many_rules;
  for (std::size_t i = 0; i <= Rules::kRulesMax; ++i) too_many_rules += "use tcp client a *:1\n";
  EXPECT_EQ(problem_with(too_many_rules), "1025: there are more than 1024 rules");
  EXPECT_EQ(problem_with(std::string(Rules::kTextMax + 1, '\n')),
            "1: the rules are longer than 65536 bytes");
}

}  // namespace
}  // namespace verbena::policy
