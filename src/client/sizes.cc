#include "client/sizes.h"

#include <fmt/format.h>

#include <array>

namespace verbena::client {

Error name_size(const Error& error, const char* call, std::initializer_list<Size> sizes) {
  thread_local std::array<char, 160> text;
  if (error.code != Errc::kInvalidArgument) return error;
  for (const Size& size : sizes) {
    if (size.value >= size.at_least && size.value <= size.limit) continue;
    const auto out =
        size.value > size.limit
            ? fmt::format_to_n(text.data(), text.size() - 1, "{}: {} is {}, more than {} ({})",
                               call, size.name, size.value, size.limit_name, size.limit)
            : fmt::format_to_n(text.data(), text.size() - 1, "{}: {} is {}, less than {}", call,
                               size.name, size.value, size.at_least);
    *out.out = '\0';
    return {error.code, error.detail, text.data()};
  }
  return error;
}

}  // namespace verbena::client
