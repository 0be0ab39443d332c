// groups ADDRESS: joins and leaves multicast groups on the interface with ADDRESS.  Lines on stdin
// are commands:
//     join GROUP full|send     prints "joined GROUP LID" or "failed GROUP STATUS"
//     leave GROUP              prints "left GROUP"
//     send GROUP TEXT          sends to a group that was joined, and prints "sent GROUP"
// The program prints "ready" at the start, "got TEXT" for each message, and "lost GROUP STATUS" if
// the program loses a membership.  It ends when stdin ends.
#include <arpa/inet.h>

#include "echo.h"

enum { kGroupsMax = 256, kSlots = 64, kGrhBytes = 40, kTextBytes = 64, kLineBytes = 256 };

struct group {
  struct sockaddr_in address;
  int is_member;
  struct ibv_ah* ah;
  uint32_t qpn, qkey;
};

static struct rdma_cm_id* id;
static struct ibv_mr* mr;
static struct group groups[kGroupsMax];
static char memory[kSlots + 1][kGrhBytes + kTextBytes];  // receives; the last slot is for sends

static const char* name_of(const struct group* group) { return inet_ntoa(group->address.sin_addr); }

static struct group* find_group(const char* name) {
  struct in_addr wanted;
  CHECK(inet_aton(name, &wanted) == 1);
  for (int i = 0; i < kGroupsMax; ++i) {
    if (groups[i].address.sin_addr.s_addr == wanted.s_addr) return &groups[i];
  }
  return NULL;
}

static struct group* add_group(const char* name) {
  CHECK(find_group(name) == NULL);
  struct group* group = find_group("0.0.0.0");  // a free entry has this address
  CHECK(group != NULL);
  group->address.sin_family = AF_INET;
  CHECK(inet_aton(name, &group->address.sin_addr) == 1);
  return group;
}

static void clear_group(struct group* group) {
  if (group->ah != NULL) CHECK(ibv_destroy_ah(group->ah) == 0);
  memset(group, 0, sizeof *group);
}

static void post_receive(uint64_t slot) {
  struct ibv_sge sge = {(uintptr_t)memory[slot], sizeof memory[slot], mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = slot, .sg_list = &sge, .num_sge = 1}, *bad;
  CHECK(ibv_post_recv(id->qp, &wr, &bad) == 0);
}

static void open_id(const char* address) {
  struct sockaddr_in own = {.sin_family = AF_INET};
  CHECK(inet_aton(address, &own.sin_addr) == 1);
  struct rdma_event_channel* channel = rdma_create_event_channel();
  CHECK(channel != NULL);
  CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_UDP) == 0);
  CHECK(rdma_bind_addr(id, (struct sockaddr*)&own) == 0);
  CHECK(id->verbs != NULL);
  struct ibv_qp_init_attr attr = {
      .qp_type = IBV_QPT_UD,
      .cap = {.max_send_wr = 4, .max_recv_wr = kSlots, .max_send_sge = 1, .max_recv_sge = 1}};
  CHECK(rdma_create_qp(id, NULL, &attr) == 0);
  mr = ibv_reg_mr(id->qp->pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
  CHECK(mr != NULL);
  for (uint64_t slot = 0; slot < kSlots; ++slot) post_receive(slot);
  CHECK(ibv_req_notify_cq(id->recv_cq, 0) == 0);
}

static void send_text(struct group* group, const char* text) {
  char* out = memory[kSlots];
  snprintf(out, kTextBytes, "%s", text);
  struct ibv_sge sge = {(uintptr_t)out, (uint32_t)strlen(out), mr->lkey};
  struct ibv_send_wr wr = {.sg_list = &sge,
                           .num_sge = 1,
                           .opcode = IBV_WR_SEND,
                           .send_flags = IBV_SEND_SIGNALED,
                           .wr.ud = {group->ah, group->qpn, group->qkey}},
                     *bad;
  CHECK(ibv_post_send(id->qp, &wr, &bad) == 0);
  struct ibv_wc wc;
  int count = 0;
  while ((count = ibv_poll_cq(id->send_cq, 1, &wc)) == 0) {
  }
  CHECK(count == 1 && wc.status == IBV_WC_SUCCESS);
  printf("sent %s\n", name_of(group));
}

