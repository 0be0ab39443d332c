// Implements the C API: faults of fabrics of virtual hosts.

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "c_api/call.h"
#include "client/c_api_support.h"
#include "client/fabric_client.h"
#include "faults/fault.h"
#include "os/agent_name.h"

namespace verbena::client {
namespace {

// Sets vb_last_error(), and returns the errno.
int fail_with(int error, const std::string& text) {
  set_last_error(text);
  return error;
}

// Returns the name of a fabric.  If `name` is nullptr, returns the fabric of this program's virtual
// host, or an empty name if there is none.
std::string fabric_or_own(const char* name) {
  if (name != nullptr) return name;
  const auto host = os::fabric_host_from_environment();
  return host ? host->fabric : "";
}

void copy_text(const std::string& from, char* text, std::size_t bytes) {
  if (text == nullptr || bytes == 0) return;
  const std::size_t copied = std::min(from.size(), bytes - 1);
  std::memcpy(text, from.data(), copied);
  text[copied] = '\0';
}

}  // namespace
}  // namespace verbena::client

using namespace verbena::client;  // NOLINT(google-build-using-namespace): implements its C API
namespace faults = verbena::faults;

extern "C" {

int vb_fabric_fault(const char* fabric, const char* const* words, size_t count,
                    const uint64_t* seed, char* text, size_t text_bytes) {
  return guarded([&] {
    if (words == nullptr && count != 0)
      return fail_with(EINVAL, "the words of the fault are missing");
    std::vector<std::string> all;
    for (const char* const word : std::span(words, count)) {
      if (word == nullptr) return fail_with(EINVAL, "a word of the fault is missing");
      all.emplace_back(word);
    }
    const auto fault =
        faults::parse_fault(all, seed == nullptr ? std::nullopt : std::optional(*seed));
    if (!fault) return fail_with(EINVAL, fault.error());
    const auto name = resolve_fabric_name(fabric_or_own(fabric));
    if (!name) return fail_with(ENODEV, name.error());
    const verbena::c_api::NoCancellation no_cancellation;
    const auto state = set_fault(*name, *fault);
    if (!state) return fail_with(state.error().refused ? EINVAL : ENODEV, state.error().text);
    copy_text(*state, text, text_bytes);
    return 0;
  });
}

}  // extern "C"
