// Sends arbitrary frames to an interface with entries in all states.  The input is a sequence of
// blocks.  Three bytes precede each block: its length, options, and what happens before the frame
// arrives: a call of the program or of the owner, or the passing of time.  The block is the frame
// itself, or selects the contents of a valid message with addresses of the link.
//
// fuzz: runs 20000

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "ipoib/link_test.h"
#include "sim/fuzz_input.h"

namespace verbena::ipoib {
namespace {

using namespace std::chrono_literals;

constexpr Config kLimits{.entries_max = 6, .waiters_max = 8, .frames_max = 16};

class FuzzedInterface {
 public:
  FuzzedInterface() {
    neighbours_.set_joined(true, now_);
    for (std::uint32_t i = 2; i <= 4; ++i) resolve(i);
    const Interface neighbour = interface_of(2);
    receive(neighbour.link_address, wire::write_ipoib_frame(arp_answer(neighbour, interface_of(1))),
            2);
  }

  // Makes a call that a program or the owner may make, or lets time pass.
  void act(std::uint8_t action) {
    const std::uint32_t peer = 2 + action % 7;
    switch (action >> 4) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4: resolve(peer); break;
      case 5: cancel(); break;
      case 6: (void)neighbours_.forget(interface_of(peer).link_address.gid); break;
      case 7: neighbours_.flush(); break;
      case 8: neighbours_.set_joined(action % 2 == 0, now_); break;
      case 9: advance(kReachableTime); break;
      case 10: advance(kAgeMax); break;
      case 11: change_interface(action); break;
      default: advance(300ms); break;
    }
  }

  void receive(const LinkAddress& sender, std::span<const std::byte> frame, std::uint8_t options) {
    link::Address from = from_interface(sender, interface_of(1).link_address.gid);
    from.has_grh = (options & 2) != 0;
    neighbours_.receive(from, sender.qpn, frame, now_);
    drain();
  }

  // Checks that all calls end.
  void finish() {
    for (const Row& row : neighbours_.rows(now_)) {
      VB_CHECK((row.state == State::kIncomplete) == (row.waiters != 0));
    }
    advance(kGroupTimeout + kAnswerTimeout);
    drain();
    VB_CHECK(waiting_.empty());
    VB_CHECK(neighbours_.deadline() == kNever);
  }

 private:
  void resolve(std::uint32_t peer) {
    const Interface wanted = interface_of(peer);
    const Gid ip = wanted.addresses[cookie_ % 2].ip;
    const auto answer = neighbours_.resolve(ip, ++cookie_, now_);
    if (answer && !*answer) waiting_[cookie_] = ip;
    drain();
  }
  void cancel() {
    if (waiting_.empty()) return;
    const auto first = waiting_.begin();
    VB_CHECK(neighbours_.cancel(first->second, first->first));
    waiting_.erase(first);
  }
  void change_interface(std::uint8_t action) {
    Interface interface = interface_of(1);
    if (action & 1) interface.link_address.qpn = {0x800u + action};
    if (action & 2) interface.addresses.resize(1);
    neighbours_.set_interface(interface, now_);
    neighbours_.set_joined(true, now_);
    drain();
  }
  void advance(Duration time) {
    const Time until = now_ + time;
    while (neighbours_.deadline() <= until) {
      now_ = std::max(now_, neighbours_.deadline());
      neighbours_.on_timer(now_);
      drain();
    }
    now_ = until;
  }
  void drain() {
    while (auto output = neighbours_.poll()) {
      if (const auto* frame = std::get_if<SendFrame>(&*output)) {
        VB_CHECK(wire::parse_ipoib_frame(frame->frame).has_value());
        check(frame->to, frame->is_multicast());
        continue;
      }
      const auto& event = std::get<Resolved>(*output);
      VB_CHECK(waiting_.erase(event.cookie) == 1);
    }
    VB_CHECK(neighbours_.size() <= kLimits.entries_max && waiting_.size() <= kLimits.waiters_max);
    for (const Row& row : neighbours_.rows(now_)) {
      VB_CHECK((row.state == State::kIncomplete) == (row.waiters != 0));
      VB_CHECK(row.age >= Duration(0));
      if (row.state != State::kIncomplete) check(row.neighbour, false);
    }
  }
  // Checks that an entry or a frame has a valid address.
  void check(const LinkAddress& address, bool is_group) const {
    VB_CHECK((address.gid.bytes[0] == std::byte{0xff}) == is_group);
    VB_CHECK(address.gid != Gid{} && address.qpn.value > 1 && address.qpn.value <= kMask24);
    VB_CHECK(address.gid != neighbours_.interface().link_address.gid);
  }

