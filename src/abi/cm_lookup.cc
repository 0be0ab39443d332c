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
#include "abi/cm.h"

// What rdma-core 60 has added: rdma_getaddrinfo() whose end is an event, and events of a program's
// own.

#ifndef RAI_SA  // Debian's header has none of them yet
extern "C" {
int rdma_resolve_addrinfo(rdma_cm_id* id, const char* node, const char* service,
                          const rdma_addrinfo* hints);
int rdma_query_addrinfo(rdma_cm_id* id, rdma_addrinfo** info);
int rdma_write_cm_event(rdma_cm_id* id, rdma_cm_event_type event, int status, uint64_t arg);
}
#endif

namespace verbena::abi {

// Shared with the thread that asks: the id may be destroyed before it has its answer.
struct CmLookup {
  ~CmLookup() { rdma_freeaddrinfo(found); }

  std::mutex mutex;
  bool over = false;
  rdma_addrinfo* found = nullptr;
};

namespace {

// Each has a thread, which the resolver may keep for long.
constexpr int kLookupsMax = 256;
std::atomic<int> under_way{0};

struct GiveBack {
  void operator()(std::atomic<int>* of) const { --*of; }
};
using Place = std::unique_ptr<std::atomic<int>, GiveBack>;

// None: so many are asked for already.
Place take_place() {
  Place place(&under_way);
  if (++under_way > kLookupsMax) place.reset();
  return place;
}

// The arguments, which need not outlive the call.
class Question {
 public:
  Question(const char* node, const char* service, const rdma_addrinfo* hints) {
    if (node != nullptr) node_ = node;
    if (service != nullptr) service_ = service;
    if (hints == nullptr) return;
    hints_ = *hints;
    hints_->ai_src_addr = keep(hints->ai_src_addr, hints->ai_src_len, source_);
    hints_->ai_dst_addr = keep(hints->ai_dst_addr, hints->ai_dst_len, destination_);
  }

  // 0 or a positive errno.
  int ask(rdma_addrinfo*& found) const {
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
  static sockaddr* keep(const sockaddr* address, socklen_t bytes, std::vector<std::byte>& kept) {
    const auto raw = std::as_bytes(std::span(reinterpret_cast<const std::byte*>(address), bytes));
    kept.assign(raw.begin(), raw.end());
    return bytes == 0 ? nullptr : reinterpret_cast<sockaddr*>(kept.data());
  }

  std::optional<std::string> node_, service_;
  std::optional<rdma_addrinfo> hints_;
  std::vector<std::byte> source_, destination_;
};

// A question that the system's resolver may take seconds to answer, and what to do then.
struct Asking {
  Question question;
  std::shared_ptr<CmLookup> lookup;
  vb_handle id;
  Place place{};  // if it has a thread
};

// Is there when it goes, also if the thread that asks is cancelled.
struct Answer {
  explicit Answer(CmLookup& its) : lookup(its) {}
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;
  ~Answer() {
    const std::lock_guard lock(lookup.mutex);
    lookup.over = true;
    lookup.found = found;
  }

  CmLookup& lookup;
  rdma_addrinfo* found = nullptr;
};

int ask(Asking& asking) {
  Answer answer(*asking.lookup);
  return asking.question.ask(answer.found);
}

void* look_up_aside(void* raw) {
  const std::unique_ptr<Asking> asking(static_cast<Asking*>(raw));
  const int error = ask(*asking);
  // Refused if the id is no more: then nobody waits.
  while (vb_cm_id_write_event(asking->id, error == 0 ? kAddrInfoResolved : kAddrInfoError, -error,
                              0) == ENOMEM) {
    constexpr timespec kUntilThereIsMemory{.tv_sec = 0, .tv_nsec = 10'000'000};
    nanosleep(&kUntilThereIsMemory, nullptr);
  }
  return nullptr;
}

// The program's handlers are not to run there.
int start(std::unique_ptr<Asking> asking) {
  asking->place = take_place();
  if (!asking->place) return EAGAIN;
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_attr_t detached;
  if (int error = pthread_attr_init(&detached)) return error;
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const int error = pthread_create(&thread, &detached, look_up_aside, asking.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&detached);
  if (error == 0) {
    (void)asking.release();  // NOLINT(bugprone-unused-return-value): the thread's now
  }
  return error;
}

// EBUSY: the id asks, or nobody has taken what it found.
int begin(CmId& id, std::shared_ptr<CmLookup>& lookup) {
  return guarded([&] {
    auto made = std::make_shared<CmLookup>();
    PthreadLock lock(id.mutex);
    if (id.lookup) {
      const std::lock_guard of_lookup(id.lookup->mutex);
      if (!id.lookup->over || id.lookup->found != nullptr) return EBUSY;
    }
    lookup = id.lookup = std::move(made);
    return 0;
  });
}

}  // namespace

// Their threads are the parent's.
void cm_forget_lookups() { under_way = 0; }

}  // namespace verbena::abi

using namespace verbena::abi;

// EOPNOTSUPP: RAI_SA, for RoCE has no subnet administration that could be asked.  EAGAIN: so many
// are asked for already (kLookupsMax).  Of a synchronous id it waits for the answer.
VB_EXPORT int rdma_resolve_addrinfo(rdma_cm_id* id, const char* node, const char* service,
                                    const rdma_addrinfo* hints) {
  if (id == nullptr || (node == nullptr && service == nullptr && hints == nullptr)) {
    return failed(EINVAL);
  }
  const int flags = hints == nullptr ? 0 : hints->ai_flags;
  if ((flags & kResolveBySa) != 0) return failed(EOPNOTSUPP);
  auto& mine = *static_cast<CmId*>(id);
  // Over an adapter there is no way to tell of the answer.
  if (!mine.sync && vb_cm_id_write_event(mine.library_handle, 0, 0, 0) == EOPNOTSUPP) {
    return failed(EOPNOTSUPP);
  }
  std::shared_ptr<CmLookup> lookup;
  std::unique_ptr<Asking> asking;
  if (int error = begin(mine, lookup)) return failed(error);
  int error = guarded([&] {
    asking.reset(new Asking{Question(node, service, hints), lookup, mine.library_handle});
    return 0;
  });
  if (error == 0) error = mine.sync ? ask(*asking) : start(std::move(asking));
  if (error == 0) return 0;
  const Answer none(*lookup);
  return failed(error);
}

// What was found is the caller's from then on.  ENOENT: nothing is there, or it was taken.
VB_EXPORT int rdma_query_addrinfo(rdma_cm_id* id, rdma_addrinfo** info) {
  if (id == nullptr || info == nullptr) return failed(EINVAL);
  auto& mine = *static_cast<CmId*>(id);
  PthreadLock lock(mine.mutex);
  if (!mine.lookup) return failed(ENOENT);
  const std::lock_guard of_lookup(mine.lookup->mutex);
  *info = std::exchange(mine.lookup->found, nullptr);
  return *info == nullptr ? failed(ENOENT) : 0;
}

// A synchronous id waits for its own events alone: EINVAL.
VB_EXPORT int rdma_write_cm_event(rdma_cm_id* id, rdma_cm_event_type event, int status,
                                  uint64_t arg) {
  if (id == nullptr || static_cast<std::uint32_t>(event) != kUserEvent) return failed(EINVAL);
  const auto& mine = *static_cast<CmId*>(id);
  if (mine.sync) return failed(EINVAL);
  const int error = vb_cm_id_write_event(mine.library_handle, kUserEvent, status, arg);
  return error == 0 ? 0 : failed(error);
}
