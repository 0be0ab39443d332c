#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "verbena/c_api_requests.h"
#include "verbena/completions.h"
#include "verbena/device.h"
#include "verbena/loop.h"
#include "verbena/outcome.h"
#include "verbena/request.h"

namespace verbena {

namespace detail {

inline constexpr std::size_t kSegmentsMax = 32;  // max_sge of the device

inline const vb_sge* fill(const Segments& segments, std::array<vb_sge, kSegmentsMax>& list) {
  std::size_t count = 0;
  for (const Segment& segment : segments) {
    if (count == list.size()) break;
    list[count++] = {reinterpret_cast<std::uintptr_t>(segment.address), segment.bytes,
                     segment.lkey};
  }
  return list.data();
}
inline vb_recv_wr receive(std::uint64_t id, const Segments& segments,
                          std::array<vb_sge, kSegmentsMax>& list) {
  vb_recv_wr wr{};
  wr.wr_id = id;
  wr.sg_list = fill(segments, list);
  wr.num_sge = static_cast<std::uint32_t>(segments.size());
  return wr;
}
inline Outcome<void> too_many_segments() {
  return failure(EINVAL, "a request has more than 32 segments");
}
inline Outcome<void> outcome_of_post(int error) {
  if (error != 0) return failure(error, vb_last_error());
  return {};
}

}  // namespace detail

// Names the kinds of queue pairs: reliable connections, unreliable connections, and datagrams (enum
// ibv_qp_type).
enum class Transport : std::uint32_t { kRc = 2, kUc = 3, kUd = 4 };

// Holds receive requests that several queue pairs share (vol1 10.2.9).  Queue pairs that use the
// queue keep it alive after this object is destroyed.
class SharedReceiveQueue {
 public:
  // The values are those of enum ibv_event_type.
  enum class Event : std::uint32_t {
    kError = 14,
    kLimitReached = 15,  // fewer receives are posted than the limit; one event per set_limit()
  };
  using Sink = detail::EventSink<Event, vb_srq_destroy>;

  SharedReceiveQueue(Loop& loop, detail::SinkOwner<Sink> sink, const vb_srq_attr& attributes)
      : loop_(&loop), sink_(std::move(sink)), capacities_(attributes) {}

  static Request<SharedReceiveQueue> create(const ProtectionDomain& pd, std::uint32_t requests,
                                            std::uint32_t segments = 1) {
    struct Arguments {
      vb_srq_args value{};
      detail::SinkOwner<Sink> sink{};
    };
    Arguments args;
    args.sink = detail::SinkOwner(std::make_shared<Sink>(pd.loop()));
    args.value.context = detail::AsyncEvents::get().context();
    args.value.pd = pd.handle();
    args.value.attr.max_wr = requests;
    args.value.attr.max_sge = segments;
    args.value.cookie = detail::cookie_of(*args.sink);
    return detail::submit<SharedReceiveQueue>(
        pd.loop(), VB_SRQ_CREATE, std::move(args),
        [](Loop& loop, Arguments& results) -> Outcome<SharedReceiveQueue> {
          results.sink->handle = detail::Owned<vb_srq_destroy>(results.value.srq);
          return SharedReceiveQueue(loop, std::move(results.sink), results.value.attr);
        });
  }

  const vb_srq_attr& capacities() const { return capacities_; }  // as they were at creation
  Outcome<void> post_receive(std::uint64_t id, const Segments& segments) const {
    if (segments.size() > detail::kSegmentsMax) return detail::too_many_segments();
    std::array<vb_sge, detail::kSegmentsMax> list{};
    const vb_recv_wr wr = detail::receive(id, segments, list);
    return detail::outcome_of_post(vb_post_srq_recv(sink_->handle.get(), &wr));
  }
  // Waits for the next event.  Only one coroutine may wait at a time.
  detail::Mailbox<Event>::Next event() { return detail::Mailbox<Event>::Next(sink_->events); }
  // Requests one event kLimitReached when fewer than `fewer_than` receives are posted; 0: none.
  Request<void> set_limit(std::uint32_t fewer_than) {
    return modify({.max_wr = 0, .max_sge = 0, .limit = fewer_than}, 2);
  }
  // Changes the capacity to at least `requests`.  Posted receives remain.
  Request<void> resize(std::uint32_t requests) {
    return modify({.max_wr = requests, .max_sge = 0, .limit = 0}, 1);
  }
  Request<vb_srq_attr> query() const {
    vb_srq_args args{};
    args.srq = sink_->handle.get();
    return detail::submit<vb_srq_attr>(
        *loop_, VB_SRQ_QUERY, args,
        [](Loop&, vb_srq_args& results) -> Outcome<vb_srq_attr> { return results.attr; });
  }
  // Destroys the queue.  Fails with device_or_resource_busy while queue pairs use it.
  Request<void> destroy() {
    return detail::submit_plain<vb_srq_args>(
        *loop_, VB_SRQ_DESTROY, [&](vb_srq_args& args) { args.srq = sink_->handle.get(); });
  }
  vb_handle handle() const { return sink_->handle.get(); }
  std::shared_ptr<const void> share() const { return sink_.share(); }

