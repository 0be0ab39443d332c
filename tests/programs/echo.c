// echo PORT: a server that sends back all messages, on any number of connections.  Prints "here N"
// when connection N begins, and "gone N after ROUNDS rounds" when it ends.
// echo PORT child: a server that also forks a child, which does nothing and does not end.
// echo PORT ROUNDS: a client that sends ROUNDS messages and waits for each answer.  If ROUNDS is 0,
// the client does not end.
#include "echo.h"

#include <pthread.h>

static void* serve(void* argument) {
  struct echo* echo = argument;
  static int last_number;
  if (rdma_accept(echo->id, NULL) != 0) {  // fails if the client has ended after its request
    printf("lost before it was here (%s)\n", strerror(errno));
    rdma_dereg_mr(echo->mr);
    rdma_destroy_ep(echo->id);
    free(echo);
    return NULL;
  }
  const int number = __atomic_add_fetch(&last_number, 1, __ATOMIC_RELAXED);
  printf("here %d\n", number);
  echo_serve(echo);
  printf("gone %d after %lu rounds\n", number, echo->rounds);
  echo_close(echo);
  return NULL;
}

static void serve_forever(const char* port, int has_child) {
  struct rdma_cm_id* listener = NULL;
  struct rdma_addrinfo* address = echo_address(port, RAI_PASSIVE);
  struct ibv_qp_init_attr attr = echo_attributes();
  CHECK(rdma_create_ep(&listener, address, NULL, &attr) == 0);
  rdma_freeaddrinfo(address);
  CHECK(rdma_listen(listener, 0) == 0);
  if (has_child) {
    const pid_t child = fork();
    if (child == 0) {
      for (;;) pause();
    }
    printf("child %d\n", child);
  }
  for (;;) {
    struct echo* echo = calloc(1, sizeof *echo);
    CHECK(rdma_get_request(listener, &echo->id) == 0);
    echo_prepare(echo);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, serve, echo) == 0);
    CHECK(pthread_detach(thread) == 0);
  }
}

int main(int argc, char** argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (argc == 2) serve_forever(argv[1], 0);
  CHECK(argc == 3);
  if (strcmp(argv[2], "child") == 0) serve_forever(argv[1], 1);
  const unsigned long rounds = strtoul(argv[2], NULL, 10);
  struct echo* echo = echo_connect(argv[1]);
  printf("connected\n");
  while (rounds == 0 || echo->rounds < rounds) echo_round(echo);
  echo_close(echo);
  return 0;
}
