#include "rdmacm/rules.h"

namespace verbena::rdmacm {

Result<void> check_port_space(std::uint32_t port_space, std::uint32_t qp_type) {
  if (port_space != kPortSpaceTcp && port_space != kPortSpaceUdp && port_space != kPortSpaceIb &&
      port_space != kPortSpaceIpoib && port_space != kPortSpaceNone) {
    return fail(Errc::kNotSupported, "unknown port space");
  }
  const bool is_valid_rc =
      qp_type == kQpTypeRc && port_space != kPortSpaceUdp && port_space != kPortSpaceIpoib;
  const bool is_valid_ud = is_datagram(qp_type) && port_space != kPortSpaceTcp;
  if (!is_valid_rc && !is_valid_ud)
    return fail(Errc::kNotSupported, "the port space does not support this QP type");
  return {};
}

Result<void> check_reason(std::uint32_t port_space, std::uint16_t reason) {
  const bool no_port_space = port_space == kPortSpaceNone;
  if (reason == kRejectConsumer || reason == kRejectVendorOption) return {};
  if (no_port_space && reason >= 1 && reason <= kRejectReasonMax) return {};
  return fail(Errc::kInvalidArgument,
              no_port_space ? "reasons are 1 to 33 and 35" : "reasons for programs are 28 and 35");
}

}  // namespace verbena::rdmacm
