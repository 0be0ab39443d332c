/* Makes random sequences of calls for TCP connections by several processes, one call after the other, and
 * prints what each call has returned.  Run it by TCP alone and under `verbena run --sockets`: the texts must be the
 * same.
 *
 *   sockets_fuzz run SEED COUNT  runs COUNT sequences from SEED on
 *   sockets_fuzz show SEED       prints the steps of a sequence
 *   sockets_fuzz play FILE       runs the steps of a file, "-" for the standard input
 * The last line on the standard error says how many connections have moved bytes past the kernel.
 *
 * A coordinator orders each call and waits for its end, and then until all bytes and ends that the kernel carries have
 * arrived.  So no result depends on time.  The processes that make the calls are actors; they know descriptors by
 * slots.  The coordinator keeps which slot has which end of a connection, and how many bytes are under way.
 */
#define _GNU_SOURCE
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "sockets_fuzz_actor.h"
#include "sockets_fuzz_steps.h"

enum { kEndless = 3000, kSettleMs = 1500, kAsleepMs = 40, kDelayedMs = 400, kWarmRounds = 600 };

struct end {
  unsigned sent, received;
  int shut, closed, sent_after_close;
};

static pid_t pids[kActors];
static int model[kActors][kSlots]; /* kNone, kSet, or an end */
static struct end ends[kPlanned];
static int connections, is_over, is_verbena;
static int is_delayed; /* a connection has Nagle's algorithm, which waits for acknowledgements */
static unsigned warm, warmed; /* connections that should and did move bytes past the kernel */

static long now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

// ---- orders

static void order(int actor, const char* text) {
  if (write(kOrders + actor, text, strlen(text) + 1) < 0) die("write an order");
}

// Returns 0 if the actor has not answered in time.
static int answer(int actor, char* result, int ms) {
  struct pollfd one = {kOrders + actor, POLLIN, 0};
  result[0] = '\0';
  if (poll(&one, 1, ms) != 1) return 0;
  const ssize_t got = read(kOrders + actor, result, kLineMax - 1);
  result[got > 0 ? got : 0] = '\0';
  return 1;
}

static void ask(int actor, const char* text, char* result) {
  order(actor, text);
  if (answer(actor, result, kEndless)) return;
  strcpy(result, "NO ANSWER");
  is_over = 1;
}

static int holder(int end, int* actor, int* at) {
  for (*actor = 0; *actor < kActors; ++*actor) {
    for (*at = 0; *at < kSlots; ++*at) {
      if (pids[*actor] != 0 && model[*actor][*at] == end) return 1;
    }
  }
  return 0;
}

// ---- arrival

// The kernel's numbers of a connection's states; its headers have them beside other things only.
enum { kCloseWait = 8, kTimeWait = 6, kClose = 7, kLastAck = 9, kClosing = 11 };

struct info {
  unsigned state, unsent;
  unsigned long long sent, received;
};
static int has_ended(unsigned state) {  // has received an end of file or a reset
  return state == kClose || state == kCloseWait || state == kLastAck ||
         state == kClosing || state == kTimeWait;
}
static int has_closed(unsigned state) { return has_ended(state) && state != kCloseWait; }

static struct info info_of(int actor, int at) {
  char text[64], result[kLineMax];
  struct info i = {0};
  snprintf(text, sizeof(text), "info %d", at);
  ask(actor, text, result);
  sscanf(result, "%u %llu %llu %u", &i.state, &i.sent, &i.received, &i.unsent);
  return i;
}

static int is_settled(int c) {
  int actor[2], at[2], is_open[2];
  struct info i[2];
  for (int side = 0; side < 2; ++side) {
    is_open[side] = holder(2 * c + side, &actor[side], &at[side]);
    if (is_open[side]) i[side] = info_of(actor[side], at[side]);
  }
  if (!is_open[0] && !is_open[1]) return 1;
  if (!is_open[0] || !is_open[1]) {
    const int side = is_open[1];
    return ends[2 * c + side].sent_after_close ? has_closed(i[side].state)
                                               : has_ended(i[side].state);
  }
  if (i[0].state == kClose || i[1].state == kClose) {
    return has_closed(i[0].state) && has_closed(i[1].state);
  }
  for (int side = 0; side < 2; ++side) {
    if (i[side].unsent != 0 || i[1 - side].received < i[side].sent) return 0;
    if (ends[2 * c + side].shut && !has_ended(i[1 - side].state)) return 0;
  }
  return 1;
}

