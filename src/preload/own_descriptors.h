#pragma once

// Keeps the library's own descriptors from the program, which does not know of them: it must not
// close them when it closes all that it did not open.
namespace verbena::preload::own_descriptors {

// Moves a descriptor out of the way of programs that count theirs.  It closes on exec.  Returns the
// same one if that fails.
int move_away(int fd);

// Returns true if the descriptor is the library's.
bool has(int fd);

}  // namespace verbena::preload::own_descriptors
