#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "verbena/c_api_requests.h"
#include "verbena/loop.h"
#include "verbena/outcome.h"
#include "verbena/request.h"

namespace verbena {

// Tells which local and remote access to memory is allowed (enum ibv_access_flags).
enum class Access : std::uint32_t {
  kRead = 0,  // local reading is always allowed
  kLocalWrite = 1,
  kRemoteWrite = 2,  // requires kLocalWrite
  kRemoteRead = 4,
  kRemoteAtomic = 8,  // requires kLocalWrite
  kBindWindow = 16,
};
constexpr Access operator|(Access a, Access b) {
  return static_cast<Access>(static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b));
}

// Holds the address of a port or a multicast group (vol1 4.1.1), in network order.  On RoCE it is
// an IP address; an IPv4 address is written as ::ffff:a.b.c.d (annex A17.4.5).
using Gid = std::array<std::uint8_t, 16>;
// Holds an address of this host.  While the agent lives, an address that disappears and comes back
// has the same index again, unless a new address has taken the index because the table was full.
struct GidEntry {
  Gid gid{};
  std::uint32_t index = 0;      // in the GID table of the port
  std::uint32_t interface = 0;  // the index of the network interface
  std::uint8_t port = 1;
};

// Names a segment of registered memory, for work requests (an SGE).
struct Segment {
  std::byte* address = nullptr;
  std::uint32_t bytes = 0;
  std::uint32_t lkey = 0;
};

// Describes memory that a peer may read or write.  Programs send it to the peer as plain bytes.
struct RemoteMemory {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint32_t rkey = 0;
  std::uint32_t reserved = 0;
};

// Registers memory that the device may use (vol1 10.6).  REQUIRES: the memory outlives the region.
class MemoryRegion {
 public:
  MemoryRegion(Loop& loop, const vb_mr_args& args)
      : loop_(&loop), handle_(args.mr), args_(std::make_shared<vb_mr_args>(args)) {}

  Segment segment(std::size_t offset, std::size_t bytes) const {
    return {static_cast<std::byte*>(args_->address) + offset, static_cast<std::uint32_t>(bytes),
            args_->lkey};
  }
  Segment whole() const { return segment(0, args_->length); }
  RemoteMemory remote() const { return {args_->iova, args_->length, args_->rkey, 0}; }
  std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(args_->address), args_->length};
  }
  // Changes the memory and the access rights, but not the keys.  After an error nothing has
  // changed.  Over an adapter, fails with operation_not_supported.
  Request<void> reregister(std::span<std::byte> memory, Access access) {
    struct Arguments {
      vb_mr_args value{};
      std::shared_ptr<vb_mr_args> region;
    };
    Arguments args{*args_, args_};
    args.value.mr = handle_.get();
    args.value.what = 1 | 4;  // IBV_REREG_MR_CHANGE_TRANSLATION, _ACCESS
    args.value.address = memory.data();
    args.value.length = memory.size();
    args.value.iova = reinterpret_cast<std::uintptr_t>(memory.data());
    args.value.access = static_cast<std::uint32_t>(access);
    return detail::submit<void>(*loop_, VB_MR_REREGISTER, std::move(args),
                                [](Loop&, Arguments& results) -> Outcome<void> {
                                  *results.region = results.value;
                                  return {};
                                });
  }
  Request<void> deregister() {
    return detail::submit_plain<vb_mr_args>(*loop_, VB_MR_DEREGISTER,
                                            [&](vb_mr_args& args) { args.mr = handle_.get(); });
  }

 private:
  Loop* loop_;
  detail::Owned<vb_mr_deregister> handle_;
  std::shared_ptr<vb_mr_args> args_;  // the arguments of the last registration
};

// Names the memory of a request: one segment, a whole region, or a list of segments.  A list is not
// copied and has to live until the request is posted.
//
//     qp.post({.segments = region});
//     qp.post({.segments = region.segment(0, 64)});
//     qp.post({.segments = list});
class Segments {
 public:
  // NOLINTBEGIN(google-explicit-constructor,hicpp-explicit-conversions)
  Segments() = default;
  Segments(const Segment& one) : one_(one), is_one_(true) {}
  Segments(const MemoryRegion& whole) : Segments(whole.whole()) {}
  template <std::convertible_to<std::span<const Segment>> List>
  Segments(const List& list) : list_(list) {}
  Segments(const Segment* first, std::size_t count) : list_(first, count) {}
  // NOLINTEND(google-explicit-constructor,hicpp-explicit-conversions)

  const Segment* begin() const { return is_one_ ? &one_ : list_.data(); }
  const Segment* end() const { return begin() + size(); }
  std::size_t size() const { return is_one_ ? 1 : list_.size(); }

 private:
  std::span<const Segment> list_{};
  Segment one_{};
  bool is_one_ = false;
};

// Provides memory that reads as zeros and discards writes.  Peers cannot access it.
class NullRegion {
 public:
  explicit NullRegion(const vb_mr_args& args) : handle_(args.mr), lkey_(args.lkey) {}
  Segment segment(std::uint32_t bytes) const { return {nullptr, bytes, lkey_}; }

 private:
  detail::Owned<vb_mr_deregister> handle_;
  std::uint32_t lkey_;
};

