/* Waits for an epoll set again and again, while a signal handler closes a descriptor of that set.
 * close() may be called in a handler at any moment, so the program must not hang.  Run it under
 * `verbena run --sockets`.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { kSignals = 5000, kWarmRounds = 30 };

/* The handler closes this descriptor, which is in the epoll set. */
static volatile sig_atomic_t fd_to_close = -1;
static volatile sig_atomic_t signals;

static void on_alarm(int number) {
  const int error = errno;
  (void)number;
  ++signals;
  if (fd_to_close >= 0) {
    close(fd_to_close);
    fd_to_close = -1;
  }
  errno = error;
}

static void need(int good, const char* what) {
  if (good) return;
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  exit(1);
}

int main(void) {
  struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof(name);
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  need(bind(listener, (struct sockaddr*)&name, length) == 0 && listen(listener, 1) == 0 &&
           getsockname(listener, (struct sockaddr*)&name, &length) == 0,
       "listen");
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  need(connect(client, (struct sockaddr*)&name, length) == 0, "connect");
  const int server = accept(listener, NULL, NULL);
  char data[1000] = {0};
  for (int i = 0; i < kWarmRounds; ++i) {
    need(write(client, data, sizeof(data)) == sizeof(data), "write");
    need(recv(server, data, sizeof(data), MSG_WAITALL) == sizeof(data), "recv");
    usleep(1000); /* gives the service time to make the ring */
  }
  const int set = epoll_create1(0);
  struct epoll_event event = {.events = EPOLLIN};
  struct sigaction action = {.sa_handler = on_alarm};
  need(sigaction(SIGALRM, &action, NULL) == 0, "sigaction");
  const struct itimerval interval = {{0, 100}, {0, 100}};
  need(setitimer(ITIMER_REAL, &interval, NULL) == 0, "setitimer");
  while (signals < kSignals) {
    if (fd_to_close < 0) {
      const int copy = dup(server);
      event.data.fd = copy;
      /* The kernel keeps the entry of a closed descriptor while a copy is open. */
      need(epoll_ctl(set, EPOLL_CTL_ADD, copy, &event) == 0 ||
               (errno == EEXIST && epoll_ctl(set, EPOLL_CTL_MOD, copy, &event) == 0),
           "epoll_ctl");
      fd_to_close = copy;
    }
    /* Do not use a timeout.  All signals would arrive while the thread sleeps in the kernel. */
    need(epoll_wait(set, &event, 1, 0) >= 0 || errno == EINTR, "epoll_wait");
  }
  return 0;
}
