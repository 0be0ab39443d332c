// Connects by the RDMA CM, sends messages and sends them back, for programs that test the behaviour
// of processes.  A failed check prints its place in the source, and ends the program.
#pragma once

#include <errno.h>
#include <poll.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                   \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      fprintf(stderr, "%s:%d (pid %d): not true: %s (%s)\n", __FILE__, __LINE__, getpid(), \
              #condition, strerror(errno));                                                \
      _exit(99);                                                                           \
    }                                                                                      \
  } while (0)

enum { kEchoBytes = 4096, kEchoQueue = 16, kTimeoutMs = 30000 };

struct echo {
  struct rdma_cm_id* id;
  struct ibv_mr* mr;
  unsigned long rounds;
  char in[kEchoBytes], out[kEchoBytes];
};

enum echo_event { kEchoReceived, kEchoDisconnected };

static inline void echo_prepare(struct echo* echo) {
  echo->mr = rdma_reg_msgs(echo->id, echo, sizeof *echo);
  CHECK(echo->mr != NULL);
  CHECK(rdma_post_recv(echo->id, NULL, echo->in, kEchoBytes, echo->mr) == 0);
}

static inline struct ibv_qp_init_attr echo_attributes(void) {
  struct ibv_qp_init_attr attr;
  memset(&attr, 0, sizeof attr);
  attr.cap.max_send_wr = attr.cap.max_recv_wr = kEchoQueue;
  attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
  attr.sq_sig_all = 1;
  return attr;
}

static inline struct rdma_addrinfo* echo_address(const char* port, int flags) {
  struct rdma_addrinfo hints, *found = NULL;
  memset(&hints, 0, sizeof hints);
  hints.ai_port_space = RDMA_PS_TCP;
  hints.ai_flags = flags;
  CHECK(rdma_getaddrinfo("127.0.0.1", port, &hints, &found) == 0);
  return found;
}

static inline struct echo* echo_connect(const char* port) {
  struct echo* echo = calloc(1, sizeof *echo);
  struct ibv_qp_init_attr attr = echo_attributes();
  struct rdma_addrinfo* address = echo_address(port, 0);
  CHECK(rdma_create_ep(&echo->id, address, NULL, &attr) == 0);
  rdma_freeaddrinfo(address);
  echo_prepare(echo);
  CHECK(rdma_connect(echo->id, NULL) == 0);
  return echo;
}

// Waits for the next message or for the end of the connection.  Also polls the completions of
// sends.  A completion with an error counts as the end of the connection.
static inline enum echo_event echo_wait(struct echo* echo) {
  struct ibv_wc wc;
  for (int is_armed = 0;; is_armed = !is_armed) {
    while (ibv_poll_cq(echo->id->send_cq, 1, &wc) > 0) {
      if (wc.status != IBV_WC_SUCCESS) return kEchoDisconnected;
    }
    const int count = ibv_poll_cq(echo->id->recv_cq, 1, &wc);
    CHECK(count >= 0);
    if (count > 0) return wc.status == IBV_WC_SUCCESS ? kEchoReceived : kEchoDisconnected;
    if (!is_armed) {
      CHECK(ibv_req_notify_cq(echo->id->recv_cq, 0) == 0);
      continue;
    }
    struct pollfd fds[2] = {{echo->id->channel->fd, POLLIN, 0},
                            {echo->id->recv_cq_channel->fd, POLLIN, 0}};
    int ready = 0;
    do {
      ready = poll(fds, 2, kTimeoutMs);
    } while (ready < 0 && errno == EINTR);
    CHECK(ready > 0);
    if (fds[0].revents != 0) {
      struct rdma_cm_event* event = NULL;
      CHECK(rdma_get_cm_event(echo->id->channel, &event) == 0);
      const enum rdma_cm_event_type type = event->event;
      rdma_ack_cm_event(event);
      if (type != RDMA_CM_EVENT_ESTABLISHED) return kEchoDisconnected;
    }
    if (fds[1].revents != 0) {
      struct ibv_cq* cq = NULL;
      void* context = NULL;
      CHECK(ibv_get_cq_event(echo->id->recv_cq_channel, &cq, &context) == 0);
      ibv_ack_cq_events(cq, 1);
    }
  }
}

// Sends a message and waits for it to come back.
static inline void echo_round(struct echo* echo) {
  for (unsigned i = 0; i < kEchoBytes; ++i) echo->out[i] = (char)(echo->rounds + i);
  CHECK(rdma_post_send(echo->id, NULL, echo->out, kEchoBytes, echo->mr, 0) == 0);
  CHECK(echo_wait(echo) == kEchoReceived);
  CHECK(memcmp(echo->in, echo->out, kEchoBytes) == 0);
  CHECK(rdma_post_recv(echo->id, NULL, echo->in, kEchoBytes, echo->mr) == 0);
  __atomic_add_fetch(&echo->rounds, 1, __ATOMIC_RELAXED);
}

static inline void echo_close(struct echo* echo) {
  rdma_disconnect(echo->id);
  rdma_dereg_mr(echo->mr);
  rdma_destroy_ep(echo->id);
  free(echo);
}

// Sends back all messages until the peer disconnects.
static inline void echo_serve(struct echo* echo) {
  while (echo_wait(echo) == kEchoReceived) {
    memcpy(echo->out, echo->in, kEchoBytes);
    CHECK(rdma_post_recv(echo->id, NULL, echo->in, kEchoBytes, echo->mr) == 0);
    if (rdma_post_send(echo->id, NULL, echo->out, kEchoBytes, echo->mr, 0) != 0) break;
    ++echo->rounds;
  }
}
