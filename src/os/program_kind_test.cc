#include "os/program_kind.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace verbena::os {
namespace {

constexpr const char* kLibrary = "/libverbena-sockets.so";

class ProgramKindTest : public testing::Test {
 protected:
  ProgramKindTest() { std::filesystem::create_directory(directory_); }
  ~ProgramKindTest() override { std::filesystem::remove_all(directory_); }

  // Writes an executable file and returns its path.
  std::string file(const std::string& name, const std::string& text, mode_t mode = 0755) {
    const std::string path = directory_ / name;
    std::ofstream(path, std::ios::binary) << text;
    ::chmod(path.c_str(), mode);
    return path;
  }
  ProgramKind kind(const std::string& path) {
    return program_kind(path.c_str(), environment_.data(), kLibrary);
  }

  std::filesystem::path directory_ =
      std::filesystem::temp_directory_path() / ("verbena-programs-" + std::to_string(::getpid()));
  std::string preload_ = "LD_PRELOAD=/usr/lib/verbena/libverbena-sockets.so.0";
  std::string other_ = "HOME=/";
  std::array<char*, 3> environment_{other_.data(), preload_.data(), nullptr};
};

TEST_F(ProgramKindTest, ADynamicProgramLoadsTheLibrary) {
  EXPECT_EQ(kind("/bin/sh"), ProgramKind::kWithLibrary);
}

TEST_F(ProgramKindTest, WithoutLdPreloadNoProgramLoadsTheLibrary) {
  environment_[1] = nullptr;
  EXPECT_EQ(kind("/bin/sh"), ProgramKind::kWithoutLibrary);
  preload_ = "LD_PRELOAD=/usr/lib/libother.so";
  environment_[1] = preload_.data();
  EXPECT_EQ(kind("/bin/sh"), ProgramKind::kWithoutLibrary);
}

TEST_F(ProgramKindTest, AScriptHasTheKindOfItsInterpreter) {
  EXPECT_EQ(kind(file("script", "#! /bin/sh -e\nexit 0\n")), ProgramKind::kWithLibrary);
  const std::string outer = file("outer", "#!" + (directory_ / "script").string() + "\n");
  EXPECT_EQ(kind(outer), ProgramKind::kWithLibrary);
  EXPECT_EQ(kind(file("lost", "#!/nonexistent/interpreter\n")), ProgramKind::kWithoutLibrary);
  EXPECT_EQ(kind(file("empty", "#!")), ProgramKind::kWithoutLibrary);
}

TEST_F(ProgramKindTest, AScriptThatIsItsOwnInterpreterEndsTheSearch) {
  EXPECT_EQ(kind(file("self", "#!" + (directory_ / "self").string() + "\n")),
            ProgramKind::kWithoutLibrary);
}

TEST_F(ProgramKindTest, AProgramThatGainsRightsDoesNotLoadTheLibrary) {
  std::ifstream sh("/bin/sh", std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(sh), {});
  EXPECT_EQ(kind(file("plain", bytes)), ProgramKind::kWithLibrary);
  EXPECT_EQ(kind(file("rights", bytes, 04755)), ProgramKind::kWithoutLibrary);
}

TEST_F(ProgramKindTest, FilesThatAreNoDynamicProgramsDoNotLoadTheLibrary) {
  EXPECT_EQ(kind(file("nothing", "")), ProgramKind::kWithoutLibrary);
  EXPECT_EQ(kind(file("text", "some text")), ProgramKind::kWithoutLibrary);
  EXPECT_EQ(kind(file("short",
                      "\x7f"
                      "ELF")),
            ProgramKind::kWithoutLibrary);
}

TEST_F(ProgramKindTest, AFileThatCannotBeExecutedHasKindNone) {
  EXPECT_EQ(kind("/nonexistent"), ProgramKind::kNone);
  EXPECT_EQ(program_kind(nullptr, environment_.data(), kLibrary), ProgramKind::kNone);
  EXPECT_EQ(search_program_kind("no-such-program-anywhere", environment_.data(), kLibrary),
            ProgramKind::kNone);
}

TEST_F(ProgramKindTest, ProgramsAreSearchedInPath) {
  EXPECT_EQ(search_program_kind("sh", environment_.data(), kLibrary), ProgramKind::kWithLibrary);
  EXPECT_EQ(search_program_kind("/bin/sh", environment_.data(), kLibrary),
            ProgramKind::kWithLibrary);
}

TEST_F(ProgramKindTest, TheSearchSkipsDirectories) {
  std::filesystem::create_directory(directory_ / "sh");
  EXPECT_EQ(kind(directory_ / "sh"), ProgramKind::kNone);
  const std::string old_path = std::getenv("PATH");
  ::setenv("PATH", (directory_.string() + ":/bin").c_str(), 1);
  EXPECT_EQ(search_program_kind("sh", environment_.data(), kLibrary), ProgramKind::kWithLibrary);
  ::setenv("PATH", old_path.c_str(), 1);
}

// execvpe() passes such a file to the shell, but execve() fails.
TEST_F(ProgramKindTest, TheSearchTakesAFileWithoutAFormatForAScript) {
  for (const char* text : {"exit 0\n", "x", ""}) {
    const std::string path = file("text", text);
    EXPECT_EQ(search_program_kind(path.c_str(), environment_.data(), kLibrary),
              ProgramKind::kWithLibrary)
        << text;
    EXPECT_EQ(kind(path), ProgramKind::kWithoutLibrary) << text;
  }
}

}  // namespace
}  // namespace verbena::os
