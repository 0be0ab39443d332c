#include "client/sizes.h"

#include <fmt/format.h>

#include <array>

namespace verbena::client {

Error explain_size_error(const Error& error, const char* call,
                         std::initializer_list<BoundedSize> sizes) {
  thread_local std::array<char, 160> text;
  if (error.code != Errc::kInvalidArgument) return error;
  for (const BoundedSize& size : sizes) {
    if (size.value >= size.minimum && size.value <= size.maximum) continue;
    const auto out =
        size.value > size.maximum
            ? fmt::format_to_n(text.data(), text.size() - 1, "{}: {} is {}, more than {} ({})",
                               call, size.name, size.value, size.limit_name, size.maximum)
            : fmt::format_to_n(text.data(), text.size() - 1, "{}: {} is {}, less than {}", call,
                               size.name, size.value, size.minimum);
    *out.out = '\0';
    return {error.code, error.detail, text.data()};
  }
  return error;
}

}  // namespace verbena::client
