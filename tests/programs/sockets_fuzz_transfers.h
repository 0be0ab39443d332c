// Implements the operations of sockets_fuzz.c that send or receive bytes.
#pragma once

#include <poll.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <unistd.h>

#include "sockets_fuzz_slots.h"

// send SLOT CALL SIZE FLAGS END OFFSET: sends bytes of this end from the offset on, by this call
static void do_send(char** w, char* result) {
  const int fd = *descriptor_at(w[1]);
  const size_t size = (size_t)number(w[3]);
  const int flags = (int)parse_words(kFlagWords, w[4]);
  fill(bytes, (unsigned)number(w[5]), (unsigned)number(w[6]), size);
  struct iovec parts[3] = {
      {bytes, size / 3}, {bytes + size / 3, 0}, {bytes + size / 3, size - size / 3}};
  struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 1}},
                                {.msg_hdr = {.msg_iov = parts + 2, .msg_iovlen = 1}}};
  struct msghdr whole = {.msg_iov = parts, .msg_iovlen = 3};
  ssize_t sent = 0;
  if (strcmp(w[2], "write") == 0) {
    sent = write(fd, bytes, size);
  } else if (strcmp(w[2], "writev") == 0) {
    sent = writev(fd, parts, 3);
  } else if (strcmp(w[2], "sendmsg") == 0) {
    sent = sendmsg(fd, &whole, flags);
  } else if (strcmp(w[2], "sendto") == 0) {
    sent = sendto(fd, bytes, size, flags, NULL, 0);
  } else if (strcmp(w[2], "sendmmsg") == 0) {
    sent = sendmmsg(fd, messages, 2, flags);
    if (sent > 0) {
      sent = 0;
      for (int i = 0; i < 2; ++i) sent += messages[i].msg_len;
    }
  } else if (strcmp(w[2], "sendfile") == 0) {
    // Each call needs a file of its own, because the kernel sends the file's pages without a copy.
    off_t offset = 0;
    const int file = memfd_create("sockets_fuzz", 0);
    if (pwrite(file, bytes, size, 0) != (ssize_t)size) die("pwrite");
    sent = sendfile(fd, file, &offset, size);
    const int error = errno;
    close(file);
    errno = error;
  } else if (strcmp(w[2], "splice") == 0) {
    int pipe_ends[2];
    const size_t part = size < 60000 ? size : 60000;
    if (pipe(pipe_ends) != 0 || write(pipe_ends[1], bytes, part) != (ssize_t)part) die("pipe");
    close(pipe_ends[1]);
    sent = splice(pipe_ends[0], NULL, fd, NULL, part, SPLICE_F_NONBLOCK);
    const int error = errno;
    close(pipe_ends[0]);
    errno = error;
  } else if (strcmp(w[2], "stdio") == 0) {
    FILE* file = fdopen(dup(fd), "w");
    if (file == NULL) die("fdopen");
    sent = (ssize_t)fwrite(bytes, 1, size, file);
    if (fclose(file) != 0) sent = -1;
  } else if (strcmp(w[2], "dprintf") == 0) {
    sent = dprintf(fd, "%-*s", (int)(size % 1000), "x");
  } else {
    sent = send(fd, bytes, size, flags);
  }
  report(result, sent);
}

