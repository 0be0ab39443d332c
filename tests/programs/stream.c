/* Sends and receives a known sequence of bytes over a TCP connection, in both directions at once.
 * Uses send(), sendmsg(), write() and writev(), the receiving calls that correspond to these, and
 * pieces of 1 to kPieceMax bytes.  Checks each byte.
 *
 *   stream serve PORT MEGABYTES SEED [MODE] accepts one connection
 *   stream call PORT MEGABYTES SEED [MODE]  connects
 *
 * MODE is one of these:
 *
 *   threads    a thread sends while the other thread receives (the default)
 *   poll       one thread makes non-blocking calls, and waits with poll()
 *   epoll      one thread makes non-blocking calls, waits with epoll, and reads once per report
 *   fork       a child sends while its parent receives
 *   dup        like threads, but uses copies of the descriptor, and closes the original
 *
 * Prints "N bytes each way" if all bytes were right.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kPieceMax = 100000 };

static void die(const char* what) {
  fprintf(stderr, "stream: %s: %s\n", what, strerror(errno));
  exit(1);
}

/* Returns the byte at an offset of the sequence of one direction. */
static unsigned char byte_at(uint64_t offset, unsigned direction) {
  const uint64_t x = (offset / 8 + 1) * 0x9e3779b97f4a7c15u + direction * 0x1234567u;
  return (unsigned char)((x ^ x >> 29) >> offset % 8 * 8);
}

struct transfer {
  int fd;
  uint64_t total, done;
  unsigned direction, seed;
};

static ssize_t send_piece(struct transfer* transfer, int flags) {
  static __thread unsigned char piece[kPieceMax];
  size_t size =
      1 + (size_t)(rand_r(&transfer->seed) % (rand_r(&transfer->seed) % 4 ? 3000 : kPieceMax));
  if (size > transfer->total - transfer->done) size = (size_t)(transfer->total - transfer->done);
  for (size_t i = 0; i < size; ++i) piece[i] = byte_at(transfer->done + i, transfer->direction);
  struct iovec parts[2] = {{piece, size / 3}, {piece + size / 3, size - size / 3}};
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
  ssize_t sent;
  switch (rand_r(&transfer->seed) % 4) {
    case 0: sent = send(transfer->fd, piece, size, flags); break;
    case 1: sent = sendmsg(transfer->fd, &message, flags); break;
    case 2:
      sent = flags ? send(transfer->fd, piece, size, flags) : write(transfer->fd, piece, size);
      break;
    default:
      sent = flags ? sendmsg(transfer->fd, &message, flags) : writev(transfer->fd, parts, 2);
      break;
  }
  if (sent > 0) transfer->done += (uint64_t)sent;
  return sent;
}

static void check(const unsigned char* bytes, size_t size, uint64_t at, unsigned direction) {
  for (size_t i = 0; i < size; ++i) {
    if (bytes[i] == byte_at(at + i, direction)) continue;
    fprintf(stderr, "stream: wrong byte at %llu\n", (unsigned long long)(at + i));
    exit(1);
  }
}

static ssize_t receive_piece(struct transfer* transfer, int flags) {
  static __thread unsigned char piece[kPieceMax];
  const size_t size =
      1 + (size_t)(rand_r(&transfer->seed) % (rand_r(&transfer->seed) % 4 ? 3000 : kPieceMax));
  struct iovec parts[2] = {{piece, size / 2}, {piece + size / 2, size - size / 2}};
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
  ssize_t got;
  switch (rand_r(&transfer->seed) % 5) {
    case 0: got = recv(transfer->fd, piece, size, flags); break;
    case 1: got = recvmsg(transfer->fd, &message, flags); break;
    case 2:
      got = flags ? recv(transfer->fd, piece, size, flags) : read(transfer->fd, piece, size);
      break;
    case 3: /* with MSG_PEEK, the next call receives the same bytes again */
      got = recv(transfer->fd, piece, size, flags | MSG_PEEK);
      if (got > 0) check(piece, (size_t)got, transfer->done, transfer->direction);
      return got > 0 ? 1 : got;
    default:
      got = flags ? recvmsg(transfer->fd, &message, flags) : readv(transfer->fd, parts, 2);
      break;
  }
  if (got > 0) {
    check(piece, (size_t)got, transfer->done, transfer->direction);
    transfer->done += (uint64_t)got;
  }
  return got;
}

static void* send_all(void* argument) {
  struct transfer* transfer = argument;
  while (transfer->done < transfer->total) {
    if (send_piece(transfer, 0) < 0) die("send");
  }
  if (shutdown(transfer->fd, SHUT_WR) != 0) die("shutdown");
  return NULL;
}

