#include "os/fault_guard.h"

#include <pthread.h>

#include <array>
#include <atomic>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <ctime>

#include "os/process.h"

namespace verbena::os {
namespace {

constexpr std::array kFaults{SIGSEGV, SIGBUS};
constexpr std::uintptr_t kPage = 4096;
// x86-64 may report a fault above this address without the address.
constexpr std::uintptr_t kAddressKnownEnd = std::uintptr_t{1} << 47;

// Describes one touch_memory() call of this thread.
struct Attempt {
  std::uintptr_t first = 0;
  std::uintptr_t last = 0;
  Attempt* outer = nullptr;  // the attempt that a signal handler interrupted to make this one
  sigjmp_buf back{};
};

// Remembers whether a thread's faults reach on_fault(), as checked at the time `seen`.
struct Standing {
  timespec seen{};
  bool catches = false;
};

// The signal handler reads these variables.  This TLS model needs no allocation at the first use in
// a thread.
#define VB_SIGNAL_SAFE_THREAD_LOCAL [[gnu::tls_model("initial-exec")]] constinit thread_local
VB_SIGNAL_SAFE_THREAD_LOCAL Attempt* attempt = nullptr;
VB_SIGNAL_SAFE_THREAD_LOCAL Standing standing{};

// Holds the handlers that the program had before ours.  They are written once, before our handler
// can run.
std::array<struct sigaction, kFaults.size()> before{};

struct sigaction& before_of(int number) {
  return before[number == SIGSEGV ? 0 : 1];
}

bool belongs_to(const Attempt& a, int number, const siginfo_t& info) {
  if (info.si_code <= 0) return false;  // sent by a process
  if (number == SIGSEGV && info.si_code == SI_KERNEL) return a.last >= kAddressKnownEnd;
  const auto at = reinterpret_cast<std::uintptr_t>(info.si_addr);
  return at / kPage >= a.first / kPage && at / kPage <= a.last / kPage;
}

// Delivers the signal as the kernel would if we had no handler.
void pass_on(int number, siginfo_t* info, void* context) {
  struct sigaction& next = before_of(number);
  const bool sent = info->si_code <= 0;
  const bool with_info = (next.sa_flags & SA_SIGINFO) != 0;
  if (!with_info && next.sa_handler == SIG_IGN && sent) return;
  if (!with_info && (next.sa_handler == SIG_DFL || next.sa_handler == SIG_IGN)) {
    struct sigaction end {};
    end.sa_handler = SIG_DFL;
    ::sigaction(number, &end, nullptr);
    if (sent) ::raise(number);
    return;  // the instruction faults again
  }
  sigset_t blocked = next.sa_mask;
  if ((next.sa_flags & SA_NODEFER) == 0) sigaddset(&blocked, number);
  ::pthread_sigmask(SIG_BLOCK, &blocked, nullptr);  // until this handler returns
  const auto action = next.sa_sigaction;
  const auto handler = next.sa_handler;
  if ((static_cast<unsigned>(next.sa_flags) & unsigned{SA_RESETHAND}) != 0) {
    next.sa_flags = 0;
    next.sa_handler = SIG_DFL;
  }
  if (with_info) {
    action(number, info, context);
  } else {
    handler(number);
  }
}

void on_fault(int number, siginfo_t* info, void* context) {
  Attempt* const a = attempt;
  // SA_NODEFER left the thread's signal mask unchanged, so the jump need not restore it.
  if (a != nullptr && belongs_to(*a, number, *info)) siglongjmp(a->back, 1);
  pass_on(number, info, context);
}

bool is_ours(int number) {
  struct sigaction now {};
  return ::sigaction(number, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 &&
         now.sa_sigaction == on_fault;
}

bool catches_now() {
  sigset_t mask;
  if (::pthread_sigmask(SIG_BLOCK, nullptr, &mask) != 0) return false;
  for (const int number : kFaults) {
    if (sigismember(&mask, number) != 0 || !is_ours(number)) return false;
  }
  return true;
}

// Checks again only when the kernel's clock tick has changed.
bool catches() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  if (now.tv_nsec != standing.seen.tv_nsec || now.tv_sec != standing.seen.tv_sec) {
    standing = {.seen = now, .catches = catches_now()};
  }
  return standing.catches;
}

[[gnu::noinline]] bool attempt_to(std::uintptr_t first, std::size_t length, void (*touch)(void*),
                                  void* context) {
  Attempt here{.first = first, .last = first + length - 1, .outer = attempt};
  // NOLINTNEXTLINE(cert-err52-cpp): touch() is left without an exception, and owns nothing
  if (sigsetjmp(here.back, 0) != 0) {
    attempt = here.outer;
    return false;
  }
  attempt = &here;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  touch(context);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  attempt = here.outer;
  return true;
}

}  // namespace

void catch_faults() {
  static const bool once = [] {
    for (const int number : kFaults) {
      struct sigaction ours {};
      ours.sa_sigaction = on_fault;
      ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
      if (::sigaction(number, nullptr, &before_of(number)) != 0) return false;
      ::sigaction(number, &ours, nullptr);
    }
    return true;
  }();
  static_cast<void>(once);
}

bool touch_memory(const void* address, std::size_t length, bool writes, void (*touch)(void*),
                  void* context) {
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  if (length == 0) return true;
  if (length > UINTPTR_MAX - first) return false;
  if (catches()) return attempt_to(first, length, touch, context);
  if (!bring_pages(address, length, writes)) return false;
  touch(context);
  return true;
}

}  // namespace verbena::os
