#include "cli/preload.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "base/printable.h"
#include "cli/fabric_client.h"
#include "interfaces/interfaces.h"
#include "ipc/fabric.h"

namespace verbena::cli {
namespace {

// Returns true if the list, which is a value of LD_PRELOAD, contains the library.
bool is_listed(std::string_view list, std::string_view library) {
  for (std::size_t at = 0; (at = list.find(library, at)) != std::string_view::npos; ++at) {
    const std::size_t end = at + library.size();
    const auto separates = [](char c) { return c == ':' || c == ' '; };
    if ((at == 0 || separates(list[at - 1])) && (end == list.size() || separates(list[end]))) {
      return true;
    }
  }
  return false;
}

}  // namespace

Answer<void> preload(const std::string& directory, const std::string& library) {
  const std::string path = directory + "/" + library;
  if (::access(path.c_str(), R_OK) != 0) {
    return std::unexpected(
        fmt::format("{} has no {}: the installation (or build) is incomplete", directory, library));
  }
  if (directory.find(' ') != std::string::npos) {
    return std::unexpected(
        fmt::format("LD_PRELOAD cannot hold {}: move Verbena to a path without spaces", directory));
  }
  const char* const preloaded = ::secure_getenv("LD_PRELOAD");
  const std::string old_value = preloaded == nullptr ? "" : preloaded;
  if (is_listed(old_value, path)) return {};
  ::setenv("LD_PRELOAD", old_value.empty() ? path.c_str() : (old_value + ":" + path).c_str(), 1);
  return {};
}

Answer<void> provide_interfaces(const RunOptions& options, const std::string& host,
                                const std::string& directory) {
  if (options.interfaces == "machine") {
    ::unsetenv(interfaces::kVariable);
    return {};
  }
  // enter_host() has chosen the fabric.
  const char* const fabric = ::secure_getenv("VERBENA_FABRIC");
  auto connection = connect_to_fabric(fabric == nullptr ? options.fabric : fabric);
  if (!connection) return std::unexpected(connection.error());
  const auto reply = connection->ask<ipc::InterfacesReply>(ipc::ShowInterfaces{host});
  if (!reply) return std::unexpected(reply.error());
  ::setenv(interfaces::kVariable, reply->text.c_str(), 1);
  return preload(directory, "libverbena-interfaces.so.0");
}

}  // namespace verbena::cli
