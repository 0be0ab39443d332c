#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/random.h"
#include "base/time.h"
#include "cm/manager.h"
#include "mad/dispatcher.h"
#include "sim/faults.h"
#include "sim/world.h"
#include "wire/cm.h"
#include "wire/ip.h"

// Provides two hosts or more for tests: the active A and the passive P, and others.  Their network
// loses the messages that the test names, and records everything that happens as a diagram.
namespace verbena::cm {

inline constexpr ServiceId kService{0x0000000001061c06};
inline constexpr ServiceId kPeerToPeerService{0x1000000000cafe};
inline constexpr std::uint64_t kListenerCookie = 1000;

inline std::string message_name(const mad::Mad& mad) {
  const auto header =
      wire::decode_exact<wire::MadHeader>(std::span(mad).first<wire::kMadHeaderBytes>());
  return wire::cm::to_string(static_cast<wire::cm::AttributeId>(header.attribute_id));
}

class Net;

// Simulates a host and its consumer.  The test chooses how the consumer reacts to each event
// (on_req, on_rep, on_lap).
class Host {
 public:
  enum class Reaction { kProceed, kReject, kDestroy, kNoAnswer, kDrop };

  Host(Net& net, std::string name, std::uint8_t number, std::uint64_t seed);

  const Gid& gid() const { return gid_; }
  const std::string& name() const { return name_; }
  // Returns a second address of the same host.
  const Gid& gid2() const { return gid2_; }
  // Replaces the manager by a new one without any state.
  void restart() {
    std::destroy_at(&cm);
    std::construct_at(&cm, Config{.ca_guid = guid_}, Random(++restarts_ * 1000 + guid_.value));
  }
  EndpointHandle connect(Qpn qpn, Gid to, std::uint64_t cookie = 1) {
    return connect(request(qpn, to), cookie);
  }
  // Connects peer to peer: the peer connects to us as well.  Both use the same service, which has
  // no listener.
  EndpointHandle connect_peer_to_peer(Qpn qpn, Gid to, std::uint64_t cookie = 1) {
    ConnectRequest peer_request = request(qpn, to);
    peer_request.service_id = kPeerToPeerService;
    peer_request.peer_to_peer = true;
    return connect(peer_request, cookie);
  }
  EndpointHandle connect(const ConnectRequest& request, std::uint64_t cookie);
  ConnectRequest request(Qpn qpn, Gid to) const;
  AlternatePath alternate_to(Gid to) const {
    return {.address = {.path = {.source = gid2_, .destination = to}}, .local_ack_timeout = 9};
  }
  // Calls the manager, then sends its messages, handles its events and sets the timer.
  void call(const std::function<void(Manager&)>& f) {
    f(cm);
    drain();
  }
  void accept(EndpointHandle endpoint);
  void reject(EndpointHandle endpoint, const RejectParameters& parameters = {});
  void receive(const mad::Address& from, const mad::Mad& mad);

  Reaction on_req = Reaction::kProceed;
  Reaction on_rep = Reaction::kProceed;
  Reaction on_lap = Reaction::kProceed;
  Qpn next_qpn{0x900};
  std::uint8_t packet_life = 8;  // timeout code; packets must not be in flight for longer
  std::vector<std::byte> reject_data{};
  wire::cm::RejReason reject_reason = wire::cm::RejReason::kConsumer;

  struct Outcome {
    int requests = 0;
    int responses = 0;
    int established = 0;  // on the passive side
    int failed = 0;       // Rejected or Unreachable
    int disconnected = 0;
    int laps = 0;
    int aprs = 0;
    int laps_unanswered = 0;
    int timewait_exits = 0;
    std::uint16_t reason = 0;
    bool rejected_here = false;  // the consumer rejected the connection itself, so it gets no event

