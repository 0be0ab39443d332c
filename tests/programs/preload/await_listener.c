// Makes a client wait until its server listens, for servers that do not report when they listen.
// The client preloads this library.  Its rdma_connect() first runs AWAIT_LISTENER, a command for sh
// that waits for the listener.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>

int rdma_connect(struct rdma_cm_id* id, struct rdma_conn_param* param) {
  int (*real_connect)(struct rdma_cm_id*, struct rdma_conn_param*) =
      (int (*)(struct rdma_cm_id*, struct rdma_conn_param*))dlsym(RTLD_NEXT, "rdma_connect");
  const char* command = getenv("AWAIT_LISTENER");
  if (command != NULL && system(command) != 0) {
    errno = ETIMEDOUT;
    return -1;
  }
  return real_connect(id, param);
}
