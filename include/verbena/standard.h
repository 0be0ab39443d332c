#pragma once

// Stops compiling with one clear error if the compiler does not use C++23.  C++20 is 202002; GCC 12
// defines 202100 for its C++23.
#if !defined(__cplusplus) || __cplusplus <= 202002L
#error "Verbena's headers need C++23: compile with -std=c++23 (GCC 12 is enough)"
#endif
