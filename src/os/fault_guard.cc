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

constexpr std::array kCaughtSignals{SIGSEGV, SIGBUS};
constexpr std::uintptr_t kPage = 4096;
// On x86-64, the kernel does not always report the address of a fault at or above 2^47.
constexpr std::uintptr_t kAddressKnownEnd = std::uintptr_t{1} << 47;

// Describes one touch_memory() call of this thread.
struct Attempt {
  std::uintptr_t first = 0;  // the address of the first byte
  std::uintptr_t last = 0;   // the address of the last byte
  // A signal handler may interrupt an attempt and make another one.  Then `outer` of the new
  // attempt is the interrupted attempt.
  Attempt* outer = nullptr;
  sigjmp_buf return_point{};
};

// Stores the result of the last check whether this thread's faults reach on_fault().
struct HandlerCheck {
  timespec time{};  // the time of the last check
  bool reaches_handler = false;
};

// A thread may use these variables for the first time in a signal handler, where it must not
// allocate memory.  This TLS model needs no allocation.
#define VB_SIGNAL_SAFE_THREAD_LOCAL [[gnu::tls_model("initial-exec")]] constinit thread_local
VB_SIGNAL_SAFE_THREAD_LOCAL Attempt* attempt = nullptr;
VB_SIGNAL_SAFE_THREAD_LOCAL HandlerCheck handler_check{};

// Stores the signal actions of the program that our actions replaced.  catch_faults() writes an
// entry before our handler can run.  Later, an entry changes only if its action has SA_RESETHAND:
// then call_previous_handler() resets the entry to SIG_DFL.
std::array<struct sigaction, kCaughtSignals.size()> previous_actions{};

struct sigaction& previous_action(int number) {
  return previous_actions[number == SIGSEGV ? 0 : 1];
}

bool belongs_to(const Attempt& a, int number, const siginfo_t& info) {
  if (info.si_code <= 0) return false;  // a process sent the signal
  if (number == SIGSEGV && info.si_code == SI_KERNEL) return a.last >= kAddressKnownEnd;
  const auto at = reinterpret_cast<std::uintptr_t>(info.si_addr);
  return at / kPage >= a.first / kPage && at / kPage <= a.last / kPage;
}

// Delivers the signal as the kernel would if we had no handler.
void call_previous_handler(int number, siginfo_t* info, void* context) {
  struct sigaction& previous = previous_action(number);
  const bool was_sent = info->si_code <= 0;
  const bool with_info = (previous.sa_flags & SA_SIGINFO) != 0;
  if (!with_info && previous.sa_handler == SIG_IGN && was_sent) return;
  if (!with_info && (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN)) {
    struct sigaction end {};
    end.sa_handler = SIG_DFL;
    ::sigaction(number, &end, nullptr);
    if (was_sent) ::raise(number);
    return;  // the instruction faults again and ends the program
  }
  sigset_t blocked = previous.sa_mask;
  if ((previous.sa_flags & SA_NODEFER) == 0) sigaddset(&blocked, number);
  ::pthread_sigmask(SIG_BLOCK, &blocked, nullptr);  // until this handler returns
  const auto action = previous.sa_sigaction;
  const auto handler = previous.sa_handler;
  if ((static_cast<unsigned>(previous.sa_flags) & unsigned{SA_RESETHAND}) != 0) {
    previous.sa_flags = 0;
    previous.sa_handler = SIG_DFL;
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
  if (a != nullptr && belongs_to(*a, number, *info)) siglongjmp(a->return_point, 1);
  call_previous_handler(number, info, context);
}

bool has_our_handler(int number) {
  struct sigaction action {};
  return ::sigaction(number, nullptr, &action) == 0 && (action.sa_flags & SA_SIGINFO) != 0 &&
         action.sa_sigaction == on_fault;
}

// Asks the kernel whether this thread's faults reach on_fault().
bool check_reaches_handler() {
  sigset_t mask;
  if (::pthread_sigmask(SIG_BLOCK, nullptr, &mask) != 0) return false;
  for (const int number : kCaughtSignals) {
    if (sigismember(&mask, number) != 0 || !has_our_handler(number)) return false;
  }
  return true;
}

// Returns true if this thread's faults reach on_fault().  Checks again only when the kernel's clock
// tick has changed.
bool reaches_handler() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  if (now.tv_nsec != handler_check.time.tv_nsec || now.tv_sec != handler_check.time.tv_sec) {
    handler_check = {.time = now, .reaches_handler = check_reaches_handler()};
  }
  return handler_check.reaches_handler;
}

[[gnu::noinline]] bool touch_guarded(std::uintptr_t first, std::size_t length, void (*touch)(void*),
                                     void* context) {
  Attempt current{.first = first, .last = first + length - 1, .outer = attempt};
  // NOLINTNEXTLINE(cert-err52-cpp): the jump skips no destructor, because touch() owns nothing
  if (sigsetjmp(current.return_point, 0) != 0) {
    attempt = current.outer;
    return false;
  }
  attempt = &current;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  touch(context);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  attempt = current.outer;
  return true;
}

}  // namespace

void catch_faults() {
  static const bool once = [] {
    for (const int number : kCaughtSignals) {
      struct sigaction ours {};
      ours.sa_sigaction = on_fault;
      ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
      if (::sigaction(number, nullptr, &previous_action(number)) != 0) return false;
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
  if (reaches_handler()) return touch_guarded(first, length, touch, context);
  if (!populate_pages(address, length, writes)) return false;
  touch(context);
  return true;
}

}  // namespace verbena::os
