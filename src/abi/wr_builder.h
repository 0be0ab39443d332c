#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace verbena::abi {

// The requests of one QP between ibv_wr_start() and ibv_wr_complete(): collected as what
// ibv_post_send() takes, and posted by it.
//
// Threads: start() waits for whoever has started before; from then on the starter alone.  The rooms
// grow with the largest batch and stay.
class WrBuilder {
 public:
  explicit WrBuilder(const ibv_qp_cap& caps) : caps_(caps) {}

  void start();
  // A new request, with the QP's wr_id and wr_flags; the setters below are about the newest.
  ibv_send_wr& add(const ibv_qp_ex& qp, ibv_wr_opcode opcode);
  ibv_send_wr* newest() { return items_.empty() ? nullptr : &items_.back().wr; }
  void set_sges(std::span<const ibv_sge> list);
  // Copied: the buffers are the program's again.
  void set_inline(std::span<const ibv_data_buf> buffers);
  // What kept a request from being collected; the first one counts.
  void fail(int error);
  // All of them, or none and the reason.
  int complete(ibv_qp& qp, std::uint32_t room);
  void abort();

 private:
  struct Item {
    ibv_send_wr wr;
    std::size_t first_sge, first_byte, byte_count;
  };

  std::mutex mutex_;
  const ibv_qp_cap caps_;
  int error_ = 0;
  std::vector<Item> items_;
  std::vector<ibv_sge> sges_;
  std::vector<std::byte> bytes_;
};

}  // namespace verbena::abi
