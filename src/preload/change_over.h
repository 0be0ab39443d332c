#pragma once

#include <sys/socket.h>

#include <cstdint>

#include "base/time.h"
#include "preload/socket_table.h"

// Changes a connection from TCP alone to a stream that uses TCP and a ring.
namespace verbena::preload::change_over {

// Begins a call on a connection.  Returns true if the stream carries the call's bytes.  Returns
// false if TCP does; then the caller makes the kernel's call while it holds a TcpCall.
bool begin(int fd, Socket& socket);

// Makes the first call of every connection wait for the ring, at most for `wait`.  Zero means no
// wait.  Tests use the wait for short connections, which would otherwise stay on TCP.
void set_first_call_wait(Duration wait);
// Returns true if set_first_call_wait() has set a wait above zero.
bool has_first_call_wait();

// Does the next step of a connection's change to the stream at once, even if the connection has
// carried few bytes so far.
void advance_at_once(int fd, Socket& socket);

// Counts the bytes of a call by TCP, for which begin() has returned false.  The destructor ends the
// call.
class TcpCall {
 public:
  explicit TcpCall(Socket& socket) : socket_(socket) {}
  TcpCall(const TcpCall&) = delete;
  TcpCall& operator=(const TcpCall&) = delete;
  ~TcpCall() { socket_.calls_on_tcp.fetch_sub(1, std::memory_order_release); }

  // Count the bytes that the kernel's call has transferred.  `bytes` is the result of that call.
  // Both functions return `bytes`.
  ssize_t sent(ssize_t bytes);
  ssize_t received(ssize_t bytes);

 private:
  Socket& socket_;
};

// Describes the memory that the service has created for a connection: the streams of both ends, the
// EndState of this end, and the side that this end has.  The caller closes the descriptors.
struct StreamMemory {
  int streams = -1;
  int end = -1;
  std::uint32_t side = 0;
};

// Maps the memory of the connection, if the socket still waits for memory.
void map_memory(Socket& socket, const StreamMemory& memory);

// Continues a stream that the program before exec() has begun.  Returns false if the memory does
// not hold a stream that has begun.
bool continue_stream(Socket& socket, const StreamMemory& memory);

// Ends the use of a connection that exec() will close.  Returns the previous SO_LINGER option,
// which rejoin_after_failed_exec() needs.
linger leave_before_exec(int fd, Socket& socket);
// Undoes leave_before_exec() after exec() has failed.
void rejoin_after_failed_exec(int fd, Socket& socket, const linger& before);

// Stops tracking a descriptor that is about to be closed, if it is tracked.
void forget(int fd);

// Ends the use of a connection that the program has ended by a connect() to AF_UNSPEC.  The
// descriptor stays open, and stays in its epoll sets.
void after_disconnect(int fd);

// Ends the process's use of a connection whose last descriptor is about to be closed.  `fd` is -1
// if the descriptor is closed already.
void close(int fd, Socket& socket);

}  // namespace verbena::preload::change_over
