// Creates the first queue pair at the limit of descriptors.  The call must fail with EMFILE or
// ENOMEM, must not break the device, and must succeed when descriptors are free again.
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static struct ibv_qp* create_qp(struct ibv_pd* pd, struct ibv_cq* cq) {
  struct ibv_qp_init_attr init = {
      .send_cq = cq,
      .recv_cq = cq,
      .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
      .qp_type = IBV_QPT_RC};
  return ibv_create_qp(pd, &init);
}

int main(void) {
  int count = 0;
  struct ibv_device** list = ibv_get_device_list(&count);
  struct ibv_context* device = count > 0 ? ibv_open_device(list[0]) : NULL;
  struct ibv_pd* pd = device == NULL ? NULL : ibv_alloc_pd(device);
  struct ibv_cq* cq = pd == NULL ? NULL : ibv_create_cq(device, 16, NULL, NULL, 0);
  if (cq == NULL) {
    perror("few_descriptors: making objects");
    return 1;
  }
  for (int attempt = 0; attempt < 4; ++attempt) {
    const struct rlimit no_descriptors = {.rlim_cur = 0, .rlim_max = 1024};
    if (setrlimit(RLIMIT_NOFILE, &no_descriptors) != 0) {
      perror("few_descriptors: setrlimit");
      return 1;
    }
    if (create_qp(pd, cq) != NULL || (errno != EMFILE && errno != ENOMEM)) {
      fprintf(stderr, "few_descriptors: try %d: not EMFILE: %s\n", attempt, strerror(errno));
      return 1;
    }
  }
  const struct rlimit usual_limit = {.rlim_cur = 1024, .rlim_max = 1024};
  setrlimit(RLIMIT_NOFILE, &usual_limit);
  struct pollfd async = {.fd = device->async_fd, .events = POLLIN};
  if (poll(&async, 1, 0) != 0) {
    fprintf(stderr, "few_descriptors: an unexpected asynchronous event has come\n");
    return 1;
  }
  struct ibv_qp* qp = create_qp(pd, cq);
  if (qp == NULL) {
    perror("few_descriptors: ibv_create_qp with free descriptors");
    return 1;
  }
  return ibv_destroy_qp(qp);
}
