#pragma once

#include <string>

#include "preload/socket_table.h"

// Takes a connection back to plain TCP, before a program or a call that does not know the ring uses
// its descriptor (ARCHITECTURE.md, "Going back to TCP").
namespace verbena::preload::leaving {

// Makes all later bytes of the connection go by TCP, in both directions.  Returns false if the ring
// has unread bytes of the peer.  Then only the outgoing direction has changed, and this library
// must read the incoming direction until the ring is empty.  Resets a connection that must use the
// ring, and returns true.  Also resets a connection whose memory has invalid values.
bool use_only_tcp(int fd, Socket& socket, stream::Reason reason);

// Call this when the program has called shutdown() for sending.  It takes the outgoing direction
// back to TCP.
void end_outgoing(int fd, Socket& socket);
// Call this when the program has called shutdown() for receiving.  Later bytes then come by TCP, so
// that the kernel answers them as for any TCP connection.
void end_incoming(Socket& socket);

// Sets TCP_NODELAY and TCP_CORK in the kernel to the emulated values, which the program has set.
// Call it when the sender has gone back to TCP.
void restore_delay_options(int fd, Socket& socket);

// Makes all later bytes come by TCP, because the kernel must report them to the program: by a
// signal (O_ASYNC), or when there are enough bytes (SO_RCVLOWAT).  The program can still read the
// bytes that are in the ring.
void receive_by_tcp(int fd, Socket& socket);

// Takes both directions back to plain TCP.  Returns the bytes that the program must read first: all
// bytes in the ring, and the bytes of TCP that were sent before them.  Allocates memory.
std::string drain(int fd, Socket& socket, stream::Reason reason);

// Ends the connection with ECONNRESET, here and at the peer.  Keeps errno.
void reset(int fd);

// Wakes a receiver that waits in FUTEX_WAIT.  Keeps errno.
void wake_peer(stream::Sender& sender);

}  // namespace verbena::preload::leaving
