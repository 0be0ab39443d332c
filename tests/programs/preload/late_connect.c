// Makes connect() of a TCP socket return only when the file $LATE_CONNECT exists.  So the peer can
// act first, before the client continues.  A library that wraps connect() and is loaded before this
// one is delayed as well.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

int connect(int fd, const struct sockaddr* to, socklen_t bytes) {
  int (*real_connect)(int, const struct sockaddr*, socklen_t) =
      (int (*)(int, const struct sockaddr*, socklen_t))dlsym(RTLD_NEXT, "connect");
  const int result = real_connect(fd, to, bytes);
  const char* file = getenv("LATE_CONNECT");
  if (file != NULL && to->sa_family == AF_INET) {
    while (access(file, F_OK) != 0) usleep(1000);
  }
  return result;
}
