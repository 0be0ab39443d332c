// Tests functions that rdma-core 60 has added to librdmacm: events that a program sends to itself,
// and asynchronous lookups of addresses.  Debian's header does not declare these functions, so
// dlvsym() finds them by name and version.
//
//   own_events ADDRESS PORT    ADDRESS is an address of this host
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// These are events and flags that Debian's header does not have.
enum { kAddrInfoResolved = 16, kAddrInfoError = 17, kUser = 18, kInternal = 19 };
enum { kRaiSa = 0x10, kRaiDns = 0x20 };

static int (*resolve_addrinfo)(struct rdma_cm_id*, const char*, const char*,
                               const struct rdma_addrinfo*);
static int (*query_addrinfo)(struct rdma_cm_id*, struct rdma_addrinfo**);
static int (*write_event)(struct rdma_cm_id*, unsigned event, int status, uint64_t arg);

static void need(int good, const char* what) {
  if (good) return;
  fprintf(stderr, "own_events: %s: %s\n", what, strerror(errno));
  exit(1);
}

static void expect_error(int result, int error, const char* what) {
  if (result == -1 && errno == error) return;
  fprintf(stderr, "own_events: %s: %d, %s, not %s\n", what, result, strerror(errno),
          strerror(error));
  exit(1);
}

static void* find_function(const char* name) {
  void* function = dlvsym(RTLD_DEFAULT, name, "RDMACM_1.4");
  need(function != NULL, name);
  return function;
}

// Acknowledges the next event, which must be `wanted` for the id.  Returns its status, and stores
// its argument in `arg`.
static int next_event(struct rdma_event_channel* channel, struct rdma_cm_id* id, int wanted,
                      uint64_t* arg) {
  struct rdma_cm_event* event = NULL;
  need(rdma_get_cm_event(channel, &event) == 0, "rdma_get_cm_event");
  if ((int)event->event != wanted || event->id != id) {
    fprintf(stderr, "own_events: %s, not %s\n", rdma_event_str(event->event),
            rdma_event_str((enum rdma_cm_event_type)wanted));
    exit(1);
  }
  const int status = event->status;
  if (arg != NULL) memcpy(arg, &event->param, sizeof *arg);
  rdma_ack_cm_event(event);
  return status;
}

static void* wake(void* id) {
  need(write_event(id, kUser, -7, 0x55667788aabbccdd) == 0, "rdma_write_cm_event");
  return NULL;
}

// Tests events that the program writes.  Ids of TCP and of UDP must have `arg` at the same offset
// in the event.
static void write_and_read_events(struct rdma_event_channel* channel, enum rdma_port_space ps) {
  struct rdma_cm_id* id = NULL;
  need(rdma_create_id(channel, &id, NULL, ps) == 0, "rdma_create_id");
  uint64_t arg = 0;
  pthread_t other;
  need(pthread_create(&other, NULL, wake, id) == 0, "pthread_create");
  need(next_event(channel, id, kUser, &arg) == -7 && arg == 0x55667788aabbccdd, "status and arg");
  pthread_join(other, NULL);
  expect_error(write_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0), EINVAL, "another event");
  expect_error(write_event(id, kInternal, 0, 0), EINVAL, "the library's own event");
  for (uint64_t i = 1; i <= 3; ++i)
    need(write_event(id, kUser, 0, i) == 0, "rdma_write_cm_event, three times");
  for (uint64_t i = 1; i <= 2; ++i) {
    need(next_event(channel, id, kUser, &arg) == 0 && arg == i, "events in their order");
  }
  need(rdma_destroy_id(id) == 0, "rdma_destroy_id, with an event unread");
}

