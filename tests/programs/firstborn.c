// firstborn [subreaper]: uses the device in a program that inherits orphans, because it is process
// 1 of its namespace or a subreaper.  The library creates child processes.  The program checks that
// waitpid() and SIGCHLD do not report them.  It checks this while the agent runs, and prints
// "agent".  The test writes a line to its stdin when the agent has ended.  Then the program checks
// this again, and prints "alone".
#define _GNU_SOURCE
#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "echo.h"

static volatile sig_atomic_t has_got_sigchld;

static void on_child(int signal) {
  (void)signal;
  has_got_sigchld = 1;
}

// Returns the number of children that the kernel lists, with any exit signal.  Stores the name of
// the last child in `name`.
static int count_listed_children(char name[64]) {
  int count = 0;
  DIR* tasks = opendir("/proc/self/task");
  CHECK(tasks != NULL);
  for (struct dirent* task; (task = readdir(tasks)) != NULL;) {
    char path[300];
    snprintf(path, sizeof path, "/proc/self/task/%s/children", task->d_name);
    FILE* list = fopen(path, "r");
    for (int pid = 0; list != NULL && fscanf(list, "%d", &pid) == 1; ++count) {
      snprintf(path, sizeof path, "/proc/%d/comm", pid);
      FILE* comm = fopen(path, "r");
      if (comm == NULL || fscanf(comm, "%63s", name) != 1) strcpy(name, "?");
      if (comm != NULL) fclose(comm);
    }
    if (list != NULL) fclose(list);
  }
  closedir(tasks);
  return count;
}

static void check_no_child(void) {
  CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
  CHECK(waitpid(-1, NULL, 0) == -1 && errno == ECHILD);
  siginfo_t info;
  CHECK(waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == -1 && errno == ECHILD);
  CHECK(!has_got_sigchld);
}

int main(int argc, char** argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (argc > 1 && strcmp(argv[1], "subreaper") == 0) {
    CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0);
  } else {
    CHECK(getpid() == 1);
  }
  signal(SIGCHLD, on_child);
  int devices = 0;
  struct ibv_device** list = ibv_get_device_list(&devices);
  CHECK(list != NULL && devices == 1);
  struct ibv_context* context = ibv_open_device(list[0]);
  CHECK(context != NULL);
  check_no_child();
  char name[64] = "";
  CHECK(count_listed_children(name) == 1 && strcmp(name, "verbena-reaper") == 0);
  printf("agent\n");
  CHECK(getchar() == '\n');
  for (int i = 0; count_listed_children(name) > 0; ++i) {  // waits until no zombie remains
    CHECK(i < kTimeoutMs);
    usleep(1000);
  }
  check_no_child();
  printf("alone\n");
  return 0;
}
