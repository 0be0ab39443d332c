#include "mad/agents.h"

#include "wire/rmpp.h"

namespace verbena::mad {

using wire::MgmtClass;

namespace {

// Linux has tables for classes below this number and for directed route SMPs.
constexpr std::uint8_t kFirstClassWithoutAgents = 80;
constexpr std::uint32_t kOuiMax = 0xffffff;
constexpr std::size_t kVendorOuiOffset = 37;  // vol1 16.5.1

const char* problem(const Registration& wanted) {
  if (wanted.qpn != wire::kSmiQpn && wanted.qpn != wire::kGsiQpn) return "neither QP0 nor QP1";
  if (wanted.rmpp_version > wire::kRmppVersion) return "an unknown version of RMPP";
  if (wanted.mgmt_class == 0) return nullptr;
  const auto mgmt_class = MgmtClass{wanted.mgmt_class};
  if (wanted.class_version >= AgentTable::kClassVersionsMax) return "an unknown class version";
  if (wanted.mgmt_class >= kFirstClassWithoutAgents &&
      mgmt_class != MgmtClass::kSubnetManagementDirected) {
    return "a class that cannot have agents";
  }
  if (wanted.oui > kOuiMax) return "an OUI of more than 24 bits";
  if (is_vendor_class_with_oui(mgmt_class) && wanted.oui == 0) return "a vendor class without OUI";
  if (wanted.rmpp_version != 0 && !wire::has_rmpp(mgmt_class)) return "a class without RMPP";
  if (is_subnet_management(mgmt_class) != (wanted.qpn == wire::kSmiQpn)) {
    return "a class of the other QP";
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
  if (agents_.size() >= kAgentsMax) return fail(Errc::kNoResources, "agents of a port");
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
    ++last_;
  } while (last_ == 0 || agents_.contains(AgentNumber{last_}));
  const AgentNumber number{last_};
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
  const Registration& old = found->second;
  for (unsigned method = 0; old.mgmt_class != 0 && method < kMethods; ++method) {
    if (old.wants(method)) {
      by_request_.erase(key(old.mgmt_class, old.class_version, method, oui_of(old)));
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
