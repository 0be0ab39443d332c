// Opens the device twice, as a program does whose libraries each open it.  Checks that each context
// gets the events of its own objects, and that both contexts get those of the port and the device.
//
// Prints "await GID" before it waits for a change of a GID, and "await death" before it waits for
// the death of the agent.  Each wait ends when both contexts have got the event.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kWaitMs = 10000 };

struct opening {
  struct ibv_context* device;
  struct ibv_pd* pd;
  struct ibv_cq* cq;
  struct ibv_qp* qp;
};

static void need(int good, const char* what) {
  if (good) return;
  fprintf(stderr, "contexts: %s: %s\n", what, strerror(errno));
  exit(1);
}

static void modify(struct ibv_qp* qp, struct ibv_qp_attr attr, int mask) {
  need(ibv_modify_qp(qp, &attr, IBV_QP_STATE | mask) == 0, "ibv_modify_qp");
}

static void open_device(struct opening* its) {
  struct ibv_device** list = ibv_get_device_list(NULL);
  need(list != NULL && list[0] != NULL, "ibv_get_device_list");
  its->device = ibv_open_device(list[0]);
  need(its->device != NULL, "ibv_open_device");
  ibv_free_device_list(list);
  need(fcntl(its->device->async_fd, F_SETFL, O_NONBLOCK) == 0, "O_NONBLOCK");
  its->pd = ibv_alloc_pd(its->device);
  its->cq = ibv_create_cq(its->device, 8, NULL, NULL, 0);
  struct ibv_qp_init_attr init = {.send_cq = its->cq,
                                  .recv_cq = its->cq,
                                  .cap = {.max_send_wr = 2, .max_recv_wr = 2},
                                  .qp_type = IBV_QPT_UD};
  its->qp = ibv_create_qp(its->pd, &init);
  need(its->qp != NULL, "ibv_create_qp");
  modify(its->qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1},
         IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
  modify(its->qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR}, 0);
  modify(its->qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS}, IBV_QP_SQ_PSN);
}

static void close_device(struct opening* its) {
  need(ibv_destroy_qp(its->qp) == 0, "ibv_destroy_qp");
  need(ibv_destroy_cq(its->cq) == 0, "ibv_destroy_cq");
  need(ibv_dealloc_pd(its->pd) == 0, "ibv_dealloc_pd");
  need(ibv_close_device(its->device) == 0, "ibv_close_device");
}

// Makes the QP drain its send queue, which raises an event.
static void drain(const struct opening* its) {
  modify(its->qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1},
         IBV_QP_EN_SQD_ASYNC_NOTIFY);
}

// Returns the next event of this type, and ignores other events before it.
static struct ibv_async_event next(const struct opening* its, enum ibv_event_type type) {
  struct pollfd fd = {.fd = its->device->async_fd, .events = POLLIN};
  for (;;) {
    struct ibv_async_event event;
    need(poll(&fd, 1, kWaitMs) == 1, ibv_event_type_str(type));
    need(ibv_get_async_event(its->device, &event) == 0, "ibv_get_async_event");
    if (event.event_type == type) return event;
    ibv_ack_async_event(&event);
  }
}

// Checks that no event of a QP waits in this context.
static void has_no_qp_event(const struct opening* its) {
  struct ibv_async_event event;
  while (ibv_get_async_event(its->device, &event) == 0) {
    need(event.event_type != IBV_EVENT_SQ_DRAINED, "an event of the other opening");
    ibv_ack_async_event(&event);
  }
  need(errno == EAGAIN, "ibv_get_async_event of nothing");
}

static void each_has_its_own_events(struct opening* one, struct opening* other) {
  need(one->device->async_fd != other->device->async_fd, "one descriptor for both");
  drain(one);
  struct ibv_async_event event = next(one, IBV_EVENT_SQ_DRAINED);
  need(event.element.qp == one->qp, "the event of another QP");
  has_no_qp_event(other);
  ibv_ack_async_event(&event);
  drain(other);
  event = next(other, IBV_EVENT_SQ_DRAINED);
  need(event.element.qp == other->qp, "the event of another QP");
  has_no_qp_event(one);
  ibv_ack_async_event(&event);
}

static void both_get(const struct opening* one, const struct opening* other,
                     enum ibv_event_type type) {
  struct ibv_async_event event = next(one, type);
  ibv_ack_async_event(&event);
  event = next(other, type);
  ibv_ack_async_event(&event);
}

// Checks that a device can be closed although one event was not acknowledged and another one was
// not read, and that its objects can be destroyed afterwards.
static void closes_with_events(void) {
  struct opening early;
  open_device(&early);
  drain(&early);
  struct ibv_async_event event = next(&early, IBV_EVENT_SQ_DRAINED);
  modify(early.qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS}, 0);
  drain(&early);
  need(ibv_close_device(early.device) == 0, "ibv_close_device with events");
  ibv_ack_async_event(&event);
  need(ibv_destroy_qp(early.qp) == 0, "ibv_destroy_qp after ibv_close_device");
  need(ibv_destroy_cq(early.cq) == 0, "ibv_destroy_cq after ibv_close_device");
  need(ibv_dealloc_pd(early.pd) == 0, "ibv_dealloc_pd after ibv_close_device");
}

// Checks that a forked child may close the context of its parent, and open contexts of its own.
static void child_opens_contexts(struct opening* parents) {
  const pid_t child = fork();
  need(child >= 0, "fork");
  if (child == 0) {
    need(ibv_close_device(parents->device) == 0, "ibv_close_device of the parent's");
    struct opening one, other;
    open_device(&one);
    open_device(&other);
    each_has_its_own_events(&one, &other);
    close_device(&one);
    close_device(&other);
    _exit(0);
  }
  int status = 0;
  need(waitpid(child, &status, 0) == child && status == 0, "the child");
}

int main(void) {
  struct opening one, other;
  open_device(&one);
  open_device(&other);
  each_has_its_own_events(&one, &other);
  closes_with_events();
  puts("await GID");
  fflush(stdout);
  both_get(&one, &other, IBV_EVENT_GID_CHANGE);
  child_opens_contexts(&one);
  puts("await death");
  fflush(stdout);
  both_get(&one, &other, IBV_EVENT_DEVICE_FATAL);
  close_device(&one);
  close_device(&other);
  puts("ok");
  return 0;
}
