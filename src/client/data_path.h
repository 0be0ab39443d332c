#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "client/batch.h"
#include "client/channels.h"
#include "client/diagnostics.h"
#include "client/socket_counters.h"
#include "client/watches.h"
#include "link/burst.h"
#include "link/capture.h"
#include "link/framing.h"
#include "link/lane.h"
#include "os/shared_memory.h"
#include "os/udp_link.h"

namespace verbena::client {

// Owns a program's sockets.  Receives and sends packets, counts them, and copies them into the
// capture if there is one.  The drive lock guards this object.
class DataPath final : private os::PacketObserver, private link::LaneObserver {
 public:
  // The progress thread sleeps on `watches`.  REQUIRES: they outlive this object.
  explicit DataPath(Watches& watches);
  ~DataPath() override = default;

  // Sets the table for the counters.  REQUIRES: the memory of the table outlives this object.
  void set_table(ipc::QpTable table) { counters_.set_table(table); }

  // Adds the sockets of a range of QP numbers: one for IPv4, one for IPv6, or both (ipc::Leased).
  // kMalformed: `fds` is empty.  kSystem: a socket cannot be watched, or its options cannot be set.
  Result<void> add(std::vector<os::Fd> fds);
  // From now on until close(), discards the packets that this program would send by UDP.  Packets
  // in lanes are sent as before.  Call this when the program gets an uplink.  The program's own
  // socket is useless then: the kernel's network does not know the addresses of a virtual host, and
  // if an agent serves all users, other hosts expect packets from that agent's port.
  void stop_sending() { sends_packets_ = false; }
  // Sets the destination of later packets (os::UdpSender::Options).
  void set_destination(std::uint16_t port, std::function<bool(const Gid&)> is_of_this_host) {
    sender_.set_destination(port, std::move(is_of_this_host));
  }
  // Closes the sockets that a dead agent has sent, because the next agent can open the port only
  // after that.  Also ends the capture.
  void close();
  // Closes the descriptors in a forked child, and does not touch the memory that the child shares
  // with the parent.
  void abandon();

  // Switches off UDP_GRO.  Call this when the first peer on another host appears.  The flow of such
  // a peer may carry packets for several programs of this host, and the kernel would give coalesced
  // packets to only one of these programs.  Peers on this host do not need this call, because they
  // never put packets for two QPs into a batch.
  void stop_coalescing();
  bool coalesces() const { return coalesces_; }

  // Starts to copy packets into the capture ring in the memory of `fd`.  If that memory cannot be
  // mapped, copies nothing.
  void start_capture(int fd);
  bool capturing() const { return capture_.has_value(); }
  // Returns the observer that copies the packets of lanes into the capture.
  link::LaneObserver& lane_observer() { return *this; }

  struct Received {
    bool any_packets = false;
    bool full = false;  // there may be more packets
  };
  // Receives packets, and calls take(arrival) for each valid packet.  Also calls has_posts() and
  // send(), as take_batch() does.
  template <class Take, class HasPosts, class Send>
  Received receive(Time now, os::UdpReceiver::Poll poll_mode, Take take, HasPosts has_posts,
                   Send send);

  // The caller fills burst(), and then calls send(), which sends the packets of the burst.
  link::Burst& burst() { return burst_; }
  void send() {
    if (burst_.empty()) return;
    if (sends_packets_) {
      sender_.send(burst_);
    } else {
      burst_.clear();
    }
  }

  // Returns true if packets were dropped since the last call, so that the table must be updated.
  bool take_dropped() { return std::exchange(dropped_, false); }
  void show_counters(const Diagnostics& diagnostics, const Channels& channels,
                     const WakeCounters& wakes) const;

 private:
  struct Sockets {
    os::Fd ipv4, ipv6;
    std::unique_ptr<os::UdpReceiver> receiver;
  };

  void unwatch(const Sockets& sockets);
  void sent(const link::Address& address, std::span<const std::byte> datagram,
            std::uint16_t identification) override;
  void on_packet(link::Direction direction, const link::Address& address,
                 std::span<const std::byte> transport) override;

  Watches& watches_;
  os::UdpSender sender_;
  link::Burst burst_{};
  std::vector<Sockets> sockets_{};
  bool coalesces_ = true;
  bool sends_packets_ = true;
  bool dropped_ = false;
  os::Mapping capture_memory_{};
  std::optional<link::CaptureRing> capture_{};
  SocketCounters counters_{};
};

template <class Take, class HasPosts, class Send>
DataPath::Received DataPath::receive(Time now, os::UdpReceiver::Poll poll_mode, Take take,
                                     HasPosts has_posts, Send send) {
  Received received;
  for (Sockets& sockets : sockets_) {
    const auto datagrams = sockets.receiver->receive(poll_mode);
    dropped_ |= sockets.receiver->dropped();
    received.full |= sockets.receiver->full();
    if (datagrams.empty()) continue;
    received.any_packets = true;
    const auto open = [&](const os::UdpReceiver::Datagram& datagram) {
      const auto& [address, payload, index] = datagram;
      if (capture_) {
        capture_->write(now, link::Direction::kIn, address,
                        link::identification_of(address, payload), payload);
      }
      if (const auto arrival = link::open(address, payload, index)) {
        take(*arrival);
      } else {
        counters_.count_dropped(arrival.error());
        dropped_ = true;
      }
    };
    take_batch(datagrams, open, has_posts, send);
  }
  return received;
}

}  // namespace verbena::client
