#pragma once

// Marks a function that programs call in place of the C library's.
#define VB_EXPORT extern "C" __attribute__((visibility("default")))
