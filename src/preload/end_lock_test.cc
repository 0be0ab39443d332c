#include "preload/end_lock.h"

#include <gtest/gtest.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>

#include "stream/memory.h"

namespace verbena::preload {
namespace {

using Outcome = EndLock::Outcome;

// Holds memory that the test shares with its child processes.
struct Shared {
  alignas(64) std::array<std::byte, stream::EndState::kLockBytes> lock;
  std::array<pthread_mutex_t, 2> mutexes;  // robust mutexes of the program
};

class EndLockTest : public testing::Test {
 protected:
  EndLockTest()
      : shared_(*static_cast<Shared*>(::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                                             MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    pthread_mutexattr_t attributes;
    ::pthread_mutexattr_init(&attributes);
    ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    for (pthread_mutex_t& mutex : shared_.mutexes) ::pthread_mutex_init(&mutex, &attributes);
  }
  ~EndLockTest() override { ::munmap(&shared_, sizeof(Shared)); }

  std::atomic<std::uint32_t>& word() {
    return *reinterpret_cast<std::atomic<std::uint32_t>*>(shared_.lock.data());
  }
  Outcome take_and_release() { return EndLock(shared_.lock, is_stuck_).outcome(); }

  // Runs `work()` in a child process, which is killed after that.
  template <class Work>
  static void in_killed_process(Work work) {
    const pid_t child = ::fork();
    if (child == 0) {
      EndLock::after_fork_in_child();
      work();
      ::raise(SIGKILL);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  }
  // Makes the lock look as if a thread with this number had it, and releases it when a thread
  // waits for it.  Returns the outcome for the thread that waits.
  Outcome outcome_after_release_by(std::uint32_t number) {
    word().store(number);
    std::thread owner([this] {
      while ((word().load() & FUTEX_WAITERS) == 0) std::this_thread::yield();
      word().store(0);
      ::syscall(SYS_futex, &word(), FUTEX_WAKE, 1, nullptr, nullptr, 0);
    });
    const Outcome outcome = take_and_release();
    owner.join();
    return outcome;
  }

  Shared& shared_;
  std::atomic<bool> is_stuck_{false};
};

TEST_F(EndLockTest, AfterTheDeathOfTheOwnerTheNextThreadLearnsOfIt) {
  EXPECT_EQ(take_and_release(), Outcome::kTaken);
  in_killed_process([&] { new EndLock(shared_.lock, is_stuck_); });
  EXPECT_EQ(take_and_release(), Outcome::kOwnerDied);
  EXPECT_EQ(take_and_release(), Outcome::kTaken);
}

TEST_F(EndLockTest, AThreadThatSleepsForTheLockWakesAtTheDeathOfTheOwner) {
  in_killed_process([&] {
    const EndLock lock(shared_.lock, is_stuck_);
    const pid_t waiter = ::fork();
    if (waiter == 0) {
      EndLock::after_fork_in_child();
      ::_exit(take_and_release() == Outcome::kOwnerDied ? 0 : 1);
    }
    while ((word().load() & FUTEX_WAITERS) == 0) std::this_thread::yield();
    ::raise(SIGKILL);
  });
  while (word().load() != 0) std::this_thread::yield();
}

TEST_F(EndLockTest, AThreadThatEndsWithTheLockCountsAsDead) {
  static EndLock* left_by_its_thread;  // static, so that LeakSanitizer finds it
  std::thread([&] { left_by_its_thread = new EndLock(shared_.lock, is_stuck_); }).join();
  ASSERT_EQ(left_by_its_thread->outcome(), Outcome::kTaken);
  EXPECT_EQ(take_and_release(), Outcome::kOwnerDied);
}

// A thread of another PID namespace can have the number of this thread.
TEST_F(EndLockTest, AnOwnerWithTheNumberOfThisThreadIsAnotherThread) {
  EXPECT_EQ(outcome_after_release_by(static_cast<std::uint32_t>(::gettid())), Outcome::kTaken);
}

// This PID namespace has no thread with this number, but another namespace may have one.
TEST_F(EndLockTest, AnOwnerWithAnUnknownNumberIsAlive) {
  EXPECT_EQ(outcome_after_release_by(FUTEX_TID_MASK - 1), Outcome::kTaken);
}

TEST_F(EndLockTest, ALockThatIsNeverReleasedStopsAProcessOnlyOnce) {
  word().store(FUTEX_TID_MASK - 1);
  EXPECT_EQ(take_and_release(), Outcome::kGivenUp);  // this call waits for 10 s
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(take_and_release(), Outcome::kGivenUp);
}

TEST_F(EndLockTest, ASignalHandlerDoesNotGetTheLockOfItsOwnThread) {
  const EndLock lock(shared_.lock, is_stuck_);
  EXPECT_EQ(take_and_release(), Outcome::kNotTaken);
  EXPECT_NE(word().load(), 0U);
}

TEST_F(EndLockTest, AForkedChildDoesNotReleaseTheLockOfItsParent) {
  const EndLock lock(shared_.lock, is_stuck_);
  const pid_t child = ::fork();
  if (child == 0) {
    EndLock::after_fork_in_child();
    const_cast<EndLock&>(lock).unlock();
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(word().load() & FUTEX_TID_MASK, static_cast<std::uint32_t>(::gettid()));
}

TEST_F(EndLockTest, RobustMutexesOfTheProgramStayInTheList) {
  in_killed_process([&] {
    auto* lock = new EndLock(shared_.lock, is_stuck_);
    ::pthread_mutex_lock(&shared_.mutexes[0]);
    lock->unlock();  // the mutex is before it in the list
    lock->lock_again();
    ::pthread_mutex_lock(&shared_.mutexes[1]);
    ::pthread_mutex_unlock(&shared_.mutexes[0]);  // after the lock in the list
    ::pthread_mutex_lock(&shared_.mutexes[0]);
  });
  for (pthread_mutex_t& mutex : shared_.mutexes) {
    EXPECT_EQ(::pthread_mutex_lock(&mutex), EOWNERDEAD);
    ::pthread_mutex_consistent(&mutex);
    ::pthread_mutex_unlock(&mutex);
  }
  EXPECT_EQ(take_and_release(), Outcome::kOwnerDied);
}

TEST_F(EndLockTest, ForgedLinksInTheSharedMemoryAreNotFollowed) {
  ::pthread_mutex_lock(&shared_.mutexes[0]);
  {
    const EndLock lock(shared_.lock, is_stuck_);
    std::ranges::fill(std::span(shared_.lock).subspan(sizeof(std::uint32_t)), std::byte{0x41});
  }
  EXPECT_EQ(take_and_release(), Outcome::kTaken);
  EXPECT_EQ(::pthread_mutex_unlock(&shared_.mutexes[0]), 0);
}

}  // namespace
}  // namespace verbena::preload
