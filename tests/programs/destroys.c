// Creates few and many objects of each kind.  Destroys them in the order of their creation, or in
// the reverse order.  Callgrind counts the instructions of the destruction, and writes each count
// to a dump.  The dump's reason is the text "KIND OBJECTS DESTROYED ORDER".
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if !__has_include(<valgrind/callgrind.h>)
int main(void) {
  puts("no valgrind/callgrind.h");
  return 77;
}
#else
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <valgrind/callgrind.h>

enum { kFew = 64, kMany = 2048 };

static struct ibv_context* device;
static struct ibv_pd* pd;
static struct ibv_comp_channel* channel;
static struct ibv_cq* shared_cq;
static struct rdma_event_channel* events;
static struct ibv_mr* shared_mr;
static char memory[4096];

static void need(int good, const char* what) {
  if (good) return;
  fprintf(stderr, "destroys: %s: %s\n", what, strerror(errno));
  exit(1);
}

static void* make_cq(void) { return ibv_create_cq(device, 1, NULL, channel, 0); }
static int destroy_cq(void* cq) { return ibv_destroy_cq(cq); }
static void* make_pd(void) { return ibv_alloc_pd(device); }
static int destroy_pd(void* object) { return ibv_dealloc_pd(object); }
static void* make_mr(void) { return ibv_reg_mr(pd, memory, sizeof memory, 0); }
static int destroy_mr(void* mr) { return ibv_dereg_mr(mr); }
static void* make_mw(void) { return ibv_alloc_mw(pd, IBV_MW_TYPE_2); }
static int destroy_mw(void* mw) { return ibv_dealloc_mw(mw); }
static void* make_ah(void) {
  struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}};
  need(ibv_query_gid(device, 1, 0, &attr.grh.dgid) == 0, "ibv_query_gid");
  return ibv_create_ah(pd, &attr);
}
static int destroy_ah(void* ah) { return ibv_destroy_ah(ah); }
static void* make_srq(void) {
  struct ibv_srq_init_attr attr = {.attr = {.max_wr = 1, .max_sge = 1}};
  return ibv_create_srq(pd, &attr);
}
static int destroy_srq(void* srq) { return ibv_destroy_srq(srq); }
static void* make_qp(void) {
  struct ibv_qp_init_attr attr = {.send_cq = shared_cq,
                                  .recv_cq = shared_cq,
                                  .cap = {.max_send_wr = 1, .max_recv_wr = 1},
                                  .qp_type = IBV_QPT_RC};
  return ibv_create_qp(pd, &attr);
}
static int destroy_qp(void* qp) { return ibv_destroy_qp(qp); }
static void* make_id(void) {
  struct rdma_cm_id* id = NULL;
  return rdma_create_id(events, &id, NULL, RDMA_PS_TCP) == 0 ? id : NULL;
}
static int destroy_id(void* id) { return rdma_destroy_id(id); }
static void* make_channel(void) { return ibv_create_comp_channel(device); }
static int destroy_channel(void* object) { return ibv_destroy_comp_channel(object); }
static void* make_event_channel(void) { return rdma_create_event_channel(); }
static int destroy_event_channel(void* object) {
  rdma_destroy_event_channel(object);
  return 0;
}

struct kind {
  const char* name;
  void* (*make)(void);
  int (*destroy)(void*);
};

static void make(const struct kind* kind, void** objects, int count) {
  for (int i = 0; i < count; ++i) need((objects[i] = kind->make()) != NULL, kind->name);
}

static void destroy(const struct kind* kind, void** objects, int count, int last_first) {
  for (int i = 0; i < count; ++i) {
    need(kind->destroy(objects[last_first ? count - 1 - i : i]) == 0, kind->name);
  }
}

// Makes `count` objects of a kind, and counts the instructions that destroy them.  The dump's
// reason contains `search_size`, the number of objects that a slow lookup would search.
static void count_instructions(const struct kind* kind, void** objects, int count, int search_size,
                               int last_first) {
  char reason[64];
  snprintf(reason, sizeof reason, "%s %d %d %s", kind->name, search_size, count,
           last_first ? "last_first" : "first_first");
  make(kind, objects, count);
  CALLGRIND_ZERO_STATS;
  destroy(kind, objects, count, last_first);
  CALLGRIND_DUMP_STATS_AT(reason);
}

int main(void) {
  struct ibv_device** list = ibv_get_device_list(NULL);
  need(list != NULL && list[0] != NULL, "ibv_get_device_list");
  need((device = ibv_open_device(list[0])) != NULL, "ibv_open_device");
  ibv_free_device_list(list);
  need((pd = ibv_alloc_pd(device)) != NULL, "ibv_alloc_pd");
  need((channel = ibv_create_comp_channel(device)) != NULL, "ibv_create_comp_channel");
  need((shared_cq = ibv_create_cq(device, 1, NULL, NULL, 0)) != NULL, "ibv_create_cq");
  need((events = rdma_create_event_channel()) != NULL, "rdma_create_event_channel");
  need((shared_mr = ibv_reg_mr(pd, memory, sizeof memory, 0)) != NULL, "ibv_reg_mr");

  const struct kind cqs = {"cq", make_cq, destroy_cq}, ids = {"id", make_id, destroy_id};
  const struct kind kinds[] = {cqs,
                               ids,
                               {"pd", make_pd, destroy_pd},
                               {"mr", make_mr, destroy_mr},
                               {"mw", make_mw, destroy_mw},
                               {"ah", make_ah, destroy_ah},
                               {"srq", make_srq, destroy_srq},
                               {"qp", make_qp, destroy_qp}};
  const struct kind channels = {"channel", make_channel, destroy_channel};
  const struct kind event_channels = {"event_channel", make_event_channel, destroy_event_channel};
  static void *objects[kMany], *others[kMany];
  for (int many = 0; many < 2; ++many) {
    const int count = many ? kMany : kFew;
    for (unsigned i = 0; i < sizeof kinds / sizeof kinds[0]; ++i) {
      for (int last_first = 0; last_first < 2; ++last_first) {
        count_instructions(&kinds[i], objects, count, count, last_first);
      }
    }
    make(&cqs, others, count);
    count_instructions(&channels, objects, kFew, count, 0);
    destroy(&cqs, others, count, 0);
    make(&ids, others, count);
    count_instructions(&event_channels, objects, kFew, count, 0);
    destroy(&ids, others, count, 0);
  }
  return 0;
}
#endif
