#include "cli/fabric_client.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace verbena::cli {

Answer<ipc::FabricReply> ask_fabric(const std::string& name) {
  auto connection = connect_to_fabric(name);
  if (!connection) return std::unexpected(connection.error());
  ipc::FabricReply all;
  for (std::uint32_t first = 0;; first = static_cast<std::uint32_t>(all.hosts.size())) {
    auto page = connection->ask<ipc::FabricReply>(ipc::ShowFabric{first});
    if (!page) return std::unexpected(page.error());
    auto hosts = std::move(all.hosts);
    std::ranges::move(page->hosts, std::back_inserter(hosts));
    all = std::move(*page);
    all.hosts = std::move(hosts);
    if (!all.more) return all;
  }
}

}  // namespace verbena::cli