 private:
  Request<void> modify(const vb_srq_attr& attributes, std::uint32_t mask) {
    return detail::submit_plain<vb_srq_args>(*loop_, VB_SRQ_MODIFY, [&](vb_srq_args& args) {
      args.srq = sink_->handle.get();
      args.attr = attributes;
      args.mask = mask;
    });
  }

  Loop* loop_;
  detail::SinkOwner<Sink> sink_;
  vb_srq_attr capacities_;
};

// Holds the transport and the capacities of a queue pair, and the shared receive queue that it
// uses.
struct QueuePairOptions {
  Transport transport = Transport::kRc;
  std::uint32_t send_requests = 64, receive_requests = 64;
  std::uint32_t send_segments = 1, receive_segments = 1;  // the most segments of one request
  std::uint32_t inline_bytes = 0;
  const SharedReceiveQueue* receives = nullptr;  // null: the queue pair has its own receive queue
};

// The values are those of enum ibv_wr_opcode.
enum class Opcode : std::uint32_t {
  kWrite = 0,
  kWriteImm = 1,
  kSend = 2,
  kSendImm = 3,
  kRead = 4,
  kCompareSwap = 5,  // both atomics return the old value of the 8 bytes at the remote address
  kFetchAdd = 6,
  kLocalInvalidate = 7,  // invalidates the R_Key of a window of this program
  kBindWindow = 8,       // binds a window: see window.h
  kSendInvalidate = 9,   // invalidates an R_Key of the peer
  kAtomicWrite = 15,
};

// The values are those of enum ibv_send_flags.
enum class SendFlags : std::uint32_t {
  kNone = 0,
  kFence = 1,  // begins after all earlier READs and atomics are complete
  kSignaled = 2,
  kSolicited = 4,
  kInline = 8,  // the bytes are copied now, and need not be registered
};
constexpr SendFlags operator|(SendFlags a, SendFlags b) {
  return static_cast<SendFlags>(static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b));
}

// Holds the destination address of datagrams: a port or a multicast group.
class AddressHandle {
 public:
  AddressHandle(Loop& loop, const vb_ah_args& args) : loop_(&loop), handle_(args.ah) {}

  // `source` is one of Device::gids().
  static Request<AddressHandle> create(const ProtectionDomain& pd, const GidEntry& source,
                                       const Gid& to, std::uint8_t hop_limit = 64) {
    vb_ah_args args{};
    args.device = pd.device();
    args.pd = pd.handle();
    args.attr.is_global = 1;
    args.attr.port_num = source.port;
    std::copy(to.begin(), to.end(), args.attr.dgid);
    args.attr.sgid_index = static_cast<std::uint8_t>(source.index);
    args.attr.hop_limit = hop_limit;
    return detail::submit<AddressHandle>(
        pd.loop(), VB_AH_CREATE, args,
        [](Loop& loop, vb_ah_args& results) -> Outcome<AddressHandle> {
          return AddressHandle(loop, results);
        });
  }
  Request<void> destroy() {
    return detail::submit_plain<vb_ah_args>(*loop_, VB_AH_DESTROY,
                                            [&](vb_ah_args& args) { args.ah = handle_.get(); });
  }
  vb_handle handle() const { return handle_.get(); }

 private:
  Loop* loop_;
  detail::Owned<vb_ah_destroy> handle_;
};

// This queue pair number stands for all members of a multicast group (vol1 10.5).
inline constexpr std::uint32_t kAllMembers = 0xffffff;
// The first bytes of a received datagram are its network header: an IPv6 header, or an IPv4 header
// in the last 20 of these bytes.
inline constexpr std::uint32_t kDatagramHeaderBytes = 40;

// Describes one work request for the send queue.
struct Send {
  std::uint64_t id = 0;
  Opcode opcode = Opcode::kSend;
  SendFlags flags = SendFlags::kSignaled;
  Segments segments{};
  // WRITE, READ and atomics use this memory of the peer.  An invalidation uses only its key.
  RemoteMemory remote{};
  std::uint64_t remote_offset = 0;
  std::uint32_t immediate = 0;              // host order
  std::uint64_t compare_add = 0, swap = 0;  // atomics
  // A datagram goes to this address and queue pair, and carries this Q_Key.
  const AddressHandle* to = nullptr;
  std::uint32_t queue_pair = 0;
  std::uint32_t qkey = 0;
  // kBindWindow binds a window to this memory.
  Segment bind{};
  std::uint64_t bind_bytes = 0;
  Access bind_access = Access::kRead;
};

