#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
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
#include "os/shared_memory.h"
#include "os/udp_link.h"

namespace verbena::client {

// A program's sockets: packets come in and go out through it, are counted, and are copied into the
// capture if there is one.  Guarded by the drive lock.
class DataPath final : private os::PacketObserver {
 public:
  // The progress thread sleeps on `watches`, which outlive this.
  explicit DataPath(Watches& watches);
  ~DataPath() override = default;

  // Where the counters are shown; outlives this.
  void set_table(ipc::QpTable table) { counters_.set_table(table); }

  // The sockets of a range of QP numbers: IPv4, then IPv6 if the host has it (ipc::Leased).
  // kMalformed, kSystem.
  Result<void> add(std::vector<os::Fd> fds);
  // The next agent cannot open the port while a program has sockets of the last one.
  void close();
  // In a forked child: closes the descriptors and leaves the parent's memory alone.
  void abandon();

  // A flow from another host may carry packets for several programs of this one, and joined ones go
  // to one of them alone.  Programs here never put two destination QPs into a batch.  So joining
  // ends with the first peer on another host.
  void stop_joining();
  bool joins() const { return joins_; }

  // Packets go into the capture whose memory `fd` is.  Without that memory there is no capture.
  void start_capture(int fd);
  bool capturing() const { return capture_.has_value(); }

  // Takes what has come and calls take(arrival) for each packet; has_posts() and send() as in
  // take_batch().  `full`: there may be more.
  struct Received {
    bool some = false;
    bool full = false;
  };
  template <class Take, class HasPosts, class Send>
  Received receive(Time now, os::UdpReceiver::Look look, Take take, HasPosts has_posts, Send send);

  // Sends the packets in burst().
  link::Burst& burst() { return burst_; }
  void send() {
    if (!burst_.empty()) sender_.send(burst_);
  }

  // Something was dropped since the last call, and the table is to be brought up to date for it.
  bool take_dropped() { return std::exchange(dropped_, false); }
  void show_counters(const Diagnostics& diagnostics, const Channels& channels) const;

 private:
  struct Sockets {
    os::Fd ipv4, ipv6;
    std::unique_ptr<os::UdpReceiver> receiver;
  };

  void unwatch(const Sockets& sockets);
  void sent(const link::Flow& flow, std::span<const std::byte> datagram,
            std::uint16_t identification) override;

  Watches& watches_;
  os::UdpSender sender_;
  link::Burst burst_{};
  std::vector<Sockets> sockets_{};
  bool joins_ = true;
  bool dropped_ = false;
  os::Mapping capture_memory_{};
  std::optional<link::CaptureRing> capture_{};
  SocketCounters counters_{};
};

template <class Take, class HasPosts, class Send>
DataPath::Received DataPath::receive(Time now, os::UdpReceiver::Look look, Take take,
                                     HasPosts has_posts, Send send) {
  Received received;
  for (Sockets& sockets : sockets_) {
    const auto datagrams = sockets.receiver->receive(look);
    received.some |= !datagrams.empty();
    const auto open = [&](const os::UdpReceiver::Datagram& datagram) {
      const auto& [flow, payload] = datagram;
      if (capture_) capture_->write(now, link::Direction::kIn, flow, 0, payload);
      if (const auto arrival = link::open(flow, payload)) {
        take(*arrival);
      } else {
        counters_.dropped(arrival.error());
        dropped_ = true;
      }
    };
    take_batch(datagrams, open, has_posts, send);
    dropped_ |= sockets.receiver->dropped();
    received.full |= sockets.receiver->full();
  }
  return received;
}

}  // namespace verbena::client
