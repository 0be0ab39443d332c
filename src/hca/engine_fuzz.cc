// Checks that no input makes an engine crash or hang.  The engine has QPs that begin in all states
// except SQD and SQE.
//
// The input is a script of steps: raw packets, packets with valid headers and fuzzed fields (which
// pass the first checks), timers, and draining of the output.
//
// fuzz: runs 5000

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "hca/test_pair.h"

namespace verbena::hca {
namespace {

using namespace testing;

// Takes numbers from the input.  After the end of the input, all numbers are zero.
class Script {
 public:
  Script(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}
  bool empty() const { return rest_.empty(); }
  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const std::uint8_t value = rest_.front();
    rest_ = rest_.subspan(1);
    return value;
  }
  std::uint32_t word() {
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i) value = value << 8 | byte();
    return value;
  }
  std::vector<std::byte> bytes(std::size_t count) {
    count = std::min(count, rest_.size());
    const auto* const begin = reinterpret_cast<const std::byte*>(rest_.data());
    std::vector<std::byte> out(begin, begin + count);
    rest_ = rest_.subspan(count);
    return out;
  }

 private:
  std::span<const std::uint8_t> rest_;
};

// Counts the packets, because one input holds many, and prints the number at exit.
struct PacketCounter {
  ~PacketCounter() { std::fprintf(stderr, "engine: %llu packets received\n", packets); }
  unsigned long long packets = 0;
};
PacketCounter packet_counter;

// Stores the initial state of a QP.  restore() returns the QP to this state.
struct InitialState {
  QpHandle qp;
  QpAttributes attributes;
  QpState state;
};

