// Measures how fast two processes of one host access each other's memory without Verbena: by
// process_vm_writev(2), process_vm_readv(2) and /proc/PID/mem.  For comparison it also measures
// memcpy within one process, and how fast a futex wakes another process.
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "check.h"

namespace {

using verbena::bench::check;
using verbena::bench::exit_with_error;
using verbena::bench::parse_number;
using Clock = std::chrono::steady_clock;

// Defines the memory that the two processes share.
struct Shared {
  alignas(64) std::atomic<std::uint32_t> word[2];
};

double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// Pins this process to the allowed processor with this index.  Does nothing if there is none.
void pin_to_processor(int wanted_index) {
  cpu_set_t allowed;
  check(sched_getaffinity(0, sizeof allowed, &allowed) == 0, "sched_getaffinity");
  int index = 0;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (!CPU_ISSET(i, &allowed) || index++ != wanted_index) continue;
    cpu_set_t only_processor;
    CPU_ZERO(&only_processor);
    CPU_SET(i, &only_processor);
    check(sched_setaffinity(0, sizeof only_processor, &only_processor) == 0, "sched_setaffinity");
    return;
  }
}

// Copies to or from the memory of another process.  The processes are forks, so a variable has the
// same address in both.
class Peer {
 public:
  Peer(std::string_view method, pid_t pid) : pid_(pid), uses_file_(method.starts_with("mem")) {
    if (!uses_file_) return;
    fd_ = open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDWR | O_CLOEXEC);
    check(fd_ >= 0, "/proc/PID/mem");
  }
  ~Peer() {
    if (fd_ >= 0) close(fd_);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  void write(void* remote, const void* local, std::size_t bytes) const {
    iovec from{const_cast<void*>(local), bytes};
    iovec to{remote, bytes};
    const ssize_t done =
        uses_file_
            ? pwrite(fd_, local, bytes, static_cast<off_t>(reinterpret_cast<std::intptr_t>(remote)))
            : process_vm_writev(pid_, &from, 1, &to, 1, 0);
    check(done == static_cast<ssize_t>(bytes), "write");
  }
  void read(void* local, const void* remote, std::size_t bytes) const {
    iovec to{local, bytes};
    iovec from{const_cast<void*>(remote), bytes};
    const ssize_t done =
        uses_file_
            ? pread(fd_, local, bytes, static_cast<off_t>(reinterpret_cast<std::intptr_t>(remote)))
            : process_vm_readv(pid_, &to, 1, &from, 1, 0);
    check(done == static_cast<ssize_t>(bytes), "read");
  }

 private:
  pid_t pid_;
  bool uses_file_;  // true: /proc/PID/mem; false: process_vm_writev() and process_vm_readv()
  int fd_ = -1;
};

// Runs `child` in another process on the second processor, and `parent` here on the first.
template <class Child, class Parent>
void run_both(Child child, Parent parent) {
  const pid_t self = getpid();
  const pid_t pid = fork();
  check(pid >= 0, "fork");
  if (pid == 0) {
    check(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0, "prctl");
    pin_to_processor(1);
    child(self);
    _exit(0);
  }
  pin_to_processor(0);
  parent(pid);
  int status = 0;
  check(waitpid(pid, &status, 0) == pid, "waitpid");
  if (status != 0) exit_with_error("the other process");
}

// Lets the two processes write 8 bytes into each other's memory in turn.  Each process polls its
// own memory until the bytes of the other process arrive.  Returns microseconds for half a round
// trip.
double write_latency(std::string_view method, int rounds) {
  alignas(64) static std::atomic<std::uint64_t> own_word;
  double result = 0;
  const auto write_round = [&](const Peer& peer, std::uint64_t round) {
    peer.write(&own_word, &round, sizeof round);
  };
  const auto wait_for = [](std::uint64_t round) {
    while (own_word.load(std::memory_order_acquire) != round) {
    }
  };
  run_both(
      [&](pid_t parent) {
        const Peer peer(method, parent);
        for (int i = 1; i <= rounds; ++i) {
          wait_for(static_cast<std::uint64_t>(i));
          write_round(peer, static_cast<std::uint64_t>(i));
        }
      },
      [&](pid_t child) {
        const Peer peer(method, child);
        const auto begin = Clock::now();
        for (int i = 1; i <= rounds; ++i) {
          write_round(peer, static_cast<std::uint64_t>(i));
          wait_for(static_cast<std::uint64_t>(i));
        }
        result = microseconds_since(begin) / rounds / 2;
      });
  return result;
}

