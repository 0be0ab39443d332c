// forks PORT SCENARIO: forks while it has a connection to `echo PORT`, and checks that its own
// objects still work.  Each function test_SCENARIO() runs one SCENARIO.
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "echo.h"

extern char** environ;

static const char* port;
static char* self;
static struct echo* connection;
static int should_stop;

static void* exchange_messages(void* unused) {
  (void)unused;
  while (!__atomic_load_n(&should_stop, __ATOMIC_RELAXED)) echo_round(connection);
  return NULL;
}

// Waits until the connection has carried 20 further messages, or fails.
static void await_progress(void) {
  const unsigned long before = __atomic_load_n(&connection->rounds, __ATOMIC_RELAXED);
  for (int i = 0; __atomic_load_n(&connection->rounds, __ATOMIC_RELAXED) < before + 20; ++i) {
    CHECK(i < kTimeoutMs);
    usleep(1000);
  }
}

static int wait_for_exit(pid_t pid) {
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid);
  return status;
}

static int count_descriptors(void) {
  int count = 0;
  DIR* directory = opendir("/proc/self/fd");
  CHECK(directory != NULL);
  while (readdir(directory) != NULL) ++count;
  closedir(directory);
  return count;
}

// Forks by the system call, so that no fork handlers run.
static pid_t raw_clone(void) { return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }

static void use_own_connection(unsigned long rounds) {
  struct echo* own = echo_connect(port);
  for (unsigned long i = 0; i < rounds; ++i) echo_round(own);
  echo_close(own);
}

// Uses inherited objects in a child.  The calls must fail, and not disturb the parent.
static void use_inherited_objects(void) {
  struct ibv_qp_attr error;
  memset(&error, 0, sizeof error);
  error.qp_state = IBV_QPS_ERR;
  struct ibv_wc wc;
  struct rdma_cm_id* id = connection->id;
  CHECK(rdma_post_send(id, NULL, connection->out, 64, connection->mr, 0) != 0);
  CHECK(rdma_post_recv(id, NULL, connection->in, 64, connection->mr) != 0);
  CHECK(ibv_poll_cq(id->recv_cq, 1, &wc) <= 0);
  CHECK(ibv_modify_qp(id->qp, &error, IBV_QP_STATE) != 0);
  CHECK(rdma_disconnect(id) != 0);
  CHECK(rdma_destroy_id(id) != 0);
  CHECK(ibv_destroy_qp(id->qp) != 0);
  close(id->channel->fd);
  close(id->recv_cq_channel->fd);
}

// ---- the scenarios ----

static void print_exit(void) {
  if (write(STDOUT_FILENO, "exit handler\n", 13) != 13) _exit(98);
}

// Forks children by fork() and by the system call.  The children end in eight ways.
static void test_ends(void) {
  atexit(print_exit);
  const struct rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  const int descriptors = count_descriptors();
  for (int round = 0; round < 3; ++round) {
    for (int way = 0; way < 8; ++way) {
      const pid_t pid = way < 6 ? fork() : raw_clone();
      CHECK(pid >= 0);
      if (pid == 0) {
        switch (way) {
          case 0: exit(3);
          case 1: _exit(3);
          case 2: abort();
          case 3: use_inherited_objects(); exit(3);
          case 4: raise(SIGKILL); break;
          case 5:
            use_own_connection(1);
            use_inherited_objects();
            exit(3);
          case 6: _exit(3);
          default: use_inherited_objects(); _exit(3);
        }
      }
      const int status = wait_for_exit(pid);
      if (way == 2 || way == 4) {
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == (way == 2 ? SIGABRT : SIGKILL));
      } else {
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
      }
      await_progress();
    }
  }
  CHECK(count_descriptors() == descriptors);
  use_own_connection(10);  // the parent can still use the library and its agent
}

// Checks that requests that are posted while the library is locked for a fork are sent after the
// fork, even if the program does not poll again.  Fork handlers run in the reverse order of their
// registration.  So post_in_fork() is registered before the library's handlers, and runs while
// these hold their locks.
static struct echo* posting_connection;