    int ends() const { return failed + disconnected; }
  };
  // Returns true if the end of the endpoint was reported as often as it should: once if the
  // endpoint has ended, not at all if it is open, and at most once if it was destroyed.
  bool reported_once(EndpointHandle endpoint) const {
    const auto view = cm.view(endpoint);
    const bool over = view && (view->state == State::kClosed || view->state == State::kTimewait);
    const Outcome& outcome = outcomes.at(endpoint);
    return over && !outcome.rejected_here ? outcome.ends() == 1 : outcome.ends() <= (view ? 0 : 1);
  }
  std::map<EndpointHandle, Outcome> outcomes;
  std::vector<EndpointHandle> endpoints;  // in order of creation
  // Returns the endpoint that was created last.
  EndpointHandle last() const { return endpoints.back(); }

  Manager cm;
  mad::Dispatcher dispatcher;

 private:
  void drain();
  void on(const ReqReceived& e);
  void on(const RepReceived& e);
  void on(const Established& e);
  void on(const Rejected& e);
  void on(const Unreachable& e);
  void on(const Disconnected& e);
  void on(const LapReceived& e);
  void on(const AprReceived& e);
  void on(const LapUnanswered& e);
  void on(const TimewaitExit& e);
  void on(const auto&) {}  // sidr_test.cc tests the events of datagrams

  Net& net_;
  Guid guid_;
  std::uint64_t restarts_ = 0;
  std::string name_;
  Gid gid_;
  Gid gid2_;
  Time timer_at_ = kNever;
};

class Net {
 public:
  explicit Net(std::uint64_t seed = 0, std::optional<sim::Faults> faults = {},
               std::size_t hosts = 2);

  // Loses the next `count` messages of this name; -1: all.
  void lose(const std::string& message, int count = 1) { losses_left_[message] = count; }
  // If set, replaces the random delay of each message; a negative delay loses the message.
  std::function<Duration(const std::string& from, const std::string& message)> delay_of{};
  mad::Address last_to{};  // the destination of the last message

  void transmit(const std::string& from, const mad::SendMad& send);
  void note(const std::string& line);
  void run(Duration duration) { world.run_until(world.now() + duration); }
  const std::string& text() const { return text_; }
  void clear() { text_.clear(); }
  void set_faults(const sim::Faults& faults) { faults_ = faults, wire_.set_faults(faults); }

  Host& host(std::size_t number) const { return *hosts_[number]; }
  std::size_t hosts() const { return hosts_.size(); }

  sim::World world;

 private:
  std::vector<std::unique_ptr<Host>> hosts_;

 public:
  Host& a;
  Host& p;

