#pragma once

#include <sys/socket.h>

#include <optional>

#include "broker/messages.h"
#include "policy/rules.h"
#include "preload/socket_table.h"

// Applies the user's rules to the connections of this process (policy/rules.h).
//
// A connection that must use the ring carries no byte before it has changed over: its first call
// waits for the service's answer.  The library resets the connection, and prints the reason on
// standard error, if the peer does not use the library, or if the descriptor is needed by a call or
// a program that cannot use the ring.  Rules that require the ring do not apply to peers on other
// hosts, which cannot share memory.
namespace verbena::preload::required {

// Reads the rules from the environment.  For tests, it also reads VERBENA_SOCKETS_EARLY, which is
// the time for change_over::set_first_call_wait() in milliseconds.  The library's constructor calls
// prepare() once.
void prepare();

// Returns true if the rules have an effect, so that some connections may have to use the ring.
bool has_rules();

// Applies the rules to a connection that the program has made (then `to` is its peer) or accepted
// (then `to` is null).
policy::Choice choose(int fd, const sockaddr* to, socklen_t bytes);

// Offers a connection to the service at once, if the connection must use the ring.  Tries again
// while another thread uses the connection to the service.  The peer sends nothing before it has
// the ring, so without the offer a program that waits in poll() would wait for ever.  Does nothing
// for other connections, or before connect() has succeeded.
void offer(int fd, Socket& socket);

// Waits until the connection, which must use the ring, has changed over.  Returns false if the
// connection was reset.  Returns true at once if connect() has not succeeded yet, or if the peer
// has ended the connection.
bool wait_for_ring(int fd, Socket& socket);

// Resets a connection that must use the ring but cannot use it.
void fail(int fd, Socket& socket, stream::Reason reason);

}  // namespace verbena::preload::required
