#pragma once

// The headers of the C++ API say at once what a compiler lacks, before it says a thousand other
// things.  C++20 is 202002; GCC 12 calls its C++23 202100.
#if !defined(__cplusplus) || __cplusplus <= 202002L
#error "Verbena's headers need C++23: compile with -std=c++23 (GCC 12 is enough)"
#endif
