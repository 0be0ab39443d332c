#include "plan/plan.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "wire/ip.h"

namespace verbena::plan {
namespace {

constexpr const char* kTwoHosts = R"(name = "lab"

[[hosts]]
name = "a"
rails = [
  { network = "red", addresses = ["10.31.0.1", "fd31::1"] },
  { device = "slow0", network = "blue", addresses = ["10.31.1.1"], mtu = 1500, vlan = 5, pkeys = [0xffff, 0x8001] },
]

[[hosts]]
name = "b"
rails = [ { network = "red", addresses = ["10.31.0.2"] } ]

[[routers]]
networks = ["red", "blue"]
)";

// Returns the problem as "LINE:COLUMN: TEXT", or "no problem".
std::string problem_of(const std::string& text) {
  const auto parsed = parse(text);
  if (parsed) return "no problem";
  const Problem& problem = parsed.error();
  return std::to_string(problem.line) + ":" + std::to_string(problem.column) + ": " + problem.text;
}

TEST(Plan, ReadsHostsRailsAndRouters) {
  const auto fabric = parse(kTwoHosts);
  ASSERT_TRUE(fabric.has_value()) << fabric.error().text;
  EXPECT_EQ(fabric->name, "lab");
  ASSERT_EQ(fabric->hosts.size(), 2u);
  const Host& a = fabric->hosts[0];
  ASSERT_EQ(a.rails.size(), 2u);
  EXPECT_EQ(a.rails[0].device, "verbena0");
  EXPECT_EQ(a.rails[0].addresses.size(), 2u);
  EXPECT_EQ(a.rails[0].addresses[0], wire::ipv4_gid(0x0a1f0001));
  EXPECT_EQ(a.rails[0].mtu_bytes, kMtuDefault);
  EXPECT_EQ(a.rails[1].device, "slow0");
  EXPECT_EQ(a.rails[1].mtu_bytes, 1500u);
  EXPECT_EQ(a.rails[1].vlan, 5);
  EXPECT_EQ(a.rails[1].pkeys, (std::vector<Pkey>{{0xffff}, {0x8001}}));
  ASSERT_EQ(fabric->routers.size(), 1u);
  EXPECT_EQ(fabric->routers[0].networks, (std::vector<std::string>{"red", "blue"}));
}

TEST(Plan, WrittenTextReadsAsTheSameFabric) {
  const auto fabric = parse(kTwoHosts);
  EXPECT_EQ(parse(to_text(*fabric)).value(), *fabric);
  for (const auto& [hosts, rails] :
       {std::pair<std::size_t, std::size_t>{1, 1}, {3, 2}, {kHostsMax, 8}}) {
    const Fabric generated = make(hosts, rails);
    const auto parsed = parse(to_text(generated));
    ASSERT_TRUE(parsed.has_value()) << parsed.error().line << ": " << parsed.error().text;
    EXPECT_EQ(*parsed, generated);
    EXPECT_EQ(generated.hosts.size(), hosts);
    EXPECT_EQ(generated.hosts.back().rails.size(), rails);
  }
}

TEST(Plan, ANameThatLooksLikeAnOptionIsRefusedWithItsPlace) {
  EXPECT_EQ(problem_of("name = \"-rf\"\n"),
            "1:8: the name must be a text in quotes: 1 to 32 letters, digits, '_' or '-', and no "
            "'-' first");
}

// toml++ makes nested tables of such keys, and would use up the stack.
TEST(Plan, AKeyWithManyPartsIsRefusedWithItsPlace) {
  std::string many = "a";
  for (int i = 0; i < 200'000; ++i) many += ".a";
  EXPECT_EQ(problem_of("name = \"x.x.x.x.x.x.x.x.x\" # .........\n" + many + " = 1\n"),
            "2:16: a key has more than 8 parts");
  EXPECT_EQ(problem_of("[" + many + "]\n"), "1:17: a key has more than 8 parts");
  EXPECT_EQ(problem_of("b = { " + many + " = 1 }\n"), "1:22: a key has more than 8 parts");
  EXPECT_EQ(problem_of("b = { 'x.y' . \"z\" . a.a.a.a.a.a.a = 1 }\n"),
            "1:32: a key has more than 8 parts");
  EXPECT_EQ(problem_of("a.b.c.d.e.f.g.h = 1\n"),
            "1:1: a fabric has no 'a'; it has name, hosts, "
            "routers, faults");
}

TEST(Plan, ReportsThePlaceAndReasonOfAnError) {
  const auto with_rail = [](const std::string& rail) {
    return "[[hosts]]\nname = \"a\"\nrails = [\n  { " + rail + " },\n]\n";
  };
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "1:1: 'hosts' is missing"},
      {"hosts = []", "1:9: 'hosts' must be a list of 1 to 256 elements"},
      {"hosts = [1]", "1:10: 'hosts' must be a list of tables"},
      {"[[host]]\nname = \"a\"\n",
       "1:3: a fabric has no 'host'; it has name, hosts, routers, faults"},
      {"name = \"a/b\"\n",
       "1:8: the name must be a text in quotes: 1 to 32 letters, digits, '_' or '-', and no '-' "
       "first"},
      {"[[hosts]]\nname = \"a\"\n", "1:1: 'rails' is missing"},
      {"[[hosts]]\nrails = []\n", "1:1: a host has no 'name'"},
      {with_rail("addresses = [\"10.0.0.1\"]"), "4:3: a rail has no 'network'"},
      {with_rail("network = \"n\""), "4:3: 'addresses' is missing"},
      {with_rail("network = \"n\", addresses = [\"10.0.0.1/24\"]"),
       "4:33: an address must be an IPv4 or IPv6 address in quotes, without a prefix length"},
      {with_rail("network = \"n\", addresses = [\"127.0.0.1\"]"),
       "4:33: '127.0.0.1' is not an address for a rail: it is unspecified, loopback, link-local or "
       "multicast"},
      {with_rail("network = \"n\", addresses = [\"10.0.0.1\", \"10.0.0.1\"]"),
       "4:45: the address '10.0.0.1' is given twice"},
      {with_rail("network = \"n\", addresses = [\"10.0.0.1\"], mtu = 100"),
       "4:52: 'mtu' must be a number from 576 to 65535"},
      {with_rail("network = \"n\", addresses = [\"10.0.0.1\"], vlan = 4095"),
       "4:53: 'vlan' must be a number from 0 to 4094"},
      {with_rail("network = \"n\", addresses = [\"10.0.0.1\"], pkeys = [0x8000]"),
       "4:55: a P_Key must be a number from 1 to 0xffff with a partition in its lower 15 bits"},
      {with_rail("network = \"n\", addresses = [\"10.0.0.1\"], mut = 1500"),
       "4:46: a rail has no 'mut'; it has device, network, addresses, mtu, vlan, pkeys"},
      {with_rail(
           "network = \"n\", addresses = [\"10.0.0.1\"] },\n  { device = \"verbena0\", network "
           "= \"n\", addresses = [\"10.0.0.2\"]"),
       "5:3: the host has two devices 'verbena0'"},
      {with_rail("network = \"n\", addresses = [\"10.0.0.1\"]") +
           "[[routers]]\nnetworks = [\"m\"]\n",
       "7:13: no rail is in the network 'm'"},
  };
  for (const auto& [text, problem] : cases) EXPECT_EQ(problem_of(text), problem) << text;
}

