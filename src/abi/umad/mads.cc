#include <endian.h>
#include <infiniband/umad.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "abi/umad/service.h"

// Implements the functions that only read and write the program's buffer.

using verbena::ipc::umad::kUserMadBytes;
using verbena::ipc::umad::UserMad;

static_assert(sizeof(ib_user_mad) == kUserMadBytes);
static_assert(offsetof(ib_user_mad, length) == offsetof(UserMad, length));
static_assert(offsetof(ib_user_mad, addr.qpn) == offsetof(UserMad, qpn_be));
static_assert(offsetof(ib_user_mad, addr.qkey) == offsetof(UserMad, qkey_be));
static_assert(offsetof(ib_user_mad, addr.lid) == offsetof(UserMad, lid_be));
static_assert(offsetof(ib_user_mad, addr.sl) == offsetof(UserMad, sl));
static_assert(offsetof(ib_user_mad, addr.path_bits) == offsetof(UserMad, path_bits));
static_assert(offsetof(ib_user_mad, addr.grh_present) == offsetof(UserMad, grh_present));
static_assert(offsetof(ib_user_mad, addr.gid_index) == offsetof(UserMad, gid_index));
static_assert(offsetof(ib_user_mad, addr.gid) == offsetof(UserMad, gid));
static_assert(offsetof(ib_user_mad, addr.flow_label) == offsetof(UserMad, flow_label_be));
static_assert(offsetof(ib_user_mad, addr.pkey_index) == offsetof(UserMad, pkey_index));

namespace {

ib_user_mad& buffer(void* umad) { return *static_cast<ib_user_mad*>(umad); }

}  // namespace

VB_EXPORT void* umad_get_mad(void* umad) { return buffer(umad).data; }
VB_EXPORT std::size_t umad_size(void) { return sizeof(ib_user_mad); }
VB_EXPORT int umad_status(void* umad) { return static_cast<int>(buffer(umad).status); }
VB_EXPORT ib_mad_addr_t* umad_get_mad_addr(void* umad) { return &buffer(umad).addr; }

VB_EXPORT int umad_set_grh(void* umad, void* mad_addr) {
  ib_mad_addr& to = buffer(umad).addr;
  to.grh_present = mad_addr != nullptr ? 1 : 0;
  if (mad_addr == nullptr) return 0;
  const auto& from = *static_cast<const ib_mad_addr*>(mad_addr);
  std::memcpy(to.gid, from.gid, sizeof to.gid);
  to.flow_label = htobe32(from.flow_label);  // the argument is in host order
  to.hop_limit = from.hop_limit;
  to.traffic_class = from.traffic_class;
  return 0;
}

VB_EXPORT int umad_set_pkey(void* umad, int pkey_index) {
  buffer(umad).addr.pkey_index = static_cast<std::uint16_t>(pkey_index);
  return 0;
}

VB_EXPORT int umad_get_pkey(void* umad) { return buffer(umad).addr.pkey_index; }

VB_EXPORT int umad_set_addr_net(void* umad, __be16 dlid, __be32 dqp, int sl, __be32 qkey) {
  ib_mad_addr& to = buffer(umad).addr;
  to.qpn = dqp;
  to.lid = dlid;
  to.qkey = qkey;
  to.sl = static_cast<std::uint8_t>(sl);
  return 0;
}

VB_EXPORT int umad_set_addr(void* umad, int dlid, int dqp, int sl, int qkey) {
  return umad_set_addr_net(umad, htobe16(static_cast<std::uint16_t>(dlid)),
                           htobe32(static_cast<std::uint32_t>(dqp)), sl,
                           htobe32(static_cast<std::uint32_t>(qkey)));
}

VB_EXPORT void umad_addr_dump(ib_mad_addr_t* addr) {
  char gid[2 * sizeof addr->gid + 1] = "";
  for (std::size_t i = 0; i < sizeof addr->gid; ++i) {
    std::snprintf(gid + 2 * i, 3, "%02x", addr->gid[i]);
  }
  std::fprintf(stderr,
               "ibwarn: [%d] umad_addr_dump: qpn %u qkey 0x%x lid %u sl %u\n"
               "grh_present %u gid_index %u hop_limit %u traffic_class %u flow_label 0x%x "
               "pkey_index 0x%x\nGid 0x%s\n",
               ::getpid(), be32toh(addr->qpn), be32toh(addr->qkey), be16toh(addr->lid), addr->sl,
               addr->grh_present, addr->gid_index, addr->hop_limit, addr->traffic_class,
               be32toh(addr->flow_label), addr->pkey_index, gid);
}

VB_EXPORT void umad_dump(void* umad) {
  const ib_user_mad& mad = buffer(umad);
  std::fprintf(stderr, "ibwarn: [%d] umad_dump: agent id %u status %x timeout %u\n", ::getpid(),
               mad.agent_id, mad.status, mad.timeout_ms);
  umad_addr_dump(&buffer(umad).addr);
}
