// Opens the device twice, like a program with two libraries that each open it.  Checks that each
// context gets the events of its own objects, and that both contexts get the events of the port and
// of the device.
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

// Represents one open device, with one object of each kind.
struct instance {
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

static void open_device(struct instance* instance) {
  struct ibv_device** list = ibv_get_device_list(NULL);
  need(list != NULL && list[0] != NULL, "ibv_get_device_list");
  instance->device = ibv_open_device(list[0]);
  need(instance->device != NULL, "ibv_open_device");
  ibv_free_device_list(list);
  need(fcntl(instance->device->async_fd, F_SETFL, O_NONBLOCK) == 0, "O_NONBLOCK");
  instance->pd = ibv_alloc_pd(instance->device);
  instance->cq = ibv_create_cq(instance->device, 8, NULL, NULL, 0);
  struct ibv_qp_init_attr init = {.send_cq = instance->cq,
                                  .recv_cq = instance->cq,
                                  .cap = {.max_send_wr = 2, .max_recv_wr = 2},
                                  .qp_type = IBV_QPT_UD};
  instance->qp = ibv_create_qp(instance->pd, &init);
  need(instance->qp != NULL, "ibv_create_qp");
  modify(instance->qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1},
         IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
  modify(instance->qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR}, 0);
  modify(instance->qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS}, IBV_QP_SQ_PSN);
}

static void close_device(struct instance* instance) {
  need(ibv_destroy_qp(instance->qp) == 0, "ibv_destroy_qp");
  need(ibv_destroy_cq(instance->cq) == 0, "ibv_destroy_cq");
  need(ibv_dealloc_pd(instance->pd) == 0, "ibv_dealloc_pd");
  need(ibv_close_device(instance->device) == 0, "ibv_close_device");
}

// Makes the QP drain its send queue, which raises an event.
static void drain(const struct instance* instance) {
  modify(instance->qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1},
         IBV_QP_EN_SQD_ASYNC_NOTIFY);
}

// Returns the next event of this type.  Ignores events of other types.
static struct ibv_async_event next_event(const struct instance* instance,
                                         enum ibv_event_type type) {
  struct pollfd fd = {.fd = instance->device->async_fd, .events = POLLIN};
  for (;;) {
    struct ibv_async_event event;
    need(poll(&fd, 1, kWaitMs) == 1, ibv_event_type_str(type));
    need(ibv_get_async_event(instance->device, &event) == 0, "ibv_get_async_event");
    if (event.event_type == type) return event;
    ibv_ack_async_event(&event);
  }
}

// Checks that this context has no pending event of a QP.
static void check_no_qp_event(const struct instance* instance) {
  struct ibv_async_event event;
  while (ibv_get_async_event(instance->device, &event) == 0) {
    need(event.event_type != IBV_EVENT_SQ_DRAINED, "an event of the other context");
    ibv_ack_async_event(&event);
  }
  need(errno == EAGAIN, "ibv_get_async_event of nothing");
}

static void check_own_events(struct instance* one, struct instance* other) {
  need(one->device->async_fd != other->device->async_fd, "one descriptor for both");
  drain(one);
  struct ibv_async_event event = next_event(one, IBV_EVENT_SQ_DRAINED);
  need(event.element.qp == one->qp, "the event of another QP");
  check_no_qp_event(other);
  ibv_ack_async_event(&event);
  drain(other);
  event = next_event(other, IBV_EVENT_SQ_DRAINED);
  need(event.element.qp == other->qp, "the event of another QP");
  check_no_qp_event(one);
  ibv_ack_async_event(&event);
}

static void check_both_get_event(const struct instance* one, const struct instance* other,
                                 enum ibv_event_type type) {
  struct ibv_async_event event = next_event(one, type);
  ibv_ack_async_event(&event);
  event = next_event(other, type);
  ibv_ack_async_event(&event);
}

// Checks that a device can be closed although one event was not acknowledged and another one was
// not read, and that its objects can be destroyed afterwards.
static void check_close_with_events(void) {
  struct instance instance;
  open_device(&instance);
  drain(&instance);
  struct ibv_async_event event = next_event(&instance, IBV_EVENT_SQ_DRAINED);
  modify(instance.qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS}, 0);
  drain(&instance);
  need(ibv_close_device(instance.device) == 0, "ibv_close_device with events");
  ibv_ack_async_event(&event);
  need(ibv_destroy_qp(instance.qp) == 0, "ibv_destroy_qp after ibv_close_device");
  need(ibv_destroy_cq(instance.cq) == 0, "ibv_destroy_cq after ibv_close_device");
  need(ibv_dealloc_pd(instance.pd) == 0, "ibv_dealloc_pd after ibv_close_device");
}

// Checks that a forked child may close the context of its parent, and open contexts of its own.
static void check_contexts_of_child(struct instance* parent) {
  const pid_t child = fork();
  need(child >= 0, "fork");
  if (child == 0) {
    need(ibv_close_device(parent->device) == 0, "ibv_close_device of the parent's");
    struct instance one, other;
    open_device(&one);
    open_device(&other);
    check_own_events(&one, &other);
    close_device(&one);
    close_device(&other);
    _exit(0);
  }
  int status = 0;
  need(waitpid(child, &status, 0) == child && status == 0, "the child");
}

int main(void) {
  struct instance one, other;
  open_device(&one);
  open_device(&other);
  check_own_events(&one, &other);
  check_close_with_events();
  puts("await GID");
  fflush(stdout);
  check_both_get_event(&one, &other, IBV_EVENT_GID_CHANGE);
  check_contexts_of_child(&one);
  puts("await death");
  fflush(stdout);
  check_both_get_event(&one, &other, IBV_EVENT_DEVICE_FATAL);
  close_device(&one);
  close_device(&other);
  puts("ok");
  return 0;
}
