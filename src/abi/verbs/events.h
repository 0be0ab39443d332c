#pragma once

#include "abi/event_targets.h"
#include "abi/objects.h"

// Finds the objects of libibverbs that can have events, by their cookies.
namespace verbena::abi {

EventTargets<Cq>& cqs();
EventTargets<Qp>& qps();
EventTargets<Srq>& srqs();

// Makes a CQ.  Returns null and sets errno if it fails.
Cq* make_cq(ibv_context* context, std::uint32_t entries, void* cq_context,
            ibv_comp_channel* channel, std::uint32_t comp_vector);

}  // namespace verbena::abi