static void join(struct group* group, const char* join_state) {
  struct rdma_cm_join_mc_attr_ex attr = {
      .comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
      .join_flags = strcmp(join_state, "send") == 0 ? RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER
                                                    : RDMA_MC_JOIN_FLAG_FULLMEMBER,
      .addr = (struct sockaddr*)&group->address};
  CHECK(rdma_join_multicast_ex(id, &attr, group) == 0);
}

// Executes a command from stdin.  Returns 0 if stdin has ended.
static int execute_command(void) {
  char line[kLineBytes], verb[16] = "", name[32] = "", rest[kTextBytes] = "";
  if (fgets(line, sizeof line, stdin) == NULL) return 0;
  const int words = sscanf(line, "%15s %31s %63[^\n]", verb, name, rest);
  CHECK(words >= 2);
  if (strcmp(verb, "join") == 0) {
    join(add_group(name), rest);
    return 1;
  }
  struct group* group = find_group(name);
  if (strcmp(verb, "leave") == 0) {
    // If the membership was lost meanwhile, there is no group to leave.
    if (group != NULL) {
      CHECK(rdma_leave_multicast(id, (struct sockaddr*)&group->address) == 0);
      clear_group(group);
    }
    printf("left %s\n", name);
    return 1;
  }
  CHECK(strcmp(verb, "send") == 0 && group != NULL && group->is_member);
  send_text(group, rest);
  return 1;
}

static void on_cm_event(void) {
  struct rdma_cm_event* event = NULL;
  CHECK(rdma_get_cm_event(id->channel, &event) == 0);
  struct group* group = (struct group*)event->param.ud.private_data;
  if (event->event == RDMA_CM_EVENT_MULTICAST_JOIN) {
    group->is_member = 1;
    group->ah = ibv_create_ah(id->qp->pd, &event->param.ud.ah_attr);
    CHECK(group->ah != NULL);
    group->qpn = event->param.ud.qp_num;
    group->qkey = event->param.ud.qkey;
    printf("joined %s %#x\n", name_of(group), event->param.ud.ah_attr.dlid);
  } else if (event->event == RDMA_CM_EVENT_MULTICAST_ERROR) {
    printf("%s %s %d\n", group->is_member ? "lost" : "failed", name_of(group), event->status);
    clear_group(group);
  } else {
    printf("event %s\n", rdma_event_str(event->event));
  }
  rdma_ack_cm_event(event);
}

static void on_messages(void) {
  struct ibv_cq* cq = NULL;
  void* context = NULL;
  CHECK(ibv_get_cq_event(id->recv_cq_channel, &cq, &context) == 0);
  ibv_ack_cq_events(cq, 1);
  CHECK(ibv_req_notify_cq(cq, 0) == 0);
  struct ibv_wc wc;
  while (ibv_poll_cq(cq, 1, &wc) > 0) {
    CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len >= kGrhBytes);
    printf("got %.*s\n", (int)wc.byte_len - kGrhBytes, memory[wc.wr_id] + kGrhBytes);
    post_receive(wc.wr_id);
  }
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  setvbuf(stdin, NULL, _IONBF, 0);  // poll() would not see lines in a buffer of stdio
  setvbuf(stdout, NULL, _IOLBF, 0);
  open_id(argv[1]);
  printf("ready\n");
  for (;;) {
    struct pollfd fds[3] = {
        {0, POLLIN, 0}, {id->channel->fd, POLLIN, 0}, {id->recv_cq_channel->fd, POLLIN, 0}};
    if (poll(fds, 3, -1) < 0) {
      CHECK(errno == EINTR);
      continue;
    }
    // Handle events before commands, because an event may report the loss of a group that a command
    // names.
    if ((fds[1].revents & POLLIN) != 0) on_cm_event();
    if ((fds[2].revents & POLLIN) != 0) on_messages();
    if (fds[1].revents == 0 && fds[0].revents != 0 && !execute_command()) return 0;
  }
}
