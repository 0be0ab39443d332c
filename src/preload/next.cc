#include "preload/next.h"

#include <dlfcn.h>

#include <atomic>
#include <string_view>

namespace verbena::preload {
namespace {

constinit NextFunctions functions{};
constinit std::atomic<bool> is_looked_up{false};

// Returns the name that the C library uses for the function of this member of NextFunctions.
const char* symbol_name(const char* member) {
  if (std::string_view(member) == "read_chk") return "__read_chk";
  if (std::string_view(member) == "recv_chk") return "__recv_chk";
  if (std::string_view(member) == "recvfrom_chk") return "__recvfrom_chk";
  if (std::string_view(member) == "vdprintf_chk") return "__vdprintf_chk";
  if (std::string_view(member) == "vasprintf_chk") return "__vasprintf_chk";
  return member;
}

// Looks up all functions.  Several threads may do this at the same time, because all of them write
// the same addresses.
void look_up_all() {
#define VB_FIND(name, ...) \
  functions.name =         \
      reinterpret_cast<std::add_pointer_t<__VA_ARGS__>>(::dlsym(RTLD_NEXT, symbol_name(#name)));
  VB_NEXT_FUNCTIONS(VB_FIND)
#undef VB_FIND
  is_looked_up.store(true, std::memory_order_release);
}

}  // namespace

const NextFunctions& next() {
  if (!is_looked_up.load(std::memory_order_acquire)) [[unlikely]]
    look_up_all();
  return functions;
}

}  // namespace verbena::preload
