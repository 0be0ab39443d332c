#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <vector>

#include "broker/messages.h"

// Decides by the user's rules which TCP connections may or must use a ring in shared memory.
//
// The language is that of libsdp.conf, which users of the Sockets Direct Protocol know:
//
//   use sdp|tcp|both  server|client  PROGRAM  ADDRESS:PORT
//
//   both     use a ring if the peer can use one, else TCP
//   tcp      use TCP
//   sdp      use a ring; the connection fails if the peer cannot use one
//   server   (or listen) connections that the program accepts; ADDRESS:PORT is the local name
//   client   (or connect) connections that the program makes; ADDRESS:PORT is the peer's name
//   PROGRAM  the program's name without directories; * ? and [] are wildcards as in file names
//   ADDRESS  * or an address, maybe with a prefix length: 10.0.0.1, 10.0.0.0/8, [fe80::]/10
//   PORT     * or a port, or a range: 5000-5999
//
// The first rule that matches decides.  A line may be empty or end in a comment (#).  Lines
// "log ..." are accepted, but have no effect.
namespace verbena::policy {

enum class Choice : std::uint8_t { kBoth, kTcp, kRing };
enum class Role : std::uint8_t { kServer, kClient };

// Describes an error in a line of the rules.
struct Problem {
  std::size_t line = 0;  // counted from 1
  std::string text{};
};

class Rules {
 public:
  // The rules are passed in an environment variable, which has a limited length.
  static constexpr std::size_t kTextMax = 64 << 10;
  static constexpr std::size_t kRulesMax = 1024;

  // `default_choice` applies to each connection that no rule matches.
  explicit Rules(Choice default_choice = Choice::kBoth) : default_choice_(default_choice) {}

  static std::expected<Rules, Problem> parse(std::string_view text,
                                             Choice default_choice = Choice::kBoth);

  // Returns the choice for a connection of a program.  `name` is the local name for a server and
  // the peer's name for a client.  Does not allocate.
  Choice choose(Role role, const char* program, const broker::SocketName& name) const;
  // Returns true if there are no rules, and the default is Choice::kBoth.
  bool have_no_effect() const { return rules_.empty() && default_choice_ == Choice::kBoth; }

 private:
  struct Rule {
    Choice choice = Choice::kBoth;
    Role role = Role::kClient;
    std::string program{};
    std::array<std::uint8_t, 16> address{};
    unsigned prefix_bits = 0;  // prefix length of the address as an IPv6 address; 0: any address
    std::uint16_t first_port = 0;
    std::uint16_t last_port = 65535;
  };

  static std::expected<Rule, std::string> parse_rule(const std::vector<std::string>& words);
  static bool parse_address(const std::string& text, Rule& rule);
  static bool parse_ports(std::string_view text, Rule& rule);

  std::vector<Rule> rules_{};
  Choice default_choice_;
};

}  // namespace verbena::policy
