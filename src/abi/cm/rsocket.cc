#include <rdma/rsocket.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "abi/abi.h"

// Sockets over RDMA are not implemented.  Programs that use them can be linked, but the functions
// fail.

using namespace verbena::abi;

VB_EXPORT int rsocket(int, int, int) { return failed(EOPNOTSUPP); }
VB_EXPORT int rbind(int, const sockaddr*, socklen_t) { return failed(EOPNOTSUPP); }
VB_EXPORT int rlisten(int, int) { return failed(EOPNOTSUPP); }
VB_EXPORT int raccept(int, sockaddr*, socklen_t*) { return failed(EOPNOTSUPP); }
VB_EXPORT int rconnect(int, const sockaddr*, socklen_t) { return failed(EOPNOTSUPP); }
VB_EXPORT int rshutdown(int, int) { return failed(EOPNOTSUPP); }
VB_EXPORT int rclose(int) { return failed(EOPNOTSUPP); }

VB_EXPORT ssize_t rrecv(int, void*, size_t, int) { return failed(EOPNOTSUPP); }
VB_EXPORT ssize_t rrecvfrom(int, void*, size_t, int, sockaddr*, socklen_t*) {
  return failed(EOPNOTSUPP);
}
VB_EXPORT ssize_t rrecvmsg(int, msghdr*, int) { return failed(EOPNOTSUPP); }
VB_EXPORT ssize_t rsend(int, const void*, size_t, int) { return failed(EOPNOTSUPP); }
VB_EXPORT ssize_t rsendto(int, const void*, size_t, int, const sockaddr*, socklen_t) {
  return failed(EOPNOTSUPP);
}
VB_EXPORT ssize_t rsendmsg(int, const msghdr*, int) { return failed(EOPNOTSUPP); }
VB_EXPORT ssize_t rread(int, void*, size_t) { return failed(EOPNOTSUPP); }
VB_EXPORT ssize_t rreadv(int, const iovec*, int) { return failed(EOPNOTSUPP); }
VB_EXPORT ssize_t rwrite(int, const void*, size_t) { return failed(EOPNOTSUPP); }
VB_EXPORT ssize_t rwritev(int, const iovec*, int) { return failed(EOPNOTSUPP); }

VB_EXPORT int rpoll(pollfd*, nfds_t, int) { return failed(EOPNOTSUPP); }
VB_EXPORT int rselect(int, fd_set*, fd_set*, fd_set*, timeval*) { return failed(EOPNOTSUPP); }

VB_EXPORT int rgetpeername(int, sockaddr*, socklen_t*) { return failed(EOPNOTSUPP); }
VB_EXPORT int rgetsockname(int, sockaddr*, socklen_t*) { return failed(EOPNOTSUPP); }
VB_EXPORT int rsetsockopt(int, int, int, const void*, socklen_t) { return failed(EOPNOTSUPP); }
VB_EXPORT int rgetsockopt(int, int, int, void*, socklen_t*) { return failed(EOPNOTSUPP); }
VB_EXPORT int rfcntl(int, int, ...) { return failed(EOPNOTSUPP); }

VB_EXPORT off_t riomap(int, void*, size_t, int, int, off_t) { return failed(EOPNOTSUPP); }
VB_EXPORT int riounmap(int, void*, size_t) { return failed(EOPNOTSUPP); }
VB_EXPORT size_t riowrite(int, const void*, size_t, off_t, int) {
  return static_cast<size_t>(failed(EOPNOTSUPP));
}
