#pragma once

#include <sys/types.h>

// Keeps a privileged daemon from doing more to files for a user than the user could do.
namespace verbena::os {

// Lets this thread use files with the rights of a user (setfsuid(2)), as long as the object lives.
// A thread of that user itself is not changed.
class FileRightsOf {
 public:
  FileRightsOf(uid_t user, gid_t group);
  ~FileRightsOf();
  FileRightsOf(const FileRightsOf&) = delete;
  FileRightsOf& operator=(const FileRightsOf&) = delete;

  // Returns false if the thread could not take these rights: it has its own, so do not go on.
  bool taken() const { return taken_; }

 private:
  bool changed_ = false;
  bool taken_ = true;
  uid_t own_user_ = 0;
  gid_t own_group_ = 0;
};

// Returns true for a file on a filesystem of this machine's kernel alone.  Writes to others, which
// a process (FUSE) or another machine serves, may wait for ever.
bool is_on_local_filesystem(int fd);

}  // namespace verbena::os
