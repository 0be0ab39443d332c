#include "cli/executable.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>

#include "os/fd.h"

namespace verbena::cli {
namespace {

// The interpreter of a script may be a script, too.  The kernel limits such a chain to this length.
constexpr int kInterpretersMax = 4;
constexpr std::size_t kLineMax = 256;
constexpr std::size_t kProgramHeadersMax = 256;
constexpr std::size_t kDynamicEntriesMax = 4096;

#if defined(__x86_64__)
constexpr std::uint16_t kOurMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr std::uint16_t kOurMachine = EM_AARCH64;
#else
#error "add the EM_ number of this machine"
#endif

std::string machine_name(std::uint16_t machine) {
  switch (machine) {
    case EM_X86_64: return "x86-64";
    case EM_AARCH64: return "64-bit ARM";
    case EM_PPC64: return "64-bit PowerPC";
    case EM_RISCV: return "RISC-V";
    case EM_S390: return "S/390";
    default: return fmt::format("another machine (ELF number {})", machine);
  }
}

bool read_at(int fd, std::uint64_t offset, void* out, std::size_t bytes) {
  return offset <= INT64_MAX &&
         pread(fd, out, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
}

// Reads the loader's name.  Returns false if the headers are broken.
bool read_loader(int fd, const Elf64_Ehdr& header, Executable& out) {
  if (header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phnum > kProgramHeadersMax) return false;
  for (std::size_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    if (!read_at(fd, header.e_phoff + i * sizeof segment, &segment, sizeof segment)) return false;
    if (segment.p_type != PT_INTERP) continue;
    if (segment.p_filesz == 0 || segment.p_filesz > PATH_MAX) return false;
    out.loader.resize(segment.p_filesz);
    if (!read_at(fd, segment.p_offset, out.loader.data(), out.loader.size())) return false;
    out.loader.resize(std::strlen(out.loader.c_str()));
  }
  return true;
}

std::vector<Elf64_Phdr> read_segments(int fd) {
  Elf64_Ehdr header{};
  if (!read_at(fd, 0, &header, sizeof header) ||
      std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_phentsize != sizeof(Elf64_Phdr) ||
      header.e_phnum > kProgramHeadersMax) {
    return {};
  }
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  if (!read_at(fd, header.e_phoff, segments.data(), segments.size() * sizeof(Elf64_Phdr)))
    return {};
  return segments;
}

// Returns the file offset of the byte that will be loaded to an address.  Returns 0 if no segment
// contains the address.
std::uint64_t offset_of(std::span<const Elf64_Phdr> segments, std::uint64_t address) {
  for (const Elf64_Phdr& segment : segments) {
    const bool is_inside = segment.p_type == PT_LOAD && address >= segment.p_vaddr &&
                           address - segment.p_vaddr < segment.p_filesz;
    if (is_inside) return segment.p_offset + (address - segment.p_vaddr);
  }
  return 0;
}

std::string read_string(int fd, std::uint64_t offset) {
  std::array<char, kLineMax> text{};
  const ssize_t bytes =
      offset > INT64_MAX ? -1 : pread(fd, text.data(), text.size() - 1, static_cast<off_t>(offset));
  return bytes > 0 ? std::string(text.data()) : std::string();
}

std::optional<Executable> read_elf(int fd) {
  Executable out{.kind = Executable::Kind::kElf};
  Elf64_Ehdr header{};
  // The class, byte order and machine have the same offsets in a 32-bit header.
  if (!read_at(fd, 0, &header, sizeof(Elf32_Ehdr))) return std::nullopt;
  out.is_64_bit = header.e_ident[EI_CLASS] == ELFCLASS64;
  out.machine = header.e_machine;
  const bool has_same_byte_order = header.e_ident[EI_DATA] == ELFDATA2LSB;
  if (!has_same_byte_order)
    out.machine = static_cast<std::uint16_t>(out.machine << 8 | out.machine >> 8);
  if (!out.is_64_bit || !has_same_byte_order) return out;
  if (!read_at(fd, 0, &header, sizeof header) || !read_loader(fd, header, out)) return std::nullopt;
  return out;
}

std::optional<Executable> read_script(std::string_view line) {
  Executable out{.kind = Executable::Kind::kScript};
  line = line.substr(2, line.find('\n') - 2);
  const auto skip_blanks = [&] {
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  };
  skip_blanks();
  const auto end = std::min(line.find_first_of(" \t\r"), line.size());
  if (end == 0) return std::nullopt;
  out.interpreter.emplace_back(line.substr(0, end));
  line.remove_prefix(end);
  skip_blanks();
  if (const auto last = line.find_last_not_of(" \t\r"); last != std::string_view::npos) {
    out.interpreter.emplace_back(line.substr(0, last + 1));
  }
  return out;
}

Problem own_failure(std::string text) { return {kExitOwnFailure, std::move(text)}; }

// Returns a problem if the program runs with more privileges than its user, because the loader
// ignores LD_LIBRARY_PATH for such a program (ld.so(8)).
std::optional<Problem> why_privileged(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return std::nullopt;  // exec will report the error
  if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1) return std::nullopt;  // exec gives no privileges
  constexpr const char* kAdvice =
      "so the system ignores LD_LIBRARY_PATH for it; run a copy of it, which has no such rights";
  if ((status.st_mode & S_ISUID) != 0 && status.st_uid != getuid()) {
    return own_failure(fmt::format("{} is setuid, {}", path, kAdvice));
  }
  const bool setgid = (status.st_mode & S_ISGID) != 0 && (status.st_mode & S_IXGRP) != 0;
  if (setgid && status.st_gid != getgid()) {
    return own_failure(fmt::format("{} is setgid, {}", path, kAdvice));
  }
  if (geteuid() != 0 && getxattr(path.c_str(), "security.capability", nullptr, 0) > 0) {
    return own_failure(fmt::format("{} has file capabilities, {}", path, kAdvice));
  }
  return std::nullopt;
}

std::optional<Problem> why_elf_not_loadable(const std::string& path, const Executable& file) {
  if (!file.is_64_bit) {
    return own_failure(fmt::format(
        "{} is a 32-bit program and Verbena's libraries are 64-bit; use a 64-bit build of it",
        path));
  }
  if (file.machine != kOurMachine) {
    return own_failure(
        fmt::format("{} is for {}, and Verbena's libraries are for {}; use a build of it "
                    "for this machine",
                    path, machine_name(file.machine), machine_name(kOurMachine)));
  }
  const std::string_view name = std::string_view(path).substr(path.rfind('/') + 1);
  // ld-linux itself names no loader, but it can load other programs.
  if (file.loader.empty() && !name.starts_with("ld-linux")) {
    return own_failure(
        fmt::format("{} is statically linked, so no library can take the place of its "
                    "own; use a dynamically linked build of it",
                    path));
  }
  if (file.loader.find("ld-musl") != std::string::npos) {
    return own_failure(fmt::format(
        "{} is built for musl and Verbena's libraries for glibc; use a glibc build of it", path));
  }
  return why_privileged(path);
}

std::optional<Problem> check_program(const std::string& path, std::string_view search_path,
                                     int depth) {
  const auto file = read_executable(path);
  if (!file || depth > kInterpretersMax) return std::nullopt;
  switch (file->kind) {
    case Executable::Kind::kElf: return why_elf_not_loadable(path, *file);
    case Executable::Kind::kOther: return std::nullopt;
    case Executable::Kind::kScript: break;
  }
  const std::string& interpreter = file->interpreter[0];
  if (access(interpreter.c_str(), F_OK) != 0) {
    return Problem{kExitNotFound,
                   fmt::format("{} is a script for {}, which does not exist; install "
                               "it or correct the first line",
                               path, interpreter)};
  }
  if (auto problem = check_program(interpreter, search_path, depth + 1)) {
    problem->text = fmt::format("{} is a script, and its interpreter {}", path, problem->text);
    return problem;
  }
  // For "#!/usr/bin/env python3", check the program that env will start.
  if (!interpreter.ends_with("/env") || file->interpreter.size() < 2) return std::nullopt;
  std::string_view env_program = file->interpreter[1];
  if (env_program.starts_with("-S ")) env_program.remove_prefix(3);
  env_program = env_program.substr(0, env_program.find_first_of(" \t"));
  if (env_program.empty() || env_program.starts_with('-') ||
      env_program.find('=') != std::string_view::npos) {
    return std::nullopt;
  }
  const FoundProgram found = find_program(std::string(env_program), search_path);
  return found.problem ? std::nullopt : check_program(found.path, search_path, depth + 1);
}

}  // namespace

FoundProgram find_program(const std::string& program, std::string_view search_path) {
  const auto try_path = [](const std::string& path) -> int {
    struct stat status {};
    if (stat(path.c_str(), &status) != 0) return errno;
    if (!S_ISREG(status.st_mode)) return S_ISDIR(status.st_mode) ? EISDIR : EACCES;
    return access(path.c_str(), X_OK) == 0 ? 0 : errno;
  };
  const auto problem = [&](int error) {
    const bool missing = error == ENOENT || error == ENOTDIR;
    return FoundProgram{{},
                        Problem{missing ? kExitNotFound : kExitNotExecutable,
                                fmt::format("cannot run '{}': {}", program, std::strerror(error))}};
  };
  if (program.empty()) return problem(ENOENT);
  if (program.find('/') != std::string::npos) {
    const int error = try_path(program);
    return error == 0 ? FoundProgram{program, {}} : problem(error);
  }
  int reported_error = ENOENT;
  for (bool more = true; more;) {
    const auto end = search_path.find(':');
    const std::string_view directory = search_path.substr(0, end);
    more = end != std::string_view::npos;
    if (more) search_path.remove_prefix(end + 1);
    std::string path = fmt::format("{}/{}", directory.empty() ? "." : directory, program);
    const int error = try_path(path);
    if (error == 0) return {std::move(path), {}};
    if (error == EACCES) reported_error = EACCES;
  }
  return problem(reported_error);
}

std::optional<Executable> read_executable(const std::string& path) {
  const os::Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::string begin(kLineMax, '\0');
  const ssize_t bytes = fd ? pread(fd.get(), begin.data(), begin.size(), 0) : -1;
  if (bytes < 0) return std::nullopt;
  begin.resize(static_cast<std::size_t>(bytes));
  if (begin.starts_with("#!")) return read_script(begin);
  if (begin.starts_with(ELFMAG)) return read_elf(fd.get());
  return Executable{};
}

std::optional<Problem> why_not_loadable(const std::string& path, std::string_view search_path) {
  return check_program(path, search_path, 0);
}

std::vector<std::string> needed_libraries(const std::string& path) {
  const os::Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file) return {};
  const auto segments = read_segments(file.get());
  const auto table = std::ranges::find(segments, PT_DYNAMIC, &Elf64_Phdr::p_type);
  if (table == segments.end()) return {};
  std::vector<Elf64_Dyn> entries(
      std::min<std::uint64_t>(table->p_filesz / sizeof(Elf64_Dyn), kDynamicEntriesMax));
  if (!read_at(file.get(), table->p_offset, entries.data(), entries.size() * sizeof(Elf64_Dyn))) {
    return {};
  }
  const auto names = std::ranges::find(entries, DT_STRTAB, &Elf64_Dyn::d_tag);
  const std::uint64_t base = names == entries.end() ? 0 : offset_of(segments, names->d_un.d_ptr);
  if (base == 0) return {};
  std::vector<std::string> needed;
  for (const Elf64_Dyn& entry : entries) {
    if (entry.d_tag == DT_NULL) break;
    if (entry.d_tag == DT_NEEDED)
      needed.push_back(read_string(file.get(), base + entry.d_un.d_val));
  }
  return needed;
}

}  // namespace verbena::cli
