#include "cli/executable.h"

#include <elf.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace verbena::cli {
namespace {

// Owns a directory with files that the test makes.
class ExecutableTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "verbena_executable_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string make_file(const std::string& name, const std::string& contents, mode_t mode = 0755) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path) << contents;
    chmod(path.c_str(), mode);
    return path;
  }
  // Makes an ELF header, and a program header if there is a loader.
  static std::string elf(std::uint8_t elf_class, std::uint16_t machine, const std::string& loader) {
    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = elf_class;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_type = ET_DYN;
    header.e_machine = machine;
    header.e_phoff = sizeof header;
    header.e_phentsize = sizeof(Elf64_Phdr);
    header.e_phnum = 1;
    Elf64_Phdr segment{};
    segment.p_type = loader.empty() ? PT_LOAD : PT_INTERP;
    segment.p_offset = sizeof header + sizeof segment;
    segment.p_filesz = loader.size() + 1;
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
    bytes.append(reinterpret_cast<const char*>(&segment), sizeof segment);
    return bytes + loader + '\0';
  }
  static std::string good_program() {
    return elf(ELFCLASS64, EM_X86_64, "/lib64/ld-linux-x86-64.so.2");
  }
  // Returns the message about a file, without the file's directory; empty if there is no problem.
  std::string message_of(const std::string& path) {
    const auto problem = why_not_loadable(path, directory_);
    if (!problem) return "";
    std::string text = std::to_string(problem->exit_code) + " " + problem->text;
    for (std::size_t at = 0; (at = text.find(directory_ + "/")) != std::string::npos;) {
      text.erase(at, directory_.size() + 1);
    }
    return text;
  }

  std::string directory_;
};

#if defined(__x86_64__)
TEST_F(ExecutableTest, AcceptsADynamicGlibcProgram) {
  EXPECT_EQ(message_of(make_file("a", good_program())), "");
}

TEST_F(ExecutableTest, RefusesAStaticProgram) {
  EXPECT_EQ(message_of(make_file("a", elf(ELFCLASS64, EM_X86_64, ""))),
            "125 a is statically linked, so no library can take the place of its own; use a "
            "dynamically linked build of it");
  EXPECT_EQ(message_of(make_file("ld-linux-x86-64.so.2", elf(ELFCLASS64, EM_X86_64, ""))), "");
}

TEST_F(ExecutableTest, RefusesA32BitProgram) {
  EXPECT_EQ(
      message_of(make_file("a", elf(ELFCLASS32, EM_386, "/lib/ld-linux.so.2"))),
      "125 a is a 32-bit program and Verbena's libraries are 64-bit; use a 64-bit build of it");
}

TEST_F(ExecutableTest, RefusesAMuslProgram) {
  EXPECT_EQ(message_of(make_file("a", elf(ELFCLASS64, EM_X86_64, "/lib/ld-musl-x86_64.so.1"))),
            "125 a is built for musl and Verbena's libraries for glibc; use a glibc build of it");
}

TEST_F(ExecutableTest, RefusesAProgramForAnotherMachine) {
  EXPECT_EQ(
      message_of(make_file("a", elf(ELFCLASS64, EM_AARCH64, "/lib/ld-linux-aarch64.so.1"))),
      "125 a is for 64-bit ARM, and Verbena's libraries are for x86-64; use a build of it for "
      "this machine");
}

TEST_F(ExecutableTest, RefusesASetuidProgramOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make a setuid program of another user";
  const std::string path = make_file("a", good_program());
  if (chown(path.c_str(), 1, 1) != 0) GTEST_SKIP() << "only one user here";
  chmod(path.c_str(), 04755);
  EXPECT_EQ(
      message_of(path),
      "125 a is setuid, so the system ignores LD_LIBRARY_PATH for it; run a copy of it, which "
      "has no such rights");
  chmod(path.c_str(), 02755);
  EXPECT_NE(message_of(path).find("a is setgid"), std::string::npos);
  chown(path.c_str(), 0, 0);
  chmod(path.c_str(), 06755);
  EXPECT_EQ(message_of(path), "") << "our own program gains no privileges";
}

