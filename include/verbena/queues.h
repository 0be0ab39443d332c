#pragma once

#include <algorithm>
#include <array>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "verbena/border.h"
#include "verbena/device.h"
#include "verbena/loop.h"
#include "verbena/outcome.h"
#include "verbena/request.h"

namespace verbena {

// How a work request ended.  With a status other than 0 (enum ibv_wc_status) only wr_id, status and
// qp_num mean something.
using Completion = vb_wc;

namespace detail {

// What is known of a completion queue where its events come in.
class CqSink final : public Sink {
 public:
  class Next;

  CqSink() = default;
  CqSink(const CqSink&) = delete;
  CqSink& operator=(const CqSink&) = delete;
  ~CqSink();
  void on_completions() override;
  void on_async(std::uint32_t /*type*/) override { overrun_ = true; }
  std::size_t poll(std::span<Completion> out) const {
    const int count = vb_cq_poll(handle.get(), static_cast<int>(out.size()), out.data());
    return count < 0 ? 0 : static_cast<std::size_t>(count);
  }
  void arm(bool solicited_only) const { vb_cq_arm(handle.get(), solicited_only ? 1 : 0); }
  bool overrun() const { return overrun_; }

  Owned<vb_cq_destroy> handle{};

 private:
  Next* waits_ = nullptr;
  bool overrun_ = false;
};

// What co_await CompletionQueue::next() waits with.
class CqSink::Next {
 public:
  Next(CqSink& cq, std::span<Completion> out) : cq_(&cq), out_(out) {}
  Next(const Next&) = delete;
  Next& operator=(const Next&) = delete;
  ~Next() {
    if (cq_ != nullptr && cq_->waits_ == this) cq_->waits_ = nullptr;
  }

  bool await_ready() { return out_.empty() || look(); }
  bool await_suspend(std::coroutine_handle<> frame) {
    if (arm_and_look()) return false;
    frame_ = frame;
    cq_->waits_ = this;
    return true;
  }
  std::span<Completion> await_resume() const { return out_.first(count_); }

  void on_event() {
    if (!look() && !arm_and_look()) return;
    cq_->waits_ = nullptr;
    frame_.resume();
  }
  // The queue is gone before who waits for it, who then waits for ever.
  void forget() { cq_ = nullptr; }

 private:
  bool look() {
    count_ = cq_->poll(out_);
    return count_ > 0;
  }
  // What came before it was armed makes no event.
  bool arm_and_look() {
    cq_->arm(false);
    return look();
  }

  CqSink* cq_;
  std::span<Completion> out_;
  std::size_t count_ = 0;
  std::coroutine_handle<> frame_{};
};

inline CqSink::~CqSink() {
  if (waits_ != nullptr) waits_->forget();
}

inline void CqSink::on_completions() {
  if (waits_ != nullptr) waits_->on_event();
}

}  // namespace detail

// Where work requests end (vol1 10.2.8).
class CompletionQueue {
 public:
  CompletionQueue(Loop& loop, std::unique_ptr<detail::CqSink> sink)
      : loop_(&loop), sink_(std::move(sink)) {}

  // How many were stored; at once, from any thread.
  std::size_t poll(std::span<Completion> out) const { return sink_->poll(out); }
  // Those that are there, one at least:
  //     for (const Completion& done : co_await cq.next(room)) ...
  // One coroutine at a time.
  detail::CqSink::Next next(std::span<Completion> out) { return {*sink_, out}; }
  // A completion came when the queue was full: nothing more will come out of it.
  bool overrun() const { return sink_->overrun(); }
  // Busy while queue pairs use it.
  Request<void> destroy() {
    return detail::submit_plain<vb_cq_args>(
        *loop_, VB_CQ_DESTROY, [&](vb_cq_args& args) { args.cq = sink_->handle.get(); });
  }
  vb_handle handle() const { return sink_->handle.get(); }