namespace detail {

// Represents a membership, which the destructor ends.  A GroupMembership shares it with its request
// to detach, because the membership remains if that request is cancelled.
struct Membership {
  Membership() = default;
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;
  ~Membership() {
    if (args.qp != 0) vb_qp_detach(args.qp, args.group);
  }
  std::shared_ptr<const void> keep_alive{};
  vb_group_args args{};  // `qp` is 0 if there is no membership
};

struct MembershipArguments {
  vb_group_args value{};
  std::shared_ptr<Membership> membership{};
};

}  // namespace detail

// Holds the membership of a queue pair in a multicast group.  Destroying this object ends the
// membership.  Before that, the queue pair cannot be destroyed.
class GroupMembership {
 public:
  GroupMembership(Loop& loop, std::shared_ptr<detail::Membership> membership)
      : loop_(&loop), membership_(std::move(membership)) {}
  GroupMembership(GroupMembership&&) noexcept = default;
  GroupMembership& operator=(GroupMembership&&) noexcept = default;
  ~GroupMembership() = default;

  // Ends the membership now.  If the request is cancelled, the membership remains.
  Request<void> detach() {
    detail::MembershipArguments args{.value = membership_->args, .membership = membership_};
    return detail::submit<void>(*loop_, VB_QP_DETACH, std::move(args),
                                [](Loop&, detail::MembershipArguments& ended) -> Outcome<void> {
                                  ended.membership->args = {};
                                  return {};
                                });
  }

 private:
  Loop* loop_;
  std::shared_ptr<detail::Membership> membership_;
};

// Owns the send queue and the receive queue of a connection or of datagrams (vol1 10.2.4, 10.3).
// Any thread may post.  Posting never waits.
class QueuePair {
 public:
  // The values are those of enum ibv_event_type.
  enum class Event : std::uint32_t {
    kFatal = 1,
    kRequestError = 2,
    kAccessError = 3,
    kEstablished = 4,  // in RTR: the peer's first packet has arrived
    kDrained = 5,      // in SQD: all requests that had begun are complete
    kMigrated = 6,     // the queue pair uses its alternate path now
    kMigrationError = 7,
    kLastReceive = 16,  // in the error state: the queue pair takes no more shared receives
  };
  using Sink = detail::EventSink<Event, vb_qp_destroy>;

  QueuePair(Loop& loop, detail::SinkOwner<Sink> sink, const vb_qp_args& args)
      : loop_(&loop), sink_(std::move(sink)), number_(args.qp_num), caps_(args.init.cap) {}

  static Request<QueuePair> create(const ProtectionDomain& pd, const CompletionQueue& send_cq,
                                   const CompletionQueue& receive_cq,
                                   const QueuePairOptions& options = {}) {
    struct Arguments {
      vb_qp_args value{};
      detail::SinkOwner<Sink> sink{};
    };
    Arguments args;
    args.sink = detail::SinkOwner(std::make_shared<Sink>(pd.loop()));
    vb_qp_init& init = args.value.init;
    init.context = detail::AsyncEvents::get().context();
    init.cookie = detail::cookie_of(*args.sink);
    init.device = pd.device();
    init.pd = pd.handle();
    init.send_cq = send_cq.handle();
    init.recv_cq = receive_cq.handle();
    init.srq = options.receives == nullptr ? 0 : options.receives->handle();
    args.sink->keep_alive = {send_cq.share(), receive_cq.share(),
                             options.receives == nullptr ? nullptr : options.receives->share()};
    init.type = static_cast<std::uint32_t>(options.transport);
    init.cap = {options.send_requests, options.receive_requests, options.send_segments,
                options.receive_segments, options.inline_bytes};
    return detail::submit<QueuePair>(
        pd.loop(), VB_QP_CREATE, std::move(args),
        [](Loop& loop, Arguments& results) -> Outcome<QueuePair> {
          results.sink->handle = detail::Owned<vb_qp_destroy>(results.value.qp);
          return QueuePair(loop, std::move(results.sink), results.value);
        });
  }

  std::uint32_t number() const { return number_; }
  const vb_qp_cap& capacities() const { return caps_; }
  // Waits for the next event.  Only one coroutine may wait at a time.  At most one event of each
  // kind is stored.
  detail::Mailbox<Event>::Next event() { return detail::Mailbox<Event>::Next(sink_->events); }

