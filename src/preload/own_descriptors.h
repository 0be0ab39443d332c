#pragma once

// Protects the library's own descriptors from the program.  Some programs close all descriptors
// that they did not open, and these must stay open.
namespace verbena::preload::own_descriptors {

// Moves a descriptor out of the way of programs that count theirs.  It closes on exec.  Returns the
// same one if that fails.
int move_away(int fd);

// Returns true if the descriptor is the library's.
bool has(int fd);

}  // namespace verbena::preload::own_descriptors
