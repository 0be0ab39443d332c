#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/strong.h"
#include "wire/headers.h"

namespace verbena::wire_bench {

// Stores facts about the target of a barrage.  The sender of the barrage reads them from a file,
// and learns more from the target's answers.  Each line of the file is a fact.  Numbers are
// decimal, or hexadecimal with 0x:
//
//   victim ADDRESS4 ADDRESS6                      the host that gets the packets
//   peer ADDRESS4 ADDRESS6                        the host that the victim's QPs are connected to
//   stranger ADDRESS4 ADDRESS6                    a host that these QPs are not connected to
//   rc|uc|ud QPN PEER_QPN RQ_PSN SQ_PSN MTU 4|6   a QP to attack, and its IP version
//   absent QPN                                    the number of a destroyed QP
//   spared QPN                                    a QP of another program, which must get packets
//                                                 only from the peer's address
//   memory ADDRESS BYTES RKEY                     a region for remote access
//   qkey NUMBER                                   the Q_Key of the UD QPs
//   port NUMBER                                   the port of the listener
//   spared_port NUMBER                            another program's port, which must get no REQ
//
// Other lines are ignored.
class Target {
 public:
  struct Qp {
    wire::Transport transport = wire::Transport::kRc;  // kRc, kUc or kUd
    Qpn qpn{};
    Qpn peer_qpn{};
    Psn expected_psn{};   // the next PSN that the QP's responder expects
    Psn requester_psn{};  // the last PSN that the QP's requester has sent
    std::uint32_t mtu = 1024;
    bool is_ipv6 = false;
  };
  struct Region {
    std::uint64_t address = 0;
    std::uint32_t bytes = 0;
    std::uint32_t r_key = 0;
  };
  // Describes a connection of the RDMA CM.
  struct Connection {
    CommId target_id{};
    CommId our_id{};  // 0 while it is not known
    Qpn qpn{};        // the target's QP
  };
  struct Host {
    Gid ipv4{}, ipv6{};
    const Gid& address(bool wants_ipv6) const { return wants_ipv6 ? ipv6 : ipv4; }
  };

  static constexpr std::size_t kConnectionsMax = 64;

  // Reads facts.  If a line begins with the name of a fact but is wrong, returns false, and stores
  // the line in `problem`.
  bool read(std::string_view text, std::string& problem);
  // Learns PSNs and connections from a frame that the target has sent.
  void learn(std::span<const std::byte> frame);

  Host victim{}, peer{}, stranger{};
  std::vector<Qp> qps{};
  std::vector<Qpn> absent{};  // QPs that have been destroyed
  std::vector<Qpn> spared{};  // QPs of other programs; only packets from `peer` may reach them
  std::vector<Region> regions{};
  std::deque<Connection> connections{};  // the newest is the last
  Qkey qkey{};
  std::uint16_t port = 0;
  std::uint16_t spared_port = 0;

 private:
  bool read_line(const std::vector<std::string>& words);
  void learn_mad(std::span<const std::byte> mad);
  void learn_psn(const wire::TransportPacket& packet);
};

}  // namespace verbena::wire_bench
