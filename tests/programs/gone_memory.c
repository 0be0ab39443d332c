// Unmaps, protects or shortens registered memory.  A request that uses such memory must fail, and
// the program must get no signal.  Prints "good WAY OPERATION" for each case, or prints a failure
// and exits with 1.
//
//   gone_memory               without signal handlers
//   gone_memory handlers      sets its own handlers of SIGSEGV and SIGBUS after opening the device;
//                             the handlers must not run
//   gone_memory blocked       posts and polls with all signals blocked
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "move_qp.h"

enum { kPage = 4096, kPages = 4, kBytes = kPages * kPage, kWaitMs = 60000 };

static struct ibv_context* device;
static struct ibv_pd* pd;
static union ibv_gid gid;

// Represents one end of the connection: the requester, or the owner of the memory.
struct end {
  struct ibv_cq* cq;
  struct ibv_qp* qp;
  struct ibv_mr* mr;
  char* memory;
  int file;
};
static struct end requester, owner;

static void open_end(struct end* end) {
  CHECK((end->file = memfd_create("memory", 0)) >= 0);
  CHECK(ftruncate(end->file, kBytes) == 0);
  end->memory = mmap(NULL, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, end->file, 0);
  CHECK(end->memory != MAP_FAILED);
  memset(end->memory, 0, kBytes);
  CHECK((end->cq = ibv_create_cq(device, 16, NULL, NULL, 0)));
  struct ibv_qp_init_attr init = {
      .send_cq = end->cq,
      .recv_cq = end->cq,
      .qp_type = IBV_QPT_RC,
      .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
  CHECK((end->qp = ibv_create_qp(pd, &init)));
  CHECK((end->mr = ibv_reg_mr(pd, end->memory, kBytes,
                              IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)));
}

static void open_both(void) {
  open_end(&requester);
  open_end(&owner);
  for (enum ibv_qp_state state = IBV_QPS_INIT; state <= IBV_QPS_RTS; ++state) {
    move_qp(requester.qp, state, owner.qp->qp_num, gid);
    move_qp(owner.qp, state, requester.qp->qp_num, gid);
  }
}

static void close_end(struct end* end) {
  CHECK(ibv_destroy_qp(end->qp) == 0);
  CHECK(ibv_dereg_mr(end->mr) == 0);
  CHECK(ibv_destroy_cq(end->cq) == 0);
  CHECK(munmap(end->memory, kBytes) == 0);
  CHECK(close(end->file) == 0);
}

// Names the ways in which remove_last_page() makes the last page of an end's memory inaccessible.
enum way { kUnmapped, kProtected, kShortened, kWays };
static const char* const kWayNames[] = {"unmapped", "protected", "shortened"};
static void remove_last_page(struct end* end, enum way way) {
  char* const last = end->memory + kBytes - kPage;
  if (way == kUnmapped) CHECK(munmap(last, kPage) == 0);
  if (way == kProtected) CHECK(mprotect(last, kPage, PROT_NONE) == 0);
  if (way == kShortened) CHECK(ftruncate(end->file, kBytes - kPage) == 0);
}

static struct ibv_wc next_completion(struct end* end) {
  struct ibv_wc wc;
  struct timespec begin, now;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  int count;
  while ((count = ibv_poll_cq(end->cq, 1, &wc)) == 0) {
    clock_gettime(CLOCK_MONOTONIC, &now);
    CHECK((now.tv_sec - begin.tv_sec) * 1000 < kWaitMs);
  }
  CHECK(count == 1);
  return wc;
}

static void expect_completion(struct end* end, enum ibv_wc_status status) {
  const struct ibv_wc wc = next_completion(end);
  if (wc.status != status) fprintf(stderr, "%s\n", ibv_wc_status_str(wc.status));
  CHECK(wc.status == status);
}

// Posts an operation on the bytes [offset, offset + bytes) of both ends.
static void post(enum ibv_wr_opcode opcode, unsigned offset, unsigned bytes) {
  struct ibv_sge sge = {(uintptr_t)requester.memory + offset, bytes, requester.mr->lkey};
  struct ibv_send_wr wr = {
      .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};
  if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    wr.wr.atomic.remote_addr = (uintptr_t)owner.memory + offset;
    wr.wr.atomic.rkey = owner.mr->rkey;
  } else if (opcode != IBV_WR_SEND) {
    wr.wr.rdma.remote_addr = (uintptr_t)owner.memory + offset;
    wr.wr.rdma.rkey = owner.mr->rkey;
  }
  struct ibv_send_wr* bad;
  errno = ibv_post_send(requester.qp, &wr, &bad);
  CHECK(errno == 0);
}

