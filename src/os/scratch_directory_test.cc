#include "os/scratch_directory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include "os/clock.h"

namespace verbena::os {
namespace {

namespace fs = std::filesystem;

class ScratchDirectoryTest : public ::testing::Test {
 protected:
  ScratchDirectoryTest() {
    std::string path = ::testing::TempDir() + "scratchXXXXXX";
    parent_ = ::mkdtemp(path.data());
    watch_ = Fd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    ::inotify_add_watch(watch_.get(), parent_.c_str(), IN_DELETE);
  }
  ~ScratchDirectoryTest() override { fs::remove_all(parent_); }

  // Waits until something in the parent directory is deleted.
  bool await_deletion() {
    const auto events = wait_for(watch_.get(), POLLIN, now() + std::chrono::seconds(20));
    return events && *events != 0;
  }
  bool parent_is_empty() const { return fs::is_empty(parent_); }

  // Starts a child, the owner, which makes a directory with a file and sleeps.  Returns its pid.
  // If `with_child` is true, the owner has a child, which also has a copy of held_fd() and sleeps.
  pid_t start_owner(bool with_child = false) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe(ends.data()), 0);
    const pid_t owner = ::fork();
    if (owner == 0) {
      const auto directory = ScratchDirectory::create(parent_, "it-");
      std::ofstream(directory->path() + "/file") << "text";
      fs::create_directory(directory->path() + "/inner");
      pid_t child = 0;
      if (with_child) {
        child = ::fork();
        if (child == 0) {
          while (true) ::pause();
        }
      }
      (void)!::write(ends[1], &child, sizeof(child));
      while (true) ::pause();
    }
    EXPECT_EQ(::read(ends[0], &child_, sizeof(child_)), static_cast<ssize_t>(sizeof(child_)));
    ::close(ends[0]);
    ::close(ends[1]);
    return owner;
  }

  std::string parent_;
  Fd watch_;
  pid_t child_ = 0;
};

TEST_F(ScratchDirectoryTest, DestructorRemovesTheDirectoryAndItsFiles) {
  {
    const auto directory = ScratchDirectory::create(parent_, "it-");
    ASSERT_TRUE(directory.has_value());
    EXPECT_TRUE(directory->path().starts_with(parent_ + "/it-"));
    EXPECT_EQ(fs::status(directory->path()).permissions(), fs::perms::owner_all);
    std::ofstream(directory->path() + "/file") << "text";
  }
  EXPECT_TRUE(parent_is_empty());
}

TEST_F(ScratchDirectoryTest, DirectoryIsRemovedWhenItsOwnerIsKilled) {
  const pid_t owner = start_owner();
  ASSERT_FALSE(parent_is_empty());
  ::kill(owner, SIGKILL);
  ::waitpid(owner, nullptr, 0);
  EXPECT_TRUE(await_deletion());
  EXPECT_TRUE(parent_is_empty());
}

TEST_F(ScratchDirectoryTest, DirectoryRemainsUntilTheOwnersChildEnds) {
  const pid_t owner = start_owner(true);
  ::kill(owner, SIGKILL);
  ::waitpid(owner, nullptr, 0);
  EXPECT_FALSE(parent_is_empty());
  ::kill(child_, SIGKILL);
  EXPECT_TRUE(await_deletion());
  EXPECT_TRUE(parent_is_empty());
}

TEST_F(ScratchDirectoryTest, AMissingParentIsAnError) {
  const auto directory = ScratchDirectory::create(parent_ + "/none", "it-");
  ASSERT_FALSE(directory.has_value());
  EXPECT_EQ(directory.error().detail, ENOENT);
}

}  // namespace
}  // namespace verbena::os
