// For each line on the standard input, creates queue pairs in many threads at the same moment.
// Prints "made" when all threads have created and destroyed a queue pair.  Fails if a call fails.
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { kThreads = 16 };

static struct ibv_pd* pd;
static struct ibv_cq* cq;
static pthread_barrier_t start_barrier;

static void* create_and_destroy(void* unused) {
  (void)unused;
  pthread_barrier_wait(&start_barrier);
  struct ibv_qp_init_attr init = {
      .send_cq = cq,
      .recv_cq = cq,
      .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
      .qp_type = IBV_QPT_RC};
  struct ibv_qp* qp = ibv_create_qp(pd, &init);
  if (qp == NULL) {
    fprintf(stderr, "crowd: ibv_create_qp: %s\n", strerror(errno));
    return (void*)1;
  }
  return ibv_destroy_qp(qp) == 0 ? NULL : (void*)1;
}

int main(void) {
  int count = 0;
  struct ibv_device** list = ibv_get_device_list(&count);
  struct ibv_context* device = count > 0 ? ibv_open_device(list[0]) : NULL;
  if (device == NULL) {
    perror("crowd: ibv_open_device");
    return 1;
  }
  pd = ibv_alloc_pd(device);
  cq = ibv_create_cq(device, 16, NULL, NULL, 0);
  if (pd == NULL || cq == NULL) return 1;
  pthread_barrier_init(&start_barrier, NULL, kThreads);
  char line[16];
  while (fgets(line, sizeof line, stdin) != NULL) {
    pthread_t threads[kThreads];
    for (int i = 0; i < kThreads; ++i) pthread_create(&threads[i], NULL, create_and_destroy, NULL);
    for (int i = 0; i < kThreads; ++i) {
      void* result = NULL;
      pthread_join(threads[i], &result);
      if (result != NULL) return 1;
    }
    puts("made");
    fflush(stdout);
  }
  return 0;
}
