#pragma once

// Protects the library's own descriptors from programs that close all descriptors that they did not
// open.
namespace verbena::preload::own_descriptors {

// Moves a descriptor to a high number, because some programs expect certain low numbers for theirs.
// Returns the new number, which closes on exec.  Returns the old number if the move fails.
int move_away(int fd);

// Returns true if the descriptor is the library's.
bool has(int fd);

}  // namespace verbena::preload::own_descriptors
