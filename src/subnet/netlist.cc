#include "subnet/netlist.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "base/printable.h"

namespace verbena::subnet {
namespace {

constexpr std::array<std::pair<std::string_view, LinkSpeed>, 9> kSpeedNames{{
    {"SDR", LinkSpeed::kSdr},
    {"DDR", LinkSpeed::kDdr},
    {"QDR", LinkSpeed::kQdr},
    {"FDR10", LinkSpeed::kQdr},  // has the data rate of QDR
    {"FDR", LinkSpeed::kFdr},
    {"EDR", LinkSpeed::kEdr},
    {"HDR", LinkSpeed::kHdr},
    {"NDR", LinkSpeed::kNdr},
    {"????", LinkSpeed::kSdr},  // ibnetdiscover writes this for an unknown speed
}};
constexpr std::array<std::pair<unsigned, LinkWidth>, 5> kWidths{{
    {1, LinkWidth::k1x},
    {2, LinkWidth::k2x},
    {4, LinkWidth::k4x},
    {8, LinkWidth::k8x},
    {12, LinkWidth::k12x},
}};

std::optional<LinkWidth> width_of(std::uint64_t lanes) {
  const auto found = std::ranges::find(kWidths, lanes, [](const auto& w) { return w.first; });
  return found == kWidths.end() ? std::nullopt : std::optional(found->second);
}

unsigned lanes_of(LinkWidth width) {
  return std::ranges::find(kWidths, width, [](const auto& w) { return w.second; })->first;
}

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

// Reads one line from the left.  Each read skips blanks first.  A failed read leaves the position
// at the error.
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
  bool read_char(char expected) {
    skip_blanks();
    if (next() != expected) return false;
    ++position_;
    return true;
  }
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
    const std::size_t end = line_.find('"', position_);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view text = line_.substr(position_, end - position_);
    position_ = end + 1;
    return text;
  }
  std::string_view rest() const { return line_.substr(position_); }

 private:
  static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  }

  std::string_view line_;
  std::size_t position_ = 0;
};

// Returns the GUID in an ID like "H-0002c90300000001".
std::optional<Guid> guid_in_id(std::string_view id) {
  constexpr std::size_t kIdBytes = 18;
  if (id.size() != kIdBytes || (id[0] != 'H' && id[0] != 'S') || id[1] != '-') return std::nullopt;
  Guid guid;
  const char* const end = id.data() + id.size();
  const auto [stop, error] = std::from_chars(id.data() + 2, end, guid.value, 16);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return guid;
}

