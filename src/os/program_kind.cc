#include "os/program_kind.h"

#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <paths.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "os/fd.h"
#include "os/system_call.h"

namespace verbena::os {
namespace {

constexpr int kInterpretersMax = 4;  // the kernel's limit of nested scripts

#if defined(__x86_64__)
constexpr std::uint16_t kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr std::uint16_t kMachine = EM_AARCH64;
#else
constexpr std::uint16_t kMachine = EM_NONE;
#endif

bool environment_preloads(char* const* environment, std::string_view library) {
  constexpr std::string_view kVariable = "LD_PRELOAD=";
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry(*environment);
    if (entry.starts_with(kVariable)) return entry.find(library) != std::string_view::npos;
  }
  return false;
}

// Returns false for directories, too: search permission is no permission to execute.
bool is_executable(const char* path) {
  struct stat status {};
  return system_call(SYS_faccessat, AT_FDCWD, path, X_OK) == 0 && ::stat(path, &status) == 0 &&
         S_ISREG(status.st_mode);
}

// Reads the first bytes of a program or script, and returns their number.  Returns nothing if the
// file cannot be read, or if it would run with other rights than its caller's.
std::optional<std::size_t> read_head(const char* path, std::span<char> head) {
  const Fd file(static_cast<int>(system_call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC)));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) return std::nullopt;
  if (!S_ISREG(status.st_mode) || (status.st_mode & (S_ISUID | S_ISGID)) != 0) return std::nullopt;
  if (::fgetxattr(file.get(), "security.capability", nullptr, 0) >= 0) return std::nullopt;
  const long bytes = repeat_call(SYS_read, file.get(), head.data(), head.size());
  if (bytes < 0) return std::nullopt;
  return static_cast<std::size_t>(bytes);
}

bool is_elf(std::span<const char> head) {
  return head.size() >= SELFMAG && memcmp(head.data(), ELFMAG, SELFMAG) == 0;
}

bool is_dynamic_program(std::span<const char> head) {
  ElfW(Ehdr) header{};
  if (!is_elf(head) || head.size() < sizeof(header)) return false;
  memcpy(&header, head.data(), sizeof(header));
  if (header.e_machine != kMachine) return false;
  if (header.e_phentsize != sizeof(ElfW(Phdr))) return false;
  for (std::size_t i = 0; i < header.e_phnum; ++i) {
    const std::uint64_t at = header.e_phoff + i * sizeof(ElfW(Phdr));
    if (at > head.size() || head.size() - at < sizeof(ElfW(Phdr))) return false;
    ElfW(Phdr) program_header{};
    memcpy(&program_header, head.data() + at, sizeof(program_header));
    if (program_header.p_type == PT_INTERP) return true;
  }
  return false;
}

// Copies the interpreter's path out of the first line of a script ("#!/bin/sh -e").
bool find_interpreter(std::span<const char> head, std::array<char, PATH_MAX>& path) {
  std::string_view line(head.data(), head.size());
  line =
      line.substr(2, line.find('\n') == std::string_view::npos ? line.size() : line.find('\n') - 2);
  const std::size_t begin = line.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return false;
  line = line.substr(begin, line.find_first_of(" \t", begin) - begin);
  if (line.empty() || line.size() >= path.size()) return false;
  path.fill('\0');
  std::copy(line.begin(), line.end(), path.begin());
  return true;
}

// If `tries_shell` is set, the shell executes a file of a format that the kernel does not know.
ProgramKind kind_of(const char* path, char* const* environment, std::string_view library,
                    bool tries_shell) {
  if (path == nullptr || !is_executable(path)) return ProgramKind::kNone;
  if (!environment_preloads(environment, library)) return ProgramKind::kWithoutLibrary;
  std::array<char, PATH_MAX> interpreter{};
  for (int i = 0; i <= kInterpretersMax; ++i) {
    std::array<char, 4096> head;
    const auto bytes = read_head(path, head);
    if (!bytes) return ProgramKind::kWithoutLibrary;
    const auto contents = std::span<const char>(head).first(*bytes);
    if (is_dynamic_program(contents)) return ProgramKind::kWithLibrary;
    if (contents.size() >= 2 && contents[0] == '#' && contents[1] == '!') {
      if (!find_interpreter(contents, interpreter)) return ProgramKind::kWithoutLibrary;
      path = interpreter.data();
    } else if (tries_shell && !is_elf(contents)) {
      path = _PATH_BSHELL;
      tries_shell = false;
    } else {
      return ProgramKind::kWithoutLibrary;
    }
  }
  return ProgramKind::kWithoutLibrary;
}

}  // namespace

ProgramKind program_kind(const char* path, char* const* environment, std::string_view library) {
  return kind_of(path, environment, library, false);
}

ProgramKind search_program_kind(const char* file, char* const* environment,
                                std::string_view library) {
  if (file == nullptr || strchr(file, '/') != nullptr)
    return kind_of(file, environment, library, true);
  const char* const variable = ::secure_getenv("PATH");
  std::string_view directories = variable != nullptr ? variable : "/bin:/usr/bin";
  for (;;) {
    const std::size_t end = std::min(directories.find(':'), directories.size());
    const std::string_view directory = end == 0 ? "." : directories.substr(0, end);
    const std::string_view name(file);
    std::array<char, PATH_MAX> path{};
    if (directory.size() + 1 + name.size() < path.size()) {
      char* const slash = std::copy(directory.begin(), directory.end(), path.begin());
      *slash = '/';
      std::copy(name.begin(), name.end(), slash + 1);
      if (const ProgramKind kind = kind_of(path.data(), environment, library, true);
          kind != ProgramKind::kNone)
        return kind;
    }
    if (end == directories.size()) return ProgramKind::kNone;
    directories.remove_prefix(end + 1);
  }
}

}  // namespace verbena::os
