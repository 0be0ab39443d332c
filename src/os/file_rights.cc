#include "os/file_rights.h"

#include <linux/magic.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace verbena::os {
namespace {

// With this id, setfsuid() and setfsgid() change nothing and only return the current id.
constexpr auto kInvalidId = static_cast<uid_t>(-1);

}  // namespace

FileRightsOf::FileRightsOf(uid_t user, gid_t group) {
  own_user_ = static_cast<uid_t>(::setfsuid(kInvalidId));
  own_group_ = static_cast<gid_t>(::setfsgid(kInvalidId));
  if (user == own_user_) return;
  changed_ = true;
  was_dumpable_ = ::prctl(PR_GET_DUMPABLE) == 1;
  ::setfsgid(group);
  ::setfsuid(user);
  taken_ = static_cast<uid_t>(::setfsuid(kInvalidId)) == user &&
           static_cast<gid_t>(::setfsgid(kInvalidId)) == group;
}

FileRightsOf::~FileRightsOf() {
  if (!changed_) return;
  ::setfsuid(own_user_);
  ::setfsgid(own_group_);
  // The kernel resets this with each change of the user, and then hides the process's descriptors
  // from others.
  if (was_dumpable_) ::prctl(PR_SET_DUMPABLE, 1);
}

bool is_on_local_filesystem(int fd) {
  constexpr auto kLocal = std::to_array<std::uint32_t>({
      TMPFS_MAGIC, EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC, F2FS_SUPER_MAGIC,
      OVERLAYFS_SUPER_MAGIC,
      0x2fc12fc1,  // ZFS
  });
  struct statfs status {};
  return ::fstatfs(fd, &status) == 0 &&
         std::ranges::find(kLocal, static_cast<std::uint32_t>(status.f_type)) != kLocal.end();
}

}  // namespace verbena::os