static void receive(unsigned offset, unsigned bytes) {
  struct ibv_sge sge = {(uintptr_t)owner.memory + offset, bytes, owner.mr->lkey};
  struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
  CHECK(ibv_post_recv(owner.qp, &wr, &bad) == 0);
}

static void expect_access_event(void) {
  struct pollfd fd = {.fd = device->async_fd, .events = POLLIN};
  for (;;) {
    CHECK(poll(&fd, 1, kWaitMs) == 1);
    struct ibv_async_event event;
    CHECK(ibv_get_async_event(device, &event) == 0);
    const int found = event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == owner.qp;
    ibv_ack_async_event(&event);
    if (found) return;
  }
}

struct operation {
  const char* name;
  enum ibv_wr_opcode opcode;
  unsigned offset, bytes;
};
// Each operation accesses a part of the last page, or the last three pages.
static const struct operation kOperations[] = {
    {"small-write", IBV_WR_RDMA_WRITE, kBytes - 64, 64},
    {"write", IBV_WR_RDMA_WRITE, kBytes - 3 * kPage, 3 * kPage},
    {"read", IBV_WR_RDMA_READ, kBytes - 3 * kPage, 3 * kPage},
    {"add", IBV_WR_ATOMIC_FETCH_AND_ADD, kBytes - 64, 8},
    {"small-send", IBV_WR_SEND, kBytes - 64, 64},
    {"send", IBV_WR_SEND, kBytes - 3 * kPage, 3 * kPage},
};

// Runs an operation twice: first the owner's memory is inaccessible, and then the requester's.
static void run(enum way way, const struct operation* operation) {
  const int is_send = operation->opcode == IBV_WR_SEND;
  open_both();
  if (is_send) receive(operation->offset, operation->bytes);
  remove_last_page(&owner, way);
  post(operation->opcode, operation->offset, operation->bytes);
  expect_completion(&requester, is_send ? IBV_WC_REM_OP_ERR : IBV_WC_REM_ACCESS_ERR);
  if (is_send) {
    expect_completion(&owner, IBV_WC_LOC_PROT_ERR);
  } else {
    expect_access_event();
  }
  close_end(&requester);
  close_end(&owner);

  open_both();
  if (is_send) receive(operation->offset, operation->bytes);
  remove_last_page(&requester, way);
  post(operation->opcode, operation->offset, operation->bytes);
  expect_completion(&requester, IBV_WC_LOC_PROT_ERR);
  close_end(&requester);
  close_end(&owner);
  printf("good %s %s\n", kWayNames[way], operation->name);
  fflush(stdout);
}

static void on_signal(int number) {
  static const char kMessage[] = "the program's handler has run\n";
  if (write(2, kMessage, sizeof kMessage - 1) < 0) _exit(3);
  _exit(number);
}

int main(int argc, char** argv) {
  const char* const mode = argc > 1 ? argv[1] : "";
  struct ibv_device** list = ibv_get_device_list(NULL);
  CHECK(list != NULL && list[0] != NULL);
  CHECK((device = ibv_open_device(list[0])));
  CHECK((pd = ibv_alloc_pd(device)));
  CHECK(ibv_query_gid(device, 1, 0, &gid) == 0);
  if (strcmp(mode, "handlers") == 0) {
    CHECK(signal(SIGSEGV, on_signal) != SIG_ERR && signal(SIGBUS, on_signal) != SIG_ERR);
  }
  if (strcmp(mode, "blocked") == 0) {
    sigset_t all;
    sigfillset(&all);
    CHECK(sigprocmask(SIG_BLOCK, &all, NULL) == 0);
  }
  for (int way = 0; way < kWays; ++way) {
    for (size_t i = 0; i < sizeof kOperations / sizeof *kOperations; ++i) run(way, &kOperations[i]);
  }
  return 0;
}
