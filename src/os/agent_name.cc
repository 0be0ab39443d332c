#include "os/agent_name.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

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

std::string agent_socket_name() {
  const uid_t uid = ::geteuid();
  const std::ifstream file("/proc/self/uid_map");
  std::ostringstream map;
  if (file) map << file.rdbuf();
  struct stat status {};
  // Without /proc there is no map and no namespace to ask for: the user id alone makes the name.
  const bool owns_proc_sys = ::stat("/proc/sys", &status) != 0 || status.st_uid == uid;
  const bool known = ::stat("/proc/self/ns/user", &status) == 0;
  return agent_socket_name(uid_outside(uid, map.str()), owns_proc_sys, known ? status.st_ino : 0);
}

}  // namespace verbena::os
