#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>

#include "base/error.h"
#include "base/strong.h"
#include "wire/mad.h"

namespace verbena::mad {

// Identifies an agent; 0 means no agent.  The number is the upper half of the transaction ids of
// the agent's requests, so that the agent of a response can be found.
using AgentNumber = Strong<struct AgentNumberTag, std::uint32_t>;

// Selects the MADs that an agent wants (vol1 13.4.2).
struct Registration {
  Qpn qpn{wire::kGsiQpn};       // QP0 or QP1
  std::uint8_t mgmt_class = 0;  // 0: no requests, only responses to the agent's own requests
  std::uint8_t class_version = 1;
  std::uint32_t oui = 0;  // distinguishes agents of the vendor classes 0x30 to 0x4f
  std::array<std::uint64_t, 2> methods{};  // bit n: the agent wants requests of method n
  std::uint8_t rmpp_version = 0;           // 1: a message may have several MADs; 0: one MAD only
  bool rmpp_by_agent = false;              // the agent does RMPP itself, even if rmpp_version is 1

  bool wants(unsigned method) const { return (methods[method / 64] >> (method % 64) & 1) != 0; }
  // Returns true if the port splits and joins messages of several MADs for the agent.
  bool port_does_rmpp() const { return rmpp_version != 0 && !rmpp_by_agent; }
  friend bool operator==(const Registration&, const Registration&) = default;
};

// Holds the agents of one port, and finds the agent that gets a received MAD.
//
// The checks of a registration are those of Linux's ib_register_mad_agent(), because programs
// expect the same errors.
class AgentTable {
 public:
  static constexpr std::size_t kAgentsMax = 4096;
  static constexpr unsigned kMethods = 128;
  static constexpr std::uint8_t kClassVersionsMax = 8;

  // The first agent gets the number after `last_agent`.  Two tables of one QP1 have numbers far
  // apart, so that the transaction id of a response identifies the table.
  explicit AgentTable(AgentNumber last_agent) : last_number_(last_agent.value) {}
  AgentTable() = default;

  // Fails with kInvalidArgument: the registration is invalid, for example because its class belongs
  // to the other QP; kAddressInUse: another agent has one of the methods; kNoResources: there
  // are kAgentsMax agents.
  Result<AgentNumber> add(const Registration& registration);
  // Returns false if there is no such agent.
  bool remove(AgentNumber agent);

  // Returns null if there is no such agent.
  const Registration* find(AgentNumber agent) const;
  // Returns the agent that wants this request, or 0 if there is none.
  AgentNumber find_for_request(const wire::MadHeader& header,
                               std::span<const std::byte, wire::kMadBytes> mad) const;

 private:
  static std::uint64_t key(unsigned mgmt_class, unsigned version, unsigned method,
                           std::uint32_t oui);
  static std::uint32_t oui_of(const Registration& registration);

  std::map<AgentNumber, Registration> agents_{};
  std::unordered_map<std::uint64_t, AgentNumber> by_request_{};
  std::uint32_t last_number_ = 0;
};

// Returns true if the MAD answers a request.  Such a MAD has the transaction id of the request
// (vol1 13.4.6.4).
constexpr bool is_response(const wire::MadHeader& header) {
  return header.response || header.method == wire::Method::kTrapRepress ||
         (header.mgmt_class == wire::MgmtClass::kBaseboard && (header.attribute_modifier & 1) != 0);
}

constexpr bool is_subnet_management(wire::MgmtClass mgmt_class) {
  return mgmt_class == wire::MgmtClass::kSubnetManagementLid ||
         mgmt_class == wire::MgmtClass::kSubnetManagementDirected;
}

}  // namespace verbena::mad
