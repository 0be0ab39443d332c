#pragma once

// Includes toml++, which is configured to return errors as results instead of exceptions.
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
// Disables the assertions of toml++, which end the process for some invalid files, such as "["
// before a control character.  Without the assertions, the parser reports such files as errors.
#define TOML_ASSERT(expression) static_assert(true)
#include <toml++/toml.h>
