#include "os/process.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "os/clock.h"
#include "os/test_process.h"

namespace verbena::os {
namespace {

TEST(Process, HasANameAndAStartTime) {
  EXPECT_EQ(process_name(::getpid()), "os_test");
  EXPECT_GT(process_start_time(::getpid()).value(), 0u);
  EXPECT_GE(process_start_time(::getpid()).value(), process_start_time(1).value());
}

TEST(Process, EndedProcessIsNotFound) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  const Fd pidfd = *open_pidfd(child);
  EXPECT_EQ(pid_of_pidfd(pidfd.get()).value_or(child), child);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(has_ended(pidfd.get()));
  EXPECT_EQ(pid_of_pidfd(pidfd.get()).error().code, Errc::kMalformed);
  EXPECT_EQ(open_pidfd(child).error().code, Errc::kAddressNotFound);
  EXPECT_EQ(process_start_time(child).error().code, Errc::kAddressNotFound);
  EXPECT_EQ(process_name(child), "");
}

TEST(Process, IsStoppedUntilItIsContinued) {
  EXPECT_FALSE(process_is_stopped(::getpid()));
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  int status = 0;
  ::kill(child, SIGSTOP);
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  EXPECT_TRUE(process_is_stopped(child));
  ::kill(child, SIGCONT);
  ASSERT_EQ(::waitpid(child, &status, WCONTINUED), child);
  EXPECT_FALSE(process_is_stopped(child));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(process_is_stopped(child)) << "the process has ended";
}

TEST(Process, PidOfPidfdRefusesOtherDescriptors) {
  EXPECT_EQ(pid_of_pidfd(open_pidfd(::getpid())->get()).value(), ::getpid());
  const Fd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(pid_of_pidfd(file.get()).error().code, Errc::kMalformed);
  EXPECT_EQ(pid_of_pidfd(-1).error().code, Errc::kMalformed);
}

class Memory : public ::testing::Test {
 protected:
  static constexpr std::size_t kPage = 4096;

  // Maps these pages: 0 and 1 writable, 2 read-only, 3 a hole, 4 writable, 5 inaccessible.
  void SetUp() override {
    base_ = static_cast<std::byte*>(
        ::mmap(nullptr, 6 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_EQ(::mprotect(page(2), kPage, PROT_READ), 0);
    ASSERT_EQ(::munmap(page(3), kPage), 0);
    ASSERT_EQ(::mprotect(page(5), kPage, PROT_NONE), 0);
  }
  void TearDown() override { ::munmap(base_, 6 * kPage); }

  std::byte* page(std::size_t number) { return base_ + number * kPage; }
  // Returns the third field of /proc/self/stat.
  static char process_state() {
    std::string pid, name;
    char state = 0;
    std::ifstream("/proc/self/stat") >> pid >> name >> state;
    return state;
  }

  std::byte* base_ = nullptr;
};

TEST_F(Memory, IsMappedOnlyWhereMappingsAllowTheAccess) {
  EXPECT_TRUE(memory_is_mapped(page(0), 2 * kPage, true));
  EXPECT_TRUE(memory_is_mapped(page(0) + 1, 2 * kPage - 1, true));
  EXPECT_FALSE(memory_is_mapped(page(0), 2 * kPage + 1, true));
  EXPECT_TRUE(memory_is_mapped(page(0), 3 * kPage, false));
  EXPECT_FALSE(memory_is_mapped(page(0), 3 * kPage + 1, false));
  EXPECT_FALSE(memory_is_mapped(page(0), 5 * kPage, false));
  EXPECT_FALSE(memory_is_mapped(page(3), 1, false));
  EXPECT_TRUE(memory_is_mapped(page(4), kPage, true));
  EXPECT_FALSE(memory_is_mapped(page(5), 1, false));
}

TEST_F(Memory, PopulatePagesFailsWhereATouchWouldRaiseASignal) {
  EXPECT_TRUE(populate_pages(page(0) + 1, 2 * kPage - 1, true));
  EXPECT_TRUE(populate_pages(page(2), kPage, false));
  EXPECT_FALSE(populate_pages(page(2), 1, true));   // page 2 may only be read
  EXPECT_FALSE(populate_pages(page(3), 1, false));  // page 3 is not mapped
  EXPECT_FALSE(populate_pages(page(0), 5 * kPage, false));
  EXPECT_FALSE(populate_pages(page(0), ~std::size_t{0}, false));
  EXPECT_TRUE(populate_pages(nullptr, 0, true));
}

TEST_F(Memory, StackHeapAndProgramAreMapped) {
  int on_stack = 0;
  const auto on_heap = std::make_unique<std::byte[]>(1 << 20);
  EXPECT_TRUE(memory_is_mapped(&on_stack, sizeof(on_stack), true));
  EXPECT_TRUE(memory_is_mapped(on_heap.get(), 1 << 20, true));
  EXPECT_TRUE(memory_is_mapped("text", 5, false));
  EXPECT_FALSE(memory_is_mapped("text", 5, true));
}

TEST_F(Memory, IsMappedAlsoAfterTheMainThreadHasEnded) {
  const auto check_and_exit = [this] {
    while (process_state() != 'Z') ::sched_yield();  // the state is that of the main thread
    EXPECT_TRUE(memory_is_mapped(page(0), 2 * kPage, true));
    EXPECT_FALSE(memory_is_mapped(page(0), 2 * kPage + 1, true));
    ::_exit(HasFailure() ? 1 : 0);
  };
  EXPECT_EQ(run_in_child([&] {
              std::thread(check_and_exit).detach();
              // Ends the thread as pthread_exit() does, but does not unwind the test's stack.
              ::syscall(SYS_exit, 0);
            }),
            0);
}

TEST_F(Memory, InvalidRangesAreNotMapped) {
  EXPECT_FALSE(memory_is_mapped(nullptr, 1, false));
  EXPECT_TRUE(memory_is_mapped(nullptr, 0, true));
  EXPECT_FALSE(memory_is_mapped(page(0), SIZE_MAX, false));
  EXPECT_FALSE(memory_is_mapped(reinterpret_cast<void*>(UINTPTR_MAX), 1, false));
  EXPECT_FALSE(memory_is_mapped(reinterpret_cast<void*>(UINTPTR_MAX), 2, false));
}

TEST_F(Memory, QueryDoesNotTouchThePages) {
  const std::size_t bytes = 64 * kPage;
  void* fresh = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_TRUE(memory_is_mapped(fresh, bytes, true));
  std::array<unsigned char, 64> resident;
  ASSERT_EQ(::mincore(fresh, bytes, resident.data()), 0);
  for (const unsigned char page : resident) EXPECT_EQ(page & 1, 0);
  ::munmap(fresh, bytes);
}

}  // namespace
}  // namespace verbena::os
