// Tests memory protection by cases that change one property of a valid access.  Each forbidden
// access is refused with its status and changes nothing, and a similar allowed access works
// (vol1 9.7.4.1, 10.6, 10.7.2.2).

#include <gtest/gtest.h>

#include <array>

#include "hca/operations.h"
#include "hca/test_lanes.h"

namespace verbena::hca {
namespace {

using namespace testing;

constexpr std::uint32_t kEverything = Host::kAllAccess;
constexpr std::size_t kBytes = 4096;  // the size of the target region, at the start of b's memory
constexpr std::uint64_t kAddressMax = ~std::uint64_t{0};

// Selects the kind of key that an access uses.
enum class KeyKind { kRegion, kWindowOne, kWindowTwo };

// Selects how a request reaches the peer.
enum class Carrier { kWire, kLane, kDirectAccess };

struct Access {
  WrOpcode opcode = WrOpcode::kWrite;
  KeyKind key_kind = KeyKind::kRegion;
  // These describe the peer: the region, the window and the QP.
  std::uint64_t iova = 0x1000;
  std::uint32_t region_flags = kEverything;
  std::uint32_t window_flags = access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic;
  std::uint32_t qp_flags = access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic;
  bool foreign_pd = false;  // the region and the window belong to another domain than the QP
  bool foreign_qp = false;  // the window was bound by another QP
  bool stale = false;       // the region was deregistered, or the key of the window has changed
  bool wrong_key = false;
  // These describe the request: bytes [offset, offset + length) relative to `iova`.
  std::uint64_t offset = 0;
  std::uint32_t length = 8;
};

const char* name(WrOpcode opcode) {
  switch (opcode) {
    case WrOpcode::kRead: return "READ";
    case WrOpcode::kFetchAdd: return "FETCH_ADD";
    case WrOpcode::kCompareSwap: return "CMP_SWAP";
    case WrOpcode::kAtomicWrite: return "ATOMIC_WRITE";
    default: return "WRITE";
  }
}

constexpr std::uint32_t right_for(WrOpcode opcode) {
  if (opcode == WrOpcode::kRead) return access::kRemoteRead;
  return is_atomic(opcode) ? access::kRemoteAtomic : access::kRemoteWrite;
}

constexpr WrOpcode kOpcodes[] = {WrOpcode::kWrite, WrOpcode::kRead, WrOpcode::kCompareSwap,
                                 WrOpcode::kFetchAdd, WrOpcode::kAtomicWrite};
constexpr KeyKind kKeyKinds[] = {KeyKind::kRegion, KeyKind::kWindowOne, KeyKind::kWindowTwo};

// Sets up two hosts, and makes one access of a to b's memory.
class Attempt {
 public:
  explicit Attempt(const Access& access, Carrier carrier = Carrier::kWire)
      : access_(access), carrier_(carrier) {
    if (carrier != Carrier::kWire) p_.attach(carrier == Carrier::kDirectAccess);
    // The first request of a connection is always sent as packets.
    p_.rdma(WrOpcode::kWrite, 0, 0, 3 * kBytes, 8, 0).value();
    p_.wire.run();
    QpAttributes a;
    a.access_flags = access.qp_flags;
    p_.b.engine.modify_qp(p_.qb, a, attribute::kAccessFlags, p_.wire.now).value();
    if (access.foreign_pd) pd_ = p_.b.engine.create_pd().value();
    p_.b.fill(0, 2 * kBytes, 7);
    before_.assign(p_.b.memory.begin(), p_.b.memory.begin() + 2 * kBytes);
    key_ = make_key();
    if (access.wrong_key) key_ ^= 0x01000000;
  }

