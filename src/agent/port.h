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
#include "ipc/messages.h"
#include "link/burst.h"
#include "link/framing.h"
#include "os/roce_port.h"
#include "os/udp_link.h"
#include "wire/drop.h"

namespace verbena::agent {

// The agent's end of UDP port 4791: the leases of all programs, and the packets of QP1.  Whatever
// else arrives here is counted and dropped: data never goes through the agent.  One thread.
class Port {
 public:
  using Options = os::RocePort::Options;

  // `readable` is called when receive() has something.  Fails as os::RocePort::open() does.
  static Result<std::unique_ptr<Port>> open(asio::io_context& loop, const Options& options,
                                            Captures& captures, Watch::Callback readable,
                                            std::string& problem);
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  ~Port();

  // The host's own: a packet from one of them was recorded when it was sent.  `loops`: the host can
  // talk to itself (its loopback interface is up).
  void set_own_addresses(std::vector<Gid> addresses, bool loops) {
    own_addresses_ = std::move(addresses);
    loops_ = loops;
  }

  // Some of the packets for QP1 that have arrived, checked; valid until the next call.
  std::span<const link::Arrival> receive(Time now);
  // Sends the burst.  Gives those of its packets that are from this host for this host, which no
  // kernel sees: it would lose them when many come at once.  Valid until the burst is cleared,
  // which is the caller's to do.
  std::span<const link::Arrival> send(link::Burst& burst, Time now);

  // A range for a program, none of `avoid`.  Its sockets wait for sockets_of().
  Result<std::uint16_t> lease(Random& random, std::span<const std::uint16_t> avoid);
  // The descriptors to pass to the program: IPv4's, then IPv6's if the host has it.
  std::vector<int> sockets_of(std::uint16_t range) const;
  // They have been passed on: our copies are not needed (RocePort has its own).
  void passed_on(std::uint16_t range) { leased_.erase(range); }
  // As os::RocePort::set_members().
  Result<void> set_members(std::uint16_t range, const Gid& group,
                           std::span<const std::uint32_t> interfaces) {
    return port_->set_members(range, group, interfaces);
  }
  // The range has rested: what came in the meantime is thrown away, and the range is free.
  void release(std::uint16_t range);

  std::size_t leases() const { return port_->leases(); }
  // data_packets: whole packets for a QP other than 1 that came to the agent; own_packets: of QP1,
  // that never left it.
  void add_counters(std::vector<ipc::NamedCount>& out) const;

 private:
  // Records what is sent, for captures.
  class Observer final : public os::PacketObserver {
   public:
    explicit Observer(Captures& captures) : captures_(captures) {}
    void sent(const link::Flow& flow, std::span<const std::byte> datagram,
              std::uint16_t identification) override;

   private:
    Captures& captures_;
  };

  Port(asio::io_context& loop, std::unique_ptr<os::RocePort> port,
       std::unique_ptr<os::UdpReceiver> receiver, Captures& captures, Watch::Callback readable);

  void accept(const os::UdpReceiver::Datagram& datagram, Time now);
  bool is_own(const Gid& address) const;
  bool stays_here(const link::Flow& flow) const;

  Captures& captures_;
  Observer observer_;
  std::unique_ptr<os::RocePort> port_;
  std::unique_ptr<os::UdpReceiver> receiver_;
  os::UdpSender sender_;
  Watch::Callback readable_;
  std::array<Watch, 2> watches_{};
  std::vector<link::Arrival> arrivals_{};
  std::vector<link::Arrival> own_arrivals_{};
  link::Burst leaving_{};
  std::vector<Gid> own_addresses_{};
  bool loops_ = false;
  std::map<std::uint16_t, os::RocePort::Lease> leased_{};  // not yet passed on
  std::set<std::uint16_t> ranges_{};                       // all that are leased

  std::uint64_t qp1_packets_ = 0;
  std::uint64_t own_packets_ = 0;
  std::uint64_t data_packets_ = 0;
  std::uint64_t unknown_qp_ = 0;  // nobody has leased the number
  std::array<std::uint64_t, static_cast<std::size_t>(wire::Drop::kCount)> dropped_{};
};

}  // namespace verbena::agent
