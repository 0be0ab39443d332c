// Replaces the C library's functions that look for network interfaces.  If the environment has no
// description of a virtual host, these functions call the C library's.
#include <dlfcn.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>

#include <memory>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ifaddrs/list.h"
#include "interfaces/interfaces.h"

#define VB_EXPORT extern "C" __attribute__((visibility("default")))

namespace verbena::ifaddrs {
namespace {

using Interfaces = std::vector<interfaces::Interface>;

// Returns the interfaces of the virtual host, or null if this program does not run on a virtual
// host.  The interfaces are parsed once, and live as long as the process, because other threads may
// use them while the process ends.
const Interfaces* host_interfaces() {
  static const Interfaces* const read = []() -> const Interfaces* {
    const char* text = ::secure_getenv(interfaces::kVariable);
    if (text == nullptr) return nullptr;
    auto parsed = interfaces::parse(text);
    return parsed ? new Interfaces(*std::move(parsed)) : nullptr;
  }();
  return read;
}

template <class Function>
std::add_pointer_t<Function> next(const char* name) {
  return reinterpret_cast<std::add_pointer_t<Function>>(::dlsym(RTLD_NEXT, name));
}

int next_getifaddrs(::ifaddrs** list) {
  static const auto function = next<int(::ifaddrs**)>("getifaddrs");
  return function(list);
}

struct FreeList {
  void operator()(::ifaddrs* list) const { ::freeifaddrs(list); }
};
using List = std::unique_ptr<::ifaddrs, FreeList>;

// Returns the interfaces of this machine; null and errno if the C library's function fails.
List machine() {
  ::ifaddrs* list = nullptr;
  return List(next_getifaddrs(&list) == 0 ? list : nullptr);
}

}  // namespace
}  // namespace verbena::ifaddrs

using namespace verbena::ifaddrs;

VB_EXPORT int getifaddrs(::ifaddrs** list) noexcept {
  const Interfaces* const interfaces = host_interfaces();
  if (interfaces == nullptr) return next_getifaddrs(list);
  ::ifaddrs* all = nullptr;
  if (next_getifaddrs(&all) != 0) return -1;
  const List machine(all);
  const auto new_list = make_list(machine.get(), *interfaces);
  if (!new_list) {
    errno = ENOMEM;
    return -1;
  }
  *list = *new_list;
  return 0;
}

VB_EXPORT struct if_nameindex* if_nameindex() noexcept {
  static const auto next_function = next<struct if_nameindex*()>("if_nameindex");
  const Interfaces* const interfaces = host_interfaces();
  if (interfaces == nullptr) return next_function();
  const List all = machine();
  auto* const names = make_names(all.get(), *interfaces);
  if (names == nullptr) errno = ENOBUFS;
  return names;
}

VB_EXPORT unsigned if_nametoindex(const char* name) noexcept {
  static const auto next_function = next<unsigned(const char*)>("if_nametoindex");
  const Interfaces* const interfaces = host_interfaces();
  if (interfaces == nullptr) return next_function(name);
  for (const auto& one : *interfaces) {
    if (one.name == name) return one.index;
  }
  const unsigned index = loopback_index(machine().get(), name);
  if (index == 0) errno = ENODEV;
  return index;
}

VB_EXPORT char* if_indextoname(unsigned index, char* name) noexcept {
  static const auto next_function = next<char*(unsigned, char*)>("if_indextoname");
  const Interfaces* const interfaces = host_interfaces();
  if (interfaces == nullptr) return next_function(index, name);
  for (const auto& one : *interfaces) {
    if (one.index == index) return ::strncpy(name, one.name.c_str(), IF_NAMESIZE);
  }
  const List all = machine();
  if (const char* loopback = loopback_name(all.get(), index)) {
    return ::strncpy(name, loopback, IF_NAMESIZE);
  }
  errno = ENXIO;
  return nullptr;
}
