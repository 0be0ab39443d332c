// Implements the commands of engine.h.
#include "hca/engine.h"

#include <memory>
#include <utility>

#include "hca/engine_state.h"

namespace verbena::hca {
namespace {

constexpr std::uint32_t kQpnLast = 0xfffffe;  // 0xffffff is multicast

// Inserts an object.  If the limit is reached, counts that and returns an error with the text
// `limit_message`, which names the limit as ibv_devinfo -v does.
template <class T>
Result<Handle<T>> insert(Slots<T>& slots, std::unique_ptr<T> object, Shared& shared,
                         Counter counter, const char* limit_message) {
  auto handle = slots.insert(std::move(object));
  if (handle) return handle;
  ++shared.counters[counter];
  return fail(handle.error().code, limit_message);
}

Result<void> check_caps(const QpCaps& caps, const Limits& limits) {
  if (caps.max_send_wr > limits.max_wr || caps.max_recv_wr > limits.max_wr) {
    return fail(Errc::kInvalidArgument, "max_send_wr or max_recv_wr exceeds the limit");
  }
  if (caps.max_send_sge > limits.max_sge || caps.max_recv_sge > limits.max_sge) {
    return fail(Errc::kInvalidArgument, "max_send_sge or max_recv_sge exceeds the limit");
  }
  if (caps.max_inline_bytes > limits.max_inline_bytes) {
    return fail(Errc::kInvalidArgument, "max_inline_data exceeds the limit");
  }
  return {};
}

}  // namespace

Engine::Engine(const Limits& limits, Random random, const Personality& personality)
    : state_(std::make_unique<State>(limits, personality, random)) {}
Engine::~Engine() = default;

const Limits& Engine::limits() const { return state_->shared.limits; }

// ---- commands -----------------------------------------------------------------------------------

Result<PdHandle> Engine::create_pd() {
  return insert(state_->pds, std::make_unique<Pd>(), state_->shared, Counter::kLimitPds,
                "the limit of protection domains (max_pd) is reached");
}

Result<void> Engine::destroy_pd(PdHandle handle) {
  const Pd& pd = *VB_TRY(find(state_->pds, handle, kNoPd));
  if (pd.queue_pairs > 0) return fail(Errc::kBusy, "queue pairs use the protection domain");
  if (pd.regions > 0) return fail(Errc::kBusy, "memory regions use the protection domain");
  if (pd.windows > 0) return fail(Errc::kBusy, "memory windows use the protection domain");
  if (pd.address_handles > 0) {
    return fail(Errc::kBusy, "address handles use the protection domain");
  }
  if (pd.shared_receive_queues > 0) {
    return fail(Errc::kBusy, "shared receive queues use the protection domain");
  }
  state_->pds.remove(handle);
  return {};
}

Result<MrInfo> Engine::State::add_region(PdHandle pd_handle, std::uint64_t address,
                                         std::uint64_t length, std::uint64_t iova,
                                         std::uint32_t access_flags) {
  Pd& pd = *VB_TRY(find(pds, pd_handle, kNoPd));
  auto object = std::make_unique<MemoryRegion>(pd, address, length, iova, access_flags);
  MemoryRegion& region = *object;
  const MrHandle handle = VB_TRY(insert(regions, std::move(object), shared, Counter::kLimitMrs,
                                        "the limit of memory regions (max_mr) is reached"));
  if (!shared.memory.add(region)) ++shared.counters[Counter::kLimitPublished];
  ++pd.regions;
  return MrInfo{handle, region.key, region.key};
}

Result<MrInfo> Engine::register_mr(PdHandle pd, std::uint64_t address, std::uint64_t length,
                                   std::uint64_t iova, std::uint32_t access_flags) {
  VB_TRY_VOID(find(state_->pds, pd, kNoPd));
  VB_TRY_VOID(Memory::check_region(address, length, iova, access_flags));
  return state_->add_region(pd, address, length, iova, access_flags);
}

Result<MrInfo> Engine::register_null_mr(PdHandle pd) {
  return state_->add_region(pd, 0, ~std::uint64_t{0}, 0, access::kLocalWrite | MemoryRegion::kNull);
}

Result<void> Engine::reregister_mr(MrHandle handle, const MrChange& change) {
  constexpr std::uint32_t kAll = MrChange::kTranslation | MrChange::kPd | MrChange::kAccess;
  MemoryRegion& region = *VB_TRY(find(state_->regions, handle, kNoMr));
  if (region.windows > 0) return fail(Errc::kBusy, "memory windows are bound to the memory region");
  if (change.what == 0 || (change.what & ~kAll) != 0) {
    return fail(Errc::kInvalidArgument, "the flags of the reregistration are 0 or unknown");
  }
  const auto changes = [&](std::uint32_t bit) { return (change.what & bit) != 0; };
  Pd& pd = changes(MrChange::kPd) ? *VB_TRY(find(state_->pds, change.pd, kNoPd)) : region.pd;
  const bool changes_memory = changes(MrChange::kTranslation);
  const std::uint64_t address = changes_memory ? change.address : region.address;
  const std::uint64_t length = changes_memory ? change.length : region.length;
  if ((region.access_flags & MemoryRegion::kNull) != 0) {
    return fail(Errc::kInvalidArgument, "the null region cannot be reregistered");
  }
  const std::uint32_t flags =
      changes(MrChange::kAccess) ? change.access_flags : region.access_flags;
  const bool zero_based = (flags & access::kZeroBased) != 0;
  const std::uint64_t new_iova = zero_based ? 0 : change.address;
  const std::uint64_t iova = changes_memory ? new_iova : region.iova;
  VB_TRY_VOID(Memory::check_region(address, length, iova, flags));
  --region.pd.regions;
  if (!state_->shared.memory.replace(region, pd, address, length, iova, flags)) {
    ++state_->shared.counters[Counter::kLimitPublished];
  }
  ++pd.regions;
  return {};
}

Result<std::span<std::byte>> Engine::find_memory(PdHandle pd, const Sge& sge,
                                                 std::uint32_t needed) const {
  if (sge.length == 0) return std::span<std::byte>{};
  const auto found = state_->shared.memory.find(*VB_TRY(find(state_->pds, pd, kNoPd)), sge.lkey,
                                                sge.address, sge.length, needed);
  if (!found) {
    return fail(Errc::kFault, "the memory is not registered in this domain, or lacks a right");
  }
  return *found;
}

Result<void> Engine::set_pkeys(std::span<const Pkey> pkeys, PortId port) {
  VB_TRY_VOID(state_->shared.ports.set(port, pkeys));
  state_->qps.for_each([](QpHandle, Qp& qp) { qp.publish_access(); });
  return {};
}

Result<void> Engine::set_lmc(PortId port, std::uint8_t lmc) {
  constexpr std::uint8_t kLmcMax = 7;
  if (!state_->shared.ports.has(port) || lmc > kLmcMax) {
    return fail(Errc::kInvalidArgument, "no such port, or an LMC above 7");
  }
  state_->shared.ports.set_lmc(port, lmc);
  return {};
}

void Engine::set_access_table(link::AccessTable* table) {
  state_->shared.access_table = table;
  state_->shared.memory.set_access_table(table);
  state_->regions.for_each([this](MrHandle, MemoryRegion& region) {
    if (!state_->shared.memory.publish(region)) ++state_->shared.counters[Counter::kLimitPublished];
  });
  state_->qps.for_each([](QpHandle, Qp& qp) { qp.publish_access(); });
}

void Engine::set_memory_guard(MemoryGuard guard) { state_->shared.memory.set_guard(guard); }

Result<void> Engine::deregister_mr(MrHandle handle) {
  MemoryRegion& region = *VB_TRY(find(state_->regions, handle, kNoMr));
  if (region.windows > 0) return fail(Errc::kBusy, "memory windows are bound to the memory region");
  state_->shared.memory.remove(region);
  --region.pd.regions;
  state_->regions.remove(handle);
  return {};
}

Result<MwInfo> Engine::create_mw(PdHandle pd_handle, WindowType type) {
  if (type != WindowType::kOne && type != WindowType::kTwo) {
    return fail(Errc::kInvalidArgument, "a memory window is of type 1 or 2");
  }
  Pd& pd = *VB_TRY(find(state_->pds, pd_handle, kNoPd));
  auto object = std::make_unique<MemoryWindow>(pd, type);
  MemoryWindow& window = *object;
  const MwHandle handle =
      VB_TRY(insert(state_->windows, std::move(object), state_->shared, Counter::kLimitMws,
                    "the limit of memory windows (max_mw) is reached"));
  state_->shared.memory.add(window);
  ++pd.windows;
  return MwInfo{handle, window.key};
}

Result<void> Engine::destroy_mw(MwHandle handle) {
  MemoryWindow& window = *VB_TRY(find(state_->windows, handle, kNoMw));
  state_->shared.memory.remove(window);
  --window.pd.windows;
  state_->windows.remove(handle);
  return {};
}

Result<CqHandle> Engine::create_cq(std::uint32_t entries, std::uint64_t cookie) {
  if (entries == 0 || entries > limits().max_cqe) {
    ++state_->shared.counters[Counter::kLimitSizes];
    return fail(Errc::kInvalidArgument, "a CQ has 1 to max_cqe entries");
  }
  auto object = std::make_unique<CompletionQueue>(entries, cookie);
  CompletionQueue& cq = *object;
  cq.handle = VB_TRY(insert(state_->cqs, std::move(object), state_->shared, Counter::kLimitCqs,
                            "the limit of completion queues (max_cq) is reached"));
  return cq.handle;
}

Result<std::uint32_t> Engine::cq_capacity(CqHandle handle) const {
  return VB_TRY(find(state_->cqs, handle, kNoCq))->capacity();
}

Result<std::uint64_t> Engine::cq_cookie(CqHandle handle) const {
  return VB_TRY(find(state_->cqs, handle, kNoCq))->cookie();
}

Result<void> Engine::resize_cq(CqHandle handle, std::uint32_t entries) {
  CompletionQueue& cq = *VB_TRY(find(state_->cqs, handle, kNoCq));
  if (entries == 0 || entries > limits().max_cqe) {
    ++state_->shared.counters[Counter::kLimitSizes];
    return fail(Errc::kInvalidArgument, "a CQ has 1 to max_cqe entries");
  }
  if (!cq.resize(entries)) {
    return fail(Errc::kInvalidArgument, "the CQ contains more completions than the new size");
  }
  return {};
}

Result<void> Engine::destroy_cq(CqHandle handle) {
  CompletionQueue& cq = *VB_TRY(find(state_->cqs, handle, kNoCq));
  if (cq.queue_pairs > 0) return fail(Errc::kBusy, "queue pairs use the completion queue");
  state_->shared.cq_events.remove(cq);
  state_->shared.unpublished.remove(cq);
  state_->cqs.remove(handle);
  return {};
}

Result<AhHandle> Engine::create_ah(PdHandle pd_handle, const Path& path) {
  Pd& pd = *VB_TRY(find(state_->pds, pd_handle, kNoPd));
  const AhHandle handle =
      VB_TRY(insert(state_->ahs, std::make_unique<AddressHandle>(pd, path), state_->shared,
                    Counter::kLimitAhs, "the limit of address handles (max_ah) is reached"));
  ++pd.address_handles;
  return handle;
}

Result<void> Engine::destroy_ah(AhHandle handle) {
  const AddressHandle& ah = *VB_TRY(find(state_->ahs, handle, kNoAh));
  --ah.pd.address_handles;
  state_->ahs.remove(handle);
  return {};
}

Result<SrqHandle> Engine::create_srq(PdHandle pd_handle, const SrqCaps& caps,
                                     std::uint64_t cookie) {
  State& s = *state_;
  Pd& pd = *VB_TRY(find(s.pds, pd_handle, kNoPd));
  if (caps.max_wr == 0 || caps.max_wr > limits().max_wr || caps.max_sge > limits().max_sge) {
    ++s.shared.counters[Counter::kLimitSizes];
    return fail(Errc::kInvalidArgument,
                "an SRQ has 1 to max_srq_wr receives of at most max_srq_sge elements");
  }
  auto object = std::make_unique<SharedReceiveQueue>(s.shared, pd, caps, cookie);
  SharedReceiveQueue& srq = *object;
  srq.handle = VB_TRY(insert(s.srqs, std::move(object), s.shared, Counter::kLimitSrqs,
                             "the limit of shared receive queues (max_srq) is reached"));
  ++pd.shared_receive_queues;
  return srq.handle;
}

Result<Engine::SrqInfo> Engine::query_srq(SrqHandle handle) const {
  const SharedReceiveQueue& srq = *VB_TRY(find(state_->srqs, handle, kNoSrq));
  return SrqInfo{srq.caps(), srq.limit(), srq.cookie()};
}

Result<void> Engine::arm_srq(SrqHandle handle, std::uint32_t limit) {
  SharedReceiveQueue& srq = *VB_TRY(find(state_->srqs, handle, kNoSrq));
  if (limit > srq.caps().max_wr) {
    return fail(Errc::kInvalidArgument, "the limit of an SRQ is at most its max_wr");
  }
  srq.set_limit(limit);
  return {};
}

Result<void> Engine::resize_srq(SrqHandle handle, std::uint32_t max_wr) {
  SharedReceiveQueue& srq = *VB_TRY(find(state_->srqs, handle, kNoSrq));
  if (max_wr == 0 || max_wr > limits().max_wr) {
    ++state_->shared.counters[Counter::kLimitSizes];
    return fail(Errc::kInvalidArgument, "an SRQ has 1 to max_srq_wr receives");
  }
  return srq.resize(max_wr);
}

Result<void> Engine::destroy_srq(SrqHandle handle) {
  State& s = *state_;
  SharedReceiveQueue& srq = *VB_TRY(find(s.srqs, handle, kNoSrq));
  if (srq.queue_pairs > 0) return fail(Errc::kBusy, "queue pairs use the shared receive queue");
  s.shared.srq_events.remove(srq);
  --srq.pd().shared_receive_queues;
  s.srqs.remove(handle);
  return {};
}

Result<QpHandle> Engine::create_qp(const QpInit& init, Qpn qpn) {
  State& s = *state_;
  if (init.type != QpType::kRc && init.type != QpType::kUc && init.type != QpType::kUd) {
    return fail(Errc::kInvalidArgument, "unknown type of queue pair");
  }
  Pd& pd = *VB_TRY(find(s.pds, init.pd, kNoPd));
  CompletionQueue& send_cq = *VB_TRY(find(s.cqs, init.send_cq, kNoCq));
  CompletionQueue& recv_cq = *VB_TRY(find(s.cqs, init.recv_cq, kNoCq));
  SharedReceiveQueue* const srq = init.srq ? VB_TRY(find(s.srqs, init.srq, kNoSrq)) : nullptr;
  QpCaps caps = init.caps;
  if (srq != nullptr) caps.max_recv_wr = caps.max_recv_sge = 0;
  if (const auto sizes = check_caps(caps, limits()); !sizes) {
    ++s.shared.counters[Counter::kLimitSizes];
    return std::unexpected(sizes.error());
  }
  if (!s.shared.ports.has({init.device, 1})) {
    return fail(Errc::kInvalidArgument, "the host has no such device");
  }
  if (qpn.value == 0 || qpn.value > kQpnLast) {
    return fail(Errc::kInvalidArgument, "a QPN is 1 to 0xfffffe");
  }
  if (s.qps_by_qpn.find(qpn.value) != nullptr) {
    return fail(Errc::kAddressInUse, "the QPN is in use");
  }
  auto object = std::make_unique<Qp>(s.shared, pd, send_cq, recv_cq, srq, init, qpn);
  Qp& qp = *object;
  const QpHandle handle = VB_TRY(insert(s.qps, std::move(object), s.shared, Counter::kLimitQps,
                                        "the limit of queue pairs (max_qp) is reached"));
  qp.set_handle(handle);
  s.qps_by_qpn.insert(qpn.value, qp);
  s.deadlines.reserve(s.qps.size());
  ++pd.queue_pairs;
  ++send_cq.queue_pairs;
  ++recv_cq.queue_pairs;
  if (srq != nullptr) ++srq->queue_pairs;
  return handle;
}

Result<void> Engine::modify_qp(QpHandle handle, const QpAttributes& attributes, std::uint32_t mask,
                               Time now) {
  state_->shared.now = now;
  Qp& qp = *VB_TRY(find(state_->qps, handle, kNoQp));
  VB_TRY_VOID(qp.modify(attributes, mask));
  qp.publish_access();
  state_->reschedule(qp);
  return {};
}

Result<Engine::QpInfo> Engine::query_qp(QpHandle handle) const {
  const Qp& qp = *VB_TRY(find(state_->qps, handle, kNoQp));
  return QpInfo{qp.core().qpn, qp.core().init, qp.attributes(), qp.sq_draining()};
}

Result<void> Engine::destroy_qp(QpHandle handle) {
  State& s = *state_;
  Qp& qp = *VB_TRY(find(s.qps, handle, kNoQp));
  if (qp.groups > 0) return fail(Errc::kBusy, "the QP is attached to multicast groups");
  s.activate_ready();
  s.active.remove(qp);
  s.waiting_for_burst.remove(qp);
  s.waiting_for_lane.remove(qp);
  s.deadlines.remove(qp);
  s.shared.qp_events.remove(qp.core());
  s.qps_by_qpn.erase(qp.core().qpn.value);
  if (s.shared.access_table != nullptr) s.shared.access_table->remove_qp(qp.core().qpn.value);
  qp.discard_completions();
  --qp.core().pd.queue_pairs;
  --qp.core().send_cq.queue_pairs;
  --qp.core().recv_cq.queue_pairs;
  if (qp.core().srq != nullptr) --qp.core().srq->queue_pairs;
  s.qps.remove(handle);
  return {};
}

Result<void> Engine::attach_multicast(QpHandle handle, const Gid& group) {
  Qp& qp = *VB_TRY(find(state_->qps, handle, kNoQp));
  const auto attached = state_->groups.attach(group, qp);
  if (!attached && attached.error().code == Errc::kNoResources) {
    ++state_->shared.counters[Counter::kLimitGroups];
  }
  return attached;
}

Result<void> Engine::detach_multicast(QpHandle handle, const Gid& group) {
  return state_->groups.detach(group, *VB_TRY(find(state_->qps, handle, kNoQp)));
}

Result<void> Engine::mark_established(QpHandle handle) {
  VB_TRY(find(state_->qps, handle, kNoQp))->mark_established();
  return {};
}

Result<QpHandle> Engine::find_qp(Qpn qpn) const {
  const Qp* const qp = state_->qps_by_qpn.find(qpn.value);
  if (qp == nullptr) return fail(Errc::kBadHandle, "no queue pair has this QPN");
  return qp->core().handle;
}

}  // namespace verbena::hca