  Neighbours neighbours_{interface_of(1), kLimits};
  Time now_{};
  std::uint64_t cookie_ = 0;
  std::map<std::uint64_t, Gid> waiting_;
};

// Makes a valid message with addresses of the link.  Each address is selected by one byte of the
// input.
wire::ResolutionFrame take_message(sim::FuzzInput& input) {
  const auto interface = [&] { return interface_of(1 + input.take<std::uint8_t>() % 8); };
  const Interface sender = interface();
  const Interface claimed = interface();
  const Interface target = interface();
  const auto flags = input.take<std::uint8_t>();
  const auto link_address = (flags & 8) != 0 ? std::nullopt : std::optional(sender.wire_address());
  switch (flags % 4) {
    case 0: return arp_request(sender, target.addresses[0].ip);
    case 1: {
      wire::IpoibArp arp = arp_answer(sender, target);
      arp.sender_ip = wire::ipv4_address(claimed.addresses[0].ip);
      return arp;
    }
    case 2:
      return wire::NeighbourSolicitation{
          .source = claimed.addresses[1].ip,
          .destination = wire::solicited_node_group(target.addresses[1].ip),
          .target = target.addresses[1].ip,
          .source_link_address = link_address};
    default:
      return wire::NeighbourAdvertisement{.source = sender.addresses[1].ip,
                                          .destination = target.addresses[1].ip,
                                          .target = claimed.addresses[1].ip,
                                          .solicited = (flags & 16) != 0,
                                          .override_cache = (flags & 32) != 0,
                                          .target_link_address = link_address};
  }
}

// Returns the sender that an ARP frame names, or `default_sender` if the frame is too short.
// Neighbours ignores a frame that names another sender than its packet has.
LinkAddress named_sender(std::span<const std::byte> frame, const LinkAddress& default_sender) {
  constexpr std::size_t kSenderOffset = 4 + 8;  // after the IPoIB and ARP headers
  if (frame.size() < kSenderOffset + wire::kSize<wire::IpoibAddress>) return default_sender;
  const auto address = wire::decode_exact<wire::IpoibAddress>(
      frame.subspan<kSenderOffset, wire::kSize<wire::IpoibAddress>>());
  return {.gid = address.gid, .qpn = address.qpn};
}

}  // namespace
}  // namespace verbena::ipoib

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace verbena;
  using namespace verbena::ipoib;
  FuzzedInterface fuzzed;
  while (size >= 3) {
    const std::uint8_t options = data[1];
    fuzzed.act(data[2]);
    const std::size_t bytes = std::min<std::size_t>(data[0] % 128, size - 3);
    const std::span input_bytes(data + 3, bytes);
    sim::FuzzInput input(input_bytes);
    const LinkAddress sender =
        interface_of(1 + static_cast<std::uint32_t>(options >> 4) % 8).link_address;
    if ((options & 1) != 0) {
      const auto frame = std::as_bytes(input_bytes);
      fuzzed.receive((options & 8) != 0 ? named_sender(frame, sender) : sender, frame, options);
    } else {
      std::vector<std::byte> frame = wire::write_ipoib_frame(take_message(input));
      // Changes one byte, which may give a forged address, a wrong checksum or another message.
      if ((options & 4) != 0)
        frame[input.take<std::uint16_t>() % frame.size()] ^= std::byte{options};
      fuzzed.receive((options & 8) != 0 ? named_sender(frame, sender) : sender, frame, options);
    }
    data += 3 + bytes;
    size -= 3 + bytes;
  }
  fuzzed.finish();
  return 0;
}