class NetlistParser {
 public:
  std::expected<Topology, NetlistError> parse(std::string_view text) {
    while (!text.empty() && !error_) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      ++line_;
      parse_line(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    if (!error_) connect();
    if (!error_) finish();
    if (error_) return std::unexpected(*error_);
    return std::move(topology_);
  }

 private:
  // Holds the values that a line about a port contains.
  struct Connection {
    std::size_t line = 0;
    std::size_t column = 0;  // the column where the other node's ID begins
    PortRef port{};
    std::string remote_id{};
    std::uint8_t remote_port = 0;
    Guid remote_guid{};
    LinkWidth width = LinkWidth::k4x;
    LinkSpeed speed = LinkSpeed::kSdr;
    Mtu mtu = Mtu::k2048;
  };

  void fail_at(std::size_t line, std::size_t column, std::string reason) {
    if (!error_) error_ = {line, column, std::move(reason)};
  }
  void fail(const LineReader& reader, std::string reason) {
    fail_at(line_, reader.column(), std::move(reason));
  }

  void parse_line(std::string_view line) {
    LineReader reader(line);
    if (reader.at_end() || reader.next() == '#') return;
    if (reader.next() == '[') return parse_port(reader);
    const LineReader start = reader;
    const std::string_view word = reader.read_word();
    if (word == "Switch") return parse_node(reader, NodeType::kSwitch);
    if (word == "Hca" || word == "Ca") return parse_node(reader, NodeType::kHca);
    if (word == "Rt") return fail(start, "routers are not supported");
    if (word == "include" || word == "do") {
      return fail(start, "'" + std::string(word) + "' of ibsim is not supported");
    }
    if (!word.empty() && reader.read_char('=')) return parse_property(reader, word);
    fail(start, "this line is neither a node, a port nor a GUID");
  }

  void parse_property(LineReader& reader, std::string_view name) {
    const auto number = reader.read_number(16);
    if (!number) return fail(reader, "a hexadecimal number must follow");
    if (name == "vendid") next_node_.vendor_id = static_cast<std::uint32_t>(*number) & kMask24;
    if (name == "devid") next_node_.device_id = static_cast<std::uint16_t>(*number);
    if (name == "sysimgguid") next_node_.system_guid = {*number};
    if (name == "switchguid" || name == "caguid") next_node_.node_guid = {*number};
  }

  void parse_node(LineReader& reader, NodeType type) {
    reader.skip_blanks();
    const LineReader number_at = reader;
    const auto ports = reader.read_number(10);
    if (!ports) return fail(number_at, "the number of ports must follow");
    const std::uint8_t max = type == NodeType::kSwitch ? kSwitchPortsMax : kHcaPortsMax;
    if (*ports < 1 || *ports > max) {
      return fail(number_at, std::string(type == NodeType::kSwitch ? "a switch" : "an HCA") +
                                 " has 1 to " + std::to_string(max) + " ports");
    }
    reader.skip_blanks();
    const LineReader id_at = reader;
    const auto id = reader.read_quoted();
    if (!id || id->empty()) return fail(id_at, "the node's id in quotes must follow");
    if (topology_.nodes.size() >= kNodesMax) {
      return fail(id_at, "there are more than " + std::to_string(kNodesMax) + " nodes");
    }
    if (!nodes_.emplace(*id, static_cast<std::uint32_t>(topology_.nodes.size())).second) {
      return fail(id_at, "there are two nodes \"" + printable_name(*id) + '"');
    }
    Node node = std::exchange(next_node_, {});
    node.type = type;
    node.name = *id;
    node.ports = static_cast<std::uint8_t>(*ports);
    node.port_guids.resize(type == NodeType::kSwitch ? 1 : node.ports);
    if (const auto guid = guid_in_id(*id); guid && node.node_guid.value == 0) {
      node.node_guid = *guid;
    }
    if (!reader.at_end() && !reader.read_char('#')) {
      return fail(reader, "only a comment may follow the node's id");
    }
    node.description = reader.read_quoted().value_or("");
    topology_.nodes.push_back(std::move(node));
  }

  // Holds "[1]", and the "(GUID)" that may follow it.
  struct PortNumber {
    std::uint8_t number = 0;
    Guid guid{};
  };
  std::optional<PortNumber> parse_port_number(LineReader& reader) {
    if (!reader.read_char('[')) return fail(reader, "a port like [1] must follow"), std::nullopt;
    const LineReader number_at = reader;
    const auto number = reader.read_number(10);
    if (!number || *number < 1 || *number > kSwitchPortsMax) {
      return fail(number_at, "a port has a number from 1 to " + std::to_string(kSwitchPortsMax)),
             std::nullopt;
    }
    if (!reader.read_char(']')) return fail(reader, "']' must follow"), std::nullopt;
    PortNumber port{.number = static_cast<std::uint8_t>(*number)};
    if (!reader.read_char('(')) return port;
    const auto guid = reader.read_number(16);
    if (!guid || !reader.read_char(')'))
      return fail(reader, "a GUID and ')' must follow"), std::nullopt;
    port.guid = {*guid};
    return port;
  }

  void parse_port(LineReader& reader) {
    const LineReader start = reader;
    if (topology_.nodes.empty()) return fail(start, "this port belongs to no node");
    Node& node = topology_.nodes.back();
    const auto local = parse_port_number(reader);
    if (!local) return;
    if (local->number > node.ports) {
      return fail(start, "\"" + printable_name(node.name) + "\" has only " +
                             std::to_string(node.ports) + " ports");
    }
    if (!node.is_switch() && local->guid.value != 0) {
      node.port_guids[local->number - std::size_t{1}] = local->guid;
    }
    reader.skip_blanks();
    Connection connection{
        .line = line_,
        .column = reader.column(),
        .port = {static_cast<std::uint32_t>(topology_.nodes.size() - 1), local->number}};
    const auto id = reader.read_quoted();
    if (!id) return fail(reader, "the id of the other node in quotes must follow");
    connection.remote_id = *id;
    const auto remote = parse_port_number(reader);
    if (!remote) return;
    connection.remote_port = remote->number;
    connection.remote_guid = remote->guid;
    parse_link_options(reader, connection);
    connections_.push_back(std::move(connection));
  }

  void parse_link_options(LineReader& reader, Connection& connection) {
    while (!reader.at_end() && reader.next() != '#') {
      const LineReader option_at = reader;
      if (reader.read_word() != "w" || !reader.read_char('=')) {
        return fail(option_at, "only w=LANES or a comment may follow");
      }
      const auto lanes = reader.read_number(10);
      const auto width = lanes ? width_of(*lanes) : std::nullopt;
      if (!width) return fail(option_at, "a link has 1, 2, 4, 8 or 12 lanes");
      connection.width = *width;
    }
    parse_link_comment(reader.rest(), connection);
  }

  // Looks for words like 4xEDR, and for "mtu 2048".
  static void parse_link_comment(std::string_view comment, Connection& connection) {
    // A description in the comment may contain such words.
    if (const std::size_t quote = comment.rfind('"'); quote != std::string_view::npos) {
      comment.remove_prefix(quote + 1);
    }
    for (LineReader reader(comment); !reader.at_end();) {
      const std::string_view word = reader.read_word();
      if (word.empty()) {
        reader.read_char(reader.next());
      } else if (word == "mtu") {
        const auto bytes = reader.read_number(10);
        for (unsigned code = 1; code <= 5; ++code) {
          if (bytes == mtu_bytes(Mtu{static_cast<std::uint8_t>(code)})) {
            connection.mtu = Mtu{static_cast<std::uint8_t>(code)};
          }
        }
      } else {
        parse_width_and_speed(word, connection);
      }
    }
  }

  static void parse_width_and_speed(std::string_view word, Connection& connection) {
    LineReader reader(word);
    const auto lanes = reader.read_number(10);
    const auto width = lanes ? width_of(*lanes) : std::nullopt;
    if (!width || !reader.read_char('x')) return;
    const auto speed =
        std::ranges::find(kSpeedNames, reader.rest(), [](const auto& name) { return name.first; });
    if (speed == kSpeedNames.end()) return;
    connection.width = *width;
    connection.speed = speed->second;
  }

  void connect() {
    std::map<PortRef, PortRef> peers;
    for (const Connection& connection : connections_) {
      const auto found = nodes_.find(connection.remote_id);
      const std::string name = '"' + printable_name(connection.remote_id) + '"';
      if (found == nodes_.end()) {
        return fail_at(connection.line, connection.column, "there is no node " + name);
      }
      Node& remote = topology_.nodes[found->second];
      if (connection.remote_port > remote.ports) {
        return fail_at(connection.line, connection.column,
                       name + " has only " + std::to_string(remote.ports) + " ports");
      }
      const PortRef a = connection.port, b{found->second, connection.remote_port};
      if (!remote.is_switch() && connection.remote_guid.value != 0) {
        remote.port_guids[b.port - std::size_t{1}] = connection.remote_guid;
      }
      if (a == b) {
        return fail_at(connection.line, connection.column, "a port cannot be connected to itself");
      }
      const auto peer_of_a = peers.find(a), peer_of_b = peers.find(b);
      if (peer_of_a == peers.end() && peer_of_b == peers.end()) {
        peers.emplace(a, b);
        peers.emplace(b, a);
        topology_.links.push_back({a, b, connection.width, connection.speed, connection.mtu});
      } else if (peer_of_a == peers.end() || peer_of_b == peers.end() || peer_of_a->second != b) {
        return fail_at(connection.line, connection.column,
                       "one of the two ports is already connected to another port");
      }
    }
  }

  // Names the nodes whose ID is only a GUID, makes the missing GUIDs, and checks the whole
  // topology.
  void finish() {
    std::map<std::string, unsigned> uses;
    for (const Node& node : topology_.nodes) ++uses[node.name];
    for (const Node& node : topology_.nodes) {
      if (!node.description.empty() && node.description != node.name) ++uses[node.description];
    }
    for (Node& node : topology_.nodes) {
      if (!guid_in_id(node.name) || node.description.empty() ||
          node.description.size() > kNodeNameBytesMax || uses[node.description] != 1) {
        continue;
      }
      node.name = node.description;
    }
    set_missing_guids(topology_);
    if (const auto what = find_problem(topology_)) fail_at(line_ == 0 ? 1 : line_, 1, *what);
  }

  std::size_t line_ = 0;
  Node next_node_{};  // collects the properties that precede the next node
  Topology topology_{};
  std::map<std::string, std::uint32_t, std::less<>> nodes_{};  // by ID
  std::vector<Connection> connections_{};
  std::optional<NetlistError> error_{};
};

std::string hex_text(std::uint64_t number) {
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number, 16).ptr;
  return {digits.data(), end};
}

