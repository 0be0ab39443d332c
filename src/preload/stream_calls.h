#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include "preload/socket_table.h"

// Transfers bytes of a connection that has changed over.  These functions return, set errno and
// block as recvmsg(2) and sendmsg(2) do, except for the differences in docs/limits.md.
namespace verbena::preload::stream_calls {

ssize_t receive(int fd, Socket& socket, const iovec* parts, std::size_t count, int flags);
ssize_t send(int fd, Socket& socket, const iovec* parts, std::size_t count, int flags);

// Works as sendfile(2) from a file to a connection.
ssize_t send_file(int fd, Socket& socket, int file, off_t* offset, std::size_t count);

// Works as splice(2) from a connection to a pipe, for bytes that are in the ring.
ssize_t splice(int fd, Socket& socket, int pipe, std::size_t count, unsigned flags);

}  // namespace verbena::preload::stream_calls
