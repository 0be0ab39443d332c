#include "c_api/call.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace verbena::c_api {
namespace {

thread_local char text_of_last_error[512];
std::atomic<void (*)(const Error&)> error_listener = nullptr;

}  // namespace

const char* last_error() { return text_of_last_error; }

void set_last_error(std::string_view text) {
  const std::size_t bytes = std::min(text.size(), sizeof text_of_last_error - 1);
  std::memcpy(text_of_last_error, text.data(), bytes);
  text_of_last_error[bytes] = '\0';
}

int failed(const Error& error) {
  set_last_error(*error.context != '\0' ? error.context : to_string(error.code));
  if (auto* const listener = error_listener.load(std::memory_order_acquire)) listener(error);
  return to_errno(error);
}

void set_error_listener(void (*listener)(const Error& error)) {
  error_listener.store(listener, std::memory_order_release);
}

}  // namespace verbena::c_api
