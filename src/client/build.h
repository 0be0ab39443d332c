#pragma once

namespace verbena::client {

// Identifies this build.  Program and agent must be of the same build, since their messages may
// differ between builds.
const char* build_id();

}  // namespace verbena::client