static void receive_all(struct transfer* transfer) {
  for (;;) {
    const ssize_t got = receive_piece(transfer, 0);
    if (got < 0) die("receive");
    if (got == 0) break;
  }
  if (transfer->done != transfer->total) die("the end came too early");
}

static void use_poll(struct transfer* out, struct transfer* in) {
  int ended = 0;
  while (!ended || out->done < out->total) {
    struct pollfd p = {out->fd, 0, 0};
    if (!ended) p.events |= POLLIN;
    if (out->done < out->total) p.events |= POLLOUT;
    if (poll(&p, 1, 60000) <= 0) die("poll");
    while (out->done < out->total) {
      if (send_piece(out, MSG_DONTWAIT) >= 0) continue;
      if (errno != EAGAIN) die("send");
      break;
    }
    if (out->done == out->total && p.events & POLLOUT) shutdown(out->fd, SHUT_WR);
    while (!ended) {
      const ssize_t got = receive_piece(in, MSG_DONTWAIT);
      if (got == 0) ended = 1;
      if (got > 0) continue;
      if (got < 0 && errno != EAGAIN) die("receive");
      break;
    }
  }
  if (in->done != in->total) die("the end came too early");
}

/* Receives only once for each report of epoll, and does not expect EAGAIN.  Some programs do the
 * same. */
static void use_epoll(struct transfer* out, struct transfer* in) {
  const int set = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event event = {.events = EPOLLIN | EPOLLOUT};
  if (epoll_ctl(set, EPOLL_CTL_ADD, out->fd, &event) != 0) die("epoll_ctl");
  for (int ended = 0; !ended || out->done < out->total;) {
    struct epoll_event report;
    const int count = epoll_wait(set, &report, 1, 60000);
    if (count < 0 && errno == EINTR)
      continue; /* SIGSTOP and SIGCONT interrupt epoll_wait(), see signal(7) */
    if (count != 1) die("epoll_wait");
    if (report.events & EPOLLIN && !ended) {
      const ssize_t got = receive_piece(in, MSG_DONTWAIT);
      if (got < 0) die("receive after epoll has reported input");
      ended = got == 0;
    }
    if ((report.events & EPOLLOUT) == 0 || out->done == out->total) continue;
    if (send_piece(out, MSG_DONTWAIT) < 0 && errno != EAGAIN) die("send");
    if (out->done < out->total) continue;
    shutdown(out->fd, SHUT_WR);
    event.events = EPOLLIN;
    epoll_ctl(set, EPOLL_CTL_MOD, out->fd, &event);
  }
  close(set);
  if (in->done != in->total) die("the end came too early");
}

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  const int serves = strcmp(argv[1], "serve") == 0;
  const char* mode = argc > 5 ? argv[5] : "threads";
  struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (serves) {
    const int one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, (struct sockaddr*)&name, sizeof(name)) != 0 || listen(fd, 1) != 0) die("listen");
    const int listener = fd;
    fd = accept(listener, NULL, NULL);
    if (fd < 0) die("accept");
    close(listener);
  } else if (connect(fd, (struct sockaddr*)&name, sizeof(name)) != 0) {
    die("connect");
  }
  const uint64_t total = strtoull(argv[3], NULL, 10) << 20;
  const unsigned seed = (unsigned)atoi(argv[4]);
  struct transfer out = {.fd = fd, .total = total, .direction = serves, .seed = seed * 2 + 1};
  struct transfer in = {.fd = fd, .total = total, .direction = !serves, .seed = seed * 2 + 2};
  if (strcmp(mode, "poll") == 0) {
    use_poll(&out, &in);
  } else if (strcmp(mode, "epoll") == 0) {
    use_epoll(&out, &in);
  } else if (strcmp(mode, "fork") == 0) {
    const pid_t child = fork();
    if (child == 0) {
      send_all(&out);
      exit(0);
    }
    receive_all(&in);
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) die("the child");
  } else {
    if (strcmp(mode, "dup") == 0) {
      out.fd = dup(fd);
      in.fd = fcntl(fd, F_DUPFD_CLOEXEC, 100);
      if (out.fd < 0 || in.fd < 0 || close(fd) != 0) die("dup");
    }
    pthread_t sender;
    if (pthread_create(&sender, NULL, send_all, &out) != 0) die("pthread_create");
    receive_all(&in);
    pthread_join(sender, NULL);
  }
  printf("%llu bytes each way\n", (unsigned long long)total);
  return 0;
}