struct FuzzedEngine {
  FuzzedEngine() {
    const Options o{.mtu = Mtu::k256, .rd_atomic = 2};
    const QpState states[] = {QpState::kReset, QpState::kInit, QpState::kRtr,
                              QpState::kRts,   QpState::kRts,  QpState::kRts};
    std::uint32_t qpn = 0x10;
    for (const QpState state : states) {
      const QpHandle qp = create_connected_qp(host, o, Qpn{qpn++});
      QpAttributes a = attributes_for(host, host, o, Qpn{0x99}, Psn{0xfffffe}, Psn{0xfffffe});
      a.path.address.destination = gid_of(2);
      bring_to_state(host, qp, a, state);
      qps.push_back(qp);
      initial_states.push_back({qp, a, state});
    }
    qps.push_back(create_ud_receiver(Qpn{qpn++}));
    const Options uc{.mtu = Mtu::k256, .type = QpType::kUc};
    for (const QpState state : {QpState::kRtr, QpState::kRts}) {
      const QpHandle qp = create_connected_qp(host, uc, Qpn{qpn++});
      QpAttributes a = attributes_for(host, host, uc, Qpn{0x99}, Psn{0xfffffe}, Psn{0xfffffe});
      a.path.address.destination = gid_of(2);
      bring_to_state(host, qp, a, state);
      qps.push_back(qp);
      initial_states.push_back({qp, a, state});
    }
    window = host.engine.create_mw(host.pd, WindowType::kTwo).value().rkey;
    for (const QpHandle qp : qps) post_requests(qp);
    QpAttributes a;
    a.state = QpState::kError;
    host.engine.modify_qp(qps[5], a, attribute::kState, now).value();
  }
  QpHandle create_ud_receiver(Qpn qpn) {
    const QpHandle qp = host.engine
                            .create_qp({.type = QpType::kUd,
                                        .pd = host.pd,
                                        .send_cq = host.cq,
                                        .recv_cq = host.cq,
                                        .caps = {.max_recv_wr = 8, .max_recv_sge = 1}},
                                       qpn)
                            .value();
    QpAttributes a;
    a.qkey = Qkey{0};
    a.state = QpState::kInit;
    host.engine
        .modify_qp(qp, a,
                   attribute::kState | attribute::kPkeyIndex | attribute::kPort | attribute::kQkey,
                   now)
        .value();
    a.state = QpState::kRtr;
    host.engine.modify_qp(qp, a, attribute::kState, now).value();
    return qp;
  }
  // Ignores errors, because an invalid request puts its QP into another state that is worth
  // testing.
  void post_window(QpHandle qp, bool bind) {
    static_cast<void>(host.engine.post_send(
        qp, {.opcode = bind ? WrOpcode::kBindWindow : WrOpcode::kLocalInvalidate,
             .r_key = window,
             .bind = {.address = host.address(0),
                      .length = 4096,
                      .lkey = host.mr.lkey,
                      .access_flags = access::kRemoteRead | access::kRemoteWrite}}));
  }
  void post_requests(QpHandle qp) {
    const Sge small = host.sge(0, 600), large = host.sge(4096, 3000);
    for (int i = 0; i < 3; ++i) {
      static_cast<void>(host.engine.post_recv(qp, {.sges = {&small, 1}}));
      for (const WrOpcode opcode :
           {WrOpcode::kSend, WrOpcode::kRead, WrOpcode::kWriteImm, WrOpcode::kFetchAdd,
            WrOpcode::kSendInvalidate, WrOpcode::kAtomicWrite}) {
        static_cast<void>(host.engine.post_send(
            qp, {.opcode = opcode, .flags = send_flag::kSignaled, .sges = {&large, 1}}));
      }
    }
  }
  // Returns a QP to its initial state, because most invalid packets put their QP into the error
  // state.
  void restore(const InitialState& initial) {
    QpAttributes reset;
    reset.state = QpState::kReset;
    host.engine.modify_qp(initial.qp, reset, attribute::kState, now).value();
    bring_to_state(host, initial.qp, initial.attributes, initial.state);
    post_requests(initial.qp);
  }
  // Limits the number of bursts, so that one step of the script does not take long.
  void drain() {
    for (int i = 0; i < 8 && host.engine.transmit(burst, now); ++i) burst.clear();
    burst.clear();
    while (host.engine.poll_event()) {
    }
    host.poll();
  }
  void deliver(std::span<const std::byte> bytes, bool from_peer) {
    // Copies to a block of exactly this size, so that ASan detects overruns.
    const std::vector<std::byte> block(bytes.begin(), bytes.end());
    ++packet_counter.packets;
    host.engine.receive({{.source = gid_of(from_peer ? 2 : 3), .destination = gid_of(1)}, block},
                        now);
  }
  // Delivers a packet to one of the QPs, or to a QPN that does not exist.  The opcode, the length
  // and the bytes of the packet come from the input.
  void deliver_addressed(std::vector<std::byte> bytes, std::uint8_t qp, std::uint8_t psn) {
    const auto write_number = [&](std::size_t at, std::uint32_t value, std::size_t count) {
      for (std::size_t i = 0; i < count && at + i < bytes.size(); ++i) {
        bytes[at + i] = static_cast<std::byte>(value >> 8 * (count - 1 - i));
      }
    };
    if (bytes.size() > 1) bytes[1] &= std::byte{0xb0};  // clears MigReq and the transport version
    write_number(2, 0xffff, 2);
    write_number(5, 0x10u + qp % 10, 3);
    write_number(
        9, (0xfffffeu + static_cast<std::uint32_t>(static_cast<std::int8_t>(psn))) & 0xffffff, 3);
    deliver(bytes, true);
  }
  // Delivers a packet with valid headers, whose fields come from the input.
  void deliver_composed(Script& script) {
    wire::TransportPacket packet;
    packet.bth.opcode = static_cast<wire::Opcode>(script.byte());
    if (!wire::is_known(packet.bth.opcode)) return;
    const std::uint8_t flags = script.byte();
    packet.bth.destination_qpn = Qpn{0x10u + script.byte() % 10};
    packet.bth.acknowledge_request = (flags & 8) != 0;
    packet.bth.solicited_event = (flags & 16) != 0;
    packet.bth.psn =
        Psn{0xfffffe} + static_cast<std::uint32_t>(static_cast<std::int8_t>(script.byte()));
    packet.aeth = {script.byte(), script.byte()};
    packet.atomic_ack.original = flags;
    packet.invalidate_r_key = (flags & 32) != 0 ? script.word() : window;
    packet.reth = {host.address(script.byte()), (flags & 32) != 0 ? window : host.mr.rkey,
                   (flags & 64) != 0 ? script.word() : script.byte() * 16u};
    packet.atomic = {.virtual_address = packet.reth.virtual_address,
                     .r_key = packet.reth.r_key,
                     .swap_or_add = flags,
                     .compare = 0};
    const std::size_t payload = (flags & 128) != 0 ? 256 : script.byte();
    deliver(packet_of(packet, wire::has_payload(packet.bth.opcode) ? payload : 0), true);
  }

  Host host{1, 16 * 1024};
  std::vector<QpHandle> qps;
  std::vector<InitialState> initial_states;
  std::uint32_t window = 0;
  link::Burst burst;
  Time now{std::chrono::seconds(1)};
};

}  // namespace
}  // namespace verbena::hca

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace verbena::hca;
  FuzzedEngine target;
  Script script(data, size);
  while (!script.empty()) {
    const std::uint8_t step = script.byte();
    switch (step % 8) {
      case 0: {
        const std::uint8_t qp = script.byte(), psn = script.byte();
        const std::uint8_t length = script.byte();
        std::vector<std::byte> bytes = script.bytes(length % 32u);
        bytes.resize(length * 2u, std::byte{psn});
        if ((step & 8) != 0) {
          target.deliver_addressed(std::move(bytes), qp, psn);
        } else {
          target.deliver(bytes, (step & 16) == 0);
        }
        break;
      }
      case 1: target.drain(); break;
      case 2:
        target.now = std::min(target.host.engine.deadline(), target.now + kSecond);
        target.host.engine.on_timer(target.now);
        break;
      case 3: target.post_requests(target.qps[script.byte() % target.qps.size()]); break;
      case 4:
        if ((step & 16) != 0) {
          target.restore(target.initial_states[script.byte() % target.initial_states.size()]);
        } else {
          target.post_window(target.qps[script.byte() % target.qps.size()], (step & 8) != 0);
        }
        break;
      default: target.deliver_composed(script); break;
    }
  }
  target.drain();
  return 0;
}
