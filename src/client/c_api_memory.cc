// Implements the C API: memory regions and windows.

#include <array>
#include <bit>

#include "client/c_api_support.h"
#include "os/process.h"

using verbena::Errc;
using verbena::Result;
using verbena::Time;
using namespace verbena::client;  // NOLINT(google-build-using-namespace): implements its C API
namespace hca = verbena::hca;
namespace os = verbena::os;
using verbena::process::Process;

namespace {

constexpr std::uint32_t kOptionalAccess = 0x3ff00000;  // IBV_ACCESS_OPTIONAL_RANGE, ignored
constexpr std::uint32_t kHugePages = 1u << 7;          // a hint about how the memory was allocated
constexpr std::uint32_t kAccessSupported = hca::access::kLocalWrite | hca::access::kRemoteWrite |
                                           hca::access::kRemoteRead | hca::access::kRemoteAtomic |
                                           hca::access::kWindowBind | hca::access::kZeroBased |
                                           hca::access::kOnDemand;
constexpr std::uint32_t kAccessKnown = 0x1ff;

// Returns the access flags for the engine, without optional flags and hints.
Result<std::uint32_t> access_of(std::uint32_t requested) {
  const std::uint32_t flags = requested & ~(kOptionalAccess | kHugePages);
  if ((flags & ~kAccessKnown) != 0) {
    return verbena::fail(Errc::kInvalidArgument, "unknown access flags");
  }
  if ((flags & ~kAccessSupported) != 0) {
    return verbena::fail(Errc::kNotSupported,
                         "only these access flags are supported: local, remote, window bind, zero "
                         "based, on demand");
  }
  return flags;
}

// Returns true if the memory can be registered now.  For on-demand registration this is always
// true, because the program may map the memory later.
bool is_accessible(const void* address, std::uint64_t length, std::uint32_t access) {
  return (access & hca::access::kOnDemand) != 0 ||
         os::memory_is_mapped(address, length, (access & hca::access::kLocalWrite) != 0);
}

// Returns true if the range passes the end of the address space, rounded up to whole pages as in
// the kernel.  On-demand registration may cover all addresses.
bool wraps(const void* address, std::uint64_t length, std::uint32_t access) {
  constexpr std::uint64_t kLastPage = ~std::uint64_t{0xfff};
  const std::uint64_t begin = std::bit_cast<std::uintptr_t>(address), end = begin + length;
  return end < begin || (end > kLastPage && (access & hca::access::kOnDemand) == 0);
}

constexpr verbena::Error kWraps{Errc::kInvalidArgument, 0,
                                "the memory passes the end of the address space"};
constexpr verbena::Error kNotAccessible{Errc::kFault, 0,
                                        "the memory is not mapped, or may not be written"};

}  // namespace

extern "C" {

int vb_mr_register(vb_handle pd, void* address, uint64_t length, uint64_t iova, uint32_t access,
                   vb_handle* mr, uint32_t* lkey, uint32_t* rkey) {
  return on_object([&](Client& client) {
    const auto flags = access_of(access);
    if (!flags) return failed(flags.error());
    if (wraps(address, length, *flags)) return failed(kWraps);
    if (!is_accessible(address, length, *flags)) return failed(kNotAccessible);
    const bool zero_based = (*flags & hca::access::kZeroBased) != 0;
    const auto result = client.command([&](Process& process, Time) {
      return process.engine().register_mr(as_handle<hca::PdHandle>(pd),
                                          std::bit_cast<std::uintptr_t>(address), length,
                                          zero_based ? 0 : iova, *flags);
    });
    if (!result) return failed(result.error());
    *mr = result->handle.value;
    *lkey = result->lkey;
    *rkey = result->rkey;
    return 0;
  });
}

int vb_mr_create_null(vb_handle pd, vb_handle* mr, uint32_t* lkey) {
  return on_object([&](Client& client) {
    const auto result = client.command([&](Process& process, Time) {
      return process.engine().register_null_mr(as_handle<hca::PdHandle>(pd));
    });
    if (!result) return failed(result.error());
    *mr = result->handle.value;
    *lkey = result->lkey;
    return 0;
  });
}

int vb_mr_reregister(vb_handle mr, uint32_t what, vb_handle pd, void* address, uint64_t length,
                     uint32_t access) {
  return on_object([&](Client& client) {
    hca::Engine::MrChange change{.what = what,
                                 .pd = {pd},
                                 .address = std::bit_cast<std::uintptr_t>(address),
                                 .length = length};
    if ((what & hca::Engine::MrChange::kAccess) != 0) {
      const auto flags = access_of(access);
      if (!flags) return failed(flags.error());
      change.access_flags = *flags;
    }
    // If the call does not change the access rights, checks only that the memory is readable.  If
    // the existing rights include writing and the new memory is read-only, a later write faults.
    if ((what & hca::Engine::MrChange::kTranslation) != 0) {
      if (wraps(address, length, change.access_flags)) return failed(kWraps);
      if (!is_accessible(address, length, change.access_flags)) return failed(kNotAccessible);
    }
    return result_of(client.revoke([&](Process& process, Time) {
      return process.engine().reregister_mr(as_handle<hca::MrHandle>(mr), change);
    }));
  });
}

int vb_mr_deregister(vb_handle mr) {
  return on_object([&](Client& client) {
    return result_of(client.revoke([&](Process& process, Time) {
      return process.engine().deregister_mr(as_handle<hca::MrHandle>(mr));
    }));
  });
}

int vb_mr_prefetch(vb_handle pd, const struct vb_sge* list, uint32_t count, int write) {
  return on_object([&](Client& client) {
    const std::uint32_t needed = write != 0 ? hca::access::kLocalWrite : 0;
    // Checks every element before the first prefetch.
    for (const bool all_checked : {false, true}) {
      for (const vb_sge& sge : std::span(list, count)) {
        const auto memory = client.command([&](Process& process, Time) {
          return process.engine().find_memory(
              as_handle<hca::PdHandle>(pd),
              {.address = sge.addr, .length = sge.length, .lkey = sge.lkey}, needed);
        });
        if (!memory) return failed(memory.error());
        if (all_checked && !os::populate_pages(memory->data(), memory->size(), write != 0)) {
          return failed(kNotAccessible);
        }
      }
    }
    return 0;
  });
}

int vb_mw_create(vb_handle pd, uint32_t type, vb_handle* mw, uint32_t* rkey) {
  return on_object([&](Client& client) {
    if (type != std::to_underlying(hca::WindowType::kOne) &&
        type != std::to_underlying(hca::WindowType::kTwo)) {
      return failed({verbena::Errc::kInvalidArgument, 0, "a memory window is of type 1 or 2"});
    }
    const auto result = client.command([&](Process& process, Time) {
      return process.engine().create_mw(as_handle<hca::PdHandle>(pd),
                                        static_cast<hca::WindowType>(type));
    });
    if (!result) return failed(result.error());
    *mw = result->handle.value;
    *rkey = result->rkey;
    return 0;
  });
}

int vb_mw_destroy(vb_handle mw) {
  return on_object([&](Client& client) {
    return result_of(client.command([&](Process& process, Time) {
      return process.engine().destroy_mw(as_handle<hca::MwHandle>(mw));
    }));
  });
}

}  // extern "C"
