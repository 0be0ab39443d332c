#pragma once

#include "base/handle.h"
#include "hca/completion_queue.h"
#include "hca/deadline_heap.h"
#include "hca/engine.h"
#include "hca/key_table.h"
#include "hca/list.h"
#include "hca/memory.h"
#include "hca/multicast.h"
#include "hca/qp.h"
#include "hca/qp_core.h"

// Holds the parts of an engine.  Only the engine's own source files include this header.
namespace verbena::hca {

template <class T>
Result<T*> find(const Slots<T>& slots, Handle<T> handle, const char* context) {
  T* const object = slots.find(handle);
  if (object == nullptr) return fail(Errc::kBadHandle, context);
  return object;
}

inline constexpr const char* kNoPd = "no such protection domain";
inline constexpr const char* kNoMr = "no such memory region";
inline constexpr const char* kNoMw = "no such memory window";
inline constexpr const char* kNoCq = "no such completion queue";
inline constexpr const char* kNoAh = "no such address handle";
inline constexpr const char* kNoSrq = "no such shared receive queue";
inline constexpr const char* kNoQp = "no such queue pair";

struct Engine::State {
  State(const Limits& limits, const Personality& personality, Random random)
      : shared(limits, personality, random),
        pds(limits.pds),
        regions(limits.mrs),
        windows(limits.mws),
        cqs(limits.cqs),
        ahs(limits.ahs),
        srqs(limits.srqs),
        qps(limits.qps),
        groups(shared.limits) {}

  // Moves the QPs with new posts to `active`, in the order of posting.
  void activate_ready() {
    Qp* newest = ready.take_all();
    Qp* oldest = nullptr;
    while (newest != nullptr) {
      Qp* const next = newest->ready_next;
      newest->ready_next = oldest;
      oldest = newest;
      newest = next;
    }
    while (oldest != nullptr) {
      Qp& qp = *oldest;
      oldest = qp.ready_next;  // after the next line, a poster may change ready_next
      qp.in_ready_list.exchange(false, std::memory_order_acq_rel);
      active.push_back(qp);
    }
  }
  Result<MrInfo> add_region(PdHandle pd_handle, std::uint64_t address, std::uint64_t length,
                            std::uint64_t iova, std::uint32_t access_flags);
  void receive_for_group(const wire::TransportPacket& packet, const link::Arrival& arrival);
  // After a change of the QP, makes the driver check if the QP has packets to send, and when its
  // timer is due.
  void reschedule(Qp& qp) {
    active.push_back(qp);
    deadlines.schedule(qp, qp.deadline());
  }

  Shared shared;
  Slots<Pd> pds;
  Slots<MemoryRegion> regions;
  Slots<MemoryWindow> windows;
  Slots<CompletionQueue> cqs;
  Slots<AddressHandle> ahs;
  Slots<SharedReceiveQueue> srqs;
  Slots<Qp> qps;
  KeyTable<Qp> qps_by_qpn;
  MulticastGroups groups;
  // Contains the QPs that may have packets to send.
  List<Qp, &Qp::active_link> active;
  // Contains the QPs with sends that complete when the burst is sent.
  List<Qp, &Qp::burst_link> waiting_for_burst;
  // Contains the QPs whose lane is full.
  List<Qp, &Qp::lane_link> waiting_for_lane;
  DeadlineHeap<Qp, &Qp::heap_position> deadlines;
  ReadyList ready;
};

}  // namespace verbena::hca
