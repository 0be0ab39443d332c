#include "mad/agents.h"

#include "wire/rmpp.h"

namespace verbena::mad {

using wire::MgmtClass;

namespace {

// Linux accepts agents only for classes below this number and for directed route SMPs.
constexpr std::uint8_t kFirstClassWithoutAgents = 80;
constexpr std::uint32_t kOuiMax = 0xffffff;
constexpr std::size_t kVendorOuiOffset = 37;  // vol1 16.5.1

const char* problem(const Registration& registration) {
  if (registration.qpn != wire::kSmiQpn && registration.qpn != wire::kGsiQpn)
    return "the QP is neither QP0 nor QP1";
  if (registration.rmpp_version > wire::kRmppVersion) return "the version of RMPP is unknown";
  if (registration.mgmt_class == 0) return nullptr;
  const auto mgmt_class = MgmtClass{registration.mgmt_class};
  if (registration.class_version >= AgentTable::kClassVersionsMax)
    return "the class version is unknown";
  if (registration.mgmt_class >= kFirstClassWithoutAgents &&
      mgmt_class != MgmtClass::kSubnetManagementDirected) {
    return "the class cannot have agents";
  }
  if (registration.oui > kOuiMax) return "the OUI has more than 24 bits";
  if (is_vendor_class_with_oui(mgmt_class) && registration.oui == 0)
    return "the vendor class needs an OUI";
  if (registration.rmpp_version != 0 && !wire::has_rmpp(mgmt_class))
    return "the class does not support RMPP";
  if (is_subnet_management(mgmt_class) != (registration.qpn == wire::kSmiQpn)) {
    return "the class belongs to another QP";
  }
  return nullptr;
}

}  // namespace

std::uint64_t AgentTable::key(unsigned mgmt_class, unsigned version, unsigned method,
                              std::uint32_t oui) {
  return std::uint64_t{oui} << 24 | mgmt_class << 16 | version << 8 | method;
}

std::uint32_t AgentTable::oui_of(const Registration& registration) {
  return is_vendor_class_with_oui(MgmtClass{registration.mgmt_class}) ? registration.oui : 0;
}

Result<AgentNumber> AgentTable::add(const Registration& registration) {
  if (const char* text = problem(registration)) return fail(Errc::kInvalidArgument, text);
  if (agents_.size() >= kAgentsMax) return fail(Errc::kNoResources, "too many agents of a port");
  const std::uint32_t oui = oui_of(registration);
  const auto key_of = [&](unsigned method) {
    return key(registration.mgmt_class, registration.class_version, method, oui);
  };
  if (registration.mgmt_class != 0) {
    for (unsigned method = 0; method < kMethods; ++method) {
      if (registration.wants(method) && by_request_.contains(key_of(method))) {
        return fail(Errc::kAddressInUse, "another agent has the method");
      }
    }
  }
  do {
    ++last_number_;
  } while (last_number_ == 0 || agents_.contains(AgentNumber{last_number_}));
  const AgentNumber number{last_number_};
  agents_.emplace(number, registration);
  if (registration.mgmt_class == 0) return number;
  for (unsigned method = 0; method < kMethods; ++method) {
    if (registration.wants(method)) by_request_.emplace(key_of(method), number);
  }
  return number;
}

bool AgentTable::remove(AgentNumber agent) {
  const auto found = agents_.find(agent);
  if (found == agents_.end()) return false;
  const Registration& registration = found->second;
  for (unsigned method = 0; registration.mgmt_class != 0 && method < kMethods; ++method) {
    if (registration.wants(method)) {
      by_request_.erase(
          key(registration.mgmt_class, registration.class_version, method, oui_of(registration)));
    }
  }
  agents_.erase(found);
  return true;
}

const Registration* AgentTable::find(AgentNumber agent) const {
  const auto found = agents_.find(agent);
  return found == agents_.end() ? nullptr : &found->second;
}

AgentNumber AgentTable::find_for_request(const wire::MadHeader& header,
                                         std::span<const std::byte, wire::kMadBytes> mad) const {
  std::uint32_t oui = 0;
  if (is_vendor_class_with_oui(header.mgmt_class)) {
    for (std::size_t i = 0; i < 3; ++i) {
      oui = oui << 8 | std::to_integer<std::uint32_t>(mad[kVendorOuiOffset + i]);
    }
  }
  const auto found =
      by_request_.find(key(static_cast<unsigned>(header.mgmt_class), header.class_version,
                           static_cast<unsigned>(header.method), oui));
  return found == by_request_.end() ? AgentNumber{} : found->second;
}

}  // namespace verbena::mad
