#pragma once

#include <string>

#include "base/error.h"

// Makes files that only this process and its children see, in directories to which a user
// cannot add files (/sys, /dev).  A process calls these functions before it execs a program that
// looks for such files.  REQUIRES: the process has one thread.
namespace verbena::os {

// Leaves the host's mount namespace.  Later mounts of the host are still visible here; mounts of
// this process are never visible on the host.  Without CAP_SYS_ADMIN, the process also enters a
// user namespace of its own, in which its user and group ids are the same.  kNotSupported: the
// kernel refuses both namespaces, and nothing has changed.
Result<void> enter_private_mounts();

// Mounts a directory in memory over `directory`.  The new directory shows the host's entries, and
// more can be added.  Entries that the host adds later are not visible.  REQUIRES:
// enter_private_mounts().
Result<void> mount_private_directory(const std::string& directory);

// Creates `file` as another name of the file `target`.  So a process can add a device node without
// the privilege to create one.
Result<void> add_private_alias(const std::string& file, const std::string& target);

}  // namespace verbena::os
