#pragma once

#include <cstddef>
#include <cstdint>

#include "verbena/c_api_requests.h"
#include "verbena/device.h"
#include "verbena/loop.h"
#include "verbena/queues.h"
#include "verbena/request.h"

namespace verbena {

// Gives peers access to a part of a memory region (vol1 10.6.7).  A work request binds the window
// to an address range with access rights, which is much faster than registering memory.
// REQUIRES: the region has Access::kBindWindow and outlives the binding.
class MemoryWindow {
 public:
  // The values are those of enum ibv_mw_type.
  enum class Type : std::uint32_t {
    kOne = 1,  // for all queue pairs of its domain; not supported over an adapter
    kTwo = 2,  // only for the queue pair that binds it; invalidate it before binding it again
  };

  MemoryWindow(Loop& loop, const vb_mw_args& args)
      : loop_(&loop), handle_(args.mw), rkey_(args.rkey) {}

  static Request<MemoryWindow> create(const ProtectionDomain& pd, Type type) {
    vb_mw_args args{};
    args.pd = pd.handle();
    args.type = static_cast<std::uint32_t>(type);
    return detail::submit<MemoryWindow>(
        pd.loop(), VB_MW_CREATE, args,
        [](Loop& loop, vb_mw_args& results) -> Outcome<MemoryWindow> {
          return MemoryWindow(loop, results);
        });
  }

  // Returns the request that binds the window.  The program has to post it.  Each binding changes
  // the window's R_Key.  Peers can use remote() when the request is complete.
  Send bind(const MemoryRegion& region, std::size_t offset, std::size_t bytes, Access access) {
    constexpr std::uint32_t kCounter = 0xff;  // the program chooses these bits (vol1 10.6.3.3)
    rkey_ = (rkey_ & ~kCounter) | ((rkey_ + 1) & kCounter);
    const Segment at = region.segment(offset, bytes);
    remote_ = {reinterpret_cast<std::uintptr_t>(at.address), bytes, rkey_, 0};
    Send request;
    request.opcode = Opcode::kBindWindow;
    request.remote.rkey = rkey_;
    request.bind = at;
    request.bind_bytes = bytes;
    request.bind_access = access;
    return request;
  }
  // Returns the request that ends the binding of a window of type 2.
  Send invalidate() const {
    Send request;
    request.opcode = Opcode::kLocalInvalidate;
    request.remote.rkey = rkey_;
    return request;
  }
  // Returns the address range and the R_Key of the last bind(), for the peer.
  const RemoteMemory& remote() const { return remote_; }
  Request<void> destroy() {
    return detail::submit_plain<vb_mw_args>(*loop_, VB_MW_DESTROY,
                                            [&](vb_mw_args& args) { args.mw = handle_.get(); });
  }

 private:
  Loop* loop_;
  detail::Owned<vb_mw_destroy> handle_;
  std::uint32_t rkey_;
  RemoteMemory remote_{};
};

}  // namespace verbena
