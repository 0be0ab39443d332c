#include "policy/rules.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>

namespace verbena::policy {
namespace {

constexpr std::string_view kSpace = " \t\r";

std::vector<std::string> split_words(std::string_view line) {
  line = line.substr(0, line.find('#'));
  std::vector<std::string> words;
  for (;;) {
    const std::size_t begin = line.find_first_not_of(kSpace);
    if (begin == std::string_view::npos) return words;
    line.remove_prefix(begin);
    const std::size_t end = std::min(line.find_first_of(kSpace), line.size());
    words.emplace_back(line.substr(0, end));
    line.remove_prefix(end);
  }
}

std::optional<unsigned> number_of(std::string_view text, unsigned max) {
  unsigned number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number > max) {
    return std::nullopt;
  }
  return number;
}

bool has_prefix(const std::array<std::uint8_t, 16>& address,
                const std::array<std::uint8_t, 16>& prefix, unsigned bits) {
  const std::size_t whole_bytes = bits / 8;
  if (!std::equal(prefix.begin(), prefix.begin() + whole_bytes, address.begin())) return false;
  if (bits % 8 == 0) return true;
  const unsigned mask = 0xffU << (8 - bits % 8) & 0xffU;
  return ((address[whole_bytes] ^ prefix[whole_bytes]) & mask) == 0;
}

}  // namespace

std::expected<Rules, Problem> Rules::parse(std::string_view text, Choice default_choice) {
  if (text.size() > kTextMax) {
    return std::unexpected(Problem{1, fmt::format("the rules are longer than {} bytes", kTextMax)});
  }
  Rules rules(default_choice);
  for (std::size_t line = 1; !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line_text = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line_text.find('\0') != std::string_view::npos) {
      return std::unexpected(Problem{line, "there is a zero byte"});
    }
    const std::vector<std::string> words = split_words(line_text);
    if (words.empty() || words[0] == "log") continue;
    auto rule = parse_rule(words);
    if (!rule) return std::unexpected(Problem{line, rule.error()});
    if (rules.rules_.size() == kRulesMax) {
      return std::unexpected(Problem{line, fmt::format("there are more than {} rules", kRulesMax)});
    }
    rules.rules_.push_back(*std::move(rule));
  }
  return rules;
}

std::expected<Rules::Rule, std::string> Rules::parse_rule(const std::vector<std::string>& words) {
  if (words[0] != "use") {
    return std::unexpected(
        fmt::format("'{}' is not a directive; the directives are use and log", words[0]));
  }
  if (words.size() != 5) {
    return std::unexpected(
        "a rule is: use sdp|tcp|both server|client PROGRAM ADDRESS:PORT, with * for any");
  }
  Rule rule;
  if (words[1] == "sdp") {
    rule.choice = Choice::kRing;
  } else if (words[1] == "tcp") {
    rule.choice = Choice::kTcp;
  } else if (words[1] != "both") {
    return std::unexpected(fmt::format("'{}' is not one of sdp, tcp and both", words[1]));
  }
  if (words[2] == "server" || words[2] == "listen") {
    rule.role = Role::kServer;
  } else if (words[2] != "client" && words[2] != "connect") {
    return std::unexpected(fmt::format("'{}' is not one of server and client", words[2]));
  }
  rule.program = words[3];
  const std::string& name = words[4];
  const std::size_t colon = name.rfind(':');
  if (colon == std::string::npos) {
    return std::unexpected(fmt::format("'{}' has no port; write {}:*", name, name));
  }
  if (!parse_address(name.substr(0, colon), rule)) {
    return std::unexpected(fmt::format("'{}' is not an address; write *, 10.0.0.0/8 or [fe80::]/10",
                                       name.substr(0, colon)));
  }
  if (!parse_ports(std::string_view(name).substr(colon + 1), rule)) {
    return std::unexpected(fmt::format("'{}' is neither a port, nor a range such as 5000-5999",
                                       name.substr(colon + 1)));
  }
  return rule;
}

bool Rules::parse_address(const std::string& text, Rule& rule) {
  if (text == "*") return true;
  const std::size_t slash = std::min(text.find('/'), text.size());
  std::string address = text.substr(0, slash);
  const bool is_ipv6 = address.size() > 2 && address.front() == '[' && address.back() == ']';
  const unsigned bits = is_ipv6 ? 128 : 32;
  std::optional<unsigned> prefix = bits;
  if (slash < text.size()) prefix = number_of(std::string_view(text).substr(slash + 1), bits);
  if (!prefix) return false;
  if (is_ipv6) {
    address = address.substr(1, address.size() - 2);
    rule.prefix_bits = *prefix;
    return ::inet_pton(AF_INET6, address.c_str(), rule.address.data()) == 1;
  }
  rule.address[10] = rule.address[11] = 0xff;
  rule.prefix_bits = *prefix + 96;  // an IPv4 address is stored as ::ffff:a.b.c.d
  return ::inet_pton(AF_INET, address.c_str(), rule.address.data() + 12) == 1;
}

bool Rules::parse_ports(std::string_view text, Rule& rule) {
  constexpr unsigned kPortMax = 65535;
  if (text == "*") return true;
  const std::size_t dash = std::min(text.find('-'), text.size());
  const auto first = number_of(text.substr(0, dash), kPortMax);
  const auto last = dash < text.size() ? number_of(text.substr(dash + 1), kPortMax) : first;
  if (!first || !last || *first > *last) return false;
  rule.first_port = static_cast<std::uint16_t>(*first);
  rule.last_port = static_cast<std::uint16_t>(*last);
  return true;
}

Choice Rules::choose(Role role, const char* program, const broker::SocketName& name) const {
  for (const Rule& rule : rules_) {
    if (rule.role == role && name.port >= rule.first_port && name.port <= rule.last_port &&
        has_prefix(name.address, rule.address, rule.prefix_bits) &&
        ::fnmatch(rule.program.c_str(), program, 0) == 0) {
      return rule.choice;
    }
  }
  return default_choice_;
}

}  // namespace verbena::policy
