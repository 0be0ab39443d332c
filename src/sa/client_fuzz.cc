// Interprets bytes as events of a client: MADs from anywhere, answers with any content, calls of
// its users, changes of its port, and time that passes.  Checks that the client sends at most
// kPacketsMax MADs in each step, that each query for a path ends once, and that the deadline
// advances.
//
// fuzz: runs 2000

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "sa/client.h"
#include "sim/fuzz_input.h"

namespace {

using namespace verbena;
using namespace verbena::sa;

constexpr std::size_t kPacketsMax = 4096;  // limits what the client sends in one step

Gid gid_of(std::uint8_t number) {
  Gid gid{};
  gid.bytes[0] = std::byte{0xfe};
  gid.bytes[15] = static_cast<std::byte>(number);
  return gid;
}

class ClientRun {
 public:
  explicit ClientRun(sim::FuzzInput input)
      : input_(input),
        client_(Client::create(
            {},
            {.paths = {.mode = take() % 2 == 0 ? PathCache::Mode::kGet : PathCache::Mode::kTable,
                       .entries_max = 4,
                       .waiters_max = 16}},
            Random(take()), now_)) {
    port_ = {.active = true,
             .lid = {5},
             .sm_lid = {1},
             .gids = {gid_of(5)},
             .pkeys = {{0xffff}, {0x8001}}};
    client_->set_port(port_, now_);
    drain();
  }

  void run() {
    while (!input_.empty()) step();
    // Without a manager, all queries end by timeout.
    std::size_t steps = 0;
    while (!pending_.empty()) {
      VB_CHECK(client_->deadline() != kNever && ++steps < 100'000);
      now_ = std::max(now_, client_->deadline());
      client_->on_timer(now_);
      drain();
    }
  }

 private:
  std::uint8_t take() { return input_.take<std::uint8_t>(); }

  void step() {
    switch (take() % 10) {
      case 0:
      case 1:
      case 2: answer(); break;
      case 3: arrive(take_mad()); break;
      case 4: find(); break;
      case 5: join_or_leave(); break;
      case 6: change_port(); break;
      case 7: service_or_subscription(); break;
      case 8: client_->reregister(now_); break;
      default: now_ += std::chrono::milliseconds(take() * 16); client_->on_timer(now_);
    }
    drain();
    VB_CHECK(client_->deadline() > now_ || run_due_timers());
  }
  bool run_due_timers() {
    client_->on_timer(now_);
    drain();
    return client_->deadline() > now_;
  }

  mad::Mad take_mad() {
    mad::Mad mad{};
    const std::size_t bytes = std::min<std::size_t>(mad.size(), take());
    for (std::size_t i = 0; i < bytes; ++i) mad[i] = static_cast<std::byte>(take());
    return mad;
  }
  // Answers one of the last requests, with a few bytes changed.
  void answer() {
    if (sent_.empty()) return;
    mad::SendMad request = sent_[take() % sent_.size()];
    // Byte 3 is the method.  GetResp (0x81) may also answer a Set (2).
    request.mad[3] |= std::byte{0x80};
    if (take() % 2 == 0 && (request.mad[3] & std::byte{0x7f}) == std::byte{2}) {
      request.mad[3] = std::byte{0x81};
    }
    for (std::uint8_t changes = take() % 8; changes != 0; --changes) {
      request.mad[take()] = static_cast<std::byte>(take());
    }
    arrive(request.mad);
  }
  void arrive(const mad::Mad& mad) {
    mad::Address from;
    from.path.link_layer = LinkLayer::kInfiniband;
    from.path.destination_lid = Lid{static_cast<std::uint16_t>(1 + take() % 2)};
    client_->receive({.destination_qpn = wire::kGsiQpn, .from = from, .mad = mad}, now_);
  }
  void find() {
    PathQuery query{.destination = gid_of(take() % 8), .source = gid_of(5)};
    if (take() % 4 == 0) query.numb_path = take();
    const std::uint64_t cookie = ++last_cookie_;
    const auto found = client_->paths().find(query, cookie, std::chrono::seconds(10), now_);
    if (!found || std::holds_alternative<KnownPaths>(*found)) return;
    pending_.insert(cookie);
    if (take() % 4 == 0) {
      VB_CHECK(client_->paths().cancel(std::get<PathTicket>(*found), now_));
      pending_.erase(cookie);
    }
  }
  void join_or_leave() {
    if (take() % 2 == 0 && !members_.empty()) {
      const std::size_t i = take() % members_.size();
      client_->memberships().leave(members_[i], now_);
      members_.erase(members_.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
    Gid mgid = gid_of(take() % 4);
    mgid.bytes[0] = std::byte{0xff};
    const auto member = client_->memberships().join(
        {.mgid = take() % 4 == 0 ? Gid{} : mgid, .join_state = take()}, ++last_cookie_, now_);
    if (member) members_.push_back(*member);
  }
  void service_or_subscription() {
    const std::uint8_t choice = take();
    if (choice % 4 == 0) (void)client_->services().add({.lease_seconds = take()}, 0, now_);
    if (choice % 4 == 1) (void)client_->services().find({}, 0, std::chrono::seconds(5), now_);
    if (choice % 4 == 2) {
      (void)client_->subscriptions().subscribe(wire::TrapNumber{take()}, 0, now_);
    }
    if (choice % 4 == 3) client_->services().remove(ServiceTicket{take()}, now_);
  }
  void change_port() {
    const std::uint8_t choice = take();
    if (choice % 5 == 0) port_.active = !port_.active;
    if (choice % 5 == 1) port_.lid.value = take();
    if (choice % 5 == 2) port_.sm_lid.value = take() % 3;
    if (choice % 5 == 3) port_.pkeys.resize(take() % 3);
    if (choice % 5 == 4) port_.gids = {gid_of(5), gid_of(take())};
    client_->set_port(port_, now_);
  }

  void drain() {
    std::size_t packets = 0;
    while (const auto packet = client_->next_packet()) {
      VB_CHECK(++packets <= kPacketsMax);
      sent_.push_back(*packet);
      if (sent_.size() > 8) sent_.erase(sent_.begin());
    }
    while (const auto event = client_->next_event()) {
      if (const auto* path = std::get_if<PathEvent>(&*event)) {
        VB_CHECK(pending_.erase(path->cookie) == 1);
      }
    }
  }

  sim::FuzzInput input_;
  Time now_{std::chrono::seconds(1)};
  std::unique_ptr<Client> client_;
  PortState port_{};
  std::vector<mad::SendMad> sent_{};
  std::vector<MemberId> members_{};
  std::set<std::uint64_t> pending_{};
  std::uint64_t last_cookie_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ClientRun(sim::FuzzInput(std::span(data, size))).run();
  return 0;
}
