#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/error.h"
#include "hca/qp_core.h"
#include "hca/work_queue.h"

namespace verbena::hca {

// Holds the two queues of a queue pair, and checks each request that is posted to them.
//
// Threads: any thread may post; the driver makes all other calls.  The state changes under the
// mutexes of both queues, so a poster, which has locked one of them, sees the state that applies to
// its request.
class PostQueues {
 public:
  // `core.init` has the capacities that the program requests.  REQUIRES: the core outlives this
  // object.
  explicit PostQueues(QpCore& core);

  // A send request of a list, with its address handle.
  struct ListedSend {
    SendRequest request;
    const AddressHandle* ah = nullptr;
  };

  // ---- any thread ----
  // The next functions return true if the driver must handle the post.
  Result<bool> post_send(const SendRequest& request, const AddressHandle* ah);
  // Posts `count` requests, or none of them if one is refused.  `request_at` returns the request
  // with this index, which is valid until the next call.
  Result<bool> post_send_list(std::size_t count,
                              const std::function<Result<ListedSend>(std::size_t)>& request_at);
  Result<bool> post_recv(const RecvRequest& request);
  std::uint32_t free_send_slots() const { return sends_.free_slots(); }

  // ---- driver ----
  SendQueue& sends() { return sends_; }
  RecvQueue& receives() { return receives_; }
  const RecvQueue& receives() const { return receives_; }
  // Changes the state for posters and in the attributes.
  void set_state(QpState state);
  // Empties both queues, and resets the attributes.
  void clear();

 private:
  Result<void> check_send(const SendRequest& request, const AddressHandle* ah,
                          std::uint64_t length) const;
  Result<void> check_send_queue(std::size_t requests) const;
  void prepare_send(const SendRequest& request, const AddressHandle* ah, std::uint64_t length,
                    std::uint32_t skip);
  bool waits_at_fence(const SendWqe& wqe) const;
  void copy_small_request(SendWqe& wqe) const;

  QpCore& core_;
  SendQueue sends_;
  // The number of the newest READ or atomic in sends_, which its mutex guards.  At first, the
  // number before the first request.
  std::uint32_t newest_with_response_ = 0u - 1;
  RecvQueue receives_;                            // has the capacity 0 if the QP uses an SRQ
  std::atomic<QpState> state_ = QpState::kReset;  // the state of core_.attributes, for posters
};

}  // namespace verbena::hca
