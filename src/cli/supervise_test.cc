#include "cli/supervise.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "os/test_process.h"

namespace verbena::cli {
namespace {

using os::run_in_child;

TEST(Supervise, ReturnsTheExitCodeOfTheProgram) {
  EXPECT_EQ(run_in_child([] { end_as(supervise([] { return 7; })); }), 7);
}

TEST(Supervise, DiesByTheSignalThatKilledTheProgram) {
  EXPECT_EQ(run_in_child([] {
              end_as(supervise([] {
                ::raise(SIGTERM);
                return 0;
              }));
            }),
            128 + SIGTERM);
}

TEST(Supervise, PassesSignalsOnToTheProgram) {
  EXPECT_EQ(run_in_child([] {
              const pid_t parent = ::getpid();
              end_as(supervise([parent] {
                sigset_t one;
                sigemptyset(&one);
                sigaddset(&one, SIGUSR1);
                ::sigprocmask(SIG_BLOCK, &one, nullptr);
                ::kill(parent, SIGUSR1);
                int signal = 0;
                ::sigwait(&one, &signal);
                return signal == SIGUSR1 ? 5 : 6;
              }));
            }),
            5);
}

TEST(Supervise, WorksIfSigchldIsIgnoredAndTheProgramStillIgnoresIt) {
  EXPECT_EQ(run_in_child([] {
              ::signal(SIGCHLD, SIG_IGN);
              end_as(supervise([] {
                struct sigaction action {};
                ::sigaction(SIGCHLD, nullptr, &action);
                return action.sa_handler == SIG_IGN ? 3 : 4;
              }));
            }),
            3);
}

TEST(Supervise, ProgramDoesNotOutliveItsParent) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  EXPECT_EQ(run_in_child([&] {
              ::close(ends[0]);
              const pid_t parent = ::getpid();
              (void)supervise([parent] {
                ::kill(parent, SIGKILL);
                for (;;) ::pause();
                return 0;
              });
            }),
            128 + SIGKILL);
  ::close(ends[1]);
  char byte = 0;
  EXPECT_EQ(::read(ends[0], &byte, 1), 0);  // the program has closed its end
  ::close(ends[0]);
}

}  // namespace
}  // namespace verbena::cli