 private:
  Loop* loop_;
  std::unique_ptr<detail::CqSink> sink_;
};

namespace detail {
struct CqArguments {
  vb_cq_args value{};
  std::unique_ptr<CqSink> sink{};
};
}  // namespace detail

inline Request<CompletionQueue> Device::create_cq(std::uint32_t entries) const {
  detail::CqArguments args;
  args.sink = std::make_unique<detail::CqSink>();
  args.value.entries = entries;
  args.value.channel = loop_->completions();
  args.value.cookie = detail::cookie_of(*args.sink);
  return detail::submit<CompletionQueue>(
      *loop_, VB_CQ_CREATE, std::move(args),
      [](Loop& loop, detail::CqArguments& made) -> Outcome<CompletionQueue> {
        made.sink->handle = detail::Owned<vb_cq_destroy>(made.value.cq);
        return CompletionQueue(loop, std::move(made.sink));
      });
}

// enum ibv_qp_type: reliable and unreliable connections, datagrams.
enum class Transport : std::uint32_t { kRc = 2, kUc = 3, kUd = 4 };

// What a queue pair can hold, and what it stands on.
struct QueuePairOptions {
  Transport transport = Transport::kRc;
  std::uint32_t send_requests = 64, receive_requests = 64;
  std::uint32_t send_pieces = 1, receive_pieces = 1;  // of one request
  std::uint32_t inline_bytes = 0;
};

// enum ibv_wr_opcode
enum class Opcode : std::uint32_t {
  kWrite = 0,
  kWriteImm = 1,
  kSend = 2,
  kSendImm = 3,
  kRead = 4,
  kCompareSwap = 5,  // both atomics: the 8 bytes at the remote address, which come back
  kFetchAdd = 6,
  kAtomicWrite = 15,
};

// enum ibv_send_flags
enum class SendFlags : std::uint32_t {
  kNone = 0,
  kFence = 1,  // begins when READs and atomics before it have ended
  kSignaled = 2,
  kSolicited = 4,
  kInline = 8,  // the bytes are copied now, and need not be registered
};
constexpr SendFlags operator|(SendFlags a, SendFlags b) {
  return static_cast<SendFlags>(static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b));
}

// An address that datagrams are sent to, as a device has it: a port's or a multicast group's.
class AddressHandle {
 public:
  AddressHandle(Loop& loop, const vb_ah_args& args) : loop_(&loop), handle_(args.ah) {}

