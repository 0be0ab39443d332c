#pragma once

// Protects the library's own descriptors from programs that close all descriptors that they did not
// open.
namespace verbena::preload::own_descriptors {

// Moves a descriptor to a high number, because some programs expect that their own descriptors get
// certain low numbers.  Returns the new number.  The new descriptor is closed by exec().  Returns
// the old number if the move fails.
int move_away(int fd);

// Returns true if the descriptor belongs to this library.
bool contains(int fd);

}  // namespace verbena::preload::own_descriptors
