#pragma once

// Includes toml++ with its errors as results.
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
// Its assertions end the process at some bad files, such as "[" before a control character.  The
// parser reports them as errors behind the assertion.
#define TOML_ASSERT(expression) static_assert(true)
#include <toml++/toml.h>