TEST_F(ExecutableTest, ChecksTheInterpreterOfAScript) {
  make_file("good", good_program());
  make_file("static", elf(ELFCLASS64, EM_X86_64, ""));
  EXPECT_EQ(message_of(make_file("s", "#!" + directory_ + "/good -x\n")), "");
  EXPECT_EQ(message_of(make_file("s", "#! " + directory_ + "/static\n")),
            "125 s is a script, and its interpreter static is statically linked, so no library can "
            "take the place of its own; use a dynamically linked build of it");
  EXPECT_EQ(message_of(make_file("s", "#!/nowhere/python\n")),
            "127 s is a script for /nowhere/python, which does not exist; install it or correct "
            "the first line");
}

TEST_F(ExecutableTest, ChecksTheProgramThatEnvStarts) {
  make_file("env", good_program());
  make_file("static", elf(ELFCLASS64, EM_X86_64, ""));
  make_file("good", good_program());
  EXPECT_EQ(message_of(make_file("s", "#!" + directory_ + "/env good\n")), "");
  EXPECT_NE(
      message_of(make_file("s", "#!" + directory_ + "/env static\n")).find("static is statically"),
      std::string::npos);
  EXPECT_NE(message_of(make_file("s", "#!" + directory_ + "/env -S static -u\n"))
                .find("static is statically"),
            std::string::npos);
  EXPECT_EQ(message_of(make_file("s", "#!" + directory_ + "/env -i static\n")), "")
      << "if env has other options, its program is not checked";
}
#endif

TEST_F(ExecutableTest, LeavesBrokenHeadersToExec) {
  std::string bytes = elf(ELFCLASS64, EM_X86_64, "/lib64/ld-linux-x86-64.so.2");
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    (void)why_not_loadable(make_file("a", bytes.substr(0, n)), directory_);
  }
  Elf64_Ehdr header{};
  std::memcpy(&header, bytes.data(), sizeof header);
  header.e_phoff = ~0ull - 10;
  std::memcpy(bytes.data(), &header, sizeof header);
  EXPECT_FALSE(read_executable(make_file("a", bytes)));
  EXPECT_EQ(message_of(make_file("s", "#!\n")), "");
  EXPECT_EQ(message_of(make_file("s", "#!")), "");
  EXPECT_EQ(message_of(make_file("s", "")), "");
  const std::string loop = make_file("loop", "#!" + directory_ + "/loop\n");
  EXPECT_EQ(message_of(loop), "");
}

TEST_F(ExecutableTest, FindsProgramsLikeExecvp) {
  const std::string a = make_file("a", good_program());
  make_file("plain", "text", 0644);
  mkdir((directory_ + "/dir").c_str(), 0755);
  const std::string path = "/nowhere:" + directory_;
  EXPECT_EQ(find_program("a", path).path, a);
  EXPECT_EQ(find_program(a, "").path, a);
  EXPECT_EQ(find_program("none", path).problem->exit_code, kExitNotFound);
  EXPECT_EQ(find_program("none", path).problem->text,
            "cannot run 'none': No such file or directory");
  EXPECT_EQ(find_program("", path).problem->exit_code, kExitNotFound);
  EXPECT_EQ(find_program("./none/x", path).problem->exit_code, kExitNotFound);
  EXPECT_EQ(find_program(directory_ + "/dir", path).problem->exit_code, kExitNotExecutable);
  EXPECT_EQ(find_program(directory_ + "/plain", path).problem->exit_code, kExitNotExecutable);
  EXPECT_EQ(find_program("plain", path).problem->exit_code, kExitNotExecutable);
}

TEST_F(ExecutableTest, AcceptsThisTestAndTheShell) {
  EXPECT_EQ(message_of("/proc/self/exe"), "");
  EXPECT_EQ(message_of("/bin/sh"), "");
}

TEST_F(ExecutableTest, ReadsTheNamesOfNeededLibraries) {
  const auto own = needed_libraries("/proc/self/exe");
  EXPECT_NE(std::ranges::find(own, "libc.so.6"), own.end());
  EXPECT_TRUE(needed_libraries(make_file("script", "#!/bin/sh\n")).empty());
  EXPECT_TRUE(needed_libraries(make_file("elf", good_program())).empty());
  EXPECT_TRUE(needed_libraries(make_file("cut", good_program().substr(0, 70))).empty());
  EXPECT_TRUE(needed_libraries(directory_ + "/nothing").empty());
}

}  // namespace
}  // namespace verbena::cli
