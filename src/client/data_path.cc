#include "client/data_path.h"

#include <algorithm>
#include <array>
#include <utility>

#include "os/clock.h"
#include "os/udp_options.h"

namespace verbena::client {

DataPath::DataPath(Watches& watches) : watches_(watches), sender_({.observer = this}) {}

Result<void> DataPath::add(std::vector<os::Fd> fds) {
  if (fds.empty()) return fail(Errc::kMalformed, "a range without sockets");
  Sockets sockets;
  for (os::Fd& fd : fds) {
    (os::is_ipv6_socket(fd.get()) ? sockets.ipv6 : sockets.ipv4) = std::move(fd);
  }
  const int ipv4 = sockets.ipv4.get(), ipv6 = sockets.ipv6.get();
  auto receiver = os::UdpReceiver::create(ipv4, ipv6, {.coalesce_packets = coalesces_});
  // Kernels before Linux 5.0 do not have UDP_GRO.
  if (!receiver && coalesces_) receiver = os::UdpReceiver::create(ipv4, ipv6);
  sockets.receiver = VB_TRY(std::move(receiver));
  sockets_.reserve(sockets_.size() + 1);
  for (const int fd : {ipv4, ipv6}) {
    if (fd < 0) continue;
    if (auto watched = watches_.add_socket(fd); !watched) {
      unwatch(sockets);
      return watched;
    }
  }
  sockets_.push_back(std::move(sockets));
  return {};
}

void DataPath::close() {
  for (const Sockets& sockets : sockets_) {
    counters_.add_closing(*sockets.receiver);
    unwatch(sockets);
  }
  sockets_.clear();
  sends_packets_ = true;
  capture_.reset();  // the dead agent was the only reader of the ring
}

void DataPath::abandon() {
  sender_.close();
  for (Sockets& sockets : sockets_) {
    sockets.ipv4.reset();
    sockets.ipv6.reset();
  }
  capture_memory_.abandon();
}

void DataPath::unwatch(const Sockets& sockets) {
  for (const int fd : {sockets.ipv4.get(), sockets.ipv6.get()}) {
    if (fd >= 0) watches_.remove_socket(fd);
  }
}

void DataPath::stop_coalescing() {
  coalesces_ = false;
  for (const Sockets& sockets : sockets_) sockets.receiver->stop_coalescing();
}

void DataPath::start_capture(int fd) {
  constexpr std::size_t kBytes = link::CaptureRing::kBytes;
  if (auto memory = os::map_shared(fd, kBytes, kBytes, true)) {
    capture_memory_ = *std::move(memory);
    capture_.emplace(capture_memory_.bytes());
  }
}

void DataPath::show_counters(const Diagnostics& diagnostics, const Channels& channels,
                             const WakeCounters& wakes) const {
  std::vector<const os::UdpReceiver*> receivers;
  for (const Sockets& sockets : sockets_) receivers.push_back(sockets.receiver.get());
  counters_.show(receivers, sender_, diagnostics, channels, wakes,
                 capture_ ? capture_->dropped() : 0);
}

void DataPath::sent(const link::Address& address, std::span<const std::byte> datagram,
                    std::uint16_t identification) {
  if (capture_)
    capture_->write(os::now(), link::Direction::kOut, address, identification, datagram);
}

// Copies a packet of a lane into the capture.  Packets of lanes have no ICRC, so this function
// computes one.
void DataPath::on_packet(link::Direction direction, const link::Address& address,
                         std::span<const std::byte> transport) {
  if (!capture_) return;
  std::array<std::byte, link::Lane::kPacketBytesMax + link::Burst::kIcrcBytes> datagram;
  const auto sealed = std::span(datagram).first(transport.size() + link::Burst::kIcrcBytes);
  std::ranges::copy(transport, sealed.begin());
  link::seal(address, sealed, 0);
  capture_->write(os::now(), direction, address, 0, sealed);
}

}  // namespace verbena::client