// Waits until all that the kernel carries has arrived.
static void settle(char* result) {
  const long deadline = now_ms() + kSettleMs;
  for (int c = 0; c < connections && !is_over; ++c) {
    for (int side = 0; side < 2; ++side) {
      int a, s;
      ends[2 * c + side].closed = !holder(2 * c + side, &a, &s);
    }
    while (!is_settled(c) && !is_over) {
      if (now_ms() > deadline) {
        append(result, " (connection %d has not settled)", c);
        break;
      }
      usleep(100);
    }
  }
}

// ---- one order of a sequence

// Fills in the parts of an order that only the coordinator knows.  Returns 0 if the order makes no
// sense now.
static int prepare(int actor, const char* text, char* ready) {
  char copy[kLineMax];
  char* w[kWords];
  strcpy(copy, text);
  strcpy(ready, text);
  if (pids[actor] == 0 || split(copy, w, kWords) < 2) return 0;
  const int at = number(w[1]) % kSlots;
  const int holds = model[actor][at];
  if (strcmp(w[0], "epnew") == 0) return 1;
  if (holds == kNone) return 0;
  if (w[0][0] == 'e') return holds == kSet;
  if (holds == kSet) return strcmp(w[0], "close") == 0 || strcmp(w[0], "dup") == 0;
  const struct end* mine = &ends[holds];
  const struct end* peer = &ends[holds ^ 1];
  // A limit has no effect on bytes that lie in the ring already (docs/limits.md).
  if (strcmp(w[0], "set") == 0 && strcmp(w[2], "lowat") == 0) return peer->sent == peer->received;
  if (strcmp(w[0], "send") == 0) {
    const unsigned unread = mine->sent - mine->received;
    if (unread >= kUnreadMax) return 0;
    unsigned size = (unsigned)number(w[3]);
    if (size > kUnreadMax - unread) size = kUnreadMax - unread;
    if ((w[2][1] == 'p' || w[2][1] == 't') && size == 0) size = 1;
    snprintf(ready, kLineMax, "send %s %s %u %s %d %u", w[1], w[2], size, w[4], holds, mine->sent);
  } else if (strcmp(w[0], "recv") == 0 && strcmp(w[2], "stdio") == 0) {
    const unsigned unread = peer->sent - peer->received;
    if (unread == 0) return 0;
    snprintf(ready, kLineMax, "recv %s stdio %u -", w[1], unread);
  }
  return 1;
}

// Updates the model by a result.
static void conclude(int actor, const char* text, const char* result) {
  char copy[kLineMax];
  char* w[kWords];
  strcpy(copy, text);
  split(copy, w, kWords);
  const int at = number(w[1]) % kSlots;
  const int value = atoi(result);
  const int holds = model[actor][at];
  if (strcmp(w[0], "send") == 0 && value > 0) {
    ends[holds].sent += (unsigned)value;
    if (ends[holds ^ 1].closed) ends[holds].sent_after_close = 1;
  } else if (strcmp(w[0], "recv") == 0 && value > 0) {
    // A byte out of band may be counted twice.  That is harmless: less is sent later.
    if (strstr(w[4], "peek") == NULL) ends[holds ^ 1].received += (unsigned)value;
    if (ends[holds ^ 1].received > ends[holds ^ 1].sent) {
      ends[holds ^ 1].received = ends[holds ^ 1].sent;
    }
  } else if (strcmp(w[0], "shut") == 0 && value == 0 && number(w[2]) != SHUT_RD) {
    ends[holds].shut = 1;
  } else if (strcmp(w[0], "close") == 0) {
    model[actor][at] = kNone;
  } else if (strcmp(w[0], "set") == 0 && strcmp(w[2], "nodelay") == 0) {
    is_delayed |= number(w[3]) == 0;
  } else if (strcmp(w[0], "epnew") == 0) {
    model[actor][at] = kSet;
  } else if (strcmp(w[0], "dup") == 0 && value == 0) {
    model[actor][number(w[2]) % kSlots] = holds;
  }
}

static void perform_order(int actor, const char* text, char* result) {
  char ready[kLineMax];
  if (!prepare(actor, text, ready)) {
    strcpy(result, "not now");
    return;
  }
  ask(actor, ready, result);
  conclude(actor, ready, result);
}

// ---- waits

static int has_answered(int actor) {
  struct pollfd one = {kOrders + actor, POLLIN, 0};
  return poll(&one, 1, 0) == 1;
}

