// shared_end MODE: uses connections to itself within 127.0.0.1 in ways that could make one process
// wait for another.
//
//   namespaces  three processes in three PID namespaces send on one connection; each record must
//   arrive whole hostile     the peer overwrites the memory that both ends share, each time another
//   64 bytes of its first page;
//               no call of the program may hang, or fail with EINTR
#define _GNU_SOURCE  // unshare()
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                               \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      fprintf(stderr, "shared_end.c:%d: %s: errno %d\n", __LINE__, #condition, errno); \
      exit(1);                                                                         \
    }                                                                                  \
  } while (0)

enum { kRecordBytes = 64, kRecords = 20000, kWriters = 3, kPageBytes = 4096, kBlockBytes = 64 };

static int open_listener(struct sockaddr_in* address) {
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  socklen_t bytes = sizeof *address;
  *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  CHECK(bind(listener, (struct sockaddr*)address, bytes) == 0 && listen(listener, 8) == 0);
  CHECK(getsockname(listener, (struct sockaddr*)address, &bytes) == 0);
  return listener;
}
static int connect_to(const struct sockaddr_in* address) {
  int s = socket(AF_INET, SOCK_STREAM, 0);
  CHECK(connect(s, (const struct sockaddr*)address, sizeof *address) == 0);
  return s;
}
static void send_all(int s, const char* bytes, size_t count) {
  while (count > 0) {
    ssize_t n = send(s, bytes, count, MSG_NOSIGNAL);
    CHECK(n > 0);
    bytes += n;
    count -= (size_t)n;
  }
}

// Returns the first page of the connection's shared memory, or NULL if there is none yet.
static char* find_shared_page(void) {
  FILE* maps = fopen("/proc/self/maps", "r");
  CHECK(maps != NULL);
  char line[512];
  unsigned long begin = 0;
  while (fgets(line, sizeof line, maps) != NULL) {
    if (strstr(line, "memfd:verbena-stream") != NULL) CHECK(sscanf(line, "%lx-", &begin) == 1);
  }
  fclose(maps);
  return (char*)begin;
}

// These two functions exchange bytes until the client's end uses the ring.
static char* exchange_as_client(int s) {
  char bytes[2048] = {0};
  char* page = NULL;
  for (int further_rounds = 4; further_rounds > 0;) {
    page = find_shared_page();
    if (page != NULL) --further_rounds;
    bytes[0] = (char)further_rounds;  // 0 in the last round
    send_all(s, bytes, sizeof bytes);
    CHECK(recv(s, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes);
  }
  return page;
}
static void exchange_as_server(int s) {
  char bytes[2048];
  do {
    CHECK(recv(s, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes);
    send_all(s, bytes, sizeof bytes);
  } while (bytes[0] != 0);
}

static void write_records(int s, char letter) {
  char record[kRecordBytes];
  memset(record, letter, sizeof record);
  for (int i = 0; i < kRecords; ++i) {
    ssize_t n = send(s, record, sizeof record, MSG_NOSIGNAL);
    if (n == sizeof record) continue;
    fprintf(stderr, "writer %c, record %d: %zd, %s\n", letter, i, n, strerror(errno));
    exit(1);
  }
}

static int count_records(int s) {
  char record[kRecordBytes];
  int counts[kWriters] = {0};
  ssize_t n;
  while ((n = recv(s, record, sizeof record, MSG_WAITALL)) == sizeof record) {
    for (int i = 1; i < kRecordBytes; ++i) CHECK(record[i] == record[0]);
    CHECK(record[0] >= 'A' && record[0] < 'A' + kWriters);
    ++counts[record[0] - 'A'];
  }
  CHECK(n == 0);
  for (int i = 0; i < kWriters; ++i) CHECK(counts[i] == kRecords);
  return 0;
}

static int wait_for_children(void) {
  int status, failures = 0;
  while (wait(&status) > 0) failures += status != 0;
  return failures;
}

static int run_namespaces(void) {
  struct sockaddr_in address;
  int listener = open_listener(&address);
  if (fork() == 0) {
    int s = connect_to(&address);
    exchange_as_client(s);
    exit(count_records(s));
  }
  int s = accept(listener, NULL, NULL);
  exchange_as_server(s);
  // Each writer has the number 1 in its own PID namespace.
  for (int i = 0; i < kWriters; ++i) {
    if (fork() != 0) continue;
    CHECK(unshare(CLONE_NEWPID) == 0);
    if (fork() == 0) {
      write_records(s, (char)('A' + i));
      exit(0);
    }
    close(s);
    exit(wait_for_children());
  }
  close(s);
  return wait_for_children();
}

static volatile int block;
static const char* volatile step = "";
static void on_alarm(int signal) {
  (void)signal;
  char text[100];
  int n = snprintf(text, sizeof text, "%s hangs after a change of block %d\n", step, block);
  if (write(STDERR_FILENO, text, (size_t)n) < 0) _exit(2);
  _exit(1);
}
static void check_result(ssize_t n) {
  if (n >= 0 || errno != EINTR) return;
  fprintf(stderr, "%s fails with EINTR after a change of block %d\n", step, block);
  exit(1);
}

// Overwrites a block of the shared page with this number, and keeps the connection open.
static void overwrite(const struct sockaddr_in* address, uint32_t number) {
  int s = connect_to(address);
  char* page = exchange_as_client(s);
  volatile uint32_t* words = (volatile uint32_t*)(page + block * kBlockBytes);
  for (unsigned i = 0; i < kBlockBytes / sizeof *words; ++i) words[i] = number;
  kill(getppid(), SIGUSR1);
  pause();
}

static void run_hostile_round(int listener, const struct sockaddr_in* address, uint32_t number) {
  sigset_t changed;
  sigemptyset(&changed);
  sigaddset(&changed, SIGUSR1);
  sigprocmask(SIG_BLOCK, &changed, NULL);
  pid_t peer = fork();
  CHECK(peer >= 0);
  if (peer == 0) {
    CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    overwrite(address, number != 0 ? number : (uint32_t)getpid());
  }
  int s = accept(listener, NULL, NULL);
  exchange_as_server(s);
  int signal;
  CHECK(sigwait(&changed, &signal) == 0);
  char bytes[kRecordBytes] = {0};
  alarm(30);
  step = "send()";
  check_result(send(s, bytes, sizeof bytes, MSG_NOSIGNAL | MSG_DONTWAIT));
  step = "recv()";
  check_result(recv(s, bytes, sizeof bytes, MSG_DONTWAIT));
  step = "shutdown()";
  shutdown(s, SHUT_RDWR);
  step = "close()";
  close(s);
  alarm(0);
  kill(peer, SIGKILL);
  waitpid(peer, NULL, 0);
}

static int run_hostile(void) {
  struct sockaddr_in address;
  int listener = open_listener(&address);
  signal(SIGALRM, on_alarm);
  for (block = 0; block < kPageBytes / kBlockBytes; ++block) {
    run_hostile_round(listener, &address, (uint32_t)getpid());
    run_hostile_round(listener, &address, 0);  // the number of the peer, which lives
  }
  return 0;
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  return strcmp(argv[1], "namespaces") == 0 ? run_namespaces() : run_hostile();
}
