#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/random.h"
#include "mad/dispatcher.h"
#include "rdmacm/manager.h"
#include "sim/world.h"
#include "wire/cm.h"
#include "wire/ip.h"

// Provides two hosts for tests, A and P, with one program each.  Unless auto_continue is false, the
// programs answer each event with the next step of a connection.  Hosts::text() lists all messages
// and events.
namespace verbena::rdmacm {

inline constexpr Owner kProgram = 7;
inline constexpr Owner kOther = 8;
inline constexpr std::uint16_t kPort = 7174;

inline Gid ipv6(std::uint8_t last_byte, std::uint16_t prefix = 0xfd77) {
  Gid gid;
  gid.bytes[0] = static_cast<std::byte>(prefix >> 8);
  gid.bytes[1] = static_cast<std::byte>(prefix);
  gid.bytes[15] = static_cast<std::byte>(last_byte);
  return gid;
}
inline SocketAddress address(const Gid& ip, std::uint16_t port = 0, std::uint32_t scope = 0) {
  return {.ip = ip,
          .port = port,
          .scope = scope,
          .family = static_cast<std::uint8_t>(wire::is_ipv4(ip) ? 4 : 6)};
}
inline SocketAddress any4(std::uint16_t port = 0) { return address(wire::ipv4_gid(0), port); }
inline SocketAddress any6(std::uint16_t port = 0) { return address(Gid{}, port); }
inline constexpr std::uint32_t kLocalhost = 0x7f000001;

inline std::string text_of(const ConnParam& param) {
  std::string text;
  for (std::size_t i = 0; i < param.private_data_bytes; ++i) {
    if (param.private_data[i] == std::byte{0}) break;
    text += static_cast<char>(param.private_data[i]);
  }
  return text;
}
inline constexpr std::uint32_t kVendorOptions = 0x89abcdef;
inline ConnParam param(std::uint32_t qpn, const std::string& data = "", std::uint32_t vendor = 0) {
  ConnParam result{.responder_resources = 4,
                   .initiator_depth = 3,
                   .retry_count = 7,
                   .rnr_retry_count = 6,
                   .qpn = qpn,
                   .ece_vendor_id = vendor,
                   .ece_options = vendor == 0 ? 0 : kVendorOptions};
  std::memcpy(result.private_data.data(), data.data(), data.size());
  result.private_data_bytes = static_cast<std::uint8_t>(data.size());
  return result;
}

class Hosts;

class Host {
 public:
  // Creates a host with the addresses 10.77.0.N, fd77::N and fe80::N on interface 2, and 127.0.0.1
  // on interface 1.  Interface 3 is down, and has the address 10.99.0.1.
  Host(Hosts& hosts, std::string name, std::uint8_t number);

  Gid ip4() const { return wire::ipv4_gid(0x0a4d0000u + number_); }
  Gid ip6() const { return ipv6(number_); }
  Gid link_local() const { return ipv6(number_, 0xfe80); }

  IdHandle create_id(Owner owner = kProgram, std::uint16_t space = kPortSpaceTcp) {
    const bool datagrams = space == kPortSpaceUdp || space == kPortSpaceIpoib;
    return *cm.create_id(owner, space, datagrams ? kQpTypeUd : kQpTypeRc, now());
  }
  IdHandle create_listener(const SocketAddress& at, std::uint32_t backlog = 0,
                           Owner owner = kProgram, std::uint16_t space = kPortSpaceTcp);
  // Calls resolve_addr().  If auto_continue is set, the next steps follow the events.
  IdHandle connect(const SocketAddress& to, const std::string& data = "",
                   std::uint16_t space = kPortSpaceTcp);
  void call(const std::function<void(Manager&)>& f) {
    f(cm);
    drain();
  }
  void receive(const mad::Address& from, const mad::Mad& mad);
  Time now() const;

  std::function<Result<Route>(const RouteQuery&)> route;
  bool answer_routes = true;
  bool auto_continue = true;  // calls connect(), accept() and establish() after events
  std::string connect_data{};
  std::uint32_t qpn = 0x11;            // for connect()
  std::uint32_t accepting_qpn = 0x22;  // for accept()
  std::uint32_t vendor = 0;            // for ECE in REQ and REP
  // Changes the parameters of connect() and accept().
  std::function<void(ConnParam&)> adjust = [](ConnParam&) {};
  std::vector<Event> events;
  // Returns the latest event of this kind, or null if there was none.
  const Event* last(EventKind kind) const {
    for (auto at = events.rbegin(); at != events.rend(); ++at) {
      if (at->kind == kind) return &*at;
    }
    return nullptr;
  }
  std::size_t count(EventKind kind) const {
    return static_cast<std::size_t>(
        std::ranges::count_if(events, [&](const Event& e) { return e.kind == kind; }));
  }

  Manager cm;
  mad::Dispatcher dispatcher;
  std::vector<RouteQuery> queries;

 private:
  void drain();
  void on(const Event& event);

  Hosts& hosts_;
  std::string name_;
  std::uint8_t number_;
  Time timer_at_ = kNever;
};

class Hosts {
 public:
  Hosts() : a(*this, "A", 3), p(*this, "P", 2) {}

  void transmit(const std::string& from, const mad::SendMad& send);
  void note(const std::string& line) { text_ += "\n" + line; }
  void run(Duration duration) { world.run_until(world.now() + duration); }
  const std::string& text() const { return text_; }
  void clear() { text_.clear(); }

  sim::World world;
  bool lose_all = false;
  Host a;
  Host p;

