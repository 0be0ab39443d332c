#include "subnet/netlist.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "subnet/line_reader.h"
#include "subnet/netlist_words.h"
#include "subnet/node_names.h"

namespace verbena::subnet {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr const char* kLanesText = "a link has 1, 2, 4, 8 or 12 lanes";

std::optional<NodeType> type_named(std::string_view word) {
  if (word == "Switch") return NodeType::kSwitch;
  if (word == "Hca" || word == "Ca") return NodeType::kHca;
  return word == "Rt" ? std::optional(NodeType::kRouter) : std::nullopt;
}

struct PortLimit {
  const char* article_and_name;
  std::uint8_t ports_max;
};
PortLimit port_limit(NodeType type) {
  switch (type) {
    case NodeType::kSwitch: return {"a switch", kSwitchPortsMax};
    case NodeType::kRouter: return {"a router", kRouterPortsMax};
    case NodeType::kHca: break;
  }
  return {"an HCA", kHcaPortsMax};
}

// Holds what a netlist says about a link.  The defaults apply to the rest.
struct LinkOptions {
  std::optional<LinkWidth> width{};
  std::optional<LinkSpeed> speed{};
  std::optional<Mtu> mtu{};

  // Takes the values that are missing here from the other options.
  void complete_by(const LinkOptions& other) {
    if (!width) width = other.width;
    if (!speed) speed = other.speed;
    if (!mtu) mtu = other.mtu;
  }
};

class NetlistParser {
 public:
  std::expected<Topology, NetlistError> parse(std::string_view text) {
    if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
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
  struct Position {
    std::size_t line = 1;
    std::size_t column = 1;
  };
  // Holds the values that a line about a port contains.
  struct Connection {
    Position position{};  // the place where the other node's ID begins
    PortRef port{};
    std::string remote_id{};
    std::uint8_t remote_port = 1;  // ibsim's default
    Guid remote_guid{};
    LinkOptions options{};
    LinkOptions defaults{};
  };

  void fail_at(const Position& position, std::string reason) {
    if (!error_) error_ = {position.line, position.column, std::move(reason)};
  }
  Position position_of(const LineReader& reader) const { return {line_, reader.column()}; }
  void fail(const LineReader& reader, std::string reason) {
    fail_at(position_of(reader), std::move(reason));
  }

  void parse_line(std::string_view line) {
    LineReader reader(line);
    if (reader.at_end() || reader.next() == '#' || is_remark(line)) return;
    if (reader.next() == '[') return parse_port(reader);
    const LineReader start = reader;
    if (reader.next() == '@') return fail(start, "aliases of ibsim ('@') are not supported");
    const std::string_view word = reader.read_word();
    if (const auto type = type_named(word)) return parse_node(reader, *type);
    if (word == "include" || word == "do" || word == "module") {
      return fail(start, "'" + std::string(word) + "' of ibsim is not supported");
    }
    if (!word.empty() && reader.read_char('=')) return parse_property(reader, word);
    fail(start, "this line is neither a node, a port nor a GUID");
  }

  void parse_property(LineReader& reader, std::string_view name) {
    if (name == "width" || name == "speed" || name == "extspeed") {
      const LineReader number_at = reader;
      return parse_option(number_at, reader, name, defaults_);
    }
    const auto number = reader.read_number(16);
    if (!number) return fail(reader, "a hexadecimal number must follow");
    if (name == "vendid") next_node_.vendor_id = static_cast<std::uint32_t>(*number) & kMask24;
    if (name == "devid") next_node_.device_id = static_cast<std::uint16_t>(*number);
    if (name == "sysimgguid") next_node_.system_guid = {*number};
    constexpr std::array<std::string_view, 6> kGuids{"switchguid",  "caguid",   "rtguid",
                                                     "switchguids", "hcaguids", "rtguids"};
    if (std::ranges::find(kGuids, name) != kGuids.end()) next_node_.node_guid = {*number};
  }

  void parse_node(LineReader& reader, NodeType type) {
    reader.skip_blanks();
    const LineReader number_at = reader;
    const auto ports = reader.read_number(10);
    if (!ports) return fail(number_at, "the number of ports must follow");
    const PortLimit limit = port_limit(type);
    if (*ports < 1 || *ports > limit.ports_max) {
      return fail(number_at, std::string(limit.article_and_name) + " has 1 to " +
                                 std::to_string(limit.ports_max) + " ports");
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
    node.description = description_of(reader.read_quoted_to_last().value_or(""));
    topology_.nodes.push_back(std::move(node));
    node_positions_.push_back(position_of(id_at));
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
    if (reader.read_char('[')) {  // the number of the socket at a chassis, as in "[1][ext 5]"
      const bool is_socket = reader.read_word() == "ext" && reader.read_number(10);
      if (!is_socket || !reader.read_char(']')) {
        return fail(reader, "\"ext\", a number and ']' must follow"), std::nullopt;
      }
    }
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
        .position = position_of(reader),
        .port = {static_cast<std::uint32_t>(topology_.nodes.size() - 1), local->number}};
    const auto id = reader.read_quoted();
    if (!id) return fail(reader, "the id of the other node in quotes must follow");
    connection.remote_id = *id;
    reader.skip_blanks();
    if (reader.next() == '[') {
      const auto remote = parse_port_number(reader);
      if (!remote) return;
      connection.remote_port = remote->number;
      connection.remote_guid = remote->guid;
    }
    parse_link_options(reader, connection.options);
    connection.defaults = defaults_;
    connections_.push_back(std::move(connection));
  }

  void parse_link_options(LineReader& reader, LinkOptions& options) {
    while (!error_ && !reader.at_end() && reader.next() != '#') {
      const LineReader option_at = reader;
      const std::string_view word = reader.read_word();
      if ((word != "w" && word != "s" && word != "e") || !reader.read_char('=')) {
        return fail(option_at, "only w=LANES, s=SPEEDS, e=SPEEDS or a comment may follow");
      }
      parse_option(option_at, reader, word, options);
    }
    if (!error_) parse_link_comment(reader, options);
  }
  // Reads the value of an option.  As in ibsim, a speed is a mask of PortInfo.LinkSpeedEnabled (s),
  // or of LinkSpeedExtEnabled (e).
  void parse_option(const LineReader& option_at, LineReader& reader, std::string_view name,
                    LinkOptions& options) {
    const auto number = reader.read_number(10);
    if (name == "w" || name == "width") {
      const auto width = !number       ? std::nullopt
                         : name == "w" ? width_of_lanes(*number)
                                       : widest(*number);
      if (!width) return fail(option_at, name == "w" ? kLanesText : "a width is a mask up to 31");
      options.width = width;
      return;
    }
    const bool is_extended = name == "e" || name == "extspeed";
    if (number == 0u) return;  // no extended speed, or ibsim's default
    const auto speed = !number       ? std::nullopt
                       : is_extended ? fastest_extended(*number)
                                     : fastest(*number);
    if (!speed) {
      return fail(option_at, is_extended ? "an extended speed is a mask up to 15"
                                         : "a speed is a mask up to 7");
    }
    options.speed = std::max(options.speed.value_or(*speed), *speed);
  }

  // Looks for words like 4xEDR, and for "mtu 2048".
  void parse_link_comment(LineReader& reader, LinkOptions& options) {
    reader.skip_past_last_quote();  // a description may contain such words
    while (!error_ && !reader.at_end()) {
      const LineReader word_at = reader;
      const std::string_view word = reader.read_word();
      if (word.empty()) {
        reader.read_char(reader.next());
      } else if (word == "mtu") {
        parse_mtu(reader, options);
      } else {
        parse_width_and_speed(word_at, word, options);
      }
    }
  }

  void parse_mtu(LineReader& reader, LinkOptions& options) {
    reader.skip_blanks();
    const LineReader number_at = reader;
    const auto bytes = reader.read_number(10);
    if (!bytes) return;
    for (const Mtu mtu : {Mtu::k256, Mtu::k512, Mtu::k1024, Mtu::k2048, Mtu::k4096}) {
      if (bytes == mtu_bytes(mtu)) return void(options.mtu = mtu);
    }
    fail(number_at, "an MTU is 256, 512, 1024, 2048 or 4096 bytes");
  }

  // Reads "4xEDR".  A value that ibnetdiscover did not know ("??", "???") gets the default.
  void parse_width_and_speed(const LineReader& word_at, std::string_view word,
                             LinkOptions& options) {
    LineReader reader(word);
    const auto lanes = reader.read_number(10);
    if (lanes ? !reader.read_char('x') : !word.starts_with("??")) return;
    const std::string_view name = lanes ? reader.rest() : word.substr(2);
    const auto speed = speed_named(name);
    const bool is_unknown = name == "???" || name == "????";
    if (!speed && !is_unknown) {
      if (!looks_like_speed(name)) return;
      return fail(word_at, "'" + std::string(name) +
                               "' is no known speed: use SDR, DDR, QDR, "
                               "FDR10, FDR, EDR, HDR, NDR or XDR");
    }
    const auto width = lanes ? width_of_lanes(*lanes) : std::nullopt;
    if (lanes && !width) return fail(word_at, kLanesText);
    if (width) options.width = width;
    if (speed) options.speed = speed;
  }

  void connect() {
    std::map<PortRef, std::size_t> link_at;
    std::vector<LinkOptions> options, defaults;
    for (const Connection& connection : connections_) {
      const auto found = nodes_.find(connection.remote_id);
      const std::string name = '"' + printable_name(connection.remote_id) + '"';
      if (found == nodes_.end()) return fail_at(connection.position, "there is no node " + name);
      Node& remote = topology_.nodes[found->second];
      if (connection.remote_port > remote.ports) {
        return fail_at(connection.position,
                       name + " has only " + std::to_string(remote.ports) + " ports");
      }
      const PortRef a = connection.port, b{found->second, connection.remote_port};
      if (!remote.is_switch() && connection.remote_guid.value != 0) {
        remote.port_guids[b.port - std::size_t{1}] = connection.remote_guid;
      }
      if (a == b) return fail_at(connection.position, "a port cannot be connected to itself");
      const auto link_at_a = link_at.find(a), link_at_b = link_at.find(b);
      if (link_at_a == link_at.end() && link_at_b == link_at.end()) {
        link_at[a] = link_at[b] = topology_.links.size();
        topology_.links.push_back({a, b});
        options.push_back(connection.options);
        defaults.push_back(connection.defaults);
      } else if (link_at_a == link_at.end() || link_at_b == link_at.end() ||
                 link_at_a->second != link_at_b->second) {
        return fail_at(connection.position,
                       "one of the two ports is already connected to another port");
      } else {
        options[link_at_a->second].complete_by(connection.options);
      }
    }
    for (std::size_t i = 0; i < options.size(); ++i) {
      options[i].complete_by(defaults[i]);
      topology_.links[i].width = options[i].width.value_or(LinkWidth::k4x);
      topology_.links[i].speed = options[i].speed.value_or(LinkSpeed::kSdr);
      topology_.links[i].mtu = options[i].mtu.value_or(Mtu::k2048);
    }
  }

  // Makes the missing GUIDs, names the nodes, and checks the whole topology.
  void finish() {
    set_missing_guids(topology_);
    name_nodes(topology_);
    const auto problem = find_problem_and_node(topology_);
    if (problem)
      fail_at(problem->node ? node_positions_[*problem->node] : Position{}, problem->text);
  }

  std::size_t line_ = 0;
  Node next_node_{};        // collects the properties that precede the next node
  LinkOptions defaults_{};  // those of "width=", "speed=" and "extspeed=" of ibsim
  Topology topology_{};
  std::vector<Position> node_positions_{};                     // the places of the IDs
  std::map<std::string, std::uint32_t, std::less<>> nodes_{};  // by ID
  std::vector<Connection> connections_{};
  std::optional<NetlistError> error_{};
};

}  // namespace

std::expected<Topology, NetlistError> parse_netlist(std::string_view text) {
  if (text.size() > kNetlistBytesMax) {
    return std::unexpected(NetlistError{.line = 1, .column = 1, .reason = "the text is too long"});
  }
  return NetlistParser().parse(text);
}

bool looks_like_netlist(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  while (!text.empty()) {
    LineReader line(text.substr(0, text.find('\n')));
    text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
    const bool is_node = type_named(line.read_word()).has_value();
    if (is_node && !line.read_char('=') && line.next() != '.') return true;
  }
  return false;
}

}  // namespace verbena::subnet
