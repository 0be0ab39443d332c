#pragma once

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
  Next(CqSink& cq, std::span<Completion> out) : cq_(cq), out_(out) {}
  Next(const Next&) = delete;
  Next& operator=(const Next&) = delete;
  ~Next() {
    if (cq_.waits_ == this) cq_.waits_ = nullptr;
  }

  bool await_ready() { return out_.empty() || look(); }
  bool await_suspend(std::coroutine_handle<> frame) {
    if (arm_and_look()) return false;
    frame_ = frame;
    cq_.waits_ = this;
    return true;
  }
  std::span<Completion> await_resume() const { return out_.first(count_); }

  void on_event() {
    if (!look() && !arm_and_look()) return;
    cq_.waits_ = nullptr;
    frame_.resume();
  }

 private:
  bool look() {
    count_ = cq_.poll(out_);
    return count_ > 0;
  }
  // What came before it was armed makes no event.
  bool arm_and_look() {
    cq_.arm(false);
    return look();
  }

  CqSink& cq_;
  std::span<Completion> out_;
  std::size_t count_ = 0;
  std::coroutine_handle<> frame_{};
};

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

// What a queue pair can hold, and what it stands on.
struct QueuePairOptions {
  std::uint32_t type = 2;  // enum ibv_qp_type: 2 RC, 3 UC, 4 UD
  std::uint32_t send_requests = 64, receive_requests = 64;
  std::uint32_t send_pieces = 1, receive_pieces = 1;  // of one request
  std::uint32_t inline_bytes = 0;
};

// One work request for the send queue.
struct Send {
  std::uint64_t id = 0;
  std::uint32_t opcode = 2;  // enum ibv_wr_opcode: 0 WRITE, 1 WRITE_IMM, 2 SEND, 3 SEND_IMM, 4 READ
  std::uint32_t flags = 2;   // enum ibv_send_flags: 1 fence, 2 signaled, 4 solicited, 8 inline
  std::span<const Piece> pieces{};
  RemoteMemory remote{};  // WRITE, READ: from its beginning
  std::uint64_t remote_offset = 0;
  std::uint32_t immediate = 0;  // host order
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
    init.type = options.type;
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
    wr.opcode = send.opcode;
    wr.send_flags = send.flags;
    wr.imm = send.immediate;
    wr.remote_addr = send.remote.address + send.remote_offset;
    wr.rkey = send.remote.rkey;
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
