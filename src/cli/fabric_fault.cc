#include "cli/fabric_fault.h"

#include <fmt/format.h>

#include <cmath>

#include "base/printable.h"
#include "cli/fabric_client.h"
#include "cli/text.h"

namespace verbena::cli {

ipc::SetFault fault_request(const FaultOptions& options) {
  ipc::SetFault request{.a = options.a, .b = options.b, .seed = options.seed};
  if (options.state == "off") {
    request.fault = ipc::Fault::kNodeOff;
  } else if (options.state == "on") {
    request.fault = ipc::Fault::kNodeOn;
  } else if (options.state == "lossy") {
    request.fault = ipc::Fault::kLinkLossy;
    request.lost_per_million = static_cast<std::uint32_t>(std::lround(options.percent * 10'000));
  } else {
    request.fault = options.state == "down" ? ipc::Fault::kLinkDown : ipc::Fault::kLinkUp;
  }
  return request;
}

int fabric_fault(const FaultOptions& options) {
  const auto name = name_or_only_one(options.fabric);
  if (!name) return command_failed("fabric", name.error());
  auto connection = connect_to_fabric(*name);
  if (!connection) return command_failed("fabric", connection.error());
  const auto reply = connection->ask<ipc::FaultReply>(fault_request(options));
  if (!reply) return command_failed("fabric", reply.error());
  if (!reply->problem.empty()) {
    return command_failed("fabric", fmt::format("fabric '{}': {}", *name, reply->problem));
  }
  fmt::print("{}\n", printable(reply->text));
  return 0;
}

}  // namespace verbena::cli
