#include "target.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <sstream>

#include "os/address.h"
#include "wire/cm.h"
#include "wire/icrc.h"
#include "wire/ip.h"
#include "wire/mad.h"

namespace verbena::wire_bench {
namespace {

using Words = std::vector<std::string>;

bool parse_number(const std::string& word, auto& out) {
  const bool hex = word.starts_with("0x");
  const char* const begin = word.data() + (hex ? 2 : 0);
  const char* const end = word.data() + word.size();
  const auto result = std::from_chars(begin, end, out, hex ? 16 : 10);
  return result.ec == std::errc() && result.ptr == end;
}

bool parse_host(const Words& words, Target::Host& out) {
  in_addr v4{};
  in6_addr v6{};
  if (words.size() != 3 || ::inet_pton(AF_INET, words[1].c_str(), &v4) != 1 ||
      ::inet_pton(AF_INET6, words[2].c_str(), &v6) != 1) {
    return false;
  }
  out = {os::gid_of(v4), os::gid_of(v6)};
  return true;
}

bool parse_qp(const Words& words, Target::Qp& out) {
  out.transport = words[0] == "ud"   ? wire::Transport::kUd
                  : words[0] == "uc" ? wire::Transport::kUc
                                     : wire::Transport::kRc;
  std::uint32_t family = 0;
  const bool valid = words.size() == 7 && parse_number(words[1], out.qpn.value) &&
                     parse_number(words[2], out.peer_qpn.value) &&
                     parse_number(words[3], out.expected_psn.value) &&
                     parse_number(words[4], out.requester_psn.value) &&
                     parse_number(words[5], out.mtu) && parse_number(words[6], family) &&
                     out.mtu >= 256 && out.mtu <= 4096;
  out.is_ipv6 = family == 6;
  return valid && (family == 4 || family == 6);
}

}  // namespace

bool Target::read(std::string_view text, std::string& problem) {
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream in(line);
    const Words words{std::istream_iterator<std::string>(in), {}};
    if (words.empty() || read_line(words)) continue;
    problem = line;
    return false;
  }
  return true;
}

bool Target::read_line(const Words& words) {
  const std::string& fact = words[0];
  if (fact == "victim") return parse_host(words, victim);
  if (fact == "peer") return parse_host(words, peer);
  if (fact == "stranger") return parse_host(words, stranger);
  if (fact == "rc" || fact == "uc" || fact == "ud") return parse_qp(words, qps.emplace_back());
  if (fact == "absent" || fact == "spared") {
    auto& list = fact == "absent" ? absent : spared;
    return words.size() == 2 && parse_number(words[1], list.emplace_back().value);
  }
  if (fact == "memory") {
    Region& region = regions.emplace_back();
    return words.size() == 4 && parse_number(words[1], region.address) &&
           parse_number(words[2], region.bytes) && parse_number(words[3], region.r_key);
  }
  if (fact == "qkey") return words.size() == 2 && parse_number(words[1], qkey.value);
  if (fact == "port") return words.size() == 2 && parse_number(words[1], port);
  if (fact == "spared_port") return words.size() == 2 && parse_number(words[1], spared_port);
  return true;
}

void Target::learn(std::span<const std::byte> bytes) {
  const auto frame = wire::parse_frame(bytes);
  if (!frame || frame->headers.destination_port != wire::kRoceUdpPort) return;
  const auto split = wire::split_icrc(frame->udp_payload);
  if (!split) return;
  const auto packet = wire::parse_transport(split->bth_to_pad);
  if (!packet) return;
  if (packet->bth.destination_qpn == wire::kGsiQpn) {
    learn_mad(packet->payload);
  } else {
    learn_psn(*packet);
  }
}

void Target::learn_mad(std::span<const std::byte> mad) {
  const auto header = wire::decode<wire::MadHeader>(mad);
  if (!header || mad.size() != wire::kMadBytes) return;
  const auto message =
      wire::cm::decode_message(header->attribute_id, mad.subspan(wire::kMadHeaderBytes));
  if (!message) return;
  Connection connection;
  if (const auto* req = std::get_if<wire::cm::Req>(&*message)) {
    connection = {req->local_comm_id, {}, req->local_qpn};
  } else if (const auto* rep = std::get_if<wire::cm::Rep>(&*message)) {
    connection = {rep->local_comm_id, rep->remote_comm_id, rep->local_qpn};
  } else {
    return;
  }
  // Ignores a repeated message, whose connection is known already.
  if (std::ranges::find(connections, connection.target_id, &Connection::target_id) !=
      connections.end())
    return;
  if (connections.size() == kConnectionsMax) connections.pop_front();
  connections.push_back(connection);
}

void Target::learn_psn(const wire::TransportPacket& packet) {
  const auto found = std::ranges::find(qps, packet.bth.destination_qpn, &Qp::peer_qpn);
  if (found == qps.end()) return;
  if (wire::is_request(packet.bth.opcode)) {
    found->requester_psn = packet.bth.psn;
  } else if (packet.bth.opcode == wire::Opcode::kRcAcknowledge) {
    const bool is_ack = wire::kind(packet.aeth) == wire::AethKind::kAck;
    found->expected_psn = packet.bth.psn + (is_ack ? 1 : 0);
  }
}

}  // namespace verbena::wire_bench