 private:
  sim::Faults faults_;
  sim::FaultyWire wire_;
  std::map<std::string, int> losses_left_;
  std::string text_;
};

// ---- Host

inline Host::Host(Net& net, std::string name, std::uint8_t number, std::uint64_t seed)
    : cm({.ca_guid = {0x5054'0000'0000'0000u + number}}, Random(seed * 16 + number)),
      net_(net),
      guid_{0x5054'0000'0000'0000u + number},
      name_(std::move(name)),
      gid_(wire::ipv4_gid(0x0a4d0000u + number)),
      gid2_(wire::ipv4_gid(0x0a4e0000u + number)) {}

inline ConnectRequest Host::request(Qpn qpn, Gid to) const {
  return {.address = {.path = {.source = gid_, .destination = to}},
          .service_id = kService,
          .qpn = qpn,
          .starting_psn = {7},
          .path_mtu = 5,
          .packet_life = packet_life,
          .local_ack_timeout = static_cast<std::uint8_t>(packet_life + 1),
          .round_trip = std::chrono::milliseconds(2)};
}

inline EndpointHandle Host::connect(const ConnectRequest& request, std::uint64_t cookie) {
  EndpointHandle endpoint{};
  call([&](Manager& m) { endpoint = *m.connect(request, cookie, net_.world.now()); });
  endpoints.push_back(endpoint);
  return endpoint;
}

inline void Host::accept(EndpointHandle endpoint) {
  AcceptParameters parameters{.qpn = next_qpn, .starting_psn = {9}, .target_ack_delay = 8};
  next_qpn.value += 1;
  // The call fails if the peer has ended the connection before; the consumer cannot know that.
  call([&](Manager& m) { (void)m.accept(endpoint, parameters, net_.world.now()); });
}

inline void Host::receive(const mad::Address& from, const mad::Mad& mad) {
  const auto received = dispatcher.receive(from, mad);
  if (const auto* delivered = std::get_if<mad::Delivered>(&received)) {
    call([&](Manager& m) { m.receive(*delivered, net_.world.now()); });
  }
}

inline void Host::reject(EndpointHandle endpoint, const RejectParameters& parameters) {
  call([&](Manager& m) {
    if (m.reject(endpoint, parameters, net_.world.now())) outcomes[endpoint].rejected_here = true;
  });
}

inline void Host::drain() {
  while (auto output = cm.poll()) {
    if (const auto* send = std::get_if<mad::SendMad>(&*output)) {
      net_.transmit(name_, *send);
    } else {
      std::visit([this](const auto& e) { on(e); }, std::get<Event>(*output));
    }
  }
  const Time due = cm.deadline();
  if (due == timer_at_ || due == kNever) return;
  timer_at_ = due;
  net_.world.at(due, [this, due] {
    if (timer_at_ == due) timer_at_ = kNever;
    call([&](Manager& m) { m.on_timer(net_.world.now()); });
  });
}

inline void Host::on(const ReqReceived& e) {
  net_.note(name_ + " ReqReceived");
  ++outcomes[e.endpoint].requests;
  if (std::ranges::find(endpoints, e.endpoint) == endpoints.end()) endpoints.push_back(e.endpoint);
  const Time now = net_.world.now();
  switch (on_req) {
    case Reaction::kProceed: return accept(e.endpoint);
    case Reaction::kReject:
      return reject(e.endpoint, {.reason = reject_reason, .private_data = reject_data});
    case Reaction::kDestroy: return call([&](Manager& m) { (void)m.destroy(e.endpoint, now); });
    case Reaction::kDrop: return call([&](Manager& m) { (void)m.drop(e.endpoint); });
    case Reaction::kNoAnswer: return;
  }
}

inline void Host::on(const RepReceived& e) {
  net_.note(name_ + " RepReceived");
  ++outcomes[e.endpoint].responses;
  const Time now = net_.world.now();
  switch (on_rep) {
    case Reaction::kProceed:
      return call([&](Manager& m) { (void)m.establish(e.endpoint, {}, now); });
    case Reaction::kReject: return reject(e.endpoint);
    case Reaction::kDestroy: return call([&](Manager& m) { (void)m.destroy(e.endpoint, now); });
    case Reaction::kDrop:
    case Reaction::kNoAnswer: return;
  }
}

inline void Host::on(const Established& e) {
  constexpr const char* kCauses[] = {"RTU", "data", "DREQ", "LAP"};
  net_.note(name_ + " Established by " + kCauses[static_cast<int>(e.cause)]);
  ++outcomes[e.endpoint].established;
}

inline void Host::on(const Rejected& e) {
  const auto reason = static_cast<std::uint16_t>(e.rej.reason);
  net_.note(name_ + " Rejected " + std::to_string(reason));
  ++outcomes[e.endpoint].failed;
  outcomes[e.endpoint].reason = reason;
}

inline void Host::on(const Unreachable& e) {
  using std::chrono::seconds;
  net_.note(name_ + " Unreachable: " + (e.step == Unreachable::Step::kReq ? "REQ" : "REP") + " " +
            std::to_string(e.tries) + " times in " +
            std::to_string(std::chrono::duration_cast<seconds>(e.spent).count()) + " s");
  ++outcomes[e.endpoint].failed;
}

inline void Host::on(const Disconnected& e) {
  constexpr const char* kCauses[] = {"peer", "local", "silence", "reset"};
  net_.note(name_ + " Disconnected: " + kCauses[static_cast<int>(e.cause)]);
  ++outcomes[e.endpoint].disconnected;
}

inline void Host::on(const LapReceived& e) {
  net_.note(name_ + " LapReceived");
  ++outcomes[e.endpoint].laps;
  if (on_lap == Reaction::kNoAnswer) return;
  const auto status = on_lap == Reaction::kProceed ? wire::cm::AprStatus::kAccepted
                                                   : wire::cm::AprStatus::kRejected;
  call([&](Manager& m) { (void)m.answer_alternate_path(e.endpoint, {.status = status}); });
}

inline void Host::on(const AprReceived& e) {
  net_.note(name_ + " AprReceived " + std::to_string(static_cast<int>(e.apr.status)));
  ++outcomes[e.endpoint].aprs;
}

inline void Host::on(const LapUnanswered& e) {
  net_.note(name_ + " LapUnanswered: " + std::to_string(e.tries) + " times");
  ++outcomes[e.endpoint].laps_unanswered;
}

inline void Host::on(const TimewaitExit& e) {
  net_.note(name_ + " TimewaitExit");
  ++outcomes[e.endpoint].timewait_exits;
}

// ---- Net

// A has a larger CA GUID than P, and the other hosts have larger CA GUIDs than both.
inline std::vector<std::unique_ptr<Host>> make_hosts(Net& net, std::uint64_t seed,
                                                     std::size_t count) {
  std::vector<std::unique_ptr<Host>> hosts;
  hosts.push_back(std::make_unique<Host>(net, "A", 3, seed));
  hosts.push_back(std::make_unique<Host>(net, "P", 2, seed));
  while (hosts.size() < count) {
    const auto number = static_cast<std::uint8_t>(hosts.size() + 2);
    hosts.push_back(std::make_unique<Host>(net, "H" + std::to_string(number), number, seed));
  }
  return hosts;
}

inline Net::Net(std::uint64_t seed, std::optional<sim::Faults> faults, std::size_t hosts)
    : hosts_(make_hosts(*this, seed, hosts)),
      a(*hosts_[0]),
      p(*hosts_[1]),
      faults_(faults.value_or(sim::Faults{.delay_min = std::chrono::milliseconds(1),
                                          .delay_max = std::chrono::milliseconds(1)})),
      wire_(Random(seed), faults_) {
  p.call([](Manager& m) { (void)m.listen({.id = kService}, kListenerCookie); });
}

inline void Net::transmit(const std::string& from, const mad::SendMad& send) {
  const auto at = std::ranges::find_if(hosts_, [&](const auto& host) {
    return send.to.remote() == host->gid() || send.to.remote() == host->gid2();
  });
  const std::string name = message_name(send.mad);
  if (at == hosts_.end()) return note(from + " --- " + name + " --> nobody");
  Host& to = **at;
  last_to = send.to;
  sim::PacketOutcome fate = wire_.next();
  if (delay_of) {
    const Duration delay = delay_of(from, name);
    fate.arrivals.clear();
    if (delay >= Duration(0)) fate.arrivals.push_back(delay);
  }
  if (auto& count = losses_left_[name]; count != 0 || fate.corrupt) {
    fate.arrivals.clear();
    if (count > 0) --count;
  }
  std::string line = from == "P" && &to == &a ? "A <-- " + name + " --- P"
                                              : from + " --- " + name + " --> " + to.name();
  if (name == "REJ") {
    const auto rej =
        wire::decode<wire::cm::Rej>(std::span(send.mad).subspan(wire::kMadHeaderBytes));
    line += "  " + std::to_string(static_cast<std::uint16_t>(rej->reason));
  }
  note(line + (fate.arrivals.empty() ? "   (lost)" : ""));
  mad::Address back = send.to;
  back.path = back.path.reversed();
  for (const Duration delay : fate.arrivals) {
    world.after(delay, [&to, back, mad = send.mad] { to.receive(back, mad); });
  }
}

inline void Net::note(const std::string& line) {
  using std::chrono::milliseconds;
  const std::string ms = std::to_string(
      std::chrono::duration_cast<milliseconds>(world.now().time_since_epoch()).count());
  text_ += "\n" + std::string(6 - std::min<std::size_t>(6, ms.size()), ' ') + ms + " ms  " + line;
}

}  // namespace verbena::cm
