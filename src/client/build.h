#pragma once

namespace verbena::client {

// What tells two builds apart: the messages between program and agent belong to one build.
const char* build_id();

}  // namespace verbena::client
