#pragma once

#include <spawn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "os/program_kind.h"
#include "preload/socket_table.h"

// Passes connections to the next program, which exec() or posix_spawn() starts.
//
// A connection that the next program inherits goes back to TCP, unless the ring has unread bytes of
// the peer, or the connection must use the ring.  Unread bytes can only be read through the
// stream's memory.  So if the next program has this library, an environment variable names the
// connection.  The library in the next program then requests the memory from the service before
// main(), and continues the stream.
namespace verbena::preload::inheritance {

// The path of this library contains this text.
inline constexpr std::string_view kLibrary = "/libverbena-sockets.so";

// Lists the connections that the next program must continue.
class Names {
 public:
  static constexpr std::size_t kMax = 64;

  bool empty() const { return count_ == 0; }
  // Adds a connection.  Returns false if the list is full.
  bool add(Socket& socket);
  // Returns "NAME=VALUE" for the next program's environment.
  const char* variable() const { return text_.data(); }
  // Calls visit(socket) for each connection.
  template <class Visit>
  void for_each(Visit visit) const {
    for (std::size_t i = 0; i < count_; ++i) visit(*sockets_[i]);
  }

 private:
  static constexpr std::size_t kNameBytes = 17;  // a cookie in hexadecimal, and a comma

  std::array<Socket*, kMax> sockets_{};
  std::size_t count_ = 0;
  std::array<char, 64 + kMax * kNameBytes> text_{};
  std::size_t used_ = 0;
};

// Prepares each connection that the next program inherits, and adds to `names` the connections that
// the next program must continue.  Some connections with unread bytes cannot be continued:
// - If the next program does not have this library, and the connection is its standard input, this
//   function resets the connection, because the program surely reads its standard input.  Other
//   descriptors are usually inherited by accident, and stay as they are.  posix_spawn() may copy
//   the connection to the standard input by `actions`; exec() passes a null pointer.
// - If the next program has this library, but `names` is full, this function resets the connection.
//   It does the same if service_link::request_memory() returns nothing: the service does not know
//   the connection (for example because the peer has reset it), or other threads use the link to
//   the service for more than a second.
// Does nothing if exec() will fail.
void prepare(os::ProgramKind next_program, const posix_spawn_file_actions_t* actions, Names& names);

// Returns true if the program that exec() or posix_spawn() starts gets the descriptor.
bool is_inherited(int fd, const Socket& socket);

// Returns the number of entries that copy_environment() writes, including the null pointer at the
// end.
std::size_t environment_entries(char* const* environment);
// Copies the pointers of an environment, except for an older variable of this library, and adds the
// variable of `names`.
void copy_environment(char* const* environment, const Names& names, char** out);

// Continues the stream that another process has begun for this connection, which this library has
// just begun to track.  If the service does not provide the memory, resets the connection and
// returns false.
bool continue_connection(int fd, Socket& socket);

// Continues the connections that the environment names, as continue_connection() does.  Call it
// before main(), with one thread.
void continue_connections();

}  // namespace verbena::preload::inheritance
