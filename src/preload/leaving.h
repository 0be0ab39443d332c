#pragma once

#include <string>

#include "preload/socket_table.h"

// Takes a connection back to plain TCP, before something may use its descriptor that knows nothing
// of the ring (ARCHITECTURE.md, "Going back to TCP").
namespace verbena::preload::leaving {

// All bytes of the connection go by TCP from now on, in both directions.  Returns false if bytes of
// the peer lie unread in the ring.  Then only the outgoing direction has changed; the incoming one
// must be read by this library until the ring is empty.
bool stay_on_tcp(int fd, Socket& socket, stream::Reason reason);

// Does the same; the unread bytes end the connection (ECONNRESET at both ends).  An error is seen;
// bytes that are missing would not be.
void stay_on_tcp_or_reset(int fd, Socket& socket, stream::Reason reason);

// The program sends nothing more: it has called shutdown().
void end_outgoing(int fd, Socket& socket);
// The program reads nothing more that comes from now on: it has called shutdown().  The bytes come
// by TCP, so that the kernel gives its answer to them.
void end_incoming(Socket& socket);

// Takes the incoming direction back to plain TCP.  Returns the bytes that stood before it: all that
// lay in the ring, and in TCP before that.  Allocates.
std::string drain(int fd, Socket& socket, stream::Reason reason);

// Ends the connection with ECONNRESET, here and at the peer.  Keeps errno.
void reset(int fd);

// Wakes a receiver that waits in FUTEX_WAIT.  Keeps errno.
void wake_peer(stream::Sender& sender);

}  // namespace verbena::preload::leaving
