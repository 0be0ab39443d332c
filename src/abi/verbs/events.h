#pragma once

#include "abi/event_targets.h"
#include "abi/objects.h"

// Declares the tables that find an object of libibverbs by the cookie of its event, and the
// function that both kinds of completion queues share.
namespace verbena::abi {

EventTargets<Cq>& cqs();
EventTargets<Qp>& qps();
EventTargets<Srq>& srqs();

// Makes a CQ.  Returns null and sets errno if it fails.
Cq* make_cq(ibv_context* context, std::uint32_t entries, void* cq_context,
            ibv_comp_channel* channel, std::uint32_t comp_vector);

}  // namespace verbena::abi
