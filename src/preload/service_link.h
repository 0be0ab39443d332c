#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>

#include "base/time.h"
#include "broker/messages.h"
#include "os/fd.h"
#include "preload/socket_table.h"

// Connects this process with the socket service, for all of its sockets.
//
// Every function returns at once, unless its comment says otherwise, and no call of the program
// waits for the service: without a service, connections stay on TCP.  One thread at a time uses the
// link.  Other threads, and signal handlers that interrupt this one, continue without it.  No
// function allocates except start(), which connect() and accept() call, so that it is not first
// called in a signal handler.
namespace verbena::preload::service_link {

// Allocates all memory that is needed later.  The library's constructor calls it once.
void prepare();

// Connects to the service, or starts one, if this process has not tried recently.
void start();

// Offers a connection to the service.
void offer(int fd, Socket& socket);

// Takes the answers of the service that have come, and hands each to the socket that it is for.  If
// no message has come, it costs two loads.  A thorough look also notices that the service has
// ended.
void look(bool thorough);

// Sleeps until the service has sent something, at most for `time`.  It may return earlier.
void wait(Duration time);

// Converts a socket address to its form in messages.  Returns nothing if it is not an IP address.
std::optional<broker::SocketName> name_from(const sockaddr_storage& from);

// Returns true if the service that now runs has been offered the socket.
bool has_offer(const Socket& socket);

// Holds the memory of a stream, and which side of it a socket is.
struct Memory {
  os::Fd fd;
  std::uint32_t side = 0;
};
// Asks the service for the memory of a connection that has changed over.  Waits for the answer, at
// most a second.
std::optional<Memory> ask(int fd, Socket& socket);

// Tells the service that this process has closed the socket, or that the socket stays on TCP.
void forget(Socket& socket, stream::Reason reason = stream::Reason::kNone);

// Ends the connection, and makes no other one in this process or its children.
void retire();

// Forgets the parent's connection, in the child of a fork.
void after_fork_in_child();

// Returns true if the descriptor is the connection to the service, which the program does not know
// of and must not close.
bool owns(int fd);

}  // namespace verbena::preload::service_link
