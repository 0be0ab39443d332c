// leftovers COUNT LIMIT_KIB: creates COUNT ids with a queue pair each and destroys them.  Then
// waits until the process has at most LIMIT_KIB more resident memory than before.
#define _GNU_SOURCE
#include <rdma/rdma_cma.h>
#include <time.h>

#include "echo.h"

static long resident_kib(void) {
  long pages = 0;
  FILE* file = fopen("/proc/self/statm", "r");
  CHECK(file != NULL && fscanf(file, "%*d %ld", &pages) == 1);
  fclose(file);
  return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static struct rdma_cm_id* make_id(struct rdma_event_channel* channel, struct ibv_pd** pd,
                                  struct ibv_cq** cq) {
  struct sockaddr_in loopback = {.sin_family = AF_INET, .sin_port = htons(7471)};
  loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  struct rdma_cm_id* id = NULL;
  struct rdma_cm_event* event = NULL;
  CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
  CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr*)&loopback, 5000) == 0);
  CHECK(rdma_get_cm_event(channel, &event) == 0 && event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
  CHECK(rdma_ack_cm_event(event) == 0);
  if (*pd == NULL) {
    *pd = ibv_alloc_pd(id->verbs);
    *cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0);
    CHECK(*pd != NULL && *cq != NULL);
  }
  struct ibv_qp_init_attr init = {
      .send_cq = *cq,
      .recv_cq = *cq,
      .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
      .qp_type = IBV_QPT_RC};
  CHECK(rdma_create_qp(id, *pd, &init) == 0);
  return id;
}

static void destroy_id(struct rdma_cm_id* id) {
  rdma_destroy_qp(id);
  CHECK(rdma_destroy_id(id) == 0);
}

int main(int argc, char** argv) {
  CHECK(argc == 3);
  const int count = atoi(argv[1]);
  const long limit = atol(argv[2]);
  struct rdma_event_channel* channel = rdma_create_event_channel();
  CHECK(channel != NULL);
  struct ibv_pd* pd = NULL;
  struct ibv_cq* cq = NULL;
  struct rdma_cm_id** ids = calloc((size_t)count, sizeof *ids);
  CHECK(ids != NULL);
  for (int i = 0; i < 10; ++i) destroy_id(make_id(channel, &pd, &cq));
  // Touch the pages of the list now, so that they are not counted.
  memset(ids, 1, (size_t)count * sizeof *ids);
  const long before = resident_kib();
  for (int i = 0; i < count; ++i) ids[i] = make_id(channel, &pd, &cq);
  const long with_all_ids = resident_kib();
  // Destroy the ids in the order of their creation, as connections often end.  Do not destroy the
  // last id yet, so that the freed memory lies between memory in use.
  for (int i = 0; i < count - 1; ++i) destroy_id(ids[i]);
  long after = resident_kib();
  const long right_after = after;
  for (int i = 0; i < 500 && after - before > limit; ++i) {
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    after = resident_kib();
  }
  printf("before %ld KiB, with %d ids %ld, at once after %ld, then %ld\n", before, count,
         with_all_ids, right_after, after);
  destroy_id(ids[count - 1]);
  return after - before <= limit ? 0 : 1;
}
