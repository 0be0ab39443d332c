#include "os/file_rights.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "os/fd.h"

namespace verbena::os {
namespace {

constexpr uid_t kOtherUser = 1000;

// Makes a directory that only its owner may write to.
class FileRightsTest : public testing::Test {
 protected:
  FileRightsTest() { EXPECT_NE(::mkdtemp(directory_.data()), nullptr); }
  ~FileRightsTest() override {
    ::rmdir((directory_ + "/made").c_str());
    ::rmdir(directory_.c_str());
  }
  int make_directory() const { return ::mkdir((directory_ + "/made").c_str(), 0755); }

  std::string directory_ = "/tmp/verbena-rights-XXXXXX";
};

TEST_F(FileRightsTest, RootWithTheRightsOfAUserWritesOnlyWhatTheUserMayWrite) {
  if (::geteuid() != 0) return;  // only root can take the rights of another user
  {
    const FileRightsOf rights(kOtherUser, kOtherUser);
    if (!rights.taken()) return;  // this user namespace does not have the user
    EXPECT_EQ(make_directory(), -1);
    EXPECT_EQ(errno, EACCES);
  }
  EXPECT_EQ(make_directory(), 0) << "root has its own rights again";
}

TEST_F(FileRightsTest, OnlyRootCanTakeTheRightsOfAnotherUser) {
  if (::geteuid() == 0) return;
  EXPECT_FALSE(FileRightsOf(::geteuid() + 1, ::getegid() + 1).taken());
}

TEST_F(FileRightsTest, AUserCanAlwaysTakeItsOwnRights) {
  const FileRightsOf rights(::geteuid(), ::getegid());
  EXPECT_TRUE(rights.taken());
  EXPECT_EQ(make_directory(), 0);
}

TEST_F(FileRightsTest, FilesInProcAreNotOnALocalFilesystem) {
  EXPECT_FALSE(is_on_local_filesystem(Fd(::open("/proc/self/stat", O_RDONLY | O_CLOEXEC)).get()));
  EXPECT_FALSE(is_on_local_filesystem(-1));
}

}  // namespace
}  // namespace verbena::os
