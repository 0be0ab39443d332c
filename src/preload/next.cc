#include "preload/next.h"

#include <dlfcn.h>

#include <atomic>
#include <string_view>

namespace verbena::preload {
namespace {

constinit NextFunctions functions{};
constinit std::atomic<bool> found{false};

// Returns the name of a member's function in the C library.
const char* symbol(const char* member) {
  if (std::string_view(member) == "read_chk") return "__read_chk";
  if (std::string_view(member) == "recv_chk") return "__recv_chk";
  if (std::string_view(member) == "recvfrom_chk") return "__recvfrom_chk";
  if (std::string_view(member) == "vdprintf_chk") return "__vdprintf_chk";
  if (std::string_view(member) == "vasprintf_chk") return "__vasprintf_chk";
  return member;
}

// Several threads may do this at the same time.  All of them write the same addresses.
void find() {
#define VB_FIND(name, ...) \
  functions.name =         \
      reinterpret_cast<std::add_pointer_t<__VA_ARGS__>>(::dlsym(RTLD_NEXT, symbol(#name)));
  VB_NEXT_FUNCTIONS(VB_FIND)
#undef VB_FIND
  found.store(true, std::memory_order_release);
}

}  // namespace

const NextFunctions& next() {
  if (!found.load(std::memory_order_acquire)) [[unlikely]]
    find();
  return functions;
}

}  // namespace verbena::preload
