#pragma once

#include <dirent.h>

#include <memory>

namespace verbena::os {

struct DirectoryCloser {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

// Owns a directory of opendir(3), and closes it.
using Directory = std::unique_ptr<DIR, DirectoryCloser>;

}  // namespace verbena::os
