#pragma once

#include <sys/types.h>

// Prevents a privileged daemon from accessing files for a user with more rights than the user has.
namespace verbena::os {

// Lets this thread use files with the rights of a user (setfsuid(2)), as long as the object lives.
// Changes nothing, not even the group, if the thread acts for that user already.
class FileRightsOf {
 public:
  FileRightsOf(uid_t user, gid_t group);
  ~FileRightsOf();
  FileRightsOf(const FileRightsOf&) = delete;
  FileRightsOf& operator=(const FileRightsOf&) = delete;

  // Returns false if the thread could not take the user's rights.  The thread may then have its own
  // rights, so do not touch the user's files.
  bool taken() const { return taken_; }

 private:
  bool changed_ = false;
  bool was_dumpable_ = false;
  bool taken_ = true;
  uid_t own_user_ = 0;
  gid_t own_group_ = 0;
};

// Returns true for a file on one of the common filesystems that only this machine's kernel serves.
// Writes to a filesystem that a process (FUSE) or another machine serves may block for ever.
bool is_on_local_filesystem(int fd);

}  // namespace verbena::os
