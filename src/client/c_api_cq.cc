// Implements the C API: completion channels and completion queues.

#include <algorithm>
#include <span>

#include "client/c_api_support.h"
#include "client/sizes.h"
#include "client/unset_array.h"

using verbena::Result;
using verbena::Time;
using namespace verbena::client;  // NOLINT(google-build-using-namespace): implements its C API
namespace hca = verbena::hca;
using verbena::process::Process;

namespace {

vb_wc to_vb_wc(const hca::WorkCompletion& wc) {
  return {.wr_id = wc.wr_id,
          .status = std::to_underlying(wc.status),
          .opcode = std::to_underlying(wc.opcode),
          .vendor_err = wc.vendor_error,
          .byte_len = wc.byte_len,
          .imm = wc.immediate,
          .invalidated_rkey = wc.invalidated_r_key,
          .qp_num = wc.qpn.value,
          .src_qp = wc.source_qpn.value,
          .wc_flags = wc.flags,
          .pkey_index = wc.pkey_index,
          .sl = wc.service_level,
          .dlid_path_bits = wc.destination_path_bits,
          .slid = wc.source_lid.value,
          .timestamp_ns = static_cast<std::uint64_t>(wc.time.time_since_epoch().count())};
}

verbena::Error describe_cqe_error(const verbena::Error& error, const char* call,
                                  std::uint32_t entries, Process& process) {
  return explain_size_error(error, call,
                            {{"cqe", entries, "max_cqe", process.engine().limits().max_cqe, 1}});
}

// Returns how many completions were stored, or -errno.
int poll_into(hca::Engine& engine, hca::CqHandle cq, int max, vb_wc* out) {
  UnsetArray<hca::WorkCompletion, 16> storage;
  const std::span chunk = storage.all();
  int stored = 0;
  while (stored < max) {
    const auto wanted_count =
        std::min<std::size_t>(chunk.size(), static_cast<std::size_t>(max - stored));
    const auto count = engine.poll_cq(cq, chunk.first(wanted_count));
    if (!count) return -failed(count.error());
    for (unsigned i = 0; i < *count; ++i) out[stored++] = to_vb_wc(chunk[i]);
    if (*count < wanted_count) break;
  }
  return stored;
}

}  // namespace

extern "C" {

int vb_channel_create(vb_handle* channel, int* fd) {
  return on_client([&](Client& client) {
    const auto handle = client.channels().create_completion();
    if (!handle) return failed(handle.error());
    *channel = handle->value;
    *fd = client.channels().completion(*handle)->fd();
    return 0;
  });
}

int vb_channel_destroy(vb_handle channel) {
  return on_object([&](Client& client) {
    return result_of(
        client.channels().destroy_completion(as_handle<CompletionChannelHandle>(channel)));
  });
}

// Does not use guarded(), because this function may unwind when the thread is cancelled.
int vb_channel_next(vb_handle channel, uint64_t* cq_cookie) {
  Client* client = client_if_any();
  if (client == nullptr) return EINVAL;
  const auto queue = client->channels().completion(as_handle<CompletionChannelHandle>(channel));
  if (queue == nullptr) return EINVAL;
  client->note_other_wait();
  CqEvent event;
  if (const int error = client->next_event(*queue, event); error != 0) return error;
  *cq_cookie = event.cookie;
  return 0;
}

int vb_cq_create(vb_handle context, uint32_t* entries, vb_handle channel, uint64_t cookie,
                 vb_handle* cq) {
  return on_client([&](Client& client) {
    auto registration = Registration::add(client.channels(),
                                          {.channel = as_handle<CompletionChannelHandle>(channel),
                                           .context = as_handle<ContextHandle>(context),
                                           .cookie = cookie});
    if (!registration) return failed(registration.error());
    const auto handle = client.command([&](Process& process, Time) -> Result<hca::CqHandle> {
      const auto result = process.engine().create_cq(*entries, (*registration)->object());
      if (!result) {
        return std::unexpected(
            describe_cqe_error(result.error(), "ibv_create_cq()", *entries, process));
      }
      *entries = VB_TRY(process.engine().cq_capacity(*result));
      return result;
    });
    if (!handle) return failed(handle.error());
    (*registration)->commit();
    *cq = handle->value;
    return 0;
  });
}

int vb_cq_resize(vb_handle cq, uint32_t* entries) {
  return on_object([&](Client& client) {
    const auto capacity = client.command([&](Process& process, Time) -> Result<std::uint32_t> {
      const auto handle = as_handle<hca::CqHandle>(cq);
      if (const auto resized = process.engine().resize_cq(handle, *entries); !resized) {
        return std::unexpected(
            describe_cqe_error(resized.error(), "ibv_resize_cq()", *entries, process));
      }
      return process.engine().cq_capacity(handle);
    });
    if (!capacity) return failed(capacity.error());
    *entries = *capacity;
    return 0;
  });
}

int vb_cq_destroy(vb_handle cq) {
  return on_object([&](Client& client) {
    const auto handle = as_handle<hca::CqHandle>(cq);
    std::uint64_t object = 0;
    const auto result = client.command([&](Process& process, Time) -> Result<void> {
      object = VB_TRY(process.engine().cq_cookie(handle));
      return process.engine().destroy_cq(handle);
    });
    if (result) client.channels().remove_object(object);
    return result_of(result);
  });
}

int vb_cq_poll(vb_handle cq, int max, struct vb_wc* wc) {
  Client* client = client_if_any();
  if (client == nullptr || max < 0) return -EINVAL;
  const auto handle = as_handle<hca::CqHandle>(cq);
  const int stored = poll_into(client->engine(), handle, max, wc);
  if (stored != 0 || max == 0) return stored;
  client->poll();
  return poll_into(client->engine(), handle, max, wc);
}

int vb_cq_arm(vb_handle cq, int solicited_only) {
  return on_object([&](Client& client) {
    const auto result = client.engine().arm_cq(as_handle<hca::CqHandle>(cq), solicited_only != 0);
    if (result) client.cq_armed();
    return result_of(result);
  });
}

}  // extern "C"