  // `source` is one of Device::gids().
  static Request<AddressHandle> create(const ProtectionDomain& pd, const GidEntry& source,
                                       const Gid& to, std::uint8_t hop_limit = 64) {
    vb_ah_args args{};
    args.pd = pd.handle();
    std::copy(to.begin(), to.end(), args.attr.dgid);
    args.attr.sgid_index = static_cast<std::uint8_t>(source.index);
    args.attr.hop_limit = hop_limit;
    return detail::submit<AddressHandle>(pd.loop(), VB_AH_CREATE, args,
                                         [](Loop& its, vb_ah_args& made) -> Outcome<AddressHandle> {
                                           return AddressHandle(its, made);
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

// All members of a multicast group, as the number of a queue pair (vol1 10.5).
inline constexpr std::uint32_t kAllMembers = 0xffffff;
// What a received datagram begins with: the network header, as IPv6 or in its last bytes IPv4.
inline constexpr std::uint32_t kDatagramHeaderBytes = 40;

// One work request for the send queue.
struct Send {
  std::uint64_t id = 0;
  Opcode opcode = Opcode::kSend;
  SendFlags flags = SendFlags::kSignaled;
  std::span<const Piece> pieces{};
  RemoteMemory remote{};  // WRITE, READ, atomics: from its beginning
  std::uint64_t remote_offset = 0;
  std::uint32_t immediate = 0;              // host order
  std::uint64_t compare_add = 0, swap = 0;  // atomics
  // Datagrams: where to, which queue pair there, and the Q_Key that it was started with.
  const AddressHandle* to = nullptr;
  std::uint32_t queue_pair = 0;
  std::uint32_t qkey = 0;
};

// A queue pair's place in a multicast group, which ends with it.  The queue pair is busy meanwhile.
class GroupMembership {
 public:
  GroupMembership(Loop& loop, const vb_group_args& args) : loop_(&loop), args_(args) {}
  GroupMembership(GroupMembership&& other) noexcept
      : loop_(other.loop_), args_(std::exchange(other.args_, {})) {}
  GroupMembership& operator=(GroupMembership&& other) noexcept {
    if (this != &other) {
      end();
      loop_ = other.loop_;
      args_ = std::exchange(other.args_, {});
    }
    return *this;
  }
  ~GroupMembership() { end(); }

  Request<void> detach() {
    return detail::submit_plain<vb_group_args>(
        *loop_, VB_QP_DETACH, [&](vb_group_args& args) { args = std::exchange(args_, {}); });
  }

 private:
  void end() const {
    if (args_.qp != 0) vb_qp_detach(args_.qp, args_.group);
  }
  Loop* loop_;
  vb_group_args args_;
};

// The two queues of a connection, or of datagrams (vol1 10.2.4, 10.3).  Posting is a direct call
// from any thread: it waits for nothing and asks nobody.
class QueuePair {
 public:
  QueuePair(Loop& loop, const vb_qp_args& args)
      : loop_(&loop), handle_(args.qp), number_(args.qp_num), caps_(args.init.cap) {}

  static Request<QueuePair> create(const ProtectionDomain& pd, const CompletionQueue& send_cq,
                                   const CompletionQueue& receive_cq,
                                   const QueuePairOptions& options = {}) {
    vb_qp_args args{};
    vb_qp_init& init = args.init;
    init.pd = pd.handle();
    init.send_cq = send_cq.handle();
    init.recv_cq = receive_cq.handle();
    init.type = static_cast<std::uint32_t>(options.transport);
    init.cap = {options.send_requests, options.receive_requests, options.send_pieces,
                options.receive_pieces, options.inline_bytes};
    return detail::submit<QueuePair>(
        pd.loop(), VB_QP_CREATE, args,
        [](Loop& its, vb_qp_args& made) -> Outcome<QueuePair> { return QueuePair(its, made); });
  }

  std::uint32_t number() const { return number_; }
  const vb_qp_cap& capacities() const { return caps_; }

  Outcome<void> post(const Send& send) const {
    std::array<vb_sge, kPiecesMax> list{};
    vb_send_wr wr{};
    wr.wr_id = send.id;
    wr.sg_list = fill(send.pieces, list);
    wr.num_sge = static_cast<std::uint32_t>(send.pieces.size());
    wr.opcode = static_cast<std::uint32_t>(send.opcode);
    wr.send_flags = static_cast<std::uint32_t>(send.flags);
    wr.imm = send.immediate;
    wr.remote_addr = send.remote.address + send.remote_offset;
    wr.rkey = send.remote.rkey;
    wr.compare_add = send.compare_add;
    wr.swap = send.swap;
    wr.ah = send.to == nullptr ? 0 : send.to->handle();
    wr.remote_qpn = send.queue_pair;
    wr.remote_qkey = send.qkey;
    return posted(vb_post_send(handle_.get(), &wr, 0));
  }
  Outcome<void> post_receive(std::uint64_t id, std::span<const Piece> pieces) const {
    std::array<vb_sge, kPiecesMax> list{};
    vb_recv_wr wr{};
    wr.wr_id = id;
    wr.sg_list = fill(pieces, list);
    wr.num_sge = static_cast<std::uint32_t>(pieces.size());
    return posted(vb_post_recv(handle_.get(), &wr));
  }

  // `attributes` as `mask` (enum ibv_qp_attr_mask) says; the table of vol1 11.2.5.2.
  Request<void> modify(const vb_qp_attr& attributes, std::uint32_t mask) {
    return detail::submit_plain<vb_qp_args>(*loop_, VB_QP_MODIFY, [&](vb_qp_args& args) {
      args.qp = handle_.get();
      args.attr = attributes;
      args.mask = mask;
    });
  }
  // Takes a new queue pair for datagrams to where it sends and receives.  Asks nobody.  Datagrams
  // with another Q_Key are dropped.
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
  // From now on datagrams for a multicast group come here, too, if they reach the interface; 0: any
  // interface of the host, also one that comes later (vol1 10.5).  Sending to a group wants none of
  // it.
  Request<GroupMembership> attach(const Gid& group, std::uint32_t interface = 0) const {
    vb_group_args args{};
    args.qp = handle_.get();
    std::copy(group.begin(), group.end(), args.group);
    args.interface_index = interface;
    return detail::submit<GroupMembership>(
        *loop_, VB_QP_ATTACH, args, [](Loop& its, vb_group_args& made) -> Outcome<GroupMembership> {
          return GroupMembership(its, made);
        });
  }

  Request<vb_qp_attr> query() const {
    vb_qp_args args{};
    args.qp = handle_.get();
    return detail::submit<vb_qp_attr>(
        *loop_, VB_QP_QUERY, args,
        [](Loop&, vb_qp_args& told) -> Outcome<vb_qp_attr> { return told.attr; });
  }
  Request<void> destroy() {
    return detail::submit_plain<vb_qp_args>(*loop_, VB_QP_DESTROY,
                                            [&](vb_qp_args& args) { args.qp = handle_.get(); });
  }
  vb_handle handle() const { return handle_.get(); }

 private:
  static constexpr std::size_t kPiecesMax = 32;  // max_sge of the device

  static const vb_sge* fill(std::span<const Piece> pieces, std::array<vb_sge, kPiecesMax>& list) {
    for (std::size_t i = 0; i < pieces.size() && i < list.size(); ++i) {
      list[i] = {reinterpret_cast<std::uintptr_t>(pieces[i].address), pieces[i].bytes,
                 pieces[i].lkey};
    }
    return list.data();
  }
  static Outcome<void> posted(int error) {
    if (error != 0) return failure(error, vb_last_error());
    return {};
  }

  Loop* loop_;
  detail::Owned<vb_qp_destroy> handle_;
  std::uint32_t number_;
  vb_qp_cap caps_;
};

}  // namespace verbena