// Returns the first name of a speed in kSpeedNames.
std::string_view speed_text(LinkSpeed speed) {
  return std::ranges::find(kSpeedNames, speed, [](const auto& name) { return name.second; })->first;
}

std::string port_line(const Topology& topology, PortRef port, const Link& link) {
  const PortRef other = link.a == port ? link.b : link.a;
  std::string line = '[' + std::to_string(port.port) + ']';
  const Node& node = topology.nodes[port.node];
  if (!node.is_switch()) line += '(' + hex_text(node.port_guid(port.port).value) + ')';
  line += "\t\"" + topology.nodes[other.node].name + "\"[" + std::to_string(other.port) + "]\t# " +
          std::to_string(lanes_of(link.width)) + 'x' + std::string(speed_text(link.speed)) +
          " mtu " + std::to_string(mtu_bytes(link.mtu)) + '\n';
  return line;
}

}  // namespace

std::expected<Topology, NetlistError> parse_netlist(std::string_view text) {
  if (text.size() > kNetlistBytesMax) {
    return std::unexpected(NetlistError{.line = 1, .column = 1, .reason = "the text is too long"});
  }
  return NetlistParser().parse(text);
}

bool looks_like_netlist(std::string_view text) {
  while (!text.empty()) {
    const auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const auto skip_blanks = [](std::string_view from) {
      return from.substr(std::min(from.find_first_not_of(" \t"), from.size()));
    };
    const auto first = skip_blanks(line);
    const auto word = first.substr(0, first.find_first_of(" \t"));
    const bool is_node = word == "Switch" || word == "Hca" || word == "Ca";
    if (is_node && !skip_blanks(first.substr(word.size())).starts_with('=')) return true;
  }
  return false;
}