constexpr const char* kFaults = R"(
[[faults]]
fault = "link a red down"

[[faults]]
after = 1.5
fault = ["link", "b", "red", "lossy", "2"]
seed = 7

[[faults]]
after = 3
fault = "node a pkey 0xffff removed"
)";

TEST(Plan, ReadsFaultsWithTheirTimes) {
  using namespace std::chrono_literals;
  const auto fabric = parse(std::string(kTwoHosts) + kFaults);
  ASSERT_TRUE(fabric.has_value()) << fabric.error().text;
  ASSERT_EQ(fabric->faults.size(), 3u);
  EXPECT_EQ(fabric->faults[0].after, 0s);
  EXPECT_EQ(fabric->faults[0].fault.kind, faults::Kind::kLinkDown);
  EXPECT_EQ(fabric->faults[1].after, 1500ms);
  EXPECT_EQ(fabric->faults[1].fault.seed, 7u);
  EXPECT_EQ(fabric->faults[1].fault.a, "b");
  EXPECT_EQ(fabric->faults[2].after, 3s);
  EXPECT_EQ(parse(to_text(*fabric)).value(), *fabric);
  EXPECT_EQ(parse_faults(kFaults).value(), fabric->faults);
}

TEST(Plan, ReportsThePlaceAndReasonOfAWrongFault) {
  const auto with_fault = [](const std::string& lines) {
    return std::string(kTwoHosts) + "[[faults]]\n" + lines + "\n";
  };
  const std::vector<std::pair<std::string, std::string>> cases{
      {"after = 5", "16:1: a fault has no 'fault'"},
      {"fault = 5",
       "17:9: 'fault' must be a text such as \"link a red down\", or a list of its words"},
      {"fault = [\"node\", 5]", "17:18: a word of a fault must be a text"},
      {"fault = \"link a red gone\"",
       "17:9: 'gone' is not a state of a link: use down, up, lossy, slow, flapping or mtu"},
      {"fault = \"link a green down\"",
       "17:9: there is no link between 'a' and the network 'green'; there are: a:verbena0 - red, "
       "a:slow0 - blue"},
      {"fault = \"node x off\"", "17:9: there is no host 'x'"},
      {"fault = \"link a red mtu 100\"", "17:9: the MTU of a rail must be 576 to 65535"},
      {"after = -1\nfault = \"node a off\"",
       "17:9: 'after' must be a number of seconds, from 0 to a week"},
      {"after = 604801\nfault = \"node a off\"",
       "17:9: 'after' must be a number of seconds, from 0 to a week"},
      {"after = nan\nfault = \"node a off\"",
       "17:9: 'after' must be a number of seconds, from 0 to a week"},
      {"after = true\nfault = \"node a off\"",
       "17:9: 'after' must be a number of seconds, from 0 to a week"},
      {"fault = \"node a off\"\nseed = 1", "17:9: only lossy and flapping accept a seed"},
      {"fault = \"node a off\"\nat = 1", "18:1: a fault has no 'at'; it has after, fault, seed"},
  };
  for (const auto& [lines, problem] : cases) EXPECT_EQ(problem_of(with_fault(lines)), problem);
}

