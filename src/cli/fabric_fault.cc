#include "cli/fabric_fault.h"

#include <fmt/format.h>

#include <optional>

#include "base/printable.h"
#include "cli/fabric_client.h"
#include "cli/text.h"

namespace verbena::cli {

std::expected<faults::Fault, std::string> fault_of(const FaultOptions& options) {
  std::vector<std::string> words{options.b.empty() ? "node" : "link", options.a};
  if (!options.b.empty()) words.push_back(options.b);
  words.insert(words.end(), options.state.begin(), options.state.end());
  return faults::parse_fault(words, options.has_seed ? std::optional(options.seed) : std::nullopt);
}

int fabric_fault(const FaultOptions& options) {
  const auto fault = fault_of(options);
  if (!fault) return print_error("fabric", fault.error());
  const auto name = resolve_fabric_name(options.fabric);
  if (!name) return print_error("fabric", name.error());
  const auto state = client::set_fault(*name, *fault);
  if (!state) return print_error("fabric", state.error().text);
  fmt::print("{}\n", printable(*state));
  return 0;
}

}  // namespace verbena::cli