// recv SLOT CALL SIZE FLAGS: receives bytes by this call, and reports their hash
static void do_recv(char** w, char* result) {
  const int fd = *descriptor_at(w[1]);
  const size_t size = (size_t)number(w[3]);
  const int flags = (int)parse_words(kFlagWords, w[4]);
  struct iovec parts[3] = {
      {bytes, size / 2}, {bytes + size / 2, 0}, {bytes + size / 2, size - size / 2}};
  char control[64];
  struct sockaddr_storage from;
  struct msghdr whole = {.msg_name = &from,
                         .msg_namelen = sizeof(from),
                         .msg_iov = parts,
                         .msg_iovlen = 3,
                         .msg_control = control,
                         .msg_controllen = sizeof(control),
                         .msg_flags = 0x7000};
  memset(bytes, 0xee, size);
  ssize_t got = 0;
  char details[64] = "";
  if (strcmp(w[2], "read") == 0) {
    got = read(fd, bytes, size);
  } else if (strcmp(w[2], "readv") == 0) {
    got = readv(fd, parts, 3);
  } else if (strcmp(w[2], "recvmsg") == 0) {
    got = recvmsg(fd, &whole, flags);
    if (got >= 0) {
      append(details, " name=%u control=%zu flags=%x", whole.msg_namelen, whole.msg_controllen,
             (unsigned)whole.msg_flags);
    }
  } else if (strcmp(w[2], "recvfrom") == 0) {
    socklen_t length = sizeof(from);
    got = recvfrom(fd, bytes, size, flags, (struct sockaddr*)&from, &length);
    if (got >= 0) append(details, " name=%u", length);
  } else if (strcmp(w[2], "recvmmsg") == 0) {
    struct mmsghdr messages[2] = {
        {.msg_hdr = {.msg_iov = parts, .msg_iovlen = 1, .msg_controllen = 5}},
        {.msg_hdr = {.msg_iov = parts + 2, .msg_iovlen = 1, .msg_controllen = 5}}};
    const int count = recvmmsg(fd, messages, 2, flags | MSG_WAITFORONE, NULL);
    got = count < 0 ? -1 : 0;
    for (int i = 0; i < count; ++i) {
      append(details, " %u", messages[i].msg_len);
      got += messages[i].msg_len;
    }
  } else if (strcmp(w[2], "splice") == 0) {
    int pipe_ends[2];
    if (pipe(pipe_ends) != 0) die("pipe");
    got = splice(fd, NULL, pipe_ends[1], NULL, size < 4096 ? size : 4096, SPLICE_F_NONBLOCK);
    const int error = errno;
    if (got > 0 && read(pipe_ends[0], bytes, (size_t)got) != got) die("read from a pipe");
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    errno = error;
  } else if (strcmp(w[2], "stdio") == 0) {
    FILE* file = fdopen(dup(fd), "r");
    if (file == NULL) die("fdopen");
    got = (ssize_t)fread(bytes, 1, size, file);
    fclose(file);
  } else {
    got = recv(fd, bytes, size, flags);
  }
  report(result, got);
  if (got > 0 && (flags & MSG_TRUNC) == 0) {
    const int has_two_messages = strcmp(w[2], "recvmmsg") == 0;
    append(result, " #%08x", hash_of(bytes, has_two_messages ? size / 2 : (size_t)got));
  }
  append(result, "%s", details);
}

static unsigned char* flood_bytes(void) {
  static unsigned char* buffer;
  if (buffer == NULL && (buffer = malloc(kFloodBytes)) == NULL) die("malloc");
  return buffer;
}

// flood SLOT END OFFSET: sends more bytes than the buffers can hold, in one call
static void do_flood(char** w, char* result) {
  unsigned char* buffer = flood_bytes();
  fill(buffer, (unsigned)number(w[2]), (unsigned)number(w[3]), kFloodBytes);
  report(result, send(*descriptor_at(w[1]), buffer, kFloodBytes, 0));
}

// fill SLOT END OFFSET: sends until the buffers are full and all bytes that TCP carries have been
// acknowledged, so that no acknowledgement can free buffer space
static void do_fill(char** w, char* result) {
  enum { kTries = 200, kTryMs = 5 };
  const int fd = *descriptor_at(w[1]);
  unsigned char* buffer = flood_bytes();
  size_t sent = 0;
  fill(buffer, (unsigned)number(w[2]), (unsigned)number(w[3]), kFloodBytes);
  for (int tries = 0; sent < kFloodBytes && tries < kTries;) {
    struct tcp_info info;
    const int is_acknowledged = tcp_info(fd, &info) == 0 && info.tcpi_unacked == 0;
    const ssize_t n = send(fd, buffer + sent, kFloodBytes - sent, MSG_DONTWAIT);
    if (n > 0) {
      sent += (size_t)n;
    } else if (errno != EAGAIN || is_acknowledged) {
      break;
    } else {
      struct pollfd one = {fd, POLLOUT, 0};
      poll(&one, 1, kTryMs);
      ++tries;
    }
  }
  report(result, (ssize_t)sent);
}

// drain SLOT SIZE END OFFSET: receives SIZE bytes, or all bytes if the stream ends earlier, and
// checks them.  Also waits for bytes if the descriptor is non-blocking or has a short timeout.
static void do_drain(char** w, char* result) {
  enum { kPauseMs = 1000 };
  const int fd = *descriptor_at(w[1]);
  const size_t size = (size_t)number(w[2]);
  static unsigned char got[65536];
  size_t done = 0, bad = 0;
  while (done < size) {
    const size_t rest = size - done;
    const ssize_t n = recv(fd, got, rest < sizeof(got) ? rest : sizeof(got), 0);
    struct pollfd one = {fd, POLLIN, 0};
    if (n < 0 && errno == EAGAIN && poll(&one, 1, kPauseMs) == 1) continue;
    if (n <= 0) {
      append(result, "%zu %s %s", done, bad ? "bad" : "good",
             n == 0 ? "end" : strerrorname_np(errno));
      return;
    }
    fill(bytes, (unsigned)number(w[3]), (unsigned)number(w[4]) + (unsigned)done, (size_t)n);
    bad += memcmp(bytes, got, (size_t)n) != 0;
    done += (size_t)n;
  }
  append(result, "%zu %s", done, bad ? "bad" : "good");
}
