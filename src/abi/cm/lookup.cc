#include <netdb.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <ctime>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "abi/abi.h"
#include "abi/acknowledge.h"
#include "abi/cm/cm.h"
#include "os/signal_block.h"

// Implements functions that rdma-core 60 added: an asynchronous rdma_getaddrinfo(), which reports
// its end by an event, and events that a program sends to itself.

#ifndef RAI_SA  // Debian's header declares neither RAI_SA nor these functions
extern "C" {
int rdma_resolve_addrinfo(rdma_cm_id* id, const char* node, const char* service,
                          const rdma_addrinfo* hints);
int rdma_query_addrinfo(rdma_cm_id* id, rdma_addrinfo** info);
int rdma_write_cm_event(rdma_cm_id* id, rdma_cm_event_type event, int status, uint64_t arg);
}
#endif

namespace verbena::abi {

// Holds the result of a lookup.  The id shares it with the thread of the lookup, which may outlive
// the id.
struct CmLookup {
  ~CmLookup() { rdma_freeaddrinfo(found); }

  std::mutex mutex;
  bool is_done = false;
  rdma_addrinfo* found = nullptr;
};

namespace {

// Limits the asynchronous lookups that run at the same time.  Each of them has a thread, and the
// resolver may take long.
constexpr int kLookupsMax = 256;
std::atomic<int> lookups_running{0};

struct ReleaseSlot {
  void operator()(std::atomic<int>* counter) const { --*counter; }
};
using Slot = std::unique_ptr<std::atomic<int>, ReleaseSlot>;

// Returns null if kLookupsMax asynchronous lookups are running.
Slot take_slot() {
  Slot slot(&lookups_running);
  if (++lookups_running > kLookupsMax) slot.reset();
  return slot;
}

// Copies the arguments of rdma_resolve_addrinfo(), because the program may free them after the
// call.
class Arguments {
 public:
  Arguments(const char* node, const char* service, const rdma_addrinfo* hints) {
    if (node != nullptr) node_ = node;
    if (service != nullptr) service_ = service;
    if (hints == nullptr) return;
    hints_ = *hints;
    hints_->ai_src_addr = copy(hints->ai_src_addr, hints->ai_src_len, source_);
    hints_->ai_dst_addr = copy(hints->ai_dst_addr, hints->ai_dst_len, destination_);
  }

  // Returns 0 or a positive errno.
  int look_up(rdma_addrinfo*& found) const {
    const int error =
        rdma_getaddrinfo(node_ ? node_->c_str() : nullptr, service_ ? service_->c_str() : nullptr,
                         hints_ ? &*hints_ : nullptr, &found);
    switch (error) {
      case 0: return 0;
      case -1:
      case EAI_SYSTEM: return errno != 0 ? errno : EIO;
      case EAI_MEMORY: return ENOMEM;
      case EAI_AGAIN: return EAGAIN;
      case EAI_NONAME:
      case EAI_NODATA: return ENOENT;
      case EAI_FAMILY:
      case EAI_ADDRFAMILY: return EAFNOSUPPORT;
      default: return EINVAL;
    }
  }

 private:
  static sockaddr* copy(const sockaddr* address, socklen_t bytes, std::vector<std::byte>& to) {
    const auto raw = std::as_bytes(std::span(reinterpret_cast<const std::byte*>(address), bytes));
    to.assign(raw.begin(), raw.end());
    return bytes == 0 ? nullptr : reinterpret_cast<sockaddr*>(to.data());
  }

  std::optional<std::string> node_, service_;
  std::optional<rdma_addrinfo> hints_;
  std::vector<std::byte> source_, destination_;
};

// Describes a lookup that runs, perhaps in its own thread.  The system's resolver may take seconds.
struct Task {
  Arguments arguments;
  std::shared_ptr<CmLookup> lookup;
  vb_handle id;
  Slot slot{};  // empty for a synchronous lookup, which needs no thread
};

// Stores the result of a lookup in its destructor, so that cancelling the thread also stores it.
struct StoreResult {
  explicit StoreResult(CmLookup& target) : lookup(target) {}
  StoreResult(const StoreResult&) = delete;
  StoreResult& operator=(const StoreResult&) = delete;
  ~StoreResult() {
    const std::lock_guard lock(lookup.mutex);
    lookup.is_done = true;
    lookup.found = found;
  }

