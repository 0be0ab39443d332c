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

vb_wc converted(const hca::WorkCompletion& wc) {
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
  return name_size(error, call,
                   {{"cqe", entries, "max_cqe", process.engine().limits().max_cqe, 1}});
}

// Returns how many completions were stored, or -errno.
int take(hca::Engine& engine, hca::CqHandle cq, int max, vb_wc* out) {
  UnsetArray<hca::WorkCompletion, 16> room;
  const std::span some = room.all();
  int stored = 0;
  while (stored < max) {
    const auto want = std::min<std::size_t>(some.size(), static_cast<std::size_t>(max - stored));
    const auto got = engine.poll_cq(cq, some.first(want));
    if (!got) return -failed(got.error());
    for (unsigned i = 0; i < *got; ++i) out[stored++] = converted(some[i]);
    if (*got < want) break;
  }
  return stored;
}

}  // namespace

extern "C" {

int vb_channel_create(vb_handle* channel, int* fd) {
  return on_client([&](Client& client) {
    const auto made = client.channels().create_completion();
    if (!made) return failed(made.error());
    *channel = made->value;
    *fd = client.channels().completion(*made)->fd();
    return 0;
  });
}

int vb_channel_destroy(vb_handle channel) {
  return on_object([&](Client& client) {
    return result_of(
        client.channels().destroy_completion(as_handle<CompletionChannelHandle>(channel)));
  });
}

// The body does not run in guarded(): it may unwind when the thread is cancelled.
int vb_channel_next(vb_handle channel, uint64_t* cq_cookie) {
  Client* client = client_if_any();
  if (client == nullptr) return EINVAL;
  const auto queue = client->channels().completion(as_handle<CompletionChannelHandle>(channel));
  if (queue == nullptr) return EINVAL;
  client->waits_elsewhere();
  CqEvent event;
  if (const int error = client->next_event(*queue, event); error != 0) return error;
  *cq_cookie = event.cookie;
  return 0;
}

int vb_cq_create(vb_handle context, uint32_t* entries, vb_handle channel, uint64_t cookie,
                 vb_handle* cq) {
  return on_client([&](Client& client) {
    auto added = Registration::add(client.channels(),
                                   {.channel = as_handle<CompletionChannelHandle>(channel),
                                    .context = as_handle<ContextHandle>(context),
                                    .cookie = cookie});
    if (!added) return failed(added.error());
    const auto made = client.command([&](Process& process, Time) -> Result<hca::CqHandle> {
      const auto created = process.engine().create_cq(*entries, (*added)->object());
      if (!created) {
        return std::unexpected(
            describe_cqe_error(created.error(), "ibv_create_cq()", *entries, process));
      }
      *entries = VB_TRY(process.engine().cq_capacity(*created));
      return created;
    });
    if (!made) return failed(made.error());
    (*added)->keep();
    *cq = made->value;
    return 0;
  });
}

int vb_cq_resize(vb_handle cq, uint32_t* entries) {
  return on_object([&](Client& client) {
    const auto given = client.command([&](Process& process, Time) -> Result<std::uint32_t> {
      const auto handle = as_handle<hca::CqHandle>(cq);
      if (const auto resized = process.engine().resize_cq(handle, *entries); !resized) {
        return std::unexpected(
            describe_cqe_error(resized.error(), "ibv_resize_cq()", *entries, process));
      }
      return process.engine().cq_capacity(handle);
    });
    if (!given) return failed(given.error());
    *entries = *given;
    return 0;
  });
}

int vb_cq_destroy(vb_handle cq) {
  return on_object([&](Client& client) {
    const auto handle = as_handle<hca::CqHandle>(cq);
    std::uint64_t object = 0;
    const auto gone = client.command([&](Process& process, Time) -> Result<void> {
      object = VB_TRY(process.engine().cq_cookie(handle));
      return process.engine().destroy_cq(handle);
    });
    if (gone) client.channels().remove_object(object);
    return result_of(gone);
  });
}

int vb_cq_poll(vb_handle cq, int max, struct vb_wc* wc) {
  Client* client = client_if_any();
  if (client == nullptr || max < 0) return -EINVAL;
  const auto handle = as_handle<hca::CqHandle>(cq);
  const int stored = take(client->engine(), handle, max, wc);
  if (stored != 0 || max == 0) return stored;
  client->poll();
  return take(client->engine(), handle, max, wc);
}

int vb_cq_arm(vb_handle cq, int solicited_only) {
  return on_object([&](Client& client) {
    const auto armed = client.engine().arm_cq(as_handle<hca::CqHandle>(cq), solicited_only != 0);
    if (armed) client.armed();
    return result_of(armed);
  });
}

}  // extern "C"
