#pragma once

#include <string>

#include "base/error.h"

// Makes files that only this process and its children see, in directories that only the kernel can
// fill (/sys, /dev).  A process calls these functions before it execs a program that looks for such
// files.  REQUIRES: the process has one thread.
namespace verbena::os {

// Leaves the host's mount namespace.  Later mounts of the host still show up here; ours never show
// up on the host.  Without CAP_SYS_ADMIN, the process also enters a user namespace of its own, in
// which it keeps its user and group ids.  kNotSupported: the kernel refuses both namespaces, and
// nothing has changed.
Result<void> enter_private_files();

// Mounts a directory in memory over `directory`.  The new directory shows the host's entries, and
// more can be added.  Entries that the host adds later do not show up.  REQUIRES:
// enter_private_files().
Result<void> open_private_directory(const std::string& directory);

// Creates `file` as another name of the file `target`.  So a device node becomes available without
// the privilege to create one.
Result<void> add_private_alias(const std::string& file, const std::string& target);

}  // namespace verbena::os
