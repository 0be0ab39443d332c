// Makes malloc() fail in the library's thread while the agent dies.  Checks that the program
// survives, and gets the events as soon as malloc() works again.
//
// Prints "ready".  The test writes a line to the standard input when the agent has ended.
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

void* __libc_malloc(size_t bytes);

static atomic_int malloc_fails;
static atomic_int failures;

// Replaces malloc().  Fails in the thread "verbena" while `malloc_fails` is set.
void* malloc(size_t bytes) {
  if (malloc_fails != 0) {
    char name[16] = "";
    prctl(PR_GET_NAME, name);
    if (strcmp(name, "verbena") == 0) {
      ++failures;
      errno = ENOMEM;
      return NULL;
    }
  }
  return __libc_malloc(bytes);
}

int main(void) {
  int count = 0;
  struct ibv_device** list = ibv_get_device_list(&count);
  struct ibv_context* device = count > 0 ? ibv_open_device(list[0]) : NULL;
  struct ibv_pd* pd = device == NULL ? NULL : ibv_alloc_pd(device);
  struct ibv_cq* cq = pd == NULL ? NULL : ibv_create_cq(device, 16, NULL, NULL, 0);
  struct ibv_qp_init_attr init = {
      .send_cq = cq,
      .recv_cq = cq,
      .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
      .qp_type = IBV_QPT_RC};
  struct ibv_qp* qp = cq == NULL ? NULL : ibv_create_qp(pd, &init);
  if (qp == NULL) {
    perror("no_memory: making objects");
    return 1;
  }
  malloc_fails = 1;
  puts("ready");
  fflush(stdout);
  char line[16];
  if (fgets(line, sizeof line, stdin) == NULL) return 1;
  struct pollfd async = {.fd = device->async_fd, .events = POLLIN};
  // Wait for some failures.  They must end neither the thread nor the program.
  while (failures < 3) {
    if (poll(&async, 1, 10) != 0) {
      fprintf(stderr, "no_memory: the event came although malloc() fails\n");
      return 1;
    }
  }
  malloc_fails = 0;
  struct ibv_async_event event;
  if (poll(&async, 1, 20000) != 1 || ibv_get_async_event(device, &event) != 0 ||
      event.event_type != IBV_EVENT_DEVICE_FATAL) {
    fprintf(stderr, "no_memory: no IBV_EVENT_DEVICE_FATAL\n");
    return 1;
  }
  ibv_ack_async_event(&event);
  if (ibv_destroy_qp(qp) != 0) return 1;
  qp = ibv_create_qp(pd, &init);
  if (qp == NULL) {
    perror("no_memory: with the next agent");
    return 1;
  }
  return ibv_destroy_qp(qp);
}
