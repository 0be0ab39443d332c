#pragma once

#include <string>
#include <string_view>

// Other people's text made harmless for logs, tables and terminals.  Anybody may name a process
// "\033[2J" or give it a name with a line break, which would clear the reader's screen or add a
// line of the attacker's choice.
namespace verbena {

// The text with control characters (C0, DEL and C1), line separators and bytes that are not UTF-8
// written as \xNN.  Use it for a whole line: its own quotes and backslashes stay as they are.
std::string printable(std::string_view text);

// The same for a name inside a line: backslashes and quotes are escaped as well, so a name cannot
// look like more than a name.
std::string printable_name(std::string_view name);

}  // namespace verbena