  Outcome<void> post(const Send& send) const {
    if (send.segments.size() > detail::kSegmentsMax) return detail::too_many_segments();
    std::array<vb_sge, detail::kSegmentsMax> list{};
    vb_send_wr wr{};
    wr.wr_id = send.id;
    wr.sg_list = detail::fill(send.segments, list);
    wr.num_sge = static_cast<std::uint32_t>(send.segments.size());
    wr.opcode = static_cast<std::uint32_t>(send.opcode);
    wr.send_flags = static_cast<std::uint32_t>(send.flags);
    wr.imm = send.immediate;
    wr.remote_addr = send.remote.address + send.remote_offset;
    wr.rkey = send.remote.rkey;
    wr.compare_add = send.compare_add;
    wr.swap = send.swap;
    wr.bind_addr = reinterpret_cast<std::uintptr_t>(send.bind.address);
    wr.bind_length = send.bind_bytes;
    wr.bind_lkey = send.bind.lkey;
    wr.bind_access = static_cast<std::uint32_t>(send.bind_access);
    wr.ah = send.to == nullptr ? 0 : send.to->handle();
    wr.remote_qpn = send.queue_pair;
    wr.remote_qkey = send.qkey;
    return detail::outcome_of_post(vb_post_send(sink_->handle.get(), &wr, 0));
  }
  Outcome<void> post_receive(std::uint64_t id, const Segments& segments) const {
    if (segments.size() > detail::kSegmentsMax) return detail::too_many_segments();
    std::array<vb_sge, detail::kSegmentsMax> list{};
    const vb_recv_wr wr = detail::receive(id, segments, list);
    return detail::outcome_of_post(vb_post_recv(sink_->handle.get(), &wr));
  }

  // Changes the attributes that `mask` names (enum ibv_qp_attr_mask).  The table of vol1 11.2.5.2
  // says which attributes each transition needs and allows.
  Request<void> modify(const vb_qp_attr& attributes, std::uint32_t mask) {
    return detail::submit_plain<vb_qp_args>(*loop_, VB_QP_MODIFY, [&](vb_qp_args& args) {
      args.qp = sink_->handle.get();
      args.attr = attributes;
      args.mask = mask;
    });
  }
  // Moves a new datagram queue pair to RTS, on port 1, and waits until this is done.  From then on,
  // datagrams with another Q_Key are dropped.
  Outcome<void> start_datagrams(std::uint32_t qkey) {
    vb_qp_attr attributes{};
    attributes.qkey = qkey;
    attributes.port_num = 1;
    constexpr std::uint32_t kState = 1, kPkeyIndex = 16, kPort = 32, kQkey = 64, kSqPsn = 65536;
    constexpr std::array<std::uint32_t, 3> kMasks{kState | kPkeyIndex | kPort | kQkey, kState,
                                                  kState | kSqPsn};
    for (const std::uint32_t mask : kMasks) {
      ++attributes.qp_state;  // INIT, RTR, RTS
      if (auto moved = modify(attributes, mask).wait(); !moved) return moved;
    }
    return {};
  }
  // Makes the queue pair receive the datagrams for a multicast group that reach `interface` (vol1
  // 10.5).  0 stands for any interface of the host, even one that is added later (over an adapter,
  // only those that exist now).  A queue pair that only sends to a group need not be attached.
  Request<GroupMembership> attach(const Gid& group, std::uint32_t interface = 0) const {
    detail::MembershipArguments args;
    args.membership = std::make_shared<detail::Membership>();
    args.membership->keep_alive = sink_.share();
    args.value.qp = sink_->handle.get();
    std::copy(group.begin(), group.end(), args.value.group);
    args.value.interface_index = interface;
    return detail::submit<GroupMembership>(
        *loop_, VB_QP_ATTACH, std::move(args),
        [](Loop& loop, detail::MembershipArguments& results) -> Outcome<GroupMembership> {
          results.membership->args = results.value;
          return GroupMembership(loop, std::move(results.membership));
        });
  }

  Request<vb_qp_attr> query() const {
    vb_qp_args args{};
    args.qp = sink_->handle.get();
    return detail::submit<vb_qp_attr>(
        *loop_, VB_QP_QUERY, args,
        [](Loop&, vb_qp_args& results) -> Outcome<vb_qp_attr> { return results.attr; });
  }
  Request<void> destroy() {
    return detail::submit_plain<vb_qp_args>(
        *loop_, VB_QP_DESTROY, [&](vb_qp_args& args) { args.qp = sink_->handle.get(); });
  }
  vb_handle handle() const { return sink_->handle.get(); }

 private:
  Loop* loop_;
  detail::SinkOwner<Sink> sink_;
  std::uint32_t number_;
  vb_qp_cap caps_;
};

}  // namespace verbena