static int is_asleep(int actor) {
  char path[64], text[512];
  snprintf(path, sizeof(path), "/proc/%d/stat", (int)pids[actor]);
  FILE* file = fopen(path, "r");
  if (file == NULL) return 1;
  const size_t got = fread(text, 1, sizeof(text) - 1, file);
  fclose(file);
  text[got] = '\0';
  const char* end = strrchr(text, ')');
  return end != NULL && end[2] == 'S';
}

// Returns when the actor sleeps in a system call or has answered.
static void until_it_sleeps(int actor) {
  for (const long deadline = now_ms() + kEndless; now_ms() < deadline;) {
    if (has_answered(actor) || is_asleep(actor)) return;
    usleep(20);
  }
}

// Returns 0 if the actor still sleeps.
static int until_it_answers(int actor) {
  long asleep_since = now_ms();
  for (const long deadline = now_ms() + kEndless; now_ms() < deadline;) {
    if (has_answered(actor)) return 1;
    const long now = now_ms();
    if (!is_asleep(actor)) asleep_since = now;
    if (now - asleep_since > (is_delayed ? kDelayedMs : kAsleepMs)) return 0;
    usleep(50);
  }
  return 0;
}

// Lets one actor wait, perhaps sends it a signal, and lets another one do what may wake it.
static void perform_wake(char* text, char* result) {
  char first[kLineMax], ready[kLineMax], other[kLineMax] = "";
  char* parts[3] = {NULL};
  int count = 0;
  const int has_signal = strncmp(text, "signal ", 7) == 0;
  text = strchr(text, ' ') + 1;
  for (char* part = strtok(text, "|"); part != NULL && count < 3; part = strtok(NULL, "|")) {
    parts[count++] = part;
  }
  if (count != (has_signal ? 3 : 2)) return;
  const int a = atoi(parts[0]);
  const char* last = parts[count - 1] + 1;
  const int b = atoi(last);
  if (a < 0 || a >= kActors || b < 0 || b >= kActors || a == b) return;
  first[0] = '!';
  if (!prepare(a, strchr(parts[0], ' ') + 1, first + 1) ||
      !prepare(b, strchr(last, ' ') + 1, ready)) {
    strcpy(result, "not now");
    return;
  }
  ask(a, first, result);
  until_it_sleeps(a);
  if (has_signal) {
    const unsigned before = __atomic_load_n(&counters->signals[a], __ATOMIC_SEQ_CST);
    kill(pids[a], strstr(parts[1], "USR1") != NULL ? SIGUSR1 : SIGUSR2);
    const long deadline = now_ms() + kEndless;
    while (__atomic_load_n(&counters->signals[a], __ATOMIC_SEQ_CST) == before) {
      if (now_ms() > deadline) is_over = 1;
      if (is_over) break;
      usleep(20);
    }
    usleep(100);
    until_it_sleeps(a);
    append(other, "%s", has_answered(a) ? " (after the signal)" : "");
  }
  char acted[kLineMax];
  ask(b, ready, acted);
  if (!until_it_answers(a)) {
    kill(pids[a], SIGUSR1);
    append(other, " (not woken)");
  }
  if (!answer(a, result, kEndless)) is_over = 1;
  conclude(b, ready, acted);
  conclude(a, first + 1, result);
  append(result, "%s; then %s", other, acted);
}

// ---- connections and processes

static void perform_connect(char** w, char* result) {
  const int a = number(w[1]), s = number(w[2]), b = number(w[3]), t = number(w[4]);
  char text[64];
  if (connections == kConnectionsMax || pids[a] == 0 || pids[b] == 0) return;
  snprintf(text, sizeof(text), "connect %d %s", s, w[5]);
  ask(a, text, result);
  model[a][s] = 2 * connections;
  snprintf(text, sizeof(text), "accept %d %s", t, w[6]);
  ask(b, text, result);
  model[b][t] = 2 * connections + 1;
  ++connections;
}