static void post_in_fork(void) {
  if (posting_connection == NULL) return;
  struct rdma_cm_id* id = posting_connection->id;
  struct ibv_wc wc;
  CHECK(ibv_req_notify_cq(id->recv_cq, 0) == 0);
  CHECK(rdma_post_send(id, NULL, posting_connection->out, kEchoBytes, posting_connection->mr, 0) ==
        0);
  CHECK(ibv_poll_cq(id->recv_cq, 1, &wc) == 0);
}

static void register_first(void) { CHECK(pthread_atfork(post_in_fork, NULL, NULL) == 0); }
__attribute__((section(".preinit_array"),
               used)) static void (*register_handler)(void) = register_first;

static void test_posts(void) {
  struct echo* own = echo_connect(port);
  echo_round(own);  // returns when no request is outstanding
  for (int round = 0; round < 4; ++round) {
    usleep(400000);  // by then the library has updated its counters, and has no timer
    posting_connection = own;
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) _exit(0);
    posting_connection = NULL;
    struct pollfd reply = {own->id->recv_cq_channel->fd, POLLIN, 0};
    CHECK(poll(&reply, 1, kTimeoutMs) == 1);
    CHECK(echo_wait(own) == kEchoReceived);
    CHECK(rdma_post_recv(own->id, NULL, own->in, kEchoBytes, own->mr) == 0);
    CHECK(wait_for_exit(pid) == 0);
  }
  echo_close(own);
}

// Uses the device in children: first in one child, then in five at the same time.  Each child forks
// a grandchild, which uses the device as well.
static void test_device(void) {
  for (int at_once = 1; at_once <= 5; at_once += 4) {
    pid_t pids[5];
    for (int i = 0; i < at_once; ++i) {
      pids[i] = fork();
      CHECK(pids[i] >= 0);
      if (pids[i] == 0) {
        use_own_connection(10);
        const pid_t grandchild = fork();
        CHECK(grandchild >= 0);
        use_own_connection(10);
        if (grandchild != 0) CHECK(wait_for_exit(grandchild) == 0);
        exit(0);
      }
    }
    await_progress();
    for (int i = 0; i < at_once; ++i) CHECK(wait_for_exit(pids[i]) == 0);
    await_progress();
  }
}

// Creates a child that outlives the parent.  The test ends the parent, and then checks the child's
// descriptors.
static void outlive_with(pid_t child) {
  CHECK(child >= 0);
  if (child == 0) {
    for (;;) pause();
  }
  await_progress();
  printf("child %d\n", child);
  if (getchar() == 'x') exit(0);
  for (;;) pause();
}
static void test_outlive(void) { outlive_with(fork()); }
static void test_outlive_raw(void) { outlive_with(raw_clone()); }

// Executes this program in a child, with this scenario.  Creates the child in four ways, and checks
// the exit codes.
static void exec_with(const char* scenario, int expected_code) {
  char* const arguments[] = {self, (char*)port, (char*)scenario, NULL};
  for (volatile int way = 0; way < 4; ++way) {
    pid_t pid = -1;
    switch (way) {
      case 0: pid = fork(); break;
      case 1: pid = vfork(); break;
      case 2: pid = raw_clone(); break;
      default: CHECK(posix_spawn(&pid, self, NULL, NULL, arguments, environ) == 0);
    }
    if (pid == 0) {
      execve(self, arguments, environ);
      _exit(97);
    }
    const int status = wait_for_exit(pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == expected_code);
    await_progress();
  }
}