 private:
  std::string text_;
};

// ---- Host

inline Host::Host(Hosts& hosts, std::string name, std::uint8_t number)
    : cm({.cm = {.ca_guid = {0x5054'0000'0000'0000u + number}}}, Random(number)),
      hosts_(hosts),
      name_(std::move(name)),
      number_(number) {
  route = [this](const RouteQuery& query) -> Result<Route> {
    const bool is_ipv6 = query.destination.family == 6;
    if (query.destination.ip == wire::ipv4_gid(kLocalhost)) {
      return Route{.source = wire::ipv4_gid(kLocalhost),
                   .address = {.source = wire::ipv4_gid(kLocalhost), .interface = 1},
                   .mtu = 5,
                   .is_loopback = true};
    }
    const bool has_source = query.source.family != 0;
    const Gid source = has_source ? query.source.ip : is_ipv6 ? ip6() : ip4();
    return Route{.source = source,
                 .address = {.source = source, .interface = 2},
                 .sgid_index = has_source ? 0u : 1u,
                 .mtu = 3};
  };
  std::vector<Interface> interfaces{
      {.address = link_local(), .index = 2, .mtu = 3, .up = true},
      {.address = ip4(), .index = 2, .mtu = 3, .sgid_index = 1, .up = true},
      {.address = ip6(), .index = 2, .mtu = 3, .sgid_index = 2, .up = true},
      {.address = wire::ipv4_gid(0x0a630001), .index = 3, .mtu = 3, .sgid_index = 3, .up = false},
      {.address = wire::ipv4_gid(kLocalhost),
       .index = 1,
       .mtu = 5,
       .is_loopback = true,
       .sgid_index = 4,
       .up = true}};
  for (Interface& interface : interfaces) interface.gid = interface.address;
  cm.on_interfaces(std::move(interfaces), Time{});
}

inline Time Host::now() const { return hosts_.world.now(); }

inline IdHandle Host::create_listener(const SocketAddress& at, std::uint32_t backlog, Owner owner,
                                      std::uint16_t space) {
  const IdHandle id = create_id(owner, space);
  if (!cm.bind(owner, id, at, now()) || !cm.listen(owner, id, backlog)) return {};
  return id;
}

inline IdHandle Host::connect(const SocketAddress& to, const std::string& data,
                              std::uint16_t space) {
  const IdHandle id = create_id(kProgram, space);
  connect_data = data;
  call([&](Manager& m) {
    (void)m.resolve_addr(kProgram, id, nullptr, to, std::chrono::seconds(2), now());
  });
  return id;
}

inline void Host::receive(const mad::Address& from, const mad::Mad& mad) {
  const auto received = dispatcher.receive(from, mad);
  if (const auto* delivered = std::get_if<mad::Delivered>(&received)) {
    call([&](Manager& m) { m.receive(*delivered, now()); });
  }
}

inline void Host::drain() {
  while (auto output = cm.poll()) {
    if (const auto* send = std::get_if<mad::SendMad>(&*output)) {
      hosts_.transmit(name_, *send);
    } else if (const auto* query = std::get_if<RouteQuery>(&*output)) {
      queries.push_back(*query);
      if (answer_routes) cm.on_route(query->token, route(*query), now());
    } else {
      on(std::get<Event>(*output));
    }
  }
  const Time due = cm.deadline();
  if (due == timer_at_ || due == kNever) return;
  timer_at_ = due;
  hosts_.world.at(due, [this, due] {
    if (timer_at_ == due) timer_at_ = kNever;
    call([&](Manager& m) { m.on_timer(now()); });
  });
}

inline void Host::on(const Event& event) {
  events.push_back(event);
  std::string line = name_ + " " + to_string(event.kind);
  if (event.status != 0) line += " " + std::to_string(event.status);
  if (const auto text = text_of(event.param); !text.empty()) line += " '" + text + "'";
  hosts_.note(line);
  if (!auto_continue) return;
  const Owner owner = event.owner;
  switch (event.kind) {
    case EventKind::kAddrResolved:
      return call([&](Manager& m) {
        ConnParam sent = param(qpn, connect_data, vendor);
        adjust(sent);
        (void)m.connect(owner, event.id, sent, now());
      });
    case EventKind::kConnectRequest:
      return call([&](Manager& m) {
        ConnParam sent = param(accepting_qpn, "hello", vendor);
        adjust(sent);
        (void)m.accept(owner, event.id, sent, now());
      });
    case EventKind::kConnectResponse:
      return call([&](Manager& m) { (void)m.establish(owner, event.id, now()); });
    default: return;
  }
}

// ---- Hosts

inline void Hosts::transmit(const std::string& from, const mad::SendMad& send) {
  const link::Address& path = send.to.path;
  const bool is_loopback = path.is_infiniband() ? path.source_lid == path.destination_lid
                                                : path.source == path.destination;
  Host& source = from == "A" ? a : p;
  Host& to = is_loopback ? source : from == "A" ? p : a;
  const auto header =
      wire::decode_exact<wire::MadHeader>(std::span(send.mad).first<wire::kMadHeaderBytes>());
  const std::string name =
      wire::cm::to_string(static_cast<wire::cm::AttributeId>(header.attribute_id));
  note(from == "A" ? "A --- " + name + " -->" : "  <-- " + name + " --- P");
  if (lose_all) return;
  mad::Address back = send.to;
  back.path = path.reversed();
  if (!path.carries_gids()) back.path.source = back.path.destination = {};
  world.after(std::chrono::milliseconds(1), [&to, back, mad = send.mad] { to.receive(back, mad); });
}

}  // namespace verbena::rdmacm
