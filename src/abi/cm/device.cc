#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <new>

#include "abi/abi.h"
#include "abi/cm/cm.h"
#include "abi/library.h"

// Opens the devices that ids use.

namespace verbena::abi {
namespace {

constexpr std::uint32_t kDevicesMax = 64;

std::mutex open_devices_mutex;
constinit CmDevice open_devices[kDevicesMax]{};
constinit pid_t opened_by_pid = 0;

int open_device(std::uint32_t index, CmDevice& device) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  if (list == nullptr) return errno;
  const bool exists = index < static_cast<std::uint32_t>(count);
  ibv_context* verbs = exists ? ibv_open_device(list[index]) : nullptr;
  int error = exists ? errno : ENODEV;
  ibv_free_device_list(list);
  if (verbs == nullptr) return error;
  ibv_pd* pd = ibv_alloc_pd(verbs);
  if (pd == nullptr) {
    error = errno;
    ibv_close_device(verbs);
    return error;
  }
  device = {.verbs = verbs, .pd = pd};
  return 0;
}

}  // namespace

// Opens a device on first use, and never closes it.  A forked child opens the device again, because
// it cannot use the parent's objects of libverbena.
int cm_get_device(std::uint32_t index, CmDevice& device) {
  if (index >= kDevicesMax) return ENODEV;
  std::scoped_lock lock(open_devices_mutex);
  if (opened_by_pid != getpid()) {
    for (CmDevice& one : open_devices) one = {};
    opened_by_pid = getpid();
  }
  if (open_devices[index].verbs == nullptr) {
    if (int error = open_device(index, open_devices[index])) return error;
  }
  device = open_devices[index];
  return 0;
}

// Removes the devices of the parent in a forked child.  Makes a new mutex: a thread of the parent
// may have held the old one while it waited for an agent to start.  That thread does not exist in
// the child, so it would never unlock the mutex.
void cm_forget_devices() {
  new (&open_devices_mutex) std::mutex;
  opened_by_pid = 0;
}

}  // namespace verbena::abi

using namespace verbena::abi;

VB_EXPORT ibv_context** rdma_get_devices(int* num_devices) {
  if (num_devices != nullptr) *num_devices = 0;
  if (int error = check_cm_library()) return null_with(error);
  int count = 0;
  ibv_device** const device_list = ibv_get_device_list(&count);
  if (device_list == nullptr) return null_with(errno);
  ibv_free_device_list(device_list);
  auto** list = static_cast<ibv_context**>(
      std::calloc(static_cast<std::size_t>(count) + 1, sizeof(ibv_context*)));
  if (list == nullptr) return null_with(ENOMEM);
  for (int i = 0; i < count; ++i) {
    CmDevice device{};
    if (int error = cm_get_device(static_cast<std::uint32_t>(i), device)) {
      std::free(static_cast<void*>(list));
      return null_with(error);
    }
    list[i] = device.verbs;
  }
  if (num_devices != nullptr) *num_devices = count;
  return list;
}

VB_EXPORT void rdma_free_devices(ibv_context** list) { std::free(static_cast<void*>(list)); }