// Copies a block to or from a process that sleeps, or within this process if `method` is "memcpy".
// Returns Gbit/s.
double copy_rate(std::string_view method, std::size_t bytes, int rounds) {
  std::vector<char> block(bytes, 'a');
  std::vector<char> other(bytes, 'b');
  double result = 0;
  int pipe_ends[2];
  check(pipe(pipe_ends) == 0, "pipe");
  run_both(
      [&](pid_t) {
        std::memset(other.data(), 'c', bytes);  // so that the processes do not share these pages
        close(pipe_ends[1]);
        char end = 0;
        (void)!::read(pipe_ends[0], &end, 1);
      },
      [&](pid_t child) {
        const Peer peer(method, child);
        const auto copy = [&] {
          if (method == "memcpy")
            std::memcpy(other.data(), block.data(), bytes);
          else if (method.ends_with("read"))
            peer.read(block.data(), other.data(), bytes);
          else
            peer.write(other.data(), block.data(), bytes);
          asm volatile("" ::: "memory");
        };
        for (int i = 0; i < 1 + rounds / 10; ++i) copy();
        const auto begin = Clock::now();
        for (int i = 0; i < rounds; ++i) copy();
        result = static_cast<double>(bytes) * 8 * rounds / microseconds_since(begin) / 1000;
        close(pipe_ends[1]);
      });
  return result;
}

void sleep_until(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  for (std::uint32_t value_now = word.load(); value_now != value; value_now = word.load()) {
    syscall(SYS_futex, &word, FUTEX_WAIT, value_now, nullptr, nullptr, 0);
  }
}

void wake(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  word.store(value);
  syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

// Lets the two processes wake each other in turn by a futex, and sleep until they are woken.
// Returns microseconds for half a round trip.
double wake_latency(int rounds) {
  void* memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  check(memory != MAP_FAILED, "mmap");
  Shared& shared = *new (memory) Shared{};
  double result = 0;
  run_both(
      [&](pid_t) {
        for (std::uint32_t i = 1; i <= static_cast<std::uint32_t>(rounds); ++i) {
          sleep_until(shared.word[0], i);
          wake(shared.word[1], i);
        }
      },
      [&](pid_t) {
        const auto begin = Clock::now();
        for (std::uint32_t i = 1; i <= static_cast<std::uint32_t>(rounds); ++i) {
          wake(shared.word[0], i);
          sleep_until(shared.word[1], i);
        }
        result = microseconds_since(begin) / rounds / 2;
      });
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  const int rounds = argc > 2 ? parse_number(argv[2], "ROUNDS") : 1000;
  const int bytes = argc > 3 ? parse_number(argv[3], "BYTES") : 8;
  if (what == "vm-latency" || what == "mem-latency") {
    std::printf("%.3f\n", write_latency(what, rounds));
  } else if (what == "vm-write" || what == "vm-read" || what == "mem-write" || what == "mem-read" ||
             what == "memcpy") {
    std::printf("%.3f\n", copy_rate(what, static_cast<std::size_t>(bytes), rounds));
  } else if (what == "futex") {
    std::printf("%.3f\n", wake_latency(rounds));
  } else {
    std::fprintf(stderr,
                 "usage: host_memory vm-latency|mem-latency|futex ROUNDS\n"
                 "       host_memory vm-write|vm-read|mem-write|mem-read|memcpy ROUNDS BYTES\n"
                 "Prints microseconds for half a round trip, or Gbit/s.\n");
    return 2;
  }
  return 0;
}