static void write_too_many(struct rdma_event_channel* channel) {
  struct rdma_cm_id* id = NULL;
  need(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
  int written = 0;
  while (written < 1000000 && write_event(id, kUser, 0, 0) == 0) ++written;
  need(errno == ENOMEM && written == 65536, "kUnreadEventsMax");
  need(rdma_destroy_id(id) == 0, "rdma_destroy_id");
}

static void look_up_address(struct rdma_event_channel* channel, char* address, char* port) {
  struct rdma_cm_id* id = NULL;
  struct rdma_addrinfo hints = {.ai_flags = RAI_NUMERICHOST | kRaiDns,
                                .ai_port_space = RDMA_PS_TCP};
  struct rdma_addrinfo* info = NULL;
  need(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
  expect_error(query_addrinfo(id, &info), ENOENT, "a query before a lookup");
  need(resolve_addrinfo(id, address, port, &hints) == 0, "rdma_resolve_addrinfo");
  need(next_event(channel, id, kAddrInfoResolved, NULL) == 0, "ADDRINFO_RESOLVED");
  expect_error(resolve_addrinfo(id, address, port, &hints), EBUSY,
               "a lookup while a result is unread");
  need(query_addrinfo(id, &info) == 0, "rdma_query_addrinfo");
  char text[INET_ADDRSTRLEN] = "";
  const struct sockaddr_in* dst = (const struct sockaddr_in*)info->ai_dst_addr;
  inet_ntop(AF_INET, &dst->sin_addr, text, sizeof text);
  need(strcmp(text, address) == 0 && ntohs(dst->sin_port) == atoi(port),
       "the address of the result");
  need(rdma_resolve_addr(id, NULL, info->ai_dst_addr, 2000) == 0, "rdma_resolve_addr");
  need(next_event(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED, NULL) == 0, "ADDR_RESOLVED");
  rdma_freeaddrinfo(info);
  expect_error(query_addrinfo(id, &info), ENOENT, "a second query for one result");

  need(resolve_addrinfo(id, "no.number", port, &hints) == 0, "rdma_resolve_addrinfo");
  need(next_event(channel, id, kAddrInfoError, NULL) == -ENOENT, "ADDRINFO_ERROR's status");
  expect_error(query_addrinfo(id, &info), ENOENT, "a query after a lookup that failed");
  hints.ai_flags = kRaiSa;
  expect_error(resolve_addrinfo(id, NULL, "0x1000", &hints), EOPNOTSUPP, "RAI_SA");
  hints.ai_flags = kRaiSa | kRaiDns;
  expect_error(resolve_addrinfo(id, NULL, "0x1000", &hints), EINVAL, "RAI_SA with RAI_DNS");
  expect_error(resolve_addrinfo(id, NULL, NULL, NULL), EINVAL, "no node and no service");
  need(resolve_addrinfo(id, address, port, NULL) == 0, "rdma_resolve_addrinfo");
  need(rdma_destroy_id(id) == 0, "rdma_destroy_id during a lookup");
}

// Checks that an event that was written before an id became synchronous does not end the id's next
// call.
static void make_id_synchronous(struct rdma_event_channel* channel, char* address, char* port) {
  struct rdma_cm_id* id = NULL;
  struct addrinfo* to = NULL;
  need(getaddrinfo(address, port, NULL, &to) == 0, "getaddrinfo");
  need(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
  need(write_event(id, kUser, -5, 0) == 0, "rdma_write_cm_event");
  need(rdma_migrate_id(id, NULL) == 0, "rdma_migrate_id");
  need(rdma_resolve_addr(id, NULL, to->ai_addr, 2000) == 0, "rdma_resolve_addr, synchronous");
  need(id->verbs != NULL, "it has a device");
  need(rdma_destroy_id(id) == 0, "rdma_destroy_id");
  freeaddrinfo(to);
}

static void use_synchronous_id(char* address, char* port) {
  struct rdma_cm_id* id = NULL;
  struct rdma_addrinfo* info = NULL;
  const struct rdma_addrinfo hints = {.ai_flags = RAI_NUMERICHOST};
  need(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
  need(resolve_addrinfo(id, address, port, NULL) == 0, "rdma_resolve_addrinfo");
  need(query_addrinfo(id, &info) == 0, "rdma_query_addrinfo");
  need(rdma_resolve_addr(id, NULL, info->ai_dst_addr, 2000) == 0, "rdma_resolve_addr");
  rdma_freeaddrinfo(info);
  expect_error(resolve_addrinfo(id, "no.number", port, &hints), ENOENT, "a name that is no number");
  expect_error(write_event(id, kUser, 0, 0), EINVAL, "an event of a synchronous id");
  need(rdma_destroy_id(id) == 0, "rdma_destroy_id");
}

int main(int argc, char** argv) {
  errno = EINVAL;
  need(argc == 3, "usage: see its source");
  resolve_addrinfo = (int (*)(struct rdma_cm_id*, const char*, const char*,
                              const struct rdma_addrinfo*))find_function("rdma_resolve_addrinfo");
  query_addrinfo =
      (int (*)(struct rdma_cm_id*, struct rdma_addrinfo**))find_function("rdma_query_addrinfo");
  write_event =
      (int (*)(struct rdma_cm_id*, unsigned, int, uint64_t))find_function("rdma_write_cm_event");
  struct rdma_event_channel* channel = rdma_create_event_channel();
  need(channel != NULL, "rdma_create_event_channel");
  write_and_read_events(channel, RDMA_PS_TCP);
  write_and_read_events(channel, RDMA_PS_UDP);
  write_too_many(channel);
  look_up_address(channel, argv[1], argv[2]);
  use_synchronous_id(argv[1], argv[2]);
  make_id_synchronous(channel, argv[1], argv[2]);
  rdma_destroy_event_channel(channel);
  return 0;
}
