#pragma once

#include <cstddef>

// Lets the engine touch registered memory that may have become inaccessible: the program may have
// unmapped or protected it, or its file may have become shorter than the mapping.  A hardware
// adapter pins the pages and is not affected.  Here the touch fails, and the program gets no
// signal.
//
// There are two methods.  Each thread checks every few milliseconds which method it can use:
//  * A handler of SIGSEGV and SIGBUS jumps out of the touch.  This costs about ten nanoseconds if
//    the memory is accessible.  All other faults go to the handler that the program had before, or
//    end the program as they would without us.
//  * If the program has set its own handler later, or the thread blocks the signals, we ask the
//    kernel to populate the pages before each touch (populate_pages()).  This costs a system call,
//    and another thread may still unmap the memory between that call and the touch.
namespace verbena::os {

// Installs the handlers, once per process.  Any thread may call this function.
void catch_faults();

// Calls touch(context), which touches [address, address + length) and no other memory of the
// program.  `writes` tells whether touch() writes to the memory.  Returns false if the memory is
// not accessible.  The fault may end touch() at any instruction, so touch() must own nothing that
// needs a destructor.  Any thread may call this function.
bool touch_memory(const void* address, std::size_t length, bool writes, void (*touch)(void*),
                  void* context);

}  // namespace verbena::os
