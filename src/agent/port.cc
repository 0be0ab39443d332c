#include "agent/port.h"

#include <algorithm>
#include <string>
#include <utility>

#include "ipc/counters.h"
#include "os/clock.h"
#include "wire/bth.h"
#include "wire/icrc.h"
#include "wire/ip.h"

namespace verbena::agent {
namespace {

constexpr Qpn kQp1{1};

}  // namespace

void Port::Observer::sent(const link::Address& address, std::span<const std::byte> datagram,
                          std::uint16_t identification) {
  if (captures_.empty()) return;
  captures_.add(link::Direction::kOut, address, identification, datagram, os::now());
}

Result<std::unique_ptr<Port>> Port::open(asio::io_context& loop, const Options& options,
                                         Captures& captures, Watch::Callback readable,
                                         std::string& problem) {
  auto port = VB_TRY(os::RocePort::open(options, problem));
  auto receiver = VB_TRY(os::UdpReceiver::create(port->ipv4(), port->ipv6()));
  return std::unique_ptr<Port>(new Port(loop, std::move(port), options.port, std::move(receiver),
                                        captures, std::move(readable)));
}

Port::Port(asio::io_context& loop, std::unique_ptr<os::RocePort> port, std::uint16_t number,
           std::unique_ptr<os::UdpReceiver> receiver, Captures& captures, Watch::Callback readable)
    : captures_(captures),
      observer_(captures),
      port_(std::move(port)),
      number_(number),
      receiver_(std::move(receiver)),
      sender_({.observer = &observer_}),
      readable_(std::move(readable)) {
  const std::array fds{port_->ipv4(), port_->ipv6()};
  for (std::size_t i = 0; i < fds.size(); ++i) {
    if (fds[i] >= 0) watches_[i] = Watch(loop, fds[i], [this] { readable_(); });
  }
  if (number != wire::kRoceUdpPort) {
    sender_.set_destination(number, [this](const Gid& address) { return is_own(address); });
  }
  arrivals_.reserve(os::UdpReceiver::kMessagesMax);
}

Port::~Port() {
  for (Watch& watch : watches_) watch = Watch();  // the watches end before the sockets close
}

std::span<const link::Arrival> Port::receive(Time now) {
  arrivals_.clear();
  for (const auto& datagram : receiver_->receive()) handle_datagram(datagram, now);
  return arrivals_;
}

void Port::handle_datagram(const os::UdpReceiver::Datagram& datagram, Time now) {
  const auto arrival = link::open(datagram.address, datagram.payload);
  if (!arrival) {
    const auto reason = static_cast<std::size_t>(wire::drop_reason(arrival.error()));
    if (reason < dropped_.size()) ++dropped_[reason];
    return;
  }
  const auto bth = wire::decode<wire::Bth>(arrival->transport);
  if (!bth) {
    ++dropped_[static_cast<std::size_t>(wire::drop_reason(bth.error()))];
    return;
  }
  if (bth->destination_qpn != kQp1) {
    // A packet for a leased range belongs to a program and should have reached the program's
    // socket.
    const auto range = static_cast<std::uint16_t>(bth->destination_qpn.value >> 12);
    ++(ranges_.contains(range) ? data_packets_ : unknown_qp_);
    return;
  }
  ++qp1_packets_;
  if (!captures_.empty() && !is_own(datagram.address.source)) {
    const auto split = wire::split_icrc(datagram.payload);
    const auto identification =
        wire::find_identification({.source = datagram.address.source,
                                   .destination = datagram.address.destination,
                                   .source_port = datagram.address.source_port},
                                  split->bth_to_pad, split->icrc);
    captures_.add(link::Direction::kIn, datagram.address, identification.value_or(0),
                  datagram.payload, now);
  }
  arrivals_.push_back(*arrival);
}

std::span<const link::Arrival> Port::send(link::Burst& burst, Time now) {
  own_arrivals_.clear();
  for (const link::Burst::Packet& packet : burst.packets()) {
    if (!can_bypass_kernel(packet.address)) continue;
    own_arrivals_.push_back({packet.address, burst.transport(packet)});
    own_arrivals_.back().address.interface = 0;  // as for packets from a socket
    if (captures_.empty()) continue;
    link::seal(packet.address, burst.datagram(packet), 0);
    captures_.add(link::Direction::kOut, packet.address, 0, burst.datagram(packet), now);
  }
  own_packets_ += own_arrivals_.size();
  if (own_arrivals_.empty()) {
    sender_.send(burst);
  } else if (own_arrivals_.size() < burst.size()) {
    for (const link::Burst::Packet& packet : burst.packets()) {
      if (can_bypass_kernel(packet.address)) continue;
      std::ranges::copy(burst.transport(packet), kernel_burst_.prepare().begin());
      kernel_burst_.commit(packet.address, packet.bytes);
    }
    sender_.send(kernel_burst_);
    kernel_burst_.clear();
  }
  return own_arrivals_;
}

// Returns true for a packet from this host to itself that need not go through the kernel.  Returns
// false for a link-local address, because it may belong to another host on the packet's link.
bool Port::can_bypass_kernel(const link::Address& address) const {
  return loopback_up_ && !wire::is_link_local(address.destination) && is_own(address.source) &&
         is_own(address.destination);
}

bool Port::is_own(const Gid& address) const {
  return std::ranges::find(own_addresses_, address) != own_addresses_.end();
}

Result<std::uint16_t> Port::lease(Random& random, std::span<const std::uint16_t> avoid) {
  os::RocePort::Lease lease = VB_TRY(port_->lease(random, avoid));
  const std::uint16_t range = lease.range;
  ranges_.insert(range);
  leases_to_pass_on_.insert_or_assign(range, std::move(lease));
  return range;
}

std::vector<int> Port::sockets_of(std::uint16_t range) const {
  std::vector<int> fds;
  if (const auto found = leases_to_pass_on_.find(range); found != leases_to_pass_on_.end()) {
    for (const os::Fd* fd : {&found->second.ipv4, &found->second.ipv6}) {
      if (*fd) fds.push_back(fd->get());
    }
  }
  return fds;
}

os::RocePort::Lease Port::take_sockets(std::uint16_t range) {
  auto found = leases_to_pass_on_.extract(range);
  return found ? std::move(found.mapped())
               : os::RocePort::Lease{.range = range, .ipv4 = {}, .ipv6 = {}};
}

void Port::release(std::uint16_t range) {
  leases_to_pass_on_.erase(range);
  ranges_.erase(range);
  // This fails only if the range is not leased; then there is nothing to release.
  (void)port_->release(range);
}

void Port::add_counters(std::vector<ipc::NamedCount>& out) const {
  out.push_back({"data_packets", data_packets_});
  out.push_back({"own_packets", own_packets_});
  out.push_back({"dropped_unknown_qp", unknown_qp_});
  out.push_back({"qp1_packets", qp1_packets_});
  out.push_back({"drained_packets", port_->drained()});
  for (std::size_t i = 1; i < dropped_.size(); ++i) {
    // Always list the reasons that packets from a socket can have; list the other reasons only if
    // they occurred.
    const auto reason = static_cast<wire::Drop>(i);
    const bool is_usual = reason == wire::Drop::kTooShort || reason == wire::Drop::kIcrc;
    if (!is_usual && dropped_[i] == 0) continue;
    out.push_back(
        {ipc::counter_name(std::string("dropped ") + wire::to_string(reason)), dropped_[i]});
  }
  for (const auto& [name, value] : os::named(receiver_->counters())) out.push_back({name, value});
  for (const auto& [name, value] : os::named(sender_.counters())) out.push_back({name, value});
}

}  // namespace verbena::agent
