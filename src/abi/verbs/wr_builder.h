#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "abi/objects.h"
#include "verbena/c_api.h"

namespace verbena::abi {

// Converts a request, even an invalid one.  libverbena has to refuse an invalid request itself,
// because it then starts the earlier requests of the program's list.  `is_ud` is true if the QP has
// the type UD.
vb_send_wr send_request_of(const ibv_send_wr& wr, bool is_ud);

// Collects the requests of one QP between ibv_wr_start() and ibv_wr_complete(), and posts them
// together.  Its buffers grow to the size of the largest batch and live as long as the QP.
//
// Threads: start() waits while another thread is between its start() and its complete() or abort().
// Only the thread that has called start() may call the other functions.
class WrBuilder {
 public:
  explicit WrBuilder(const ibv_qp_cap& caps) : caps_(caps) {}

  void start();
  // Adds a request with the wr_id and wr_flags of the QP.  The setters below change the newest
  // request.
  ibv_send_wr& add(const ibv_qp_ex& qp, ibv_wr_opcode opcode);
  ibv_send_wr* newest() { return items_.empty() ? nullptr : &items_.back().wr; }
  void set_sges(std::span<const ibv_sge> list);
  // Copies the contents of the buffers.
  void set_inline(std::span<const ibv_data_buf> buffers);
  // Records an error.  complete() returns the first recorded error.
  void fail(int error);
  // Posts all requests, or none of them if one is invalid, the send queue has too few free entries,
  // or fail() has recorded an error.  Returns 0 or the error.
  int complete(const Qp& qp);
  void abort();

 private:
  int post_all(const Qp& qp);

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
  std::vector<vb_send_wr> requests_;  // the items as complete() posts them
};

}  // namespace verbena::abi
