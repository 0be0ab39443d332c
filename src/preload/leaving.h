#pragma once

#include <string>

#include "preload/socket_table.h"

// Takes a connection back to plain TCP, before its descriptor may be used by something that does
// not know the ring (ARCHITECTURE.md, "Going back to TCP").
namespace verbena::preload::leaving {

// Makes all bytes of the connection go by TCP from now on, in both directions.  Returns false if
// bytes of the peer lie unread in the ring.  Then only the outgoing direction has changed, and this
// library must read the incoming one until the ring is empty.
bool stay_on_tcp(int fd, Socket& socket, stream::Reason reason);

// Call this when the program has called shutdown() and sends nothing more.
void end_outgoing(int fd, Socket& socket);
// Call this when the program has called shutdown() and reads nothing that comes from now on.  Later
// bytes then come by TCP, so that the kernel answers them as for any TCP connection.
void end_incoming(Socket& socket);

// Sets TCP_NODELAY and TCP_CORK in the kernel again, as the program wants them.  The library has
// managed them since the change to the stream.  Call it when the sender has left the ring.
void restore_delay_options(int fd, Socket& socket);

// Makes all later bytes come by TCP, because the kernel must report them to the program: by a
// signal (O_ASYNC), or when there are enough bytes (SO_RCVLOWAT).  Bytes that lie in the ring can
// still be read.
void receive_by_tcp(int fd, Socket& socket);

// Takes the incoming direction back to plain TCP.  Returns the bytes that the program must read
// first: all bytes in the ring, and the bytes of TCP that were sent before them.  Allocates memory.
std::string drain(int fd, Socket& socket, stream::Reason reason);

// Ends the connection with ECONNRESET, here and at the peer.  Keeps errno.
void reset(int fd);

// Wakes a receiver that waits in FUTEX_WAIT.  Keeps errno.
void wake_peer(stream::Sender& sender);

}  // namespace verbena::preload::leaving