TEST(Plan, AFileOfFaultsMayContainOnlyFaults) {
  const auto problem = [](const std::string& text) {
    const auto parsed = parse_faults(text);
    return parsed ? "no problem" : parsed.error().text;
  };
  EXPECT_EQ(problem("[[faults]]\nfault = \"node x off\"\n"), "no problem");
  EXPECT_EQ(problem(""), "'faults' is missing");
  EXPECT_EQ(problem(kTwoHosts), "a file of faults has no 'hosts'; it has faults");
  std::string text_of_faults;
  for (std::size_t i = 0; i <= kFaultsMax; ++i)
    text_of_faults += "[[faults]]\nfault = \"node x off\"\n";
  EXPECT_EQ(problem(text_of_faults), "'faults' must be a list of 1 to 1024 elements");
}

TEST(Plan, ReportsThePlaceWhereTextIsNotToml) {
  EXPECT_TRUE(problem_of("[[hosts]]\nname = \n").starts_with("2:"))
      << problem_of("[[hosts]]\nname = \n");
  EXPECT_EQ(problem_of(std::string(kTextBytesMax + 1, ' ')), "1:1: the file is longer than 1 MiB");
}

TEST(Plan, CharactersOutsideAsciiAreAllowedOnlyInComments) {
  const std::string commented = "\xef\xbb\xbf# Z\xc3\xbcrich\n" + std::string(kTwoHosts);
  EXPECT_EQ(parse(commented).value(), parse(kTwoHosts).value());
  const auto result = parse("# a\n  \xef\xbc\x80 = 1");
  ASSERT_FALSE(result);
  EXPECT_EQ(std::pair(result.error().line, result.error().column), std::pair(2u, 3u));
  EXPECT_EQ(result.error().text,
            "a character is not ASCII; such characters are allowed only in comments");
}

TEST(Plan, ANumberSignInAStringDoesNotBeginAComment) {
  // In the texts, '~' stands for a letter that is not ASCII.
  const auto problem = [](std::string fault) {
    for (std::size_t at = 0; (at = fault.find('~')) != std::string::npos;) {
      fault.replace(at, 1, "\xc3\xbc");
    }
    const auto parsed = parse_faults("[[faults]]\nfault = " + fault);
    return parsed ? "no problem" : parsed.error().text;
  };
  for (const char* fault :
       {R"("link 'Rack#1 Z~rich' b down")", R"('link "Rack#1 Z~rich" b down')",
        R"("link \"Rack#1\" # Z~rich b down")", R"("""link a" # Z~rich b down""")",
        "\'\'\'link a\n# Z~rich b down\'\'\'", R"("link a \\" # ~
            after = "#~")"}) {
    EXPECT_EQ(problem(fault),
              "a character is not ASCII; such characters are allowed only in comments")
        << fault;
  }
  for (const char* fault :
       {R"("link Rack#1 b down" # Z~rich)", R"("link a\\ b down" # "Z~rich)",
        R"('link a\ b down' # Z~rich)", R"("""link a b down""" # Z~rich)",
        R"("""link 'a' "b" down ""\"""" # Z~rich)", R"(["link", 'a#', "", "b"] # it's Z~rich)"}) {
    EXPECT_NE(problem(fault),
              "a character is not ASCII; such characters are allowed only in comments")
        << fault;
  }
}

// If plan/toml.h did not disable the assertions of toml++, this text would end the process.
TEST(Plan, AControlCharacterInTheNameOfATableIsAnError) { EXPECT_FALSE(parse("[\x05\x05")); }

TEST(Plan, RefusesTwoHostsWithTheSameName) {
  std::string text = kTwoHosts;
  text.replace(text.find("name = \"b\""), 10, "name = \"a\"");
  EXPECT_EQ(problem_of(text), "10:1: there are two hosts 'a'");
}

}  // namespace
}  // namespace verbena::plan
