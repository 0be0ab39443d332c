/* Makes random sequences of calls on TCP connections by several processes, one call after the
 * other, and prints the result of each call.  The test runs the program with TCP alone and under
 * `verbena run --sockets`; the outputs must be the same.
 *
 *   sockets_fuzz run SEED COUNT   runs COUNT sequences with the seeds SEED, SEED + 1, ...
 *   sockets_fuzz show SEED        prints the steps of a sequence
 *   sockets_fuzz play FILE        runs the steps of a file; "-" is the standard input
 *
 * The last line on the standard error tells how many connections have moved bytes by the ring.
 *
 * A coordinator orders each call and waits for its result.  Then it waits until all bytes and ends
 * of file that the kernel carries have arrived.  So no result depends on time.
 *
 * The processes that make the calls are called actors.  A sequence consists of steps.  A step
 * contains one or more orders, and an order describes one call of an actor.  Each actor has its
 * descriptors in slots, and orders contain the numbers of slots.  The coordinator records which end
 * of a connection is in which slot, and how many bytes are under way.
 */
#define _GNU_SOURCE
#include "sockets_fuzz_floods.h"
#include "sockets_fuzz_threads.h"

static void perform_step(const char* text, char* result) {
  char copy[kLineMax];
  char* w[kWords];
  result[0] = '\0';
  strcpy(copy, text);
  if (starts_with(text, "post ")) {
    const int actor = number(text + 5) % kActors;
    const int signal_number = strstr(text, "USR1") != NULL ? SIGUSR1 : SIGUSR2;
    if (pids[actor] != 0) kill(pids[actor], signal_number);
  } else if (starts_with(text, "do ")) {
    const char* rest = strchr(text + 3, ' ');
    if (rest != NULL) perform_order(atoi(text + 3) % kActors, rest + 1, result);
  } else if (starts_with(text, "wake ") || starts_with(text, "signal ")) {
    perform_wake(copy, result);
  } else if (starts_with(text, "race ")) {
    perform_race(copy, result);
  } else if (starts_with(text, "thread ")) {
    perform_thread(copy, result);
  } else if (starts_with(text, "kill ")) {
    perform_kill(text, result);
  } else if (starts_with(text, "flood ")) {
    perform_flood(copy, result);
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
  if (!is_aborted) settle(result);
}

// ---- sequences

static void begin(int actors) {
  memset(ends, 0, sizeof(ends));
  memset(contents, 0xff, sizeof(contents));
  memset(pids, 0, sizeof(pids));
  memset(masks, 0, sizeof(masks));
  memset(has_no_library, 0, sizeof(has_no_library));
  memset(counters, 0, sizeof(*counters));
  connections = is_aborted = is_delayed = 0;
  for (int i = 0; i < kSlots; ++i) slots[i] = -1;
  for (int a = 0; a < kActors; ++a) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) != 0) die("socketpair");
    if (dup2(pair[0], kOrders + a) < 0 || dup2(pair[1], kResults + a) < 0) die("dup2");
    close(pair[0]), close(pair[1]);
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) != 0) die("socketpair");
    if (dup2(pair[0], kPassSend + a) < 0 || dup2(pair[1], kPassReceive + a) < 0) die("dup2");
    close(pair[0]), close(pair[1]);
  }
  for (int a = 0; a < actors; ++a) {
    pids[a] = fork();
    if (pids[a] < 0) die("fork");
    if (pids[a] == 0) {
      self = a;
      prepare_actor();
      run_actor();
    }
  }
  // Wait for an answer of each actor.  A signal would end an actor that has no signal handlers yet.
  for (int a = 0; a < actors; ++a) {
    char result[kLineMax];
    order_and_wait(a, "signals -", result);
  }
}

// Ends all actors, and waits for all of them.  This process is a subreaper.  So an actor that was
// forked by another actor becomes a child of this process when the other actor ends.
static void finish(void) {
  for (int a = 0; a < kActors; ++a) {
    if (pids[a] == 0) continue;
    if (is_aborted) {
      kill(pids[a], SIGKILL);
    } else {
      send_order(a, "quit");
    }
  }
  while (wait(NULL) > 0) {
  }
}

static void run_sequence(const struct steps* steps) {
  char result[kLineMax];
  begin(3);
  for (int i = 0; i < steps->count && !is_aborted; ++i) {
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
  fprintf(stderr, "%u of %u connections moved bytes past the kernel\n", ring_successes,
          ring_attempts);
  return 0;
}
