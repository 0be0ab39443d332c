#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <vector>

#include "faults/fault.h"

namespace verbena::cli {

struct FaultOptions {
  std::string fabric{};              // empty: the only fabric that is up
  std::string a{};                   // a node, or an end of a link
  std::string b{};                   // the other end; empty for a node
  std::vector<std::string> state{};  // the words after the names
  bool has_seed = false;
  std::uint64_t seed = 0;
};

// Returns the fault that the options describe.  The error is a line for the user.
std::expected<faults::Fault, std::string> fault_of(const FaultOptions& options);

// Carries out `verbena fabric fault`, and returns its exit code.
int fabric_fault(const FaultOptions& options);

}  // namespace verbena::cli
