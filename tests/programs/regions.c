// Writes without pause into the memory of another program of this host, while the test kills or
// stops one of the two programs.
//
// regions serve PORT: a server that registers memory for each client.  It deregisters the memory
// when the client has disconnected, or when a line arrives on the standard input.  Prints "offered"
// when the client may write, and "back after N ms" when ibv_dereg_mr() has returned.  After that,
// nobody may write to the memory.  At the end of the connection the server prints "whole" if the
// memory is unchanged.  Otherwise it prints "changed at OFFSET".
//
// regions write PORT: a client.  Prints "writing" after the first WRITE, and "ended: STATUS after
// COUNT" when a WRITE has failed.
#include <stdint.h>
#include <time.h>

#include "echo.h"

enum { kRegionBytes = 4 << 20, kWriteBytes = 1 << 20, kPattern = 0x6b };

// The server sends the address and the key of its memory to the client.
struct advertised_region {
  uint64_t address;
  uint32_t key;
};

static long milliseconds(void) {
  struct timespec now;
  CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

// Waits for a completion.  An event of the channel means that the peer has disconnected.  Then this
// side disconnects as well, which flushes its requests.  So a completion always arrives.
static struct ibv_wc wait_completion(struct rdma_cm_id* id, struct ibv_cq* cq) {
  struct ibv_wc wc;
  int count;
  for (unsigned long i = 1; (count = ibv_poll_cq(cq, 1, &wc)) == 0; ++i) {
    struct pollfd channel = {id->channel->fd, POLLIN, 0};
    if (i % 1024 == 0 && poll(&channel, 1, 0) > 0) rdma_disconnect(id);
  }
  CHECK(count == 1);
  return wc;
}

// Waits for the end of the connection.  If `with_input` is set, also waits for a line of input, and
// reads the line.  Returns 1 if a line arrived first.
static int wait_for_line_or_end(struct rdma_cm_id* id, int with_input) {
  for (;;) {
    struct pollfd fds[2] = {{id->channel->fd, POLLIN, 0}, {with_input ? 0 : -1, POLLIN, 0}};
    CHECK(poll(fds, 2, -1) > 0);
    if (fds[0].revents != 0) {
      struct rdma_cm_event* event = NULL;
      CHECK(rdma_get_cm_event(id->channel, &event) == 0);
      const enum rdma_cm_event_type type = event->event;
      rdma_ack_cm_event(event);
      if (type != RDMA_CM_EVENT_ESTABLISHED) return 0;
    }
    char line[16];
    if (fds[1].revents != 0) return fgets(line, sizeof line, stdin) != NULL;
  }
}

static void serve_one(struct rdma_cm_id* id, char* region) {
  struct advertised_region advertised = {.address = (uintptr_t)region};
  struct ibv_mr* advertised_mr = rdma_reg_msgs(id, &advertised, sizeof advertised);
  struct ibv_mr* region_mr = rdma_reg_write(id, region, kRegionBytes);
  CHECK(advertised_mr != NULL && region_mr != NULL);
  advertised.key = region_mr->rkey;
  if (rdma_accept(id, NULL) == 0) {
    CHECK(rdma_post_send(id, NULL, &advertised, sizeof advertised, advertised_mr, 0) == 0);
    printf("offered\n");
    const int is_connected = wait_for_line_or_end(id, 1);
    const long start = milliseconds();
    CHECK(rdma_dereg_mr(region_mr) == 0);
    printf("back after %ld ms\n", milliseconds() - start);
    memset(region, kPattern, kRegionBytes);
    if (is_connected) (void)wait_for_line_or_end(id, 0);
    int at = 0;
    while (at < kRegionBytes && region[at] == kPattern) ++at;
    if (at == kRegionBytes) {
      printf("whole\n");
    } else {
      printf("changed at %d\n", at);
    }
  } else {
    CHECK(rdma_dereg_mr(region_mr) == 0);
  }
  rdma_dereg_mr(advertised_mr);
  rdma_destroy_ep(id);
}

static void serve(const char* port) {
  struct rdma_cm_id* listener = NULL;
  struct rdma_addrinfo* address = echo_address(port, RAI_PASSIVE);
  struct ibv_qp_init_attr attr = echo_attributes();
  CHECK(rdma_create_ep(&listener, address, NULL, &attr) == 0);
  rdma_freeaddrinfo(address);
  CHECK(rdma_listen(listener, 0) == 0);
  char* region = malloc(kRegionBytes);
  CHECK(region != NULL);
  for (;;) {
    struct rdma_cm_id* id = NULL;
    CHECK(rdma_get_request(listener, &id) == 0);
    serve_one(id, region);
  }
}

static void write_until_failure(const char* port) {
  struct rdma_cm_id* id = NULL;
  struct ibv_qp_init_attr attr = echo_attributes();
  struct rdma_addrinfo* address = echo_address(port, 0);
  CHECK(rdma_create_ep(&id, address, NULL, &attr) == 0);
  rdma_freeaddrinfo(address);
  struct advertised_region advertised;
  char* data = malloc(kWriteBytes);
  CHECK(data != NULL);
  memset(data, 1, kWriteBytes);
  struct ibv_mr* advertised_mr = rdma_reg_msgs(id, &advertised, sizeof advertised);
  struct ibv_mr* data_mr = rdma_reg_msgs(id, data, kWriteBytes);
  CHECK(advertised_mr != NULL && data_mr != NULL);
  CHECK(rdma_post_recv(id, NULL, &advertised, sizeof advertised, advertised_mr) == 0);
  CHECK(rdma_connect(id, NULL) == 0);
  struct ibv_wc wc = wait_completion(id, id->recv_cq);
  unsigned long count = 0;
  while (wc.status == IBV_WC_SUCCESS) {
    const uint64_t to = advertised.address + count % (kRegionBytes / kWriteBytes) * kWriteBytes;
    if (rdma_post_write(id, NULL, data, kWriteBytes, data_mr, 0, to, advertised.key) != 0) break;
    wc = wait_completion(id, id->send_cq);
    if (++count == 1) printf("writing\n");
  }
  printf("ended: %s after %lu\n", ibv_wc_status_str(wc.status), count);
}

int main(int argc, char** argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  CHECK(argc == 3);
  if (strcmp(argv[1], "serve") == 0) serve(argv[2]);
  write_until_failure(argv[2]);
  return 0;
}
