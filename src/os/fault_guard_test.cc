#include "os/fault_guard.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "os/test_process.h"
#include "os/thread.h"

namespace verbena::os {
namespace {

constexpr std::size_t kPage = 4096;

std::byte* map_pages(std::size_t pages, int fd = -1) {
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  return static_cast<std::byte*>(
      ::mmap(nullptr, pages * kPage, PROT_READ | PROT_WRITE, flags, fd, 0));
}

// Compiles the touches without sanitizers.  A sanitizer would report the faults that the tests
// cause, or would read the shadow memory of an address that has none.
#ifdef __clang__
#define VB_NO_SANITIZER [[clang::no_sanitize("address", "thread", "undefined"), gnu::noinline]]
#else
#define VB_NO_SANITIZER [[gnu::no_sanitize("address", "thread", "undefined"), gnu::noinline]]
#endif

VB_NO_SANITIZER void write_bytes(void* context) {
  const auto& to = *static_cast<const std::span<volatile std::byte>*>(context);
  volatile std::byte* const first = to.data();
  for (std::size_t i = 0, size = to.size(); i < size; ++i) first[i] = std::byte{1};
}

VB_NO_SANITIZER void read_bytes(void* context) {
  const auto& from = *static_cast<const std::span<volatile std::byte>*>(context);
  volatile std::byte* const first = from.data();
  for (std::size_t i = 0, size = from.size(); i < size; ++i) static_cast<void>(first[i]);
}

bool write_to(std::byte* at, std::size_t bytes) {
  std::span<volatile std::byte> to(at, bytes);
  return touch_memory(at, bytes, true, write_bytes, &to);
}

bool read_from(std::byte* at, std::size_t bytes) {
  std::span<volatile std::byte> from(at, bytes);
  return touch_memory(at, bytes, false, read_bytes, &from);
}

// Tells how a test makes a page inaccessible.  Any thread, including the sanitizer's runtime, may
// map an unmapped page again, so tests with several threads protect the page instead.
enum class Removal { kUnmapped, kProtected };

// Makes memory inaccessible in several ways, and expects each touch of it to fail.
void expect_failures_and_no_signal(Removal removal = Removal::kUnmapped) {
  std::byte* const memory = map_pages(4);
  EXPECT_TRUE(write_to(memory, 4 * kPage));
  EXPECT_TRUE(read_from(memory, 2 * kPage));

  if (removal == Removal::kUnmapped) {
    ::munmap(memory + kPage, kPage);
  } else {
    ::mprotect(memory + kPage, kPage, PROT_NONE);
  }
  EXPECT_TRUE(write_to(memory, kPage));
  EXPECT_FALSE(write_to(memory + kPage - 8, 16)) << "the range continues into unmapped memory";
  EXPECT_FALSE(read_from(memory + kPage, 1));

  ::mprotect(memory + 2 * kPage, kPage, PROT_READ);
  EXPECT_TRUE(read_from(memory + 2 * kPage, kPage));
  EXPECT_FALSE(write_to(memory + 2 * kPage, 8));
  ::mprotect(memory + 3 * kPage, kPage, PROT_NONE);
  EXPECT_FALSE(read_from(memory + 3 * kPage, 8));

  const Fd file(::memfd_create("short", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(file.get(), 2 * kPage), 0);
  std::byte* const mapped = map_pages(2, file.get());
  EXPECT_TRUE(write_to(mapped, 2 * kPage));
  ASSERT_EQ(::ftruncate(file.get(), kPage), 0);
  EXPECT_FALSE(write_to(mapped + kPage, 8)) << "beyond the end of the file";
  EXPECT_FALSE(read_from(mapped + kPage, 8));
  EXPECT_TRUE(write_to(mapped, kPage));

  EXPECT_TRUE(write_to(nullptr, 0));
  EXPECT_FALSE(write_to(nullptr, 1));
  // These addresses are not valid on this machine: the kernel does not report where the fault was.
  EXPECT_FALSE(read_from(reinterpret_cast<std::byte*>(std::uintptr_t{1} << 62), 8));
  EXPECT_FALSE(read_from(reinterpret_cast<std::byte*>(UINTPTR_MAX - 3), 8));
  ::munmap(memory, 4 * kPage);
  ::munmap(mapped, 2 * kPage);
}

#ifdef __SANITIZE_THREAD__
// GCC 12's ThreadSanitizer handles faults itself, and ends the program where our handler would
// jump.
#define VB_SKIP_IN_TSAN() \
  GTEST_SKIP() << "ThreadSanitizer does not let a handler jump out of a fault"
#else
#define VB_SKIP_IN_TSAN() static_cast<void>(0)
#endif

// Handlers belong to the process, so each test runs in a process of its own.
template <class Body>
void in_child(Body&& body) {
  EXPECT_EQ(run_in_child(std::forward<Body>(body)), 0);
}

TEST(FaultGuard, FaultEndsOnlyTheTouch) {
  VB_SKIP_IN_TSAN();
  in_child([] {
    catch_faults();
    for (int round = 0; round < 3; ++round) expect_failures_and_no_signal();
  });
}

TEST(FaultGuard, WorksAfterTheProgramSetsItsOwnHandler) {
  in_child([] {
    catch_faults();
    ASSERT_NE(::signal(SIGSEGV, [](int) { ::_exit(3); }), SIG_ERR);
    ASSERT_NE(::signal(SIGBUS, [](int) { ::_exit(4); }), SIG_ERR);
    expect_failures_and_no_signal();
  });
}

TEST(FaultGuard, WorksInAThreadThatBlocksAllSignals) {
  in_child([] {
    catch_faults();
    sigset_t all;
    sigfillset(&all);
    ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &all, nullptr), 0);
    expect_failures_and_no_signal();
  });
}

TEST(FaultGuard, WorksInSeveralThreadsAtOnce) {
  VB_SKIP_IN_TSAN();
  in_child([] {
    catch_faults();
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.push_back(*start_thread("guard", [] {
        for (int round = 0; round < 20; ++round) expect_failures_and_no_signal(Removal::kProtected);
      }));
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST(FaultGuard, WorksInAForkedChild) {
  VB_SKIP_IN_TSAN();
  in_child([] {
    catch_faults();
    expect_failures_and_no_signal();
    EXPECT_EQ(run_in_child([] { expect_failures_and_no_signal(); }), 0);
  });
}

// run_in_child() returns 128 + number if that signal killed the child.
TEST(FaultGuard, OtherFaultsEndTheProgramAsBefore) {
  VB_SKIP_IN_TSAN();
  const auto child = [](int number, auto fault) {
    return run_in_child([=] {
      ::signal(number, SIG_DFL);
      catch_faults();
      EXPECT_FALSE(write_to(nullptr, 1));
      fault();
    });
  };
  std::byte* const unmapped = map_pages(1);
  ::munmap(unmapped, kPage);
  EXPECT_EQ(
      child(SIGSEGV, [unmapped] { *static_cast<volatile std::byte*>(unmapped) = std::byte{1}; }),
      128 + SIGSEGV);
  EXPECT_EQ(child(SIGBUS, [] { ::kill(::getpid(), SIGBUS); }), 128 + SIGBUS);
}

volatile int handler_call_count = 0;

TEST(FaultGuard, OtherFaultsReachTheProgramsEarlierHandler) {
  in_child([] {
    struct sigaction own {};
    own.sa_flags = SA_SIGINFO;
    own.sa_sigaction = [](int, siginfo_t* info, void*) {
      handler_call_count = handler_call_count + 1;
      sigset_t mask;
      ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
      if (sigismember(&mask, SIGSEGV) != 1) ::_exit(5);
      const auto page = reinterpret_cast<std::uintptr_t>(info->si_addr) / kPage * kPage;
      ::mprotect(reinterpret_cast<void*>(page), kPage, PROT_READ | PROT_WRITE);
    };
    ASSERT_EQ(::sigaction(SIGSEGV, &own, nullptr), 0);
    catch_faults();
    std::byte* const memory = map_pages(1);
    ::mprotect(memory, kPage, PROT_NONE);
    *static_cast<volatile std::byte*>(memory) = std::byte{7};  // the program's handler repairs it
    EXPECT_EQ(handler_call_count, 1);
    EXPECT_EQ(memory[0], std::byte{7});
    ::mprotect(memory, kPage, PROT_NONE);
    EXPECT_FALSE(write_to(memory, 1));  // our handler ends the touch; the program's does not run
    EXPECT_EQ(handler_call_count, 1);
  });
}

}  // namespace
}  // namespace verbena::os
