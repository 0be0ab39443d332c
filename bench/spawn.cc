// Runs a program COUNT times, one run after the other.  For each run, prints the microseconds from
// fork() to the end of the program.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "check.h"

using verbena::bench::check;

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: spawn COUNT PROGRAM [ARGUMENT...]\n");
    return 2;
  }
  const int count = verbena::bench::parse_number(argv[1], "COUNT");
  const int null_device = open("/dev/null", O_RDWR | O_CLOEXEC);
  check(null_device >= 0, "/dev/null");
  for (int i = 0; i < count; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const pid_t child = fork();
    check(child >= 0, "fork");
    if (child == 0) {
      dup2(null_device, STDIN_FILENO);
      dup2(null_device, STDOUT_FILENO);
      dup2(null_device, STDERR_FILENO);
      execvp(argv[2], argv + 2);
      _exit(127);
    }
    int status = 0;
    check(waitpid(child, &status, 0) == child, "waitpid");
    const auto duration = std::chrono::steady_clock::now() - start;
    if (status != 0) {
      std::fprintf(stderr, "%s failed (status %d)\n", argv[2], status);
      return 1;
    }
    std::printf("%.1f\n", std::chrono::duration<double, std::micro>(duration).count());
  }
}
