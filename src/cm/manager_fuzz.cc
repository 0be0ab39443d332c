// Sends arbitrary MADs to a manager that has endpoints in most states.  The input is cut into MADs.
// A byte before each MAD selects the fields that are made valid: the MAD header, the attribute, the
// addresses, or the ids of an existing endpoint.
//
// fuzz: runs 5000

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cm/manager.h"
#include "mad/dispatcher.h"
#include "wire/cm.h"

namespace verbena::cm {
namespace {

using namespace std::chrono_literals;
using wire::cm::Message;
using wire::cm::Rep;
using wire::cm::Req;

constexpr ServiceId kService{0x1061c06};
constexpr Guid kPeer{0xbeef};

class TestedManager {
 public:
  TestedManager() : cm_({.ca_guid = {0x5054}, .endpoints_max = 64}, Random(1)) {
    (void)cm_.listen({.id = kService}, 1);
    for (std::uint32_t stage = 0; stage < 5; ++stage) make_passive(stage);
    for (std::uint32_t stage = 0; stage < 6; ++stage) make_active(stage);
    make_peer_to_peer();
    resolutions_.push_back(*cm_.sidr().resolve({.service_id = {1}}, 1, now_));
    drain();
  }

  // Returns one of the eleven attribute ids.
  static std::byte attribute(std::byte chosen) {
    return static_cast<std::byte>(0x10 + std::to_integer<unsigned>(chosen) % 11);
  }
  // Writes the default P_Key to a REQ or SIDR_REQ.  Also writes the GIDs of the packet to a REQ.
  // This test has no packets, so these GIDs are zero.
  static void match_addresses(mad::Mad& mad) {
    const auto message = std::span(mad).subspan(wire::kMadHeaderBytes);
    if (mad[17] == std::byte{0x17}) std::ranges::fill(message.subspan(4, 2), std::byte{0xff});
    if (mad[17] != std::byte{0x10}) return;
    std::ranges::fill(message.subspan(48, 2), std::byte{0xff});  // the P_Key
    std::ranges::fill(message.subspan(56, 32), std::byte{});     // the primary path's GIDs
  }
  void receive(std::uint8_t flags, mad::Mad mad) {
    if (flags & 1) mad[0] = std::byte{1}, mad[1] = std::byte{7}, mad[3] = std::byte{3};
    if (flags & 2) mad[2] = std::byte{2};
    if (flags & 4) mad[16] = std::byte{0}, mad[17] = attribute(mad[15]);
    if ((flags & 24) == 16) match_addresses(mad);
    std::vector<View> views;
    cm_.visit([&](const View& view) { views.push_back(view); });
    if ((flags & 8) && !views.empty()) {
      const View& view = views[(flags >> 4) % views.size()];
      write_u32(mad, 24, view.remote_comm_id.value);
      write_u32(mad, 28, view.local_comm_id.value);
    }
    deliver(mad);
    now_ += 7ms;
    cm_.on_timer(now_);
    drain();
  }

  // Destroys everything: all endpoints must end, whatever was received.
  void finish() {
    for (const EndpointHandle endpoint : endpoints_) (void)cm_.destroy(endpoint, now_);
    for (const ResolutionHandle resolution : resolutions_)
      (void)cm_.sidr().destroy(resolution, now_);
    drain();
    while (cm_.deadline() != kNever) {
      now_ = cm_.deadline();
      cm_.on_timer(now_);
      drain();
    }
    VB_CHECK(cm_.endpoints() == 0 && cm_.sidr().size() == 0 && !cm_.has_orphans());
  }

