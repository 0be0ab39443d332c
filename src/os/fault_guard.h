#pragma once

#include <cstddef>

// Lets the engine touch memory of the program that may have gone since it was registered: unmapped,
// protected, or a file that has become shorter than its mapping.  An adapter has pinned the pages
// and goes on; here the touch fails, and the program gets no signal.
//
// There are two ways, and a thread looks every few milliseconds which one is open to it:
//  * A handler of SIGSEGV and SIGBUS jumps out of the touch.  This costs some ten nanoseconds where
//    nothing is wrong.  All other faults go on to the handler that the program had before, or end
//    the program as they would without us.
//  * Where the program has set a handler of its own since, or the thread blocks the signals, the
//    kernel is asked to bring the pages before each touch (bring_pages()).  This costs a system
//    call, and another thread may still unmap the memory between the question and the touch.
namespace verbena::os {

// Installs the handlers, once in a process.  Any thread.
void catch_faults();

// Calls touch(context), which touches [address, address + length) and no other memory of the
// program.  False: the memory is not there, or may not be written.  Then touch() has ended in its
// midst; it must hold nothing that needs a destructor.  Any thread.
bool touch_memory(const void* address, std::size_t length, bool writes, void (*touch)(void*),
                  void* context);

}  // namespace verbena::os
