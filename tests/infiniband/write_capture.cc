// Sends messages by LIDs, with a GRH and without one, and writes the packets to the capture file
// that the command line names.

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstdio>
#include <vector>

#include "agent/capture.h"
#include "hca/engine.h"
#include "link/capture.h"
#include "link/infiniband.h"
#include "os/shared_memory.h"

namespace {

using namespace verbena;  // NOLINT(google-build-using-namespace): this is a program
using hca::QpState;
namespace attribute = hca::attribute;

constexpr std::uint32_t kBytes = 100;

Gid gid_of(std::uint8_t number) {
  Gid gid{};
  gid.bytes[0] = std::byte{0xfe};
  gid.bytes[1] = std::byte{0x80};
  gid.bytes[15] = std::byte{number};
  return gid;
}

link::Address address_from(std::uint8_t number, bool has_grh) {
  const std::uint8_t peer = number == 1 ? 2 : 1;
  return {.link_layer = LinkLayer::kInfiniband,
          .source = gid_of(number),
          .destination = gid_of(peer),
          .hop_limit = 9,
          .source_lid = {static_cast<std::uint16_t>(0x10 * number)},
          .destination_lid = {static_cast<std::uint16_t>(0x10 * peer)},
          .service_level = 3,
          .has_grh = has_grh};
}

// Holds a host's engine with one RC and one UD queue pair.
struct Host {
  Host(std::uint8_t number, bool has_grh)
      : address(address_from(number, has_grh)), engine({}, Random(number)) {
    pd = engine.create_pd().value();
    cq = engine.create_cq(16, 0).value();
    const auto at = std::bit_cast<std::uintptr_t>(memory.data());
    lkey = engine.register_mr(pd, at, memory.size(), at, hca::access::kLocalWrite)->lkey;
    rc = create_qp(hca::QpType::kRc, {0x100});
    ud = create_qp(hca::QpType::kUd, {0x200});
    modify_qp(rc, {.state = QpState::kInit},
              attribute::kPkeyIndex | attribute::kPort | attribute::kAccessFlags);
    modify_qp(rc,
              {.state = QpState::kRtr, .destination_qpn = {0x100}, .path = {.address = address}},
              attribute::kPath | attribute::kPathMtu | attribute::kDestinationQpn |
                  attribute::kRqPsn | attribute::kMaxDestRdAtomic | attribute::kMinRnrTimer);
    modify_qp(rc, {.state = QpState::kRts, .timeout = 14, .retry_count = 7},
              attribute::kSqPsn | attribute::kTimeout | attribute::kRetryCount |
                  attribute::kRnrRetry | attribute::kMaxRdAtomic);
    modify_qp(ud, {.state = QpState::kInit, .qkey = {0x1234}},
              attribute::kPkeyIndex | attribute::kPort | attribute::kQkey);
    modify_qp(ud, {.state = QpState::kRtr}, 0);
    modify_qp(ud, {.state = QpState::kRts}, attribute::kSqPsn);
  }
  hca::QpHandle create_qp(hca::QpType type, Qpn qpn) {
    return engine
        .create_qp(
            {.type = type,
             .pd = pd,
             .send_cq = cq,
             .recv_cq = cq,
             .caps = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1}},
            qpn)
        .value();
  }
  void modify_qp(hca::QpHandle qp, const hca::QpAttributes& to, std::uint32_t mask) {
    VB_CHECK(engine.modify_qp(qp, to, mask | attribute::kState, {}).has_value());
  }
  void receive_one(hca::QpHandle qp) {
    const hca::Sge buffer{std::bit_cast<std::uintptr_t>(memory.data()), 2 * kBytes, lkey};
    VB_CHECK(engine.post_recv(qp, {.wr_id = 1, .sges = {&buffer, 1}}).has_value());
  }
  void send_one(hca::QpHandle qp) {
    const hca::Sge data{std::bit_cast<std::uintptr_t>(memory.data()), kBytes, lkey};
    const hca::AhHandle ah = engine.create_ah(pd, {.address = address}).value();
    VB_CHECK(
        engine
            .post_send(
                qp, {.sges = {&data, 1}, .remote_qpn = {0x200}, .remote_qkey = {0x1234}, .ah = ah})
            .has_value());
  }

  link::Address address;
  hca::Engine engine;
  hca::PdHandle pd{};
  hca::CqHandle cq{};
  std::uint32_t lkey = 0;
  hca::QpHandle rc{}, ud{};
  std::vector<std::byte> memory = std::vector<std::byte>(4096);
};

// Delivers the packets that one host has to send to the other host, and copies them into the ring
// of a capture.  Returns false if there were no packets.
bool deliver(Host& from, Host& to, link::CaptureRing& ring, Time now) {
  link::Burst burst;
  (void)from.engine.transmit(burst, now);
  for (const auto& packet : burst.packets()) {
    ring.write(now, link::Direction::kOut, packet.address, 0, burst.datagram(packet));
    const auto bytes = link::seal_infiniband(packet.address, burst.transport(packet));
    to.engine.receive(link::open_infiniband(bytes).value(), now);
  }
  return !burst.packets().empty();
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  os::Fd file(::open(arguments[1], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  Time now{std::chrono::seconds(1)};
  agent::Capture capture(std::move(file), 0, now);
  const int fd = capture.join(1, now).value();
  auto memory =
      os::map_shared(fd, link::CaptureRing::kBytes, link::CaptureRing::kBytes, true).value();
  link::CaptureRing ring(memory.bytes());
  for (const bool has_grh : {false, true}) {
    Host one(1, has_grh);
    Host two(2, has_grh);
    two.receive_one(two.rc);
    one.send_one(one.rc);
    two.receive_one(two.ud);
    one.send_one(one.ud);
    while (deliver(one, two, ring, now) || deliver(two, one, ring, now))
      now += std::chrono::microseconds(5);
    std::array<hca::WorkCompletion, 8> done{};
    VB_CHECK(two.engine.poll_cq(two.cq, done).value() == 2);
  }
  capture.finish(now);
  return capture.packets() == 6 ? 0 : 1;
}
