#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <new>

#include "abi/abi.h"
#include "abi/cm/cm.h"
#include "abi/library.h"

// Opens the device that all ids use.

namespace verbena::abi {
namespace {

std::mutex opened_mutex;
constinit CmDevice opened{};
constinit pid_t opened_by = 0;

}  // namespace

// Opens the device on first use; it is never closed.  A forked child opens its own, because it
// cannot use libverbena's objects of the parent.
int cm_device(CmDevice& device) {
  std::scoped_lock lock(opened_mutex);
  if (opened_by != getpid()) {
    ibv_device** list = ibv_get_device_list(nullptr);
    if (list == nullptr) return errno;
    ibv_context* verbs = ibv_open_device(list[0]);
    int error = errno;
    ibv_free_device_list(list);
    if (verbs == nullptr) return error;
    ibv_pd* pd = ibv_alloc_pd(verbs);
    if (pd == nullptr) {
      error = errno;
      ibv_close_device(verbs);
      return error;
    }
    opened = {.verbs = verbs, .pd = pd};
    opened_by = getpid();
  }
  device = opened;
  return 0;
}

// The mutex may be locked: in the parent another thread may have been waiting for an agent to
// start, and a fork does not wait for that.
void cm_forget_device() {
  new (&opened_mutex) std::mutex;
  opened_by = 0;
}

}  // namespace verbena::abi

using namespace verbena::abi;

VB_EXPORT ibv_context** rdma_get_devices(int* num_devices) {
  if (num_devices != nullptr) *num_devices = 0;
  if (int error = check_cm_library()) return null_with(error);
  CmDevice device{};
  if (int error = cm_device(device)) return null_with(error);
  auto** list = static_cast<ibv_context**>(std::calloc(2, sizeof(ibv_context*)));
  if (list == nullptr) return null_with(ENOMEM);
  list[0] = device.verbs;
  if (num_devices != nullptr) *num_devices = 1;
  return list;
}

VB_EXPORT void rdma_free_devices(ibv_context** list) { std::free(static_cast<void*>(list)); }