  CmLookup& lookup;
  rdma_addrinfo* found = nullptr;
};

int run_lookup(Task& task) {
  StoreResult result(*task.lookup);
  return task.arguments.look_up(result.found);
}

void* run_thread(void* raw) {
  const std::unique_ptr<Task> task(static_cast<Task*>(raw));
  const int error = run_lookup(*task);
  // Repeats the call while too many events are unread (ENOMEM).  If the id is destroyed, the call
  // fails with an error other than ENOMEM, and nobody waits for the event.
  while (vb_cm_id_write_event(task->id, error == 0 ? kAddrInfoResolved : kAddrInfoError, -error,
                              0) == ENOMEM) {
    constexpr timespec kRetryDelay{.tv_sec = 0, .tv_nsec = 10'000'000};
    nanosleep(&kRetryDelay, nullptr);
  }
  return nullptr;
}

// Starts a thread that runs the lookup.  All signals except those of faults are blocked in it, so
// that the program's handlers of other signals do not run there.  EAGAIN: kLookupsMax asynchronous
// lookups are running.
int start_thread(std::unique_ptr<Task> task) {
  task->slot = take_slot();
  if (!task->slot) return EAGAIN;
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  for (const int fault : os::kFaultSignals) sigdelset(&all, fault);
  pthread_attr_t detached;
  if (int error = pthread_attr_init(&detached)) return error;
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const int error = pthread_create(&thread, &detached, run_thread, task.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&detached);
  if (error == 0) {
    (void)task.release();  // NOLINT(bugprone-unused-return-value): the thread owns it now
  }
  return error;
}

// Replaces the last lookup of the id; null: by none.  EBUSY: that lookup is still running, or the
// program has not taken its result.
int replace_lookup(CmId& id, std::shared_ptr<CmLookup> new_lookup) {
  PthreadLock lock(id.mutex);
  if (id.lookup) {
    const std::lock_guard lookup_lock(id.lookup->mutex);
    if (!id.lookup->is_done || id.lookup->found != nullptr) return EBUSY;
  }
  id.lookup = std::move(new_lookup);
  return 0;
}

}  // namespace

// Sets the number of running lookups to 0 in a forked child, because it has no lookup threads.
void cm_forget_lookups() { lookups_running = 0; }

}  // namespace verbena::abi

using namespace verbena::abi;

// If RAI_SA is set, asks the subnet administration; otherwise asks the system's resolver.  EBUSY:
// the last lookup by the resolver is still running, or the program has not taken its result.
// EOPNOTSUPP: RAI_SA is set and the id is not on InfiniBand, or `node` is not null.  EAGAIN:
// kLookupsMax asynchronous lookups are running.  With a synchronous id, the call waits for the
// result.
VB_EXPORT int rdma_resolve_addrinfo(rdma_cm_id* id, const char* node, const char* service,
                                    const rdma_addrinfo* hints) {
  if (id == nullptr || (node == nullptr && service == nullptr && hints == nullptr)) {
    return failed(EINVAL);
  }
  const int flags = hints == nullptr ? 0 : hints->ai_flags;
  auto& self = *static_cast<CmId*>(id);
  if ((flags & kResolveBySa) != 0) {
    if ((flags & kResolveByDns) != 0) return failed(EINVAL);
    // rdma_query_addrinfo() lists services only if the id has no lookup.
    int error = replace_lookup(self, nullptr);
    if (error == 0) error = cm_find_services(self, node, service);
    return error == 0 ? 0 : failed(error);
  }
  // The libverbena of src/adapter cannot write events, so it could not report the end of the
  // lookup.  This call only tests that: no event has the type 0.
  if (!self.is_synchronous && vb_cm_id_write_event(self.library_handle, 0, 0, 0) == EOPNOTSUPP) {
    return failed(EOPNOTSUPP);
  }
  std::shared_ptr<CmLookup> lookup;
  std::unique_ptr<Task> task;
  int error = guarded([&] {
    lookup = std::make_shared<CmLookup>();
    return replace_lookup(self, lookup);
  });
  if (error != 0) return failed(error);
  error = guarded([&] {
    task.reset(new Task{Arguments(node, service, hints), lookup, self.library_handle});
    return 0;
  });
  if (error == 0) error = self.is_synchronous ? run_lookup(*task) : start_thread(std::move(task));
  if (error == 0) return 0;
  const StoreResult none(*lookup);  // ends the lookup without a result
  return failed(error);
}

// Gives the result to the caller, who owns it from then on.  ENOENT: there is no result, or it was
// taken already.
VB_EXPORT int rdma_query_addrinfo(rdma_cm_id* id, rdma_addrinfo** info) {
  if (id == nullptr || info == nullptr) return failed(EINVAL);
  auto& self = *static_cast<CmId*>(id);
  PthreadLock lock(self.mutex);
  if (!self.lookup) {
    const int error = cm_list_services(self, *info);
    return error == 0 ? 0 : failed(error);
  }
  const std::lock_guard lookup_lock(self.lookup->mutex);
  *info = std::exchange(self.lookup->found, nullptr);
  return *info == nullptr ? failed(ENOENT) : 0;
}

// Fails with EINVAL for a synchronous id, which waits only for events of its own calls.
VB_EXPORT int rdma_write_cm_event(rdma_cm_id* id, rdma_cm_event_type event, int status,
                                  uint64_t arg) {
  if (id == nullptr || static_cast<std::uint32_t>(event) != kUserEvent) return failed(EINVAL);
  const auto& self = *static_cast<CmId*>(id);
  if (self.is_synchronous) return failed(EINVAL);
  const int error = vb_cm_id_write_event(self.library_handle, kUserEvent, status, arg);
  return error == 0 ? 0 : failed(error);
}