// Sends bytes both ways: under Verbena until some bypass the kernel, else a few times.
static void perform_warm(char** w) {
  const int a[2] = {number(w[1]), number(w[3])}, s[2] = {number(w[2]), number(w[4])};
  char text[64], result[kLineMax];
  int past = 0;
  for (int side = 0; side < 2; ++side) {
    if (pids[a[side]] == 0 || model[a[side]][s[side]] < 0) return;
  }
  if ((model[a[0]][s[0]] ^ 1) != model[a[1]][s[1]]) return;
  ++warm;
  for (int round = 0; round < (is_verbena ? kWarmRounds : 3) && past != 3 && !is_over; ++round) {
    for (int side = 0; side < 2; ++side) {
      snprintf(text, sizeof(text), "send %d send 1500 - 0 0", s[side]);
      ask(a[side], text, result);
      for (int got = 0; got < 1500 && !is_over;) {
        int n = 0, by_ring = 0;
        snprintf(text, sizeof(text), "rings %d", s[1 - side]);
        ask(a[1 - side], text, result);
        sscanf(result, "%d %d", &n, &by_ring);
        if (n == 0) return;
        if (n > 0) got += n;
        if (by_ring) past |= 1 << side;
      }
    }
    if (round > 3) usleep(200);
  }
  if (past == 3) ++warmed;
}

static void forget_actor(int actor) {
  pids[actor] = 0;
  for (int s = 0; s < kSlots; ++s) model[actor][s] = kNone;
}

// Ends an actor and waits until the kernel has closed its descriptors.  Only its parent, which may be another actor, can
// wait for it by waitpid().  Returns its status, or 0 if it is the child of another actor.
static int end_actor(int actor) {
  const int process = (int)syscall(SYS_pidfd_open, pids[actor], 0);
  if (process < 0) die("pidfd_open");
  order(actor, "quit");
  struct pollfd one = {process, POLLIN, 0};
  if (poll(&one, 1, kEndless) != 1) is_over = 1;
  close(process);
  int status = 0;
  waitpid(pids[actor], &status, WNOHANG);
  return status;
}

// Returns 1 if a slot of the actor has unread bytes: of any connection, or only of one that has ended.
static int has_unread(int actor, int only_ended) {
  for (int s = 0; s < kSlots; ++s) {
    const int end = model[actor][s];
    if (end < 0 || end == kSet || ends[end ^ 1].sent == ends[end ^ 1].received) continue;
    if (!only_ended || has_closed(info_of(actor, s).state)) return 1;
  }
  return 0;
}

static void perform_process(char** w, char* result) {
  const int a = number(w[1]), b = number(w[2]);
  char text[64];
  strcpy(result, "not now");
  if (pids[a] == 0) return;
  if (w[0][0] == 'f') {
    if (pids[b] != 0) return;
    result[0] = '\0';
    snprintf(text, sizeof(text), "fork %d", b);
    ask(a, text, result);
    pids[b] = atoi(result);
    for (int s = 0; s < kSlots; ++s) model[b][s] = model[a][s] == kSet ? kNone : model[a][s];
    if (pids[b] <= 0) die("fork");
    strcpy(result, "0");
  } else if (w[0][1] == 'x' && w[0][2] == 'e') {
    // Bytes in a ring make exec() differ from TCP (docs/limits.md).
    if (has_unread(a, w[2][0] != 'p')) return;
    result[0] = '\0';
    snprintf(text, sizeof(text), "exec %s", w[2]);
    ask(a, text, result);
    // Descriptors that exec() closes are gone; the actor knows, and the model learns it.
    for (int s = 0; s < kSlots; ++s) {
      char info[kLineMax];
      if (model[a][s] == kSet) model[a][s] = kNone;
      if (model[a][s] == kNone) continue;
      snprintf(text, sizeof(text), "info %d", s);
      ask(a, text, info);
      if (strcmp(info, "-1") == 0) model[a][s] = kNone;
    }
  } else if (w[0][0] == 'p') {
    const int s = number(w[2]), to = number(w[3]), t = number(w[4]);
    if (pids[to] == 0 || model[a][s] < 0 || model[a][s] == kSet) return;
    const struct end* peer = &ends[model[a][s] ^ 1];
    if (peer->sent != peer->received) return;
    snprintf(text, sizeof(text), "give %d %d", s, to);
    result[0] = '\0';
    ask(a, text, result);
    snprintf(text, sizeof(text), "take %d", t);
    ask(to, text, result);
    if (atoi(result) == 0) model[to][t] = model[a][s];
  } else {
    snprintf(result, kLineMax, "status %d", end_actor(a));
    forget_actor(a);
  }
}

