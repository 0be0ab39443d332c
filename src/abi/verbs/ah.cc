#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <netinet/ip.h>

#include <cstring>
#include <memory>
#include <optional>

#include "abi/abi.h"
#include "abi/objects.h"
#include "c_api/attributes.h"

// Implements address handles, including those for replies to a received datagram.

using namespace verbena::abi;

namespace {

constexpr std::uint8_t kReplyHopLimit = 0xff;

// Returns the IPv4 header of a received datagram, if it has one.  The header is in the last 20 of
// the 40 bytes (vol1 annex A17.4.5.1).  No flag marks IPv4, so this checks the header and its
// checksum.
std::optional<iphdr> ipv4_header(const ibv_grh& grh) {
  iphdr header{};
  std::memcpy(&header, reinterpret_cast<const std::byte*>(&grh) + 20, sizeof header);
  if (header.version != 4 || header.ihl != 5) return std::nullopt;
  std::uint32_t sum = 0;
  std::uint16_t words[10];
  std::memcpy(words, &header, sizeof words);
  for (std::uint16_t word : words) sum += word;
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  if (sum != 0xffff) return std::nullopt;
  return header;
}

ibv_gid ipv4_mapped(std::uint32_t address) {
  ibv_gid gid{};
  gid.raw[10] = gid.raw[11] = 0xff;
  std::memcpy(gid.raw + 12, &address, sizeof address);
  return gid;
}

// Sets the source of a reply: the GID to which the datagram was sent.
int set_reply_source(ibv_context* context, std::uint8_t port_num, const ibv_gid& gid,
                     ibv_ah_attr& attr) {
  for (std::uint32_t index = 0; index <= UINT8_MAX; ++index) {
    ibv_gid_entry entry{};
    const int error = ibv_query_gid_ex(context, port_num, index, &entry, 0);
    if (error == ENODATA) continue;
    if (error != 0) return error;
    if (std::memcmp(entry.gid.raw, gid.raw, sizeof gid.raw) == 0) {
      attr.grh.sgid_index = static_cast<std::uint8_t>(index);
      return 0;
    }
  }
  return EINVAL;
}

int init_global(ibv_context* context, std::uint8_t port_num, const ibv_grh& grh,
                ibv_ah_attr& attr) {
  attr.is_global = 1;
  attr.grh.hop_limit = kReplyHopLimit;
  if (const auto ipv4 = ipv4_header(grh)) {
    if (IN_MULTICAST(ntohl(ipv4->daddr))) return EINVAL;
    attr.grh.dgid = ipv4_mapped(ipv4->saddr);
    attr.grh.traffic_class = ipv4->tos;
    return set_reply_source(context, port_num, ipv4_mapped(ipv4->daddr), attr);
  }
  const std::uint32_t version_class_flow = be32toh(grh.version_tclass_flow);
  if (version_class_flow >> 28 != 6) return EPROTONOSUPPORT;
  if (grh.dgid.raw[0] == 0xff) return EINVAL;
  attr.grh.dgid = grh.sgid;
  attr.grh.flow_label = version_class_flow & 0xfffff;
  attr.grh.traffic_class = static_cast<std::uint8_t>(version_class_flow >> 20);
  return set_reply_source(context, port_num, grh.dgid, attr);
}

}  // namespace

VB_EXPORT ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attr) {
  if (int error = check_handles(*static_cast<Pd*>(pd))) return null_with(error);
  std::unique_ptr<Ah> ah(new (std::nothrow) Ah{});
  if (!ah) return null_with(ENOMEM);
  const vb_ah_attr address = verbena::c_api::to_c_api(*attr);
  if (int error = vb_ah_create(device_of(pd->context), static_cast<Pd*>(pd)->library_handle,
                               &address, &ah->library_handle)) {
    return null_with(error);
  }
  ah->context = pd->context;
  ah->pd = pd;
  ah->handle = low_bits(ah->library_handle);
  return ah.release();
}

VB_EXPORT int ibv_destroy_ah(ibv_ah* ah) {
  auto* self = static_cast<Ah*>(ah);
  if (int error = check_handles(*self)) return with_errno(error);
  if (int error = vb_ah_destroy(self->library_handle)) return with_errno(error);
  delete self;
  return 0;
}

VB_EXPORT int ibv_init_ah_from_wc(ibv_context* context, uint8_t port_num, ibv_wc* wc, ibv_grh* grh,
                                  ibv_ah_attr* ah_attr) {
  *ah_attr = {};
  ah_attr->dlid = wc->slid;
  ah_attr->sl = wc->sl;
  ah_attr->src_path_bits = wc->dlid_path_bits;
  ah_attr->port_num = port_num;
  if ((wc->wc_flags & IBV_WC_GRH) == 0) return 0;
  if (int error = init_global(context, port_num, *grh, *ah_attr)) return failed(error);
  return 0;
}

VB_EXPORT ibv_ah* ibv_create_ah_from_wc(ibv_pd* pd, ibv_wc* wc, ibv_grh* grh, uint8_t port_num) {
  ibv_ah_attr attr{};
  if (ibv_init_ah_from_wc(pd->context, port_num, wc, grh, &attr) != 0) return nullptr;
  return ibv_create_ah(pd, &attr);
}

// The host's kernel resolves link-layer addresses, and Verbena does not use them.
VB_EXPORT int ibv_resolve_eth_l2_from_gid(ibv_context*, ibv_ah_attr*, uint8_t*, uint16_t*) {
  return with_errno(EOPNOTSUPP);
}
