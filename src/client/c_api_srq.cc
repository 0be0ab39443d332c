// Implements the C API: shared receive queues.

#include "client/c_api_support.h"
#include "client/sizes.h"

using verbena::Result;
using verbena::Time;
using namespace verbena::client;  // NOLINT(google-build-using-namespace): implements its C API
namespace hca = verbena::hca;
using verbena::process::Process;

namespace {

constexpr std::uint32_t kMaxWr = 1, kLimit = 2;  // enum ibv_srq_attr_mask

}  // namespace

extern "C" {

int vb_srq_create(vb_handle context, vb_handle pd, struct vb_srq_attr* attr, uint64_t cookie,
                  vb_handle* srq) {
  return on_object([&](Client& client) {
    auto registration = Registration::add(
        client.channels(), {.context = as_handle<ContextHandle>(context), .cookie = cookie});
    if (!registration) return failed(registration.error());
    const auto handle = client.command([&](Process& process, Time) -> Result<hca::SrqHandle> {
      const auto result = process.engine().create_srq(
          as_handle<hca::PdHandle>(pd), {.max_wr = attr->max_wr, .max_sge = attr->max_sge},
          (*registration)->object());
      if (result) return result;
      const hca::Limits& limits = process.engine().limits();
      return std::unexpected(
          explain_size_error(result.error(), "ibv_create_srq()",
                             {{"max_wr", attr->max_wr, "max_srq_wr", limits.max_wr, 1},
                              {"max_sge", attr->max_sge, "max_srq_sge", limits.max_sge}}));
    });
    if (!handle) return failed(handle.error());
    (*registration)->commit();
    *srq = handle->value;
    return vb_srq_query(*srq, attr);
  });
}

int vb_srq_modify(vb_handle srq, const struct vb_srq_attr* attr, uint32_t mask) {
  return on_object([&](Client& client) {
    if ((mask & ~(kMaxWr | kLimit)) != 0) {
      return failed({verbena::Errc::kInvalidArgument, 0, "unknown attributes of an SRQ"});
    }
    return result_of(client.command([&](Process& process, Time) -> Result<void> {
      const auto handle = as_handle<hca::SrqHandle>(srq);
      hca::Engine& engine = process.engine();
      const hca::Engine::SrqInfo old_info = VB_TRY(engine.query_srq(handle));
      if ((mask & kMaxWr) != 0) {
        const auto resized = engine.resize_srq(handle, attr->max_wr);
        if (!resized) {
          return std::unexpected(explain_size_error(
              resized.error(), "ibv_modify_srq()",
              {{"max_wr", attr->max_wr, "max_srq_wr", engine.limits().max_wr, 1}}));
        }
      }
      if ((mask & kLimit) == 0) return {};
      const auto limit_result = engine.arm_srq(handle, attr->limit);
      if (limit_result) return limit_result;
      // Restores the old size, because a call that fails must not change anything.
      if ((mask & kMaxWr) != 0) VB_TRY_VOID(engine.resize_srq(handle, old_info.caps.max_wr));
      const std::uint32_t max_wr = (mask & kMaxWr) != 0 ? attr->max_wr : old_info.caps.max_wr;
      return std::unexpected(
          explain_size_error(limit_result.error(), "ibv_modify_srq()",
                             {{"srq_limit", attr->limit, "the SRQ's max_wr", max_wr}}));
    }));
  });
}

int vb_srq_query(vb_handle srq, struct vb_srq_attr* attr) {
  return on_object([&](Client& client) {
    const auto info = client.command([&](Process& process, Time) {
      return process.engine().query_srq(as_handle<hca::SrqHandle>(srq));
    });
    if (!info) return failed(info.error());
    *attr = {.max_wr = info->caps.max_wr, .max_sge = info->caps.max_sge, .limit = info->limit};
    return 0;
  });
}

int vb_srq_destroy(vb_handle srq) {
  return on_object([&](Client& client) {
    const auto handle = as_handle<hca::SrqHandle>(srq);
    std::uint64_t object = 0;
    const auto result = client.command([&](Process& process, Time) -> Result<void> {
      object = VB_TRY(process.engine().query_srq(handle)).cookie;
      return process.engine().destroy_srq(handle);
    });
    if (result) client.channels().remove_object(object);
    return result_of(result);
  });
}

}  // extern "C"