static void perform_step(const char* text, char* result) {
  char copy[kLineMax];
  char* w[kWords];
  result[0] = '\0';
  strcpy(copy, text);
  if (strncmp(text, "do ", 3) == 0) {
    const char* rest = strchr(text + 3, ' ');
    if (rest != NULL) perform_order(atoi(text + 3) % kActors, rest + 1, result);
  } else if (strncmp(text, "wake ", 5) == 0 || strncmp(text, "signal ", 7) == 0) {
    perform_wake(copy, result);
  } else {
    const int count = split(copy, w, kWords);
    if (count == 7 && strcmp(w[0], "connect") == 0) {
      perform_connect(w, result);
    } else if (count == 5 && strcmp(w[0], "warm") == 0) {
      perform_warm(w);
    } else if (count >= 2) {
      perform_process(w, result);
    }
  }
  if (!is_over) settle(result);
}

// ---- sequences

static void begin(int actors) {
  memset(ends, 0, sizeof(ends));
  memset(model, 0xff, sizeof(model));
  memset(pids, 0, sizeof(pids));
  connections = is_over = is_delayed = 0;
  for (int i = 0; i < kSlots; ++i) slot[i] = -1;
  for (int a = 0; a < kActors; ++a) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) != 0) die("socketpair");
    if (dup2(pair[0], kOrders + a) < 0 || dup2(pair[1], kResults + a) < 0) die("dup2");
    close(pair[0]), close(pair[1]);
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) != 0) die("socketpair");
    if (dup2(pair[0], kMailIn + a) < 0 || dup2(pair[1], kMailOut + a) < 0) die("dup2");
    close(pair[0]), close(pair[1]);
  }
  for (int a = 0; a < actors; ++a) {
    pids[a] = fork();
    if (pids[a] < 0) die("fork");
    if (pids[a] == 0) {
      self = a;
      prepare_actor();
      be_actor();
    }
  }
}

// Ends all actors.  Those that others have forked become this process's children when these end.
static void finish(void) {
  for (int a = 0; a < kActors; ++a) {
    if (pids[a] == 0) continue;
    if (is_over) {
      kill(pids[a], SIGKILL);
    } else {
      order(a, "quit");
    }
  }
  while (wait(NULL) > 0) {
  }
}

static void run_sequence(const struct steps* steps) {
  char result[kLineMax];
  begin(3);
  for (int i = 0; i < steps->count && !is_over; ++i) {
    perform_step(steps->text[i], result);
    printf("%2d %s -> %s\n", i, steps->text[i], result);
  }
  finish();
  fflush(stdout);
}

static void prepare_all(void) {
  struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(listener, (struct sockaddr*)&name, sizeof(name)) != 0 || listen(listener, 8) != 0) {
    die("listen");
  }
  const int memory = memfd_create("sockets_fuzz", 0);
  if (ftruncate(memory, sizeof(struct counters)) != 0) die("ftruncate");
  if (dup2(listener, kListener) < 0 || dup2(memory, kCounters) < 0) die("dup2");
  close(listener), close(memory);
  counters = mmap(NULL, sizeof(*counters), PROT_READ | PROT_WRITE, MAP_SHARED, kCounters, 0);
  if (counters == MAP_FAILED) die("mmap");
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  is_verbena = getenv("LD_PRELOAD") != NULL && strstr(getenv("LD_PRELOAD"), "sockets") != NULL;
}

int main(int argc, char** argv) {
  static struct steps steps;
  if (argc > 2 && strcmp(argv[1], "actor") == 0) continue_actor(argv, argc);
  if (argc == 3 && strcmp(argv[1], "show") == 0) {
    make_steps(strtoull(argv[2], NULL, 10), &steps);
    for (int i = 0; i < steps.count; ++i) puts(steps.text[i]);
    return 0;
  }
  if (argc < 3) return 2;
  prepare_all();
  if (strcmp(argv[1], "play") == 0) {
    FILE* file = strcmp(argv[2], "-") == 0 ? stdin : fopen(argv[2], "r");
    if (file == NULL) die(argv[2]);
    while (steps.count < kStepsMax && fgets(steps.text[steps.count], sizeof(steps.text[0]), file)) {
      steps.text[steps.count][strcspn(steps.text[steps.count], "\n")] = '\0';
      ++steps.count;
    }
    run_sequence(&steps);
  } else {
    const uint64_t first = strtoull(argv[2], NULL, 10);
    const uint64_t count = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    for (uint64_t seed = first; seed < first + count; ++seed) {
      printf("sequence %llu\n", (unsigned long long)seed);
      make_steps(seed, &steps);
      run_sequence(&steps);
    }
  }
  fprintf(stderr, "%u of %u connections moved bytes past the kernel\n", warmed, warm);
  return 0;
}
