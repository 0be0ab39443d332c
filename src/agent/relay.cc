#include "agent/relay.h"

#include <string>
#include <utility>

#include "ipc/counters.h"
#include "os/clock.h"
#include "wire/bth.h"

namespace verbena::agent {

Result<std::unique_ptr<Relay>> Relay::create(asio::io_context& loop) {
  std::unique_ptr<Relay> relay(new Relay(loop));
  relay->uplinks_ = VB_TRY(Uplinks::create(loop, *relay, [raw = relay.get()] { raw->poll(); }));
  return relay;
}

Result<std::vector<int>> Relay::attach(node::ClientId client, os::RocePort::Lease sockets) {
  const int ipv4 = sockets.ipv4.get(), ipv6 = sockets.ipv6.get();
  auto receiver = VB_TRY(os::UdpReceiver::create(ipv4, ipv6));
  auto fds = VB_TRY(uplinks_->attach(program_of(client), sockets.range, std::nullopt));
  const std::uint16_t number = sockets.range;
  Range& range = ranges_.insert_or_assign(number, Range{std::move(sockets), std::move(receiver)})
                     .first->second;
  std::size_t watch = 0;
  for (const int fd : {ipv4, ipv6}) {
    if (fd >= 0) range.watches[watch++] = Watch(loop_, fd, [this, &range] { receive(range); });
  }
  poll_later_.schedule();  // poll() parks the new lane, so that the program wakes this process
  return fds;
}

void Relay::detach(node::ClientId client) {
  uplinks_->detach(program_of(client));
  send();  // sends the last packets from the program's uplink
}

void Relay::release(std::uint16_t range) {
  ranges_.erase(range);
  uplinks_->release(range);
}

// ---- packets ------------------------------------------------------------------------------------

// Sends some of the packets of programs.  If there were packets, schedules the next call.
// Otherwise poll() runs again when a program wakes this process.
void Relay::poll() {
  uplinks_->unpark();
  const bool has_read = uplinks_->read(os::now());
  send();
  if (has_read || !uplinks_->park()) poll_later_.schedule();
}

bool Relay::pass(const ProgramId& /*from*/, const link::Arrival& arrival, Time /*now*/,
                 bool /*may_wait*/) {
  if (!wire::decode<wire::Bth>(arrival.headers) ||
      arrival.transport.size() > link::Burst::kPacketBytesMax || arrival.address.is_infiniband()) {
    ++counters_.malformed;
    return true;
  }
  if (burst_.full()) send();
  copy_packet(arrival, burst_.prepare());
  burst_.commit(arrival.address, arrival.transport.size());
  ++counters_.to_udp;
  return true;
}

void Relay::send() {
  if (burst_.empty()) return;
  sender_.send(burst_);
  burst_.clear();
}

void Relay::receive(Range& range) {
  const Time now = os::now();
  const auto program = uplinks_->program_of(0, range.sockets.range);
  for (const os::UdpReceiver::Datagram& datagram : range.receiver->receive()) {
    const auto arrival = link::open(datagram.address, datagram.payload);
    if (!arrival) {
      ++counters_.damaged;
    } else if (!program) {
      ++counters_.no_program;
    } else {
      (void)uplinks_->deliver(*uplinks_->find(*program), arrival->address, *arrival, now, false);
    }
  }
  uplinks_->flush();
}

void Relay::add_counters(std::vector<ipc::NamedCount>& out) const {
  const auto add = [&](const char* name, std::uint64_t value) { out.push_back({name, value}); };
  uplinks_->add_counters(out);
  add("relayed_to_udp", counters_.to_udp);
  add("dropped_relay_malformed", counters_.malformed);
  add("dropped_relay_damaged", counters_.damaged);
  add("dropped_relay_no_program", counters_.no_program);
  for (const auto& [name, value] : os::named(sender_.counters())) {
    out.push_back({std::string("relay_") + name, value});
  }
}

}  // namespace verbena::agent
