#include "agent/log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <ctime>

#include "base/printable.h"

namespace verbena::agent {

Result<Log> Log::open(const std::string& path) {
  Log log;
  log.file_ = VB_TRY(os::take_fd(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0600), "log"));
  return log;
}

void Log::line(std::string_view text) {
  if (!file_) return;
  const std::time_t seconds = std::time(nullptr);
  std::tm local{};
  localtime_r(&seconds, &local);
  const std::string whole =
      fmt::format("{:%Y-%m-%d %H:%M:%S} verbenad[{}] {}\n", local, ::getpid(), printable(text));
  // Ignore errors: the agent must work even if it cannot write its log.
  (void)os::write_some(file_.get(), std::as_bytes(std::span(whole)));
}

}  // namespace verbena::agent
