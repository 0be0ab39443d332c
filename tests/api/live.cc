// Tests the C++ API with the real libverbena and two connected queue pairs of this program: shared
// receive queues with their limit, memory windows, reregistering, resizing, and events such as
// migration.  With the argument "adapter" it leaves out what an adapter may lack, and checks the
// errors instead.  Prints "all good"; a failure ends the test with one line.
#include <verbena/verbena.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <source_location>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

using namespace verbena;

namespace {

constexpr std::uint32_t kRemoteAccessError = 10;  // IBV_WC_REM_ACCESS_ERR
constexpr std::size_t kBytes = 256;
constexpr Access kAll =
    Access::kLocalWrite | Access::kRemoteWrite | Access::kRemoteRead | Access::kBindWindow;

// True: Verbena's own engine carries out the verbs.  False: an adapter does so, with the system's
// libibverbs (tests/interop/linux/api.sh).
bool uses_engine = true;

void check(bool condition, const std::source_location& location = std::source_location::current()) {
  if (!condition)
    throw std::runtime_error("the check in line " + std::to_string(location.line()) + " failed");
}

struct Side {
  CompletionQueue cq;  // outlives the queue pair that uses it
  QueuePair qp;
};

// enum ibv_qp_attr_mask
constexpr std::uint32_t kToInit = 1 | 8 | 16 | 32;
constexpr std::uint32_t kToRtr = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20;
constexpr std::uint32_t kToRts = 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;
constexpr std::uint32_t kAlternatePath = 1 << 14, kMigrationState = 1 << 18;
constexpr std::uint32_t kMigrated = 0, kRearm = 1;

vb_ah_attr path_of(const GidEntry& entry) {
  vb_ah_attr out{};
  std::copy(entry.gid.begin(), entry.gid.end(), out.dgid);
  out.sgid_index = static_cast<std::uint8_t>(entry.index);
  out.hop_limit = 64;
  out.is_global = 1;
  out.port_num = entry.port;
  return out;
}

// Returns the GID of an IPv4 address, because an adapter also has GIDs that cannot be used here.
GidEntry first_ipv4_gid(const std::vector<GidEntry>& gids) {
  const auto found = std::find_if(gids.begin(), gids.end(), [](const GidEntry& entry) {
    return entry.gid[0] == 0 && entry.gid[10] == 0xff && entry.gid[11] == 0xff;
  });
  check(found != gids.end());
  return *found;
}

Task<> connect(QueuePair& qp, std::uint32_t peer, GidEntry gid) {
  vb_qp_attr attributes{};
  attributes.port_num = 1;
  attributes.qp_access_flags = 2 | 4 | 8;
  attributes.path_mtu = 3;
  attributes.dest_qp_num = peer;
  attributes.rq_psn = attributes.sq_psn = 77;
  attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 1;
  attributes.min_rnr_timer = 1;
  attributes.timeout = 14;
  attributes.retry_cnt = attributes.rnr_retry = 7;
  attributes.ah = path_of(gid);
  for (const std::uint32_t mask : {kToInit, kToRtr, kToRts}) {
    ++attributes.qp_state;
    value_of(co_await qp.modify(attributes, mask));
  }
}

Task<Completion> next_completion(CompletionQueue& cq) {
  std::array<Completion, 1> completions{};
  const std::span<Completion> done = co_await cq.next(completions);
  co_return done[0];
}

Task<Side> create_side(const Device& device, const ProtectionDomain& pd,
                       const SharedReceiveQueue* srq) {
  CompletionQueue cq = value_of(co_await device.create_cq(4));
  QueuePairOptions options;
  options.receives = srq;
  QueuePair qp = value_of(co_await QueuePair::create(pd, cq, cq, options));
  co_return Side{std::move(cq), std::move(qp)};
}

// Lets b receive from a shared queue, which raises an event when it has few receives.
Task<> test_shared_receives(Side& a, Side& b, SharedReceiveQueue& srq, const MemoryRegion& memory) {
  const std::array in{memory.segment(0, 64)};
  const std::array out{memory.segment(64, 64)};
  for (std::uint64_t id = 1; id <= 3; ++id) value_of(srq.post_receive(id, in));
  value_of(co_await srq.set_limit(2));
  check(value_of(co_await srq.query()).limit == 2);
  for (std::uint64_t id = 1; id <= 2; ++id) {
    value_of(a.qp.post({.id = 10 + id, .segments = out}));
    check((co_await next_completion(a.cq)).wr_id == 10 + id);
    check((co_await next_completion(b.cq)).wr_id == id);
  }
  check(co_await srq.event() == SharedReceiveQueue::Event::kLimitReached);
  if (uses_engine) {  // not every adapter can resize SRQs
    value_of(co_await srq.resize(200));
    check(value_of(co_await srq.query()).max_wr >= 200);
  }
  check(!(co_await srq.destroy()));  // b uses it
}

Task<> test_migration(Side& a, Side& b, const std::vector<GidEntry>& gids,
                      const MemoryRegion& memory) {
  const auto other = std::find_if(gids.begin(), gids.end(), [&](const GidEntry& entry) {
    return entry.gid != first_ipv4_gid(gids).gid;
  });
  check(other != gids.end());
  vb_qp_attr alternate{};
  alternate.alt_ah = path_of(*other);
  alternate.alt_port_num = 1;
  alternate.alt_timeout = 14;
  alternate.path_mig_state = kRearm;
  for (QueuePair* qp : {&a.qp, &b.qp}) {
    value_of(co_await qp->modify(alternate, kAlternatePath | kMigrationState));
  }
  const std::array out{memory.segment(0, 64)};
  const auto exchange = [&](Side& from) -> Task<> {
    value_of(from.qp.post({.opcode = Opcode::kWrite, .segments = out, .remote = memory.remote()}));
    check((co_await next_completion(from.cq)).status == 0);
  };
  co_await exchange(a);
  co_await exchange(b);
  alternate.path_mig_state = kMigrated;
  value_of(co_await a.qp.modify(alternate, kMigrationState));
  co_await exchange(a);
  check(co_await a.qp.event() == QueuePair::Event::kMigrated);
  check(co_await b.qp.event() == QueuePair::Event::kMigrated);
  const vb_qp_attr attributes = value_of(co_await b.qp.query());
  check(std::equal(other->gid.begin(), other->gid.end(), attributes.ah.dgid));
}

// Lets side b bind a window to a part of the memory, and lets side a write through the window.
// Then side b invalidates a window of type 2, so the next write of side a fails.
Task<> test_windows(Side& a, Side& b, const ProtectionDomain& pd, const MemoryRegion& memory,
                    MemoryWindow::Type type) {
  MemoryWindow window = value_of(co_await MemoryWindow::create(pd, type));
  for (int round = 0; round < 2; ++round) {
    // A window of type 2 must be invalidated before it is bound again.
    if (round > 0 && type == MemoryWindow::Type::kTwo) {
      value_of(b.qp.post(window.invalidate()));
      check((co_await next_completion(b.cq)).status == 0);
    }
    value_of(b.qp.post(window.bind(memory, 128, 64, Access::kRemoteWrite)));
    check((co_await next_completion(b.cq)).status == 0);
  }
  memory.bytes()[0] = std::byte{42};
  const std::array out{memory.segment(0, 8)};
  const Send write{.opcode = Opcode::kWrite, .segments = out, .remote = window.remote()};
  value_of(a.qp.post(write));
  check((co_await next_completion(a.cq)).status == 0);
  check(memory.bytes()[128] == std::byte{42});
  if (type == MemoryWindow::Type::kOne) co_return;
  value_of(b.qp.post(window.invalidate()));
  check((co_await next_completion(b.cq)).status == 0);
  value_of(a.qp.post(write));
  check((co_await next_completion(a.cq)).status == kRemoteAccessError);
  if (uses_engine) check(co_await b.qp.event() == QueuePair::Event::kAccessError);
}

// Tests that a region can get other memory without new keys, and that a null region reads as zeros.
Task<> test_regions(Side& a, const ProtectionDomain& pd, MemoryRegion& memory,
                    std::vector<std::byte>& new_memory) {
  const Segment old_segment = memory.whole();
  value_of(co_await memory.reregister(new_memory, kAll));
  check(memory.whole().lkey == old_segment.lkey && memory.bytes().data() == new_memory.data());
  const std::array segments{memory.whole()};
  value_of(co_await pd.prefetch(segments, true));
  // The old memory is not registered any more.
  check(!(co_await pd.prefetch(std::array{old_segment}, true)));
  const NullRegion nothing = value_of(co_await pd.create_null_region());
  new_memory[7] = std::byte{1};
  const std::array zeros{nothing.segment(8)};
  value_of(a.qp.post({.opcode = Opcode::kWrite, .segments = zeros, .remote = memory.remote()}));
  check((co_await next_completion(a.cq)).status == 0);
  check(new_memory[7] == std::byte{0});
}

// Tests that features which adapters lack fail with operation_not_supported.  Only some adapters
// have null regions, so creating one may also succeed.
Task<> test_missing_features(QueuePair& qp, const ProtectionDomain& pd, MemoryRegion& memory,
                             std::vector<std::byte>& new_memory) {
  const auto window = co_await MemoryWindow::create(pd, MemoryWindow::Type::kOne);
  check(!window && window.error().code == std::errc::operation_not_supported);
  const auto changed = co_await memory.reregister(new_memory, kAll);
  check(!changed && changed.error().code == std::errc::operation_not_supported);
  const auto path = co_await qp.modify({}, kAlternatePath);
  check(!path && path.error().code == std::errc::operation_not_supported);
  const auto nothing = co_await pd.create_null_region();
  check(nothing || nothing.error().code == std::errc::operation_not_supported);
}

Task<> run_all(Loop& loop) {
  const Device device = value_of(co_await Device::open(loop));
  const ProtectionDomain pd = value_of(co_await device.create_pd());
  const std::vector<GidEntry> gids = device.gids();
  const GidEntry gid = first_ipv4_gid(gids);
  std::vector<std::byte> bytes(kBytes), new_memory(kBytes);
  MemoryRegion memory = value_of(co_await pd.register_memory(bytes, kAll));
  SharedReceiveQueue srq = value_of(co_await SharedReceiveQueue::create(pd, 8));
  Side a = co_await create_side(device, pd, nullptr);
  Side b = co_await create_side(device, pd, &srq);
  co_await connect(a.qp, b.qp.number(), gid);
  co_await connect(b.qp, a.qp.number(), gid);
  check(value_of(co_await a.cq.resize(1000)) >= 1000);

  co_await test_shared_receives(a, b, srq, memory);
  if (uses_engine) {
    co_await test_migration(a, b, gids, memory);
    co_await test_regions(a, pd, memory, new_memory);
    co_await test_windows(a, b, pd, memory, MemoryWindow::Type::kOne);
  } else {
    co_await test_missing_features(a.qp, pd, memory, new_memory);
  }
  co_await test_windows(a, b, pd, memory, MemoryWindow::Type::kTwo);  // ends the connection
}

}  // namespace

int main(int argc, char** argv) {
  uses_engine = argc < 2 || std::string_view(argv[1]) != "adapter";
  try {
    auto loop = value_of(Loop::create());
    loop->run(run_all(*loop));
    std::puts("all good");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "live: %s\n", error.what());
    return 1;
  }
}
