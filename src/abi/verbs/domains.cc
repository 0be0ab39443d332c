#include <infiniband/verbs.h>

#include <memory>

#include "abi/abi.h"
#include "abi/objects.h"
#include "abi/verbs/ops.h"

// Implements thread domains and parent domains.
//
// A program promises to use the objects of a thread domain in only one thread, so that the library
// may omit locks.  This library locks them nevertheless, because a lock without contention is
// cheap.
//
// A program makes a parent domain from a protection domain, and can use the parent domain instead.
// The allocators of a parent domain are for buffers that an adapter reads.  This device has no such
// buffers, so it never calls the allocators.

namespace verbena::abi {
namespace {

ibv_td* alloc_td(ibv_context* context, ibv_td_init_attr* attr) {
  if (attr->comp_mask != 0) return null_with(EINVAL);
  auto* td = new (std::nothrow) Td{};
  if (td == nullptr) return null_with(ENOMEM);
  td->context = context;
  return td;
}

int dealloc_td(ibv_td* td) {
  auto* self = static_cast<Td*>(td);
  if (self->users != 0) return with_errno(EBUSY);
  delete self;
  return 0;
}

ibv_pd* alloc_parent_domain(ibv_context* context, ibv_parent_domain_init_attr* attr) {
  constexpr std::uint32_t kKnown =
      IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
  if ((attr->comp_mask & ~kKnown) != 0) return null_with(EINVAL);
  if (attr->pd == nullptr || attr->pd->context != context) return null_with(EINVAL);
  // `parent` is the protection domain from which the parent domain is made.
  auto* parent = static_cast<Pd*>(attr->pd);
  if (parent->parent != nullptr) return null_with(EINVAL);
  if (int error = check_handles(*parent)) return null_with(error);
  const bool allocates = (attr->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) != 0;
  if (allocates && (attr->alloc == nullptr || attr->free == nullptr)) return null_with(EINVAL);
  auto* domain = new (std::nothrow) Pd{};
  if (domain == nullptr) return null_with(ENOMEM);
  domain->context = context;
  domain->handle = parent->handle;
  domain->library_handle = parent->library_handle;
  domain->parent = parent;
  domain->td = static_cast<Td*>(attr->td);
  ++parent->children;
  if (domain->td != nullptr) ++domain->td->users;
  return domain;
}

}  // namespace

void set_domain_ops(verbs_context& verbs) {
  verbs.alloc_td = alloc_td;
  verbs.dealloc_td = dealloc_td;
  verbs.alloc_parent_domain = alloc_parent_domain;
}

}  // namespace verbena::abi