  WcStatus run() {
    const Sge sge = p_.a.sge(0, access_.length);
    p_.a.engine
        .post_send(p_.qa, {.wr_id = 1,
                           .opcode = access_.opcode,
                           .flags = send_flag::kSignaled,
                           .sges = {&sge, 1},
                           .remote_address = access_.iova + access_.offset,
                           .r_key = key_,
                           .compare_add = 1})
        .value();
    p_.wire.run();
    const auto done = p_.a.poll();
    EXPECT_EQ(done.size(), 1u);
    if (done.size() != 1) return WcStatus::kFatal;
    const bool good = done[0].status == WcStatus::kSuccess;
    EXPECT_EQ(p_.state_a(), good ? QpState::kRts : QpState::kError);
    EXPECT_EQ(p_.state_b(), good ? QpState::kRts : QpState::kError);
    EXPECT_EQ(p_.a.engine.counters()[Counter::kDirectBytes],
              good && is_direct() ? access_.length : 0);
    if (!good) {
      EXPECT_TRUE(std::equal(before_.begin(), before_.end(), p_.b.memory.begin()));
    }
    return done[0].status;
  }

 private:
  bool is_direct() const {
    return carrier_ == Carrier::kDirectAccess && access_.key_kind == KeyKind::kRegion &&
           (access_.opcode == WrOpcode::kWrite || access_.opcode == WrOpcode::kRead);
  }
  std::uint32_t make_key() {
    Engine& engine = p_.b.engine;
    const PdHandle pd = pd_ ? pd_ : p_.b.pd;
    const MrInfo region =
        engine.register_mr(pd, p_.b.address(0), kBytes, access_.iova, access_.region_flags).value();
    if (access_.key_kind == KeyKind::kRegion) {
      if (access_.stale) engine.deregister_mr(region.handle).value();
      return region.rkey;
    }
    const MwInfo window =
        engine
            .create_mw(
                pd, access_.key_kind == KeyKind::kWindowOne ? WindowType::kOne : WindowType::kTwo)
            .value();
    // The QP that binds must be in the window's domain.  By default this is b's own QP.
    const QpHandle binder = access_.foreign_pd || access_.foreign_qp ? second_qp(pd) : p_.qb;
    bind(binder, window.rkey, region.lkey);
    if (access_.stale && access_.key_kind == KeyKind::kWindowOne) {
      bind(binder, window.rkey ^ 1, region.lkey);
    } else if (access_.stale) {
      engine.post_send(binder, {.opcode = WrOpcode::kLocalInvalidate, .r_key = window.rkey})
          .value();
    }
    p_.wire.run();
    return window.rkey;
  }
  void bind(QpHandle qp, std::uint32_t key, std::uint32_t lkey) {
    p_.b.engine
        .post_send(qp, {.opcode = WrOpcode::kBindWindow,
                        .r_key = key,
                        .bind = {.address = access_.iova,
                                 .length = kBytes,
                                 .lkey = lkey,
                                 .access_flags = access_.window_flags}})
        .value();
  }
  QpHandle second_qp(PdHandle pd) {
    const QpHandle qp = p_.b.engine
                            .create_qp({.type = QpType::kRc,
                                        .pd = pd,
                                        .send_cq = p_.b.cq,
                                        .recv_cq = p_.b.cq,
                                        .caps = {.max_send_wr = 4}},
                                       Qpn{0x33})
                            .value();
    bring_to_state(p_.b, qp, attributes_for(p_.b, p_.a, {}, Qpn{0x44}, Psn{1}, Psn{1}),
                   QpState::kRts);
    return qp;
  }