// Runs in the executed program.  Returns 42 if the program has inherited no descriptor of the
// library.  Otherwise prints the inherited descriptors, and returns 1.
static int list_descriptors(void) {
  int inherited_count = 0;
  DIR* directory = opendir("/proc/self/fd");
  for (struct dirent* entry; (entry = readdir(directory)) != NULL;) {
    char path[300], target[300] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
    if (readlink(path, target, sizeof target - 1) <= 0 || atoi(entry->d_name) <= 2) continue;
    if (strncmp(target, "socket:", 7) != 0 && strncmp(target, "anon_inode:", 11) != 0 &&
        strstr(target, "verbena") == NULL) {
      continue;
    }
    printf("inherited %s: %s\n", entry->d_name, target);
    ++inherited_count;
  }
  closedir(directory);
  return inherited_count == 0 ? 42 : 1;
}

static void test_execs(void) {
  exec_with("list", 42);
  exec_with("quick", 0);
  CHECK(wait_for_exit(({
          char* const arguments[] = {(char*)"true", NULL};
          pid_t pid = 0;
          CHECK(posix_spawnp(&pid, "true", NULL, NULL, arguments, environ) == 0);
          pid;
        })) == 0);
  await_progress();
}

// Makes verbs calls until the scenario ends.
static void* verbs_calls(void* unused) {
  (void)unused;
  static char memory[4096];
  int devices = 0;
  struct ibv_device** list = ibv_get_device_list(&devices);
  CHECK(devices == 1);
  struct ibv_context* context = ibv_open_device(list[0]);
  ibv_free_device_list(list);
  CHECK(context != NULL);
  while (!__atomic_load_n(&should_stop, __ATOMIC_RELAXED)) {
    struct ibv_pd* pd = ibv_alloc_pd(context);
    CHECK(pd != NULL);
    struct ibv_mr* mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_comp_channel* channel = ibv_create_comp_channel(context);
    struct ibv_cq* cq = ibv_create_cq(context, 16, NULL, channel, 0);
    CHECK(mr != NULL && channel != NULL && cq != NULL);
    CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
  }
  ibv_close_device(context);
  return NULL;
}

static void* connection_calls(void* unused) {
  (void)unused;
  while (!__atomic_load_n(&should_stop, __ATOMIC_RELAXED)) use_own_connection(1);
  return NULL;
}

// Forks while other threads are inside calls of all kinds.
static void test_threads(void) {
  pthread_t others[4];
  for (int i = 0; i < 4; ++i) {
    CHECK(pthread_create(&others[i], NULL, i % 2 == 0 ? verbs_calls : connection_calls, NULL) == 0);
  }
  for (int round = 0; round < 60; ++round) {
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
      alarm(kTimeoutMs / 1000);  // ends the child if it waits for a lock that the parent held
      use_own_connection(3);
      _exit(0);
    }
    CHECK(wait_for_exit(pid) == 0);
  }
  await_progress();
  __atomic_store_n(&should_stop, 1, __ATOMIC_RELAXED);
  for (int i = 0; i < 4; ++i) pthread_join(others[i], NULL);
}

int main(int argc, char** argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  CHECK(argc == 3);
  self = argv[0];
  port = argv[1];
  const char* scenario = argv[2];
  if (strcmp(scenario, "list") == 0) return list_descriptors();
  if (strcmp(scenario, "quick") == 0) {
    use_own_connection(10);
    return 0;
  }
  if (strcmp(scenario, "posts") == 0) {
    test_posts();  // runs without other traffic, which would also send the posted requests
    printf("posts: nothing is disturbed\n");
    return 0;
  }
  static const struct {
    const char* name;
    void (*run)(void);
  } scenarios[] = {{"ends", test_ends},       {"device", test_device},
                   {"outlive", test_outlive}, {"outlive_raw", test_outlive_raw},
                   {"execs", test_execs},     {"threads", test_threads}};
  for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; ++i) {
    if (strcmp(scenario, scenarios[i].name) != 0) continue;
    connection = echo_connect(port);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, exchange_messages, NULL) == 0);
    await_progress();
    scenarios[i].run();
    __atomic_store_n(&should_stop, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    echo_close(connection);
    printf("%s: nothing is disturbed\n", scenario);
    return 0;
  }
  fprintf(stderr, "forks: no scenario '%s'\n", scenario);
  return 2;
}
