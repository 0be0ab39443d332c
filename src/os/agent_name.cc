#include "os/agent_name.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>

#include "base/host_name.h"

namespace verbena::os {

std::uint32_t uid_outside(std::uint32_t uid, const std::string& uid_map) {
  std::istringstream lines(uid_map);
  std::uint64_t inside = 0;
  std::uint64_t outside = 0;
  std::uint64_t count = 0;
  while (lines >> inside >> outside >> count) {
    if (uid >= inside && uid - inside < count) {
      return static_cast<std::uint32_t>(outside + (uid - inside));
    }
  }
  return uid;
}

std::string agent_socket_name(std::uint32_t uid_outside, bool owns_proc_sys,
                              std::uint64_t user_namespace) {
  std::string name = "verbena-" + std::to_string(uid_outside);
  if (uid_outside == 0 && !owns_proc_sys) name += "-in-" + std::to_string(user_namespace);
  return name;
}

Result<std::string> agent_socket_name(const std::string& user_agent,
                                      const FabricHost& fabric_host) {
  // The limit of a name keeps the socket's name below 108 characters.
  for (const std::string& name : {fabric_host.fabric, fabric_host.host}) {
    if (!is_host_name(name)) {
      return fail(Errc::kInvalidArgument,
                  "the name of a fabric or host has 1 to 32 letters, digits, '_' or '-', and no "
                  "'-' first");
    }
  }
  return user_agent + "/" + fabric_host.fabric + "/" + fabric_host.host;
}

namespace {

std::string agent_socket_name_of(uid_t uid) {
  const std::ifstream file("/proc/self/uid_map");
  std::ostringstream map;
  if (file) map << file.rdbuf();
  struct stat status {};
  // Without /proc, the map and the namespace are unknown.  Then the name depends only on the user
  // id.
  const bool owns_proc_sys = ::stat("/proc/sys", &status) != 0 || status.st_uid == uid;
  const bool has_namespace = ::stat("/proc/self/ns/user", &status) == 0;
  return agent_socket_name(uid_outside(uid, map.str()), owns_proc_sys,
                           has_namespace ? status.st_ino : 0);
}

}  // namespace

std::string agent_socket_name() { return agent_socket_name_of(::geteuid()); }

std::optional<FabricHost> fabric_host_from_environment() {
  const char* const host = ::secure_getenv("VERBENA_NODE");
  const char* const fabric = ::secure_getenv("VERBENA_FABRIC");
  if (host == nullptr || *host == '\0') return std::nullopt;
  return FabricHost{.fabric = fabric == nullptr ? "" : fabric, .host = host};
}

Result<std::string> own_agent_socket_name() {
  const auto host = fabric_host_from_environment();
  if (!host) return agent_socket_name();
  return agent_socket_name(agent_socket_name(), *host);
}

std::string fabric_socket_name(const std::string& fabric) {
  return agent_socket_name() + "/" + fabric;
}

Result<std::string> mad_socket_name(const FabricHost& fabric_host) {
  return VB_TRY(agent_socket_name(agent_socket_name(), fabric_host)) + "/mad";
}

std::string all_users_agent_name() { return agent_socket_name_of(0) + "-all"; }

bool may_use_all_users_agent() {
  const char* const bind = ::secure_getenv("VERBENA_BIND");
  return !fabric_host_from_environment() && (bind == nullptr || *bind == '\0');
}

std::string socket_service_name() { return agent_socket_name() + "-sockets"; }
std::string root_socket_service_name() { return agent_socket_name_of(0) + "-sockets"; }

}  // namespace verbena::os