// Groups memory, queue pairs and address handles.  Only objects of the same domain can be used
// together (vol1 10.2.3).
class ProtectionDomain {
 public:
  ProtectionDomain(Loop& loop, std::uint32_t device, vb_handle handle)
      : loop_(&loop), device_(device), handle_(handle) {}

  Request<MemoryRegion> register_memory(std::span<std::byte> memory, Access access) const {
    vb_mr_args args{};
    args.pd = handle_.get();
    args.address = memory.data();
    args.length = memory.size();
    args.iova = reinterpret_cast<std::uintptr_t>(memory.data());
    args.access = static_cast<std::uint32_t>(access);
    return detail::submit<MemoryRegion>(
        *loop_, VB_MR_REGISTER, args, [](Loop& loop, vb_mr_args& results) -> Outcome<MemoryRegion> {
          return MemoryRegion(loop, results);
        });
  }
  Request<NullRegion> create_null_region() const {
    vb_mr_args args{};
    args.pd = handle_.get();
    return detail::submit<NullRegion>(
        *loop_, VB_MR_CREATE_NULL, args,
        [](Loop&, vb_mr_args& results) -> Outcome<NullRegion> { return NullRegion(results); });
  }
  // Makes the pages present now, so that later accesses do not wait for the kernel.
  Request<void> prefetch(const Segments& segments, bool to_write) const {
    struct Arguments {
      vb_prefetch_args value{};
      std::vector<vb_sge> list{};
    };
    Arguments args;
    for (const Segment& segment : segments) {
      args.list.push_back(
          {reinterpret_cast<std::uintptr_t>(segment.address), segment.bytes, segment.lkey});
    }
    args.value = {handle_.get(), args.list.data(), static_cast<std::uint32_t>(args.list.size()),
                  to_write ? 1 : 0};
    return detail::submit<void>(*loop_, VB_MR_PREFETCH, std::move(args),
                                [](Loop&, Arguments&) -> Outcome<void> { return {}; });
  }
  // Destroys the domain.  Fails with device_or_resource_busy while regions, windows, queue pairs,
  // shared receive queues or address handles use it.
  Request<void> destroy() {
    return detail::submit_plain<vb_pd_args>(*loop_, VB_PD_DESTROY,
                                            [&](vb_pd_args& args) { args.pd = handle_.get(); });
  }
  vb_handle handle() const { return handle_.get(); }
  Loop& loop() const { return *loop_; }
  // Returns the index of its device in the host's list.
  std::uint32_t device() const { return device_; }

 private:
  Loop* loop_;
  std::uint32_t device_;
  detail::Owned<vb_pd_destroy> handle_;
};

class CompletionQueue;

// Represents a channel adapter.  Opening it connects to the agent, and starts the agent if
// necessary.
class Device {
 public:
  // Opens the device with this index in the host's list; the first index is 0.  Fails with ENOENT
  // past the end of the list.
  static Request<Device> open(Loop& loop, std::uint32_t index = 0) {
    vb_open_args open_args{};
    open_args.index = index;
    return detail::submit<Device>(loop, VB_OPEN, open_args,
                                  [](Loop& same_loop, vb_open_args& args) -> Outcome<Device> {
                                    if (auto attached = same_loop.attach(); !attached) {
                                      return std::unexpected(std::move(attached.error()));
                                    }
                                    return Device(same_loop, args);
                                  });
  }

  const vb_device_attr& attributes() const { return args_.device; }
  // Returns the index of the device in the host's list.
  std::uint32_t index() const { return args_.index; }
  // Returns the state of a port at the time of open().  The numbers of the ports are 1 to
  // attributes().phys_port_count.  Throws std::out_of_range for any other number.
  const vb_port_attr& port(std::uint8_t number = 1) const {
    if (number < 1 || number > attributes().phys_port_count) {
      throw std::out_of_range("the device has no port with this number");
    }
    return args_.ports[number - 1];
  }

  Request<ProtectionDomain> create_pd() const {
    struct Arguments {
      vb_pd_args value{};
      std::uint32_t device = 0;
    };
    return detail::submit<ProtectionDomain>(
        *loop_, VB_PD_CREATE, Arguments{.value = {}, .device = args_.index},
        [](Loop& loop, Arguments& results) -> Outcome<ProtectionDomain> {
          return ProtectionDomain(loop, results.device, results.value.pd);
        });
  }
  // Returns the current addresses of a port.  Does not wait.
  std::vector<GidEntry> gids(std::uint8_t port = 1) const {
    std::vector<GidEntry> all;
    vb_gid_entry entry{};
    for (std::uint32_t i = 0; vb_gid_query(args_.index, port, i, &entry) == 0; ++i) {
      if (entry.in_use == 0) continue;
      GidEntry& found = all.emplace_back();
      std::copy(std::begin(entry.raw), std::end(entry.raw), found.gid.begin());
      found.index = entry.index;
      found.interface = entry.interface_index;
      found.port = port;
    }
    return all;
  }
  // Creates a completion queue with at least `entries` entries.
  Request<CompletionQueue> create_cq(std::uint32_t entries) const;
  Loop& loop() const { return *loop_; }

 private:
  Device(Loop& loop, const vb_open_args& args) : loop_(&loop), args_(args) {}

  Loop* loop_;
  vb_open_args args_;
};

}  // namespace verbena
