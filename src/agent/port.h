#pragma once

#include <array>
#include <asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/captures.h"
#include "agent/watch.h"
#include "base/random.h"
#include "ipc/counters.h"
#include "ipc/messages.h"
#include "link/burst.h"
#include "link/framing.h"
#include "os/roce_port.h"
#include "os/udp_link.h"
#include "wire/drop.h"

namespace verbena::agent {

// Owns the agent's end of UDP port 4791: it leases ranges of QP numbers to programs
// (os/roce_port.h), and sends and receives the packets of QP1.  It counts and drops all other
// packets, because packets for a program should arrive at the sockets of the program's range.
//
// A Port with another number than 4791 reaches only programs of this host.  It counts and drops
// packets for other hosts, because other hosts could not answer.  Only one thread may use it.
class Port {
 public:
  using Options = os::RocePort::Options;

  // Calls `readable` when receive() has packets.  Fails as os::RocePort::open() does.
  static Result<std::unique_ptr<Port>> open(asio::io_context& loop, const Options& options,
                                            Captures& captures, Watch::Callback readable,
                                            std::string& problem);
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  ~Port();

  // Sets the host's addresses.  receive() does not record packets from these addresses for
  // captures, because they were recorded when they were sent.  `loopback_up`: the loopback
  // interface is up, so the host can send to itself.
  void set_own_addresses(std::vector<Gid> addresses, bool loopback_up) {
    own_addresses_ = std::move(addresses);
    loopback_up_ = loopback_up;
  }

  // Returns some of the packets for QP1 that have arrived with a correct ICRC.  The result is valid
  // until the next call.
  std::span<const link::Arrival> receive(Time now);
  // Sends the burst, except for packets from this host to itself that can bypass the kernel: if
  // there were many at once, the kernel would lose some of them.  Returns the packets that it did
  // not send.  The result is valid until the caller clears the burst.
  std::span<const link::Arrival> send(link::Burst& burst, Time now);

  // Leases a range of QP numbers to a program, and stores the range's sockets for sockets_of().
  // Chooses no range in `avoid`.
  Result<std::uint16_t> lease(Random& random, std::span<const std::uint16_t> avoid);
  bool has_range(std::uint16_t range) const { return ranges_.contains(range); }
  // Returns the sockets to pass to the program: for IPv4, then for IPv6 if the host has it.
  std::vector<int> sockets_of(std::uint16_t range) const;
  // Removes the sockets of a range and returns them, so that they are not passed to the program.
  // Returns empty descriptors if the range has no sockets.
  os::RocePort::Lease take_sockets(std::uint16_t range);
  // Closes the copies of the range's sockets after they were passed on.  RocePort keeps its own.
  void release_passed_descriptors(std::uint16_t range) { leases_to_pass_on_.erase(range); }
  // Calls os::RocePort::set_members().
  Result<void> set_members(std::uint16_t range, const Gid& group,
                           std::span<const std::uint32_t> interfaces) {
    return port_->set_members(range, group, interfaces);
  }
  // Frees a range whose quiesce time is over.  Drops packets that have arrived for it meanwhile.
  void release(std::uint16_t range);

  std::size_t leases() const { return port_->leases(); }
  std::uint16_t number() const { return number_; }
  // Adds the counters, among them data_packets (intact packets for leased ranges that reached the
  // agent instead of a program) and own_packets (packets of QP1 that never left the agent).
  void add_counters(std::vector<ipc::NamedCount>& out) const;

 private:
  // Records the packets that are sent, for captures.
  class Observer final : public os::PacketObserver {
   public:
    explicit Observer(Captures& captures) : captures_(captures) {}
    void sent(const link::Address& address, std::span<const std::byte> datagram,
              std::uint16_t identification) override;

   private:
    Captures& captures_;
  };

  Port(asio::io_context& loop, std::unique_ptr<os::RocePort> port, std::uint16_t number,
       std::unique_ptr<os::UdpReceiver> receiver, Captures& captures, Watch::Callback readable);

  void handle_datagram(const os::UdpReceiver::Datagram& datagram, Time now);
  bool is_own(const Gid& address) const;
  bool can_bypass_kernel(const link::Address& address) const;

  Captures& captures_;
  Observer observer_;
  std::unique_ptr<os::RocePort> port_;
  std::uint16_t number_;
  std::unique_ptr<os::UdpReceiver> receiver_;
  os::UdpSender sender_;
  Watch::Callback readable_;
  std::array<Watch, 2> watches_{};
  std::vector<link::Arrival> arrivals_{};
  std::vector<link::Arrival> own_arrivals_{};
  link::Burst kernel_burst_{};
  std::vector<Gid> own_addresses_{};
  bool loopback_up_ = false;
  std::map<std::uint16_t, os::RocePort::Lease> leases_to_pass_on_{};
  std::set<std::uint16_t> ranges_{};  // all leased ranges

  std::uint64_t qp1_packets_ = 0;
  std::uint64_t own_packets_ = 0;
  std::uint64_t data_packets_ = 0;
  std::uint64_t unknown_qp_ = 0;  // packets for QPNs that nobody has leased
  std::array<std::uint64_t, static_cast<std::size_t>(wire::Drop::kCount)> dropped_{};
};

}  // namespace verbena::agent
