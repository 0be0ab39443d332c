#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>

#include "base/time.h"
#include "broker/messages.h"
#include "os/fd.h"
#include "preload/change_over.h"
#include "preload/socket_table.h"

// Connects this process with the socket service, for all of its sockets.
//
// Without a service, connections stay on TCP.  start(), offer() and request_memory() may have to
// connect to the service first.  Then they wait for its answer, at most two seconds for each
// service that they try to reach: one until it accepts the connection, and one until it answers.
// start() may also start a service, and then waits at most ten seconds until the service is ready.
// If this fails, they do not try again for at least one second.  The other functions return at
// once, unless their comments say otherwise.  One thread at a time uses the connection to the
// service.  Other threads, and signal handlers that interrupt this thread, continue without the
// service; only request_memory() waits until another thread has finished.  Only prepare() and
// start() allocate memory.
namespace verbena::preload::service_link {

// Allocates all memory that is needed later.  The library's constructor calls it once.
void prepare();

// Connects to the service, or starts one and waits until it is ready, if this process has not tried
// recently.  connect() and accept() call it, so a signal handler is seldom the first to do so.
void start();

// Offers a connection to the service.
void offer(int fd, Socket& socket);

// Receives the answers of the service that have arrived, and applies each to its socket.  If there
// is no new message, the call costs two loads.  If `checks_service` is set, the call also detects
// that the service has ended.
void receive_answers(bool checks_service);

// Sleeps until the service has sent a message, at most for `time`.  May return earlier.
void wait(Duration time);

// Returns the kernel's number for a socket, which is the same in all processes (SO_COOKIE).
// Returns 0 if the descriptor is not a socket.
std::uint64_t cookie_of(int fd);

// Converts a socket address to its form in messages.  Returns nothing if it is not an IP address.
std::optional<broker::SocketName> name_from(const sockaddr_storage& from);

// Returns true if the socket was offered to the service that runs now.
bool is_offered(const Socket& socket);

// Holds the memory of a stream, and the socket's side of the stream.
struct Memory {
  os::Fd streams;
  os::Fd end;
  std::uint32_t side = 0;

  change_over::StreamMemory view() const {
    return {.streams = streams.get(), .end = end.get(), .side = side};
  }
};
// Asks the service for the memory of a connection that has changed over.  Waits at most one second
// for other threads that use the link to the service, and at most two seconds for the answer.
// Returns nothing if the service does not know the connection, or is busy or absent.
std::optional<Memory> request_memory(int fd, Socket& socket);

// Tells the service that this process has closed the socket (then `reason` is kNone), or that the
// socket stays on TCP.
void forget(Socket& socket, stream::Reason reason = stream::Reason::kNone);

// Ends the connection to the service.  This process and its children will not connect again.
void disable();

// Closes the child's copy of the parent's connection to the service.
void after_fork_in_child();

// Returns true if the descriptor is the connection to the service.  The program must not close it.
bool owns(int fd);

}  // namespace verbena::preload::service_link
