#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "os/program_kind.h"
#include "preload/socket_table.h"

// Hands connections over to the next program, by exec() and posix_spawn().
//
// A connection that the next program inherits goes back to TCP, unless bytes of the peer lie in the
// ring.  Those can only be read through the stream's memory.  So if the next program has this
// library, an environment variable names the connection, and the library there gets the memory from
// the service before main() and continues the stream.
namespace verbena::preload::inheritance {

// This text occurs in the path of this library.
inline constexpr std::string_view kLibrary = "/libverbena-sockets.so";

// Names the connections that the next program must continue.
class Names {
 public:
  static constexpr std::size_t kMax = 64;

  bool empty() const { return count_ == 0; }
  // Returns false if there is no room.
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

// Prepares each connection that the next program inherits.  If that program does not have this
// library, a connection with unread bytes is reset if it is the standard input, which the program
// surely reads.  Other descriptors are usually inherited by accident, and stay as they are.  If the
// program has the library, but the service does not know the connection any more (the peer has
// reset it), a connection with unread bytes is reset at each descriptor.  Does nothing if exec()
// will fail.
void prepare(os::ProgramKind next_program, Names& names);

// Returns true if the program that exec() or posix_spawn() starts gets the descriptor.
bool is_inherited(int fd, const Socket& socket);

// Returns how many entries copy_environment() needs, its end included.
std::size_t environment_entries(char* const* environment);
// Copies the pointers of an environment, leaves out an older variable of this library, and adds
// `names`.
void copy_environment(char* const* environment, const Names& names, char** out);

// Continues the stream that another process has begun for this connection, which this library has
// just begun to track.  Returns false if its memory cannot be had; then the connection has ended
// with an error.
bool continue_connection(int fd, Socket& socket);

// Continues the connections that the environment names.  If the memory of one cannot be had, that
// connection ends with an error.  Call it before main(), with one thread.
void continue_connections();

}  // namespace verbena::preload::inheritance
