#pragma once

#include <string>
#include <string_view>

// Makes other people's text harmless for logs, tables and terminals.  Anybody may give a process
// the name "\033[2J", which would clear the reader's screen, or a name with a line break, which
// would add a line of the attacker's choice.
namespace verbena {

// Writes harmful characters as \xNN: control characters (C0, DEL and C1), line separators,
// characters that change the direction of writing, and bytes that are not UTF-8.  Use it for a
// whole line: quotes and backslashes stay as they are.
std::string printable(std::string_view text);

// Does the same as printable(), and also writes a backslash before quotes and backslashes.  Use it
// for a name inside a line, so that a name cannot look like other text of the line.
std::string printable_name(std::string_view name);

}  // namespace verbena
