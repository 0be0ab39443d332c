#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/host_name.h"
#include "base/port_id.h"
#include "plan/find_rail.h"
#include "plan/plan.h"
#include "plan/toml.h"
#include "wire/address_text.h"
#include "wire/ip.h"
#include "wire/loopback.h"

namespace verbena::plan {
namespace {

std::string in_quotes(std::string_view text) { return "'" + std::string(text) + "'"; }

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

// Returns the position after the TOML string that begins with the quote at `begin`.
std::size_t end_of_string(std::string_view text, std::size_t begin) {
  const char quote = text[begin];
  const std::string three_quotes(3, quote);
  const bool is_multi_line = text.substr(begin).starts_with(three_quotes);
  std::size_t at = begin + (is_multi_line ? 3 : 1);
  while (at < text.size()) {
    if (text[at] == '\\' && quote == '"') {
      at += 2;  // the next character is escaped
    } else if (is_multi_line && text.substr(at).starts_with(three_quotes)) {
      // Up to two more quotes belong to the string.
      return std::min(text.find_first_not_of(quote, at), text.size());
    } else if (!is_multi_line && (text[at] == quote || text[at] == '\n')) {
      return at + 1;  // a string that ends with its line is an error, which toml++ reports
    } else {
      ++at;
    }
  }
  return text.size();
}

// Replaces each byte of the comments that is not ASCII by a question mark.
void make_comments_ascii(std::string& text) {
  std::size_t at = 0;
  while ((at = text.find_first_of("#\"'", at)) != std::string::npos) {
    if (text[at] != '#') {
      at = end_of_string(text, at);
      continue;
    }
    for (; at < text.size() && text[at] != '\n'; ++at) {
      if (!is_ascii(text[at])) text[at] = '?';
    }
  }
}

Problem problem_at(std::string_view text, std::size_t position, std::string what) {
  const std::string_view before = text.substr(0, position);
  const auto lines_before = std::ranges::count(before, '\n');
  const auto column = before.size() - (before.rfind('\n') + 1);  // 0 is the first column
  return {static_cast<std::uint32_t>(lines_before) + 1, static_cast<std::uint32_t>(column) + 1,
          std::move(what)};
}

// Removes a byte order mark.  In comments, replaces each byte that is not ASCII by a question mark,
// because toml++ 3.3 has undefined behavior for some of these bytes.  Elsewhere such a byte is an
// error.
std::expected<std::string, Problem> to_ascii(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  std::string ascii(text);
  make_comments_ascii(ascii);
  const auto wrong = std::ranges::find_if_not(ascii, is_ascii);
  if (wrong == ascii.end()) return ascii;
  return std::unexpected(
      problem_at(ascii, static_cast<std::size_t>(wrong - ascii.begin()),
                 "a character is not ASCII; such characters are allowed only in comments"));
}

// Finds a key with more than kKeyPartsMax parts, such as "a.b.c".  toml++ makes a table of each
// part, and destroys these tables by recursion, which could need more stack than there is.
std::optional<Problem> find_long_key(std::string_view text) {
  std::size_t dots = 0;
  std::size_t at = 0;
  while ((at = text.find_first_of("#\"'.=,{}[]\n", at)) != std::string_view::npos) {
    if (text[at] == '"' || text[at] == '\'') {
      at = end_of_string(text, at);
      continue;
    }
    if (text[at] == '#') {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    dots = text[at] == '.' ? dots + 1 : 0;
    if (dots == kKeyPartsMax) {
      return problem_at(text, at, "a key has more than " + std::to_string(kKeyPartsMax) + " parts");
    }
    ++at;
  }
  return std::nullopt;
}

std::expected<toml::table, Problem> read_toml(std::string_view text) {
  if (text.size() > kTextBytesMax) {
    return std::unexpected(Problem{.text = "the file is longer than 1 MiB"});
  }
  const auto ascii = to_ascii(text);
  if (!ascii) return std::unexpected(ascii.error());
  if (auto problem = find_long_key(*ascii)) return std::unexpected(std::move(*problem));
  toml::parse_result file = toml::parse(*ascii);
  if (file) return std::move(file).table();
  const toml::source_position at = file.error().source().begin;
  return std::unexpected(Problem{at.line, at.column, std::string(file.error().description())});
}

// Reads the tables of a file.  Stores the first problem, and continues to read.
class Parser {
 public:
  std::expected<Fabric, Problem> read_fabric(const toml::table& file);
  std::expected<std::vector<ScheduledFault>, Problem> read_faults(const toml::table& file);

 private:
  void report(const toml::source_region& where, std::string text);
  // Reports unknown keys, most of which are misspelt.
  void check_keys(const toml::table& table, std::string_view what,
                  std::initializer_list<std::string_view> known_keys);
  std::string read_name(const toml::node& node, std::string_view what);
  std::string read_required_name(const toml::table& table, std::string_view key,
                                 std::string_view what);
  std::int64_t read_number(const toml::table& table, std::string_view key,
                           std::int64_t default_value, std::int64_t min, std::int64_t max);
  // Calls read(node) for each element of the list, which must have 1 to `max` elements.  The list
  // may be missing unless it is required.
  void for_each(const toml::table& table, std::string_view key, std::size_t max, bool required,
                auto read);
  // Calls read(table) for each table of a list of tables.
  void for_each_table(const toml::table& table, std::string_view key, std::size_t max,
                      bool required, auto read);
  void read_host(const toml::table& table);
  Rail read_rail(const toml::table& table, const Host& host);
  void read_address(const toml::node& node, Rail& rail);
  void read_router(const toml::table& table);
  Duration read_after(const toml::table& table);
  std::vector<std::string> read_words(const toml::node& node);
  void read_fault(const toml::table& table);
  void check_faults();

  Fabric fabric_{};
  std::set<Gid> addresses_{};
  std::set<std::string> networks_{};
  std::optional<Problem> problem_{};
};

void Parser::report(const toml::source_region& where, std::string text) {
  if (!problem_) problem_ = Problem{where.begin.line, where.begin.column, std::move(text)};
}

void Parser::check_keys(const toml::table& table, std::string_view what,
                        std::initializer_list<std::string_view> known_keys) {
  for (const auto& [key, value] : table) {
    if (std::ranges::find(known_keys, key.str()) != known_keys.end()) continue;
    std::string text = std::string(what) + " has no " + in_quotes(key.str()) + "; it has";
    for (const std::string_view known_key : known_keys) {
      text += (known_key == *known_keys.begin() ? " " : ", ") + std::string(known_key);
    }
    report(key.source(), std::move(text));
  }
}

std::string Parser::read_name(const toml::node& node, std::string_view what) {
  const auto text = node.value_exact<std::string>();
  if (!text || !is_host_name(*text)) {
    report(node.source(), std::string(what) + " must be a text in quotes: " + kHostNameRule);
    return {};
  }
  return *text;
}

std::string Parser::read_required_name(const toml::table& table, std::string_view key,
                                       std::string_view what) {
  const toml::node* const node = table.get(key);
  if (node != nullptr) return read_name(*node, std::string(what) + "'s " + std::string(key));
  report(table.source(), std::string(what) + " has no " + in_quotes(key));
  return {};
}

std::int64_t Parser::read_number(const toml::table& table, std::string_view key,
                                 std::int64_t default_value, std::int64_t min, std::int64_t max) {
  const toml::node* const node = table.get(key);
  if (node == nullptr) return default_value;
  const auto value = node->value_exact<std::int64_t>();
  if (value && *value >= min && *value <= max) return *value;
  report(node->source(), in_quotes(key) + " must be a number from " + std::to_string(min) + " to " +
                             std::to_string(max));
  return default_value;
}

void Parser::for_each(const toml::table& table, std::string_view key, std::size_t max,
                      bool required, auto read) {
  const toml::node* const node = table.get(key);
  if (node == nullptr) {
    if (required) report(table.source(), in_quotes(key) + " is missing");
    return;
  }
  const toml::array* const list = node->as_array();
  if (list == nullptr || list->empty() || list->size() > max) {
    return report(node->source(),
                  in_quotes(key) + " must be a list of 1 to " + std::to_string(max) + " elements");
  }
  for (const toml::node& element : *list) read(element);
}

void Parser::for_each_table(const toml::table& table, std::string_view key, std::size_t max,
                            bool required, auto read) {
  for_each(table, key, max, required, [&](const toml::node& node) {
    if (const toml::table* const element = node.as_table()) return read(*element);
    report(node.source(), in_quotes(key) + " must be a list of tables");
  });
}

void Parser::read_address(const toml::node& node, Rail& rail) {
  const auto text = node.value_exact<std::string>();
  const auto gid = text ? wire::parse_address(*text) : std::nullopt;
  if (!gid) {
    return report(node.source(),
                  "an address must be an IPv4 or IPv6 address in quotes, without a prefix length");
  }
  const bool is_loopback = wire::is_loopback_ipv4(*gid) || *gid == wire::kLoopbackIpv6;
  if (wire::is_multicast(*gid) || wire::is_link_local(*gid) || is_loopback || *gid == Gid{} ||
      *gid == wire::ipv4_gid(0)) {
    return report(node.source(), in_quotes(*text) +
                                     " is not an address for a rail: it is unspecified, "
                                     "loopback, link-local or multicast");
  }
  if (!addresses_.insert(*gid).second) {
    return report(node.source(), "the address " + in_quotes(*text) + " is given twice");
  }
  rail.addresses.push_back(*gid);
}

Rail Parser::read_rail(const toml::table& table, const Host& host) {
  check_keys(table, "a rail", {"device", "network", "addresses", "mtu", "vlan", "pkeys"});
  Rail rail;
  rail.device = "verbena" + std::to_string(host.rails.size());
  if (const toml::node* const device = table.get("device")) {
    rail.device = read_name(*device, "a rail's device");
  }
  if (std::ranges::find(host.rails, rail.device, &Rail::device) != host.rails.end()) {
    report(table.source(), "the host has two devices " + in_quotes(rail.device));
  }
  rail.network = read_required_name(table, "network", "a rail");
  networks_.insert(rail.network);
  for_each(table, "addresses", kAddressesPerRailMax, true,
           [&](const toml::node& node) { read_address(node, rail); });
  rail.mtu_bytes =
      static_cast<std::uint32_t>(read_number(table, "mtu", kMtuDefault, kMtuMin, kMtuMax));
  rail.vlan = static_cast<std::uint16_t>(read_number(table, "vlan", 0, 0, kVlanMax));
  if (table.get("pkeys") != nullptr) rail.pkeys.clear();
  for_each(table, "pkeys", kPkeysMax, false, [&](const toml::node& node) {
    const auto value = node.value_exact<std::int64_t>();
    if (!value || (*value & 0x7fff) == 0 || *value < 0 || *value > 0xffff) {
      return report(
          node.source(),
          "a P_Key must be a number from 1 to 0xffff with a partition in its lower 15 bits");
    }
    rail.pkeys.push_back({static_cast<std::uint16_t>(*value)});
  });
  return rail;
}

void Parser::read_host(const toml::table& table) {
  check_keys(table, "a host", {"name", "rails"});
  Host host{.name = read_required_name(table, "name", "a host")};
  if (std::ranges::find(fabric_.hosts, host.name, &Host::name) != fabric_.hosts.end()) {
    report(table.source(), "there are two hosts " + in_quotes(host.name));
  }
  for_each_table(table, "rails", kDevicesMax, true, [&](const toml::table& element) {
    host.rails.push_back(read_rail(element, host));
  });
  fabric_.hosts.push_back(std::move(host));
}

void Parser::read_router(const toml::table& table) {
  check_keys(table, "a router", {"networks"});
  Router router;
  for_each(table, "networks", kHostsMax, true, [&](const toml::node& node) {
    router.networks.push_back(read_name(node, "a network"));
    if (!networks_.contains(router.networks.back())) {
      report(node.source(), "no rail is in the network " + in_quotes(router.networks.back()));
    }
  });
  fabric_.routers.push_back(std::move(router));
}

// Reads the time of a fault: a number of seconds, which may have a fraction.  Returns 0 if the
// table has no time.
Duration Parser::read_after(const toml::table& table) {
  const toml::node* const node = table.get("after");
  if (node == nullptr) return {};
  const double seconds = node->value<double>().value_or(-1);
  const double max = std::chrono::duration<double>(kAfterMax).count();
  if (node->is_number() && seconds >= 0 && seconds <= max) {
    return std::chrono::round<Duration>(std::chrono::duration<double>(seconds));
  }
  report(node->source(), "'after' must be a number of seconds, from 0 to a week");
  return {};
}

// Reads the words of a fault from a text, or from a list.  An element of a list may contain spaces.
std::vector<std::string> Parser::read_words(const toml::node& node) {
  if (const auto text = node.value_exact<std::string>()) return faults::split_words(*text);
  std::vector<std::string> words;
  if (const toml::array* const list = node.as_array()) {
    for (const toml::node& element : *list) {
      words.push_back(element.value_exact<std::string>().value_or(""));
      if (words.back().empty()) report(element.source(), "a word of a fault must be a text");
    }
    return words;
  }
  report(node.source(),
         "'fault' must be a text such as \"link a red down\", or a list of its words");
  return words;
}

void Parser::read_fault(const toml::table& table) {
  check_keys(table, "a fault", {"after", "fault", "seed"});
  ScheduledFault scheduled{.after = read_after(table)};
  const toml::node* const node = table.get("fault");
  if (node == nullptr) return report(table.source(), "a fault has no 'fault'");
  std::optional<std::uint64_t> seed;
  if (table.get("seed") != nullptr) {
    constexpr auto kSeedMax = std::numeric_limits<std::int64_t>::max();
    seed = static_cast<std::uint64_t>(read_number(table, "seed", 0, 0, kSeedMax));
  }
  auto read = faults::parse_fault(read_words(*node), seed);
  if (!read) return report(node->source(), std::move(read.error()));
  scheduled.fault = std::move(*read);
  scheduled.line = node->source().begin.line;
  scheduled.column = node->source().begin.column;
  fabric_.faults.push_back(std::move(scheduled));
}

void Parser::check_faults() {
  for (const ScheduledFault& scheduled : fabric_.faults) {
    const auto problem = problem_with(fabric_, scheduled.fault);
    if (problem && !problem_) problem_ = Problem{scheduled.line, scheduled.column, *problem};
  }
}

std::expected<std::vector<ScheduledFault>, Problem> Parser::read_faults(const toml::table& file) {
  check_keys(file, "a file of faults", {"faults"});
  for_each_table(file, "faults", kFaultsMax, true,
                 [&](const toml::table& element) { read_fault(element); });
  if (problem_) return std::unexpected(*problem_);
  return std::move(fabric_.faults);
}

std::expected<Fabric, Problem> Parser::read_fabric(const toml::table& file) {
  check_keys(file, "a fabric", {"name", "hosts", "routers", "faults"});
  if (const toml::node* const node = file.get("name")) fabric_.name = read_name(*node, "the name");
  for_each_table(file, "hosts", kHostsMax, true,
                 [&](const toml::table& element) { read_host(element); });
  for_each_table(file, "routers", kRoutersMax, false,
                 [&](const toml::table& element) { read_router(element); });
  for_each_table(file, "faults", kFaultsMax, false,
                 [&](const toml::table& element) { read_fault(element); });
  check_faults();
  if (problem_) return std::unexpected(*problem_);
  return std::move(fabric_);
}

}  // namespace

std::expected<Fabric, Problem> parse(std::string_view text) {
  const auto file = read_toml(text);
  if (!file) return std::unexpected(file.error());
  return Parser().read_fabric(*file);
}

std::expected<std::vector<ScheduledFault>, Problem> parse_faults(std::string_view text) {
  const auto file = read_toml(text);
  if (!file) return std::unexpected(file.error());
  return Parser().read_faults(*file);
}

}  // namespace verbena::plan
