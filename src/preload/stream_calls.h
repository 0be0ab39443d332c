#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include "preload/socket_table.h"

// Transfers bytes of a connection that has changed over.  The results, errno and the ways to wait
// are those of recvmsg(2) and sendmsg(2).
namespace verbena::preload::stream_calls {

ssize_t receive(int fd, Socket& socket, const iovec* parts, std::size_t count, int flags);
ssize_t send(int fd, Socket& socket, const iovec* parts, std::size_t count, int flags);

// Does what sendfile(2) does from a file to a connection.
ssize_t send_file(int fd, Socket& socket, int file, off_t* offset, std::size_t count);

// Does what splice(2) does from a connection to a pipe, for bytes that lie in the ring.
ssize_t splice(int fd, Socket& socket, int pipe, std::size_t count, unsigned flags);

}  // namespace verbena::preload::stream_calls