  const Access access_;
  const Carrier carrier_;
  LanePair p_;
  PdHandle pd_;
  std::vector<std::byte> before_;
  std::uint32_t key_ = 0;
};

void expect_status(const char* what, const Access& access, WcStatus status) {
  for (const Carrier carrier : {Carrier::kWire, Carrier::kLane, Carrier::kDirectAccess}) {
    SCOPED_TRACE(::testing::Message()
                 << what << ": " << name(access.opcode) << " through "
                 << (access.key_kind == KeyKind::kRegion      ? "a region"
                     : access.key_kind == KeyKind::kWindowOne ? "a window of type 1"
                                                              : "a window of type 2")
                 << (carrier == Carrier::kWire   ? ", by the wire"
                     : carrier == Carrier::kLane ? ", by a lane"
                                                 : ", by direct access"));
    EXPECT_EQ(to_string(Attempt(access, carrier).run()), to_string(status));
  }
}

constexpr auto kGood = WcStatus::kSuccess, kDenied = WcStatus::kRemoteAccessError,
               kInvalidRequest = WcStatus::kRemoteInvalidRequest;

TEST(Protection, ValidAccessesSucceed) {
  for (const KeyKind key_kind : kKeyKinds) {
    for (const WrOpcode opcode : kOpcodes) {
      expect_status("valid", {.opcode = opcode, .key_kind = key_kind}, kGood);
    }
  }
}

TEST(Protection, EachRightIsNecessaryAndSufficient) {
  for (const WrOpcode opcode : kOpcodes) {
    const std::uint32_t right = right_for(opcode);
    const std::uint32_t rights = access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic;
    expect_status("the region lacks the right",
                  {.opcode = opcode, .region_flags = kEverything & ~right}, kDenied);
    expect_status("the region has only the right",
                  {.opcode = opcode, .region_flags = access::kLocalWrite | right}, kGood);
    expect_status("the QP lacks the right", {.opcode = opcode, .qp_flags = rights & ~right},
                  kInvalidRequest);
    expect_status("the QP has only the right", {.opcode = opcode, .qp_flags = right}, kGood);
    for (const KeyKind key_kind : {KeyKind::kWindowOne, KeyKind::kWindowTwo}) {
      expect_status("the window lacks the right",
                    {.opcode = opcode, .key_kind = key_kind, .window_flags = rights & ~right},
                    kDenied);
      expect_status("the window has only the right",
                    {.opcode = opcode, .key_kind = key_kind, .window_flags = right}, kGood);
      expect_status("the window has the right, the region does not",
                    {.opcode = opcode,
                     .key_kind = key_kind,
                     .region_flags = access::kLocalWrite | access::kWindowBind},
                    kGood);
    }
  }
}

TEST(Protection, RefusesForeignAndStaleKeys) {
  for (const KeyKind key_kind : kKeyKinds) {
    for (const WrOpcode opcode : kOpcodes) {
      expect_status("another domain", {.opcode = opcode, .key_kind = key_kind, .foreign_pd = true},
                    kDenied);
      expect_status("a stale key", {.opcode = opcode, .key_kind = key_kind, .stale = true},
                    kDenied);
      expect_status("an unknown key", {.opcode = opcode, .key_kind = key_kind, .wrong_key = true},
                    kDenied);
      expect_status("bound by another QP",
                    {.opcode = opcode, .key_kind = key_kind, .foreign_qp = true},
                    key_kind == KeyKind::kWindowTwo ? kDenied : kGood);
    }
  }
}

TEST(Protection, RefusesAccessesOutsideTheRange) {
  // With the last value, the last byte of the region has the address 2^64 - 1.
  for (const std::uint64_t iova :
       {std::uint64_t{0}, std::uint64_t{0x1000}, kAddressMax - (kBytes - 1)}) {
    for (const KeyKind key_kind : kKeyKinds) {
      for (const WrOpcode opcode : kOpcodes) {
        const auto expect_at = [&](const char* what, std::uint64_t offset, std::uint32_t length,
                                   WcStatus status) {
          expect_status(what,
                        {.opcode = opcode,
                         .key_kind = key_kind,
                         .iova = iova,
                         .offset = offset,
                         .length = length},
                        status);
        };
        expect_at("the first bytes", 0, 8, kGood);
        expect_at("the last bytes", kBytes - 8, 8, kGood);
        expect_at("behind the end", kBytes, 8, kDenied);
        expect_at("before the beginning", kAddressMax - 7, 8, kDenied);
        if (opcode != WrOpcode::kWrite && opcode != WrOpcode::kRead) continue;
        expect_at("all", 0, kBytes, kGood);
        expect_at("one more", 0, kBytes + 1, kDenied);
        expect_at("one before", kAddressMax, 2, kDenied);
        expect_at("over the end", kBytes - 1, 2, kDenied);
      }
    }
  }
}

// A request of length 0 needs no key (vol1 9.7.4.1.5), but the QP's rights still count.
TEST(Protection, AnEmptyRequestNeedsNoKey) {
  for (const WrOpcode opcode : {WrOpcode::kWrite, WrOpcode::kRead}) {
    expect_status("no bytes", {.opcode = opcode, .wrong_key = true, .length = 0}, kGood);
    expect_status("no bytes, without the QP's right",
                  {.opcode = opcode, .qp_flags = 0, .length = 0}, kInvalidRequest);
  }
}

// ---- the elements of local requests -------------------------------------------------------------

TEST(Protection, ElementsMustBeInTheQpsDomainAndInRange) {
  struct Case {
    const char* what;
    std::int64_t offset;  // relative to the element's region of 4096 bytes
    std::uint32_t length;
    std::uint32_t flags;
    enum { kValid, kForeign, kStale, kWindow } key;
    bool is_readable, is_writable;
  };
  constexpr std::uint32_t kLocal = access::kLocalWrite;
  const Case cases[] = {{"valid", 0, 8, kLocal, Case::kValid, true, true},
                        {"to the last byte", 4088, 8, kLocal, Case::kValid, true, true},
                        {"without local write", 0, 8, 0, Case::kValid, true, false},
                        {"one too many", 4089, 8, kLocal, Case::kValid, false, false},
                        {"before", -1, 8, kLocal, Case::kValid, false, false},
                        {"another domain's", 0, 8, kLocal, Case::kForeign, false, false},
                        {"deregistered", 0, 8, kLocal, Case::kStale, false, false},
                        {"a window's key", 0, 8, kLocal, Case::kWindow, false, false}};
  for (const Case& c : cases) {
    for (const WrOpcode opcode : {WrOpcode::kSend, WrOpcode::kWrite, WrOpcode::kRead,
                                  WrOpcode::kFetchAdd, WrOpcode::kAtomicWrite}) {
      SCOPED_TRACE(::testing::Message() << c.what << " " << static_cast<int>(opcode));
      Pair p;
      Engine& engine = p.a.engine;
      const PdHandle pd = c.key == Case::kForeign ? engine.create_pd().value() : p.a.pd;
      const MrInfo region =
          engine.register_mr(pd, p.a.address(8192), 4096, p.a.address(8192), c.flags).value();
      std::uint32_t key = region.lkey;
      if (c.key == Case::kStale) engine.deregister_mr(region.handle).value();
      if (c.key == Case::kWindow) key = engine.create_mw(pd, WindowType::kOne).value().rkey;
      const Sge sge{p.a.address(8192) + static_cast<std::uint64_t>(c.offset), c.length, key};
      ASSERT_TRUE(p.receive(2, 4096, 100));
      ASSERT_TRUE(engine.post_send(p.qa, {.wr_id = 1,
                                          .opcode = opcode,
                                          .flags = send_flag::kSignaled,
                                          .sges = {&sge, 1},
                                          .remote_address = p.b.address(0),
                                          .r_key = p.b.mr.rkey}));
      p.wire.run();
      const bool good = fills_elements(opcode) ? c.is_writable : c.is_readable;
      EXPECT_EQ(text(p.a.poll()), good ? "1" : "1:local protection error");
    }
  }
}

// A post copies a small request if its key is valid.  The key must still be valid when the request
// is sent.
TEST(Protection, ASmallRequestFailsIfItsKeyBecameInvalidAfterThePost) {
  enum class Change { kNothing, kOtherDeregistered, kDeregistered, kMoved };
  for (const Change change :
       {Change::kNothing, Change::kOtherDeregistered, Change::kDeregistered, Change::kMoved}) {
    SCOPED_TRACE(static_cast<int>(change));
    Pair p;
    Engine& engine = p.a.engine;
    const auto region = [&](std::uint64_t offset) {
      const std::uint64_t at = p.a.address(offset);
      return engine.register_mr(p.a.pd, at, 4096, at, 0).value();
    };
    const MrInfo used = region(8192), other = region(16384);
    const Sge sge{p.a.address(8192), 8, used.lkey};
    ASSERT_TRUE(p.receive(2, 4096, 100));
    ASSERT_TRUE(
        engine.post_send(p.qa, {.wr_id = 1, .flags = send_flag::kSignaled, .sges = {&sge, 1}}));
    if (change == Change::kOtherDeregistered) engine.deregister_mr(other.handle).value();
    if (change == Change::kDeregistered) engine.deregister_mr(used.handle).value();
    if (change == Change::kMoved) {
      engine
          .reregister_mr(used.handle, {.what = Engine::MrChange::kTranslation,
                                       .address = p.a.address(16384),
                                       .length = 4096})
          .value();
    }
    p.wire.run();
    const bool good = change == Change::kNothing || change == Change::kOtherDeregistered;
    EXPECT_EQ(text(p.a.poll()), good ? "1" : "1:local protection error");
  }
}

TEST(Protection, AReceiveWithoutWriteAccessEndsItsQp) {
  for (const bool foreign : {true, false}) {
    Pair p;
    Engine& engine = p.b.engine;
    const PdHandle pd = foreign ? engine.create_pd().value() : p.b.pd;
    const MrInfo region = engine
                              .register_mr(pd, p.b.address(0), 4096, p.b.address(0),
                                           foreign ? access::kLocalWrite : 0)
                              .value();
    const Sge sge{p.b.address(0), 100, region.lkey};
    ASSERT_TRUE(engine.post_recv(p.qb, {.wr_id = 2, .sges = {&sge, 1}}));
    ASSERT_TRUE(p.send(1, 0, 8));
    p.wire.run();
    EXPECT_EQ(text(p.b.poll()), "2:local protection error");
    EXPECT_EQ(text(p.a.poll()), "1:remote operation error");
  }
}

// ---- registered memory that was unmapped --------------------------------------------------------

std::uint64_t unmapped_from = 0, unmapped_to = 0;

// Simulates that the program has unmapped the addresses [unmapped_from, unmapped_to).
bool touch_if_mapped(const void* address, std::size_t length, bool, void (*touch)(void*),
                     void* context) {
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  if (first < unmapped_to && first + length > unmapped_from) return false;
  touch(context);
  return true;
}

constexpr std::size_t kUnmappedAt = 8192;  // the offset of the unmapped memory

struct UnmappedAtTarget : Pair {
  UnmappedAtTarget() : Pair({.mtu = Mtu::k256}) {
    b.engine.set_memory_guard(touch_if_mapped);
    unmapped_from = b.address(kUnmappedAt);
    unmapped_to = unmapped_from + 4096;
  }
};

struct UnmappedAtRequester : Pair {
  UnmappedAtRequester() : Pair({.mtu = Mtu::k256}) {
    a.engine.set_memory_guard(touch_if_mapped);
    unmapped_from = a.address(kUnmappedAt);
    unmapped_to = unmapped_from + 4096;
  }
};

TEST(UnmappedMemory, AnUnmappedTargetCausesARemoteAccessErrorAndAnEvent) {
  for (const WrOpcode opcode : kOpcodes) {
    SCOPED_TRACE(name(opcode));
    for (const std::size_t before : {std::size_t{0}, std::size_t{512}}) {
      if (before > 0 && opcode != WrOpcode::kWrite && opcode != WrOpcode::kRead) continue;
      UnmappedAtTarget p;
      ASSERT_TRUE(p.rdma(opcode, 1, 0, kUnmappedAt - before, before + 8));
      p.wire.run();
      EXPECT_EQ(text(p.a.poll()), "1:remote access error");
      bool reported = false;
      for (const Event& event : p.b.events()) {
        const auto* of_qp = std::get_if<QpEvent>(&event);
        reported |= of_qp != nullptr && of_qp->kind == QpEvent::Kind::kAccessError;
      }
      EXPECT_TRUE(reported);
    }
  }
}

TEST(UnmappedMemory, AnUnmappedElementCausesALocalProtectionError) {
  for (const WrOpcode opcode : {WrOpcode::kSend, WrOpcode::kWrite, WrOpcode::kRead,
                                WrOpcode::kFetchAdd, WrOpcode::kAtomicWrite}) {
    SCOPED_TRACE(static_cast<int>(opcode));
    for (const std::size_t before : {std::size_t{0}, std::size_t{512}}) {
      if (before > 0 && (is_atomic(opcode) || opcode == WrOpcode::kAtomicWrite)) continue;
      UnmappedAtRequester p;
      ASSERT_TRUE(p.receive(7, 0, 4096));
      ASSERT_TRUE(p.rdma(opcode, 1, kUnmappedAt - before, 0, before + 8));
      p.wire.run();
      EXPECT_EQ(text(p.a.poll()), "1:local protection error");
    }
  }
}

TEST(UnmappedMemory, AnUnmappedReceiveFailsAtBothEnds) {
  UnmappedAtTarget p;
  ASSERT_TRUE(p.receive(7, kUnmappedAt - 512, 1024));
  ASSERT_TRUE(p.send(1, 0, 1024));
  p.wire.run();
  EXPECT_EQ(text(p.b.poll()), "7:local protection error");
  EXPECT_EQ(text(p.a.poll()), "1:remote operation error");
}

TEST(UnmappedMemory, OtherMemoryRemainsAccessible) {
  UnmappedAtTarget p;
  p.a.fill(0, 600, 5);
  ASSERT_TRUE(p.rdma(WrOpcode::kWrite, 1, 0, 0, 600));
  p.wire.run();
  EXPECT_EQ(text(p.a.poll()), "1");
  EXPECT_TRUE(p.same(0, 0, 600));
}

TEST(UnmappedMemory, ADatagramFailsWithALocalProtectionError) {
  Host a{1}, b{2};
  Wire wire;
  wire.attach(a);
  wire.attach(b);
  for (Host* host : {&a, &b}) host->engine.set_memory_guard(touch_if_mapped);
  const QpHandle from = create_ud(a, Qpn{0x11}), to = create_ud(b, Qpn{0x22});
  const AhHandle ah =
      a.engine.create_ah(a.pd, {.address = {.source = gid_of(1), .destination = gid_of(2)}})
          .value();
  const auto send = [&](std::uint64_t id, std::size_t offset) {
    const Sge sge = a.sge(offset, 100);
    a.engine
        .post_send(from, {.wr_id = id,
                          .flags = send_flag::kSignaled,
                          .sges = {&sge, 1},
                          .remote_qpn = Qpn{0x22},
                          .remote_qkey = kUdQkey,
                          .ah = ah})
        .value();
    wire.run();
  };
  const Sge buffer = b.sge(kUnmappedAt, 200);
  b.engine.post_recv(to, {.wr_id = 7, .sges = {&buffer, 1}}).value();
  unmapped_from = b.address(kUnmappedAt);
  unmapped_to = unmapped_from + 1;
  send(1, 0);
  EXPECT_EQ(text(a.poll()), "1");
  EXPECT_EQ(text(b.poll()), "7:local protection error");
  unmapped_from = a.address(kUnmappedAt);
  unmapped_to = unmapped_from + 1;
  send(2, kUnmappedAt);
  EXPECT_EQ(text(a.poll()), "2:local protection error");
}

// A post is refused if its address handle is in another domain than the QP.
TEST(Protection, AddressHandlesMustBeInTheQpsDomain) {
  Host host(1);
  const PdHandle other = host.engine.create_pd().value();
  const QpHandle qp = host.engine
                          .create_qp({.type = QpType::kUd,
                                      .pd = host.pd,
                                      .send_cq = host.cq,
                                      .recv_cq = host.cq,
                                      .caps = {.max_send_wr = 4}},
                                     Qpn{0x11})
                          .value();
  for (const PdHandle pd : {host.pd, other}) {
    const AhHandle ah = host.engine.create_ah(pd, {}).value();
    const auto posted = host.engine.post_send(qp, {.ah = ah});
    EXPECT_EQ(posted.error().code, pd == host.pd ? Errc::kBadState : Errc::kInvalidArgument);
    ASSERT_TRUE(host.engine.destroy_ah(ah));
    EXPECT_EQ(host.engine.post_send(qp, {.ah = ah}).error().code, Errc::kBadHandle);
  }
}

}  // namespace
}  // namespace verbena::hca
