// Replaces the C library's functions that list network interfaces.  If the environment has no
// description of a virtual host, these functions call those of the C library.
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
// host.  The interfaces are parsed once and never freed, because other threads may use them while
// the process exits.
const Interfaces* host_interfaces() {
  static const Interfaces* const cached = []() -> const Interfaces* {
    const char* text = ::secure_getenv(interfaces::kVariable);
    if (text == nullptr) return nullptr;
    auto parsed = interfaces::parse(text);
    return parsed ? new Interfaces(*std::move(parsed)) : nullptr;
  }();
  return cached;
}

// Returns the C library's function with this name.
template <class Function>
std::add_pointer_t<Function> next_function(const char* name) {
  return reinterpret_cast<std::add_pointer_t<Function>>(::dlsym(RTLD_NEXT, name));
}

int next_getifaddrs(::ifaddrs** list) {
  static const auto function = next_function<int(::ifaddrs**)>("getifaddrs");
  return function(list);
}

struct FreeList {
  void operator()(::ifaddrs* list) const { ::freeifaddrs(list); }
};
using List = std::unique_ptr<::ifaddrs, FreeList>;

// Returns the interfaces of this machine.  Returns null and sets errno if getifaddrs() of the C
// library fails.
List machine_interfaces() {
  ::ifaddrs* list = nullptr;
  return List(next_getifaddrs(&list) == 0 ? list : nullptr);
}

}  // namespace
}  // namespace verbena::ifaddrs

using namespace verbena::ifaddrs;

VB_EXPORT int getifaddrs(::ifaddrs** list) noexcept {
  const Interfaces* const interfaces = host_interfaces();
  if (interfaces == nullptr) return next_getifaddrs(list);
  ::ifaddrs* machine_list = nullptr;
  if (next_getifaddrs(&machine_list) != 0) return -1;
  const List machine(machine_list);
  const auto new_list = make_list(machine.get(), *interfaces);
  if (!new_list) {
    errno = ENOMEM;
    return -1;
  }
  *list = *new_list;
  return 0;
}

VB_EXPORT struct if_nameindex* if_nameindex() noexcept {
  static const auto function = next_function<struct if_nameindex*()>("if_nameindex");
  const Interfaces* const interfaces = host_interfaces();
  if (interfaces == nullptr) return function();
  const List machine = machine_interfaces();
  auto* const names = make_names(machine.get(), *interfaces);
  if (names == nullptr) errno = ENOBUFS;
  return names;
}

VB_EXPORT unsigned if_nametoindex(const char* name) noexcept {
  static const auto function = next_function<unsigned(const char*)>("if_nametoindex");
  const Interfaces* const interfaces = host_interfaces();
  if (interfaces == nullptr) return function(name);
  for (const auto& interface : *interfaces) {
    if (interface.name == name) return interface.index;
  }
  const unsigned index = loopback_index(machine_interfaces().get(), name);
  if (index == 0) errno = ENODEV;
  return index;
}

VB_EXPORT char* if_indextoname(unsigned index, char* name) noexcept {
  static const auto function = next_function<char*(unsigned, char*)>("if_indextoname");
  const Interfaces* const interfaces = host_interfaces();
  if (interfaces == nullptr) return function(index, name);
  for (const auto& interface : *interfaces) {
    if (interface.index == index) return ::strncpy(name, interface.name.c_str(), IF_NAMESIZE);
  }
  const List machine = machine_interfaces();
  if (const char* loopback = loopback_name(machine.get(), index)) {
    return ::strncpy(name, loopback, IF_NAMESIZE);
  }
  errno = ENXIO;
  return nullptr;
}
