// Runs a program COUNT times, one after the other.  Prints for each run the microseconds from
// fork() until the program has ended.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "check.h"

using verbena::bench::need;

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: spawn COUNT PROGRAM [ARGUMENT...]\n");
    return 2;
  }
  const int count = verbena::bench::number(argv[1], "COUNT");
  const int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
  need(nowhere >= 0, "/dev/null");
  for (int i = 0; i < count; ++i) {
    const auto begun = std::chrono::steady_clock::now();
    const pid_t child = fork();
    need(child >= 0, "fork");
    if (child == 0) {
      dup2(nowhere, STDIN_FILENO);
      dup2(nowhere, STDOUT_FILENO);
      dup2(nowhere, STDERR_FILENO);
      execvp(argv[2], argv + 2);
      _exit(127);
    }
    int status = 0;
    need(waitpid(child, &status, 0) == child, "waitpid");
    const auto took = std::chrono::steady_clock::now() - begun;
    if (status != 0) {
      std::fprintf(stderr, "%s failed (status %d)\n", argv[2], status);
      return 1;
    }
    std::printf("%.1f\n", std::chrono::duration<double, std::micro>(took).count());
  }
}