std::string write_netlist(const Topology& topology) {
  std::vector<std::vector<std::pair<PortRef, const Link*>>> ports(topology.nodes.size());
  for (const Link& link : topology.links) {
    ports[link.a.node].emplace_back(link.a, &link);
    ports[link.b.node].emplace_back(link.b, &link);
  }
  std::string text;
  for (std::size_t i = 0; i < topology.nodes.size(); ++i) {
    const Node& node = topology.nodes[i];
    const std::string guid = hex_text(node.node_guid.value);
    text += "vendid=0x" + hex_text(node.vendor_id) + "\ndevid=0x" + hex_text(node.device_id) +
            "\nsysimgguid=0x" + hex_text(node.system_guid.value) + '\n';
    text += node.is_switch() ? "switchguid=0x" + guid + '(' +
                                   hex_text(node.port_guids.front().value) + ")\nSwitch\t"
                             : "caguid=0x" + guid + "\nCa\t";
    text += std::to_string(node.ports) + " \"" + node.name + '"';
    if (!node.description.empty()) text += "\t# \"" + node.description + '"';
    text += '\n';
    std::ranges::sort(ports[i]);
    for (const auto& [port, link] : ports[i]) text += port_line(topology, port, *link);
    text += '\n';
  }
  return text;
}

}  // namespace verbena::subnet