 private:
  static void write_u32(mad::Mad& mad, std::size_t at, std::uint32_t value) {
    for (std::size_t i = 0; i < 4; ++i) mad[at + i] = static_cast<std::byte>(value >> 8 * (3 - i));
  }
  void deliver(const mad::Mad& mad) {
    const auto received = dispatcher_.receive({}, mad);
    if (const auto* delivered = std::get_if<mad::Delivered>(&received))
      cm_.receive(*delivered, now_);
  }
  void receive_valid(const Message& message) {
    deliver(
        wire::cm::encode_mad(wire::cm::mad_header(wire::cm::attribute_id(message), 1), message));
    drain();
  }
  void drain() {
    while (auto output = cm_.poll()) {
      const auto* event = std::get_if<Event>(&*output);
      if (event == nullptr) continue;
      if (const auto* request = std::get_if<ReqReceived>(event))
        endpoints_.push_back(request->endpoint);
      const auto* lap = std::get_if<LapReceived>(event);
      if (lap != nullptr && lap->lap.private_data[0] == std::byte{}) {
        (void)cm_.answer_alternate_path(lap->endpoint, {});
        cm_.path_migrated(lap->endpoint);
      }
      const auto* request = std::get_if<SidrReqReceived>(event);
      if (request == nullptr) continue;
      resolutions_.push_back(request->resolution);
      if (resolutions_.size() % 2 == 0) (void)cm_.sidr().answer(request->resolution, {}, now_);
    }
  }
  void make_passive(std::uint32_t stage) {
    const Req req{.local_comm_id = {100 + stage},
                  .service_id = kService,
                  .local_ca_guid = kPeer,
                  .local_qpn = {200 + stage},
                  .pkey = kDefaultPkey,
                  .path_mtu = 3,
                  .max_cm_retries = 15};
    receive_valid(req);
    const EndpointHandle endpoint = endpoints_.back();
    if (stage == 1) receive_valid(req);  // the manager answers a repeated REQ with an MRA
    if (stage >= 2) (void)cm_.accept(endpoint, {.qpn = {300 + stage}}, now_);
    if (stage >= 3) cm_.comm_established(endpoint, now_);
    if (stage >= 4) (void)cm_.disconnect(endpoint, {}, now_);
    drain();
  }
  void make_active(std::uint32_t stage) {
    const EndpointHandle endpoint = *cm_.connect(
        {.service_id = {1}, .qpn = {400 + stage}, .path_mtu = 3, .packet_life = 8}, stage, now_);
    endpoints_.push_back(endpoint);
    const View view = *cm_.view(endpoint);
    if (stage >= 1) {
      receive_valid(Rep{.local_comm_id = {500 + stage},
                        .remote_comm_id = view.local_comm_id,
                        .local_qpn = {600 + stage},
                        .local_ca_guid = kPeer});
    }
    if (stage >= 2) (void)cm_.establish(endpoint, {}, now_);
    if (stage == 3 || stage == 4) (void)cm_.disconnect(endpoint, {}, now_);
    if (stage == 4) (void)cm_.destroy(endpoint, now_);
    if (stage == 5) (void)cm_.load_alternate_path(endpoint, {}, {}, 5s, now_);
    drain();
  }
  // Makes an endpoint that waits for its peer, which may have the larger or the smaller CA GUID.
  void make_peer_to_peer() {
    endpoints_.push_back(*cm_.connect(
        {.service_id = {2}, .qpn = {700}, .path_mtu = 3, .peer_to_peer = true}, 9, now_));
    drain();
  }

  mad::Dispatcher dispatcher_;
  Manager cm_;
  Time now_{};
  std::vector<EndpointHandle> endpoints_;
  std::vector<ResolutionHandle> resolutions_;
};

}  // namespace
}  // namespace verbena::cm

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using verbena::cm::TestedManager;
  TestedManager manager;
  while (size > 0) {
    verbena::mad::Mad mad{};
    const std::uint8_t flags = data[0];
    const std::size_t bytes = std::min(size - 1, mad.size());
    std::memcpy(mad.data(), data + 1, bytes);
    manager.receive(flags, mad);
    data += 1 + bytes;
    size -= 1 + bytes;
  }
  manager.finish();
  return 0;
}
