// Lets a client wait until its server listens, if the server does not tell the client when it does.
// The client preloads this, and rdma_connect() waits until AWAIT_LISTENER, a command for sh,
// succeeds.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>

int rdma_connect(struct rdma_cm_id* id, struct rdma_conn_param* param) {
  int (*connect)(struct rdma_cm_id*, struct rdma_conn_param*) =
      (int (*)(struct rdma_cm_id*, struct rdma_conn_param*))dlsym(RTLD_NEXT, "rdma_connect");
  const char* command = getenv("AWAIT_LISTENER");
  if (command != NULL && system(command) != 0) {
    errno = ETIMEDOUT;
    return -1;
  }
  return connect(id, param);
}
