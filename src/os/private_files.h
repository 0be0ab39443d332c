#pragma once

#include <string>

#include "base/error.h"

// Files that this process and its children see and nobody else: what programs look for in places
// that only the kernel can fill (/sys, /dev).  For a process that is about to become another
// program; REQUIRES: it has one thread.
namespace verbena::os {

// Leaves the host's mount namespace.  What the host mounts later still comes in, nothing of ours
// goes out.  Without the right to (CAP_SYS_ADMIN), in a user namespace of its own, too, in which
// user and group are what they were.  kNotSupported: the kernel refuses both; nothing has changed.
Result<void> enter_private_files();

// Puts a directory in memory in the place of `directory`: the same entries, each the host's own,
// and room for more.  Entries that the host adds later are not seen. REQUIRES:
// enter_private_files().
Result<void> open_private_directory(const std::string& directory);

// `file`, which is made, becomes another name of `of`: that is how a device node is had without the
// right to make one.
Result<void> add_private_alias(const std::string& file, const std::string& of);

}  // namespace verbena::os
