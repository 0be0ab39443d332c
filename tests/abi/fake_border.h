#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "verbena/border.h"

// Fakes libverbena.so.0 by a library that only records calls, so that the drop-in libraries can be
// tested alone.  LD_LIBRARY_PATH of the tests puts it before the real library.  Tests use it
// through this header.
namespace fake {

struct Event {
  vb_cm_event cm{};
  vb_async_event async{};
  std::uint64_t cookie = 0;  // of a completion channel
};

// Holds a queue of events.  Its descriptor is readable while it has events, like the real one.
class Queue {
 public:
  Queue();
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  int fd() const { return fd_; }
  void push(const Event& event);
  int take(Event& event);  // 0 or errno; waits unless O_NONBLOCK is set
  void drop(auto&& those) {
    std::scoped_lock lock(mutex_);
    const std::size_t before = events_.size();
    std::erase_if(events_, those);
    remove_readable(before - events_.size());
  }

 private:
  void remove_readable(std::size_t count);

  int fd_;
  std::mutex mutex_;
  std::deque<Event> events_;
};

struct Cq {
  vb_handle context;
  std::uint64_t cookie;
  vb_handle channel;
  std::deque<vb_wc> completions;
};

struct Qp {
  vb_qp_init init;
  vb_qp_attr attr;
  std::vector<vb_send_wr> sent;
  std::vector<std::string> inlined;  // the data of each request that was posted inline
  std::vector<int> more;
  std::vector<vb_recv_wr> received;
};

struct Srq {
  vb_handle context;
  std::uint64_t cookie;
  vb_srq_attr attr;
  std::vector<vb_recv_wr> received;
};

struct Id {
  vb_handle channel;
  std::uint64_t cookie;
  vb_handle qp;
  vb_cm_addresses addresses;
  std::uint32_t ece_vendor_id = 0, ece_options = 0;  // of vb_cm_connect()
  std::vector<std::uint8_t> private_data;
  std::map<std::uint64_t, bool> groups;  // by the cookie of the join; true: it is send-only
  sockaddr_storage joined{};             // the address of the last join
};

inline constexpr vb_ah_attr kEthernetGroup{.dgid = {},
                                           .flow_label = 0,
                                           .sgid_index = 0,
                                           .hop_limit = 64,
                                           .traffic_class = 0,
                                           .is_global = 1,
                                           .port_num = 1,
                                           .sl = 0,
                                           .src_path_bits = 0,
                                           .dlid = 0};

struct State {
  std::recursive_mutex mutex;
  vb_handle last = 0x100000000;
  std::map<std::string, int> fail;  // functions that fail with an errno, until erased
  std::string build_id;
  std::uint32_t send_room = 4;
  std::uint32_t reject_reason = 0;
  std::map<vb_handle, Queue*> channels;
  std::map<vb_handle, Cq> cqs;
  std::map<vb_handle, Qp> qps;
  std::map<vb_handle, Srq> srqs;
  std::map<vb_handle, Id> ids;
  std::set<vb_handle> others;  // PDs, MRs, AHs
  std::uint32_t mr_access = 0;
  struct Rereg {
    std::uint32_t what;
    vb_handle pd;
    void* address;
    std::uint64_t length;
  } rereg{};
  std::vector<vb_sge> prefetched;
  vb_ah_attr ah{};
  std::uint32_t ah_device = 0;
  // The host has two devices; the second one has two ports of InfiniBand.
  bool has_two_devices = false;
  std::map<vb_handle, std::uint32_t> context_devices{};
  std::map<vb_handle, std::unique_ptr<Queue>> contexts;  // with their asynchronous events
  // This event answers vb_cm_connect().
  vb_cm_event connect_answer{};
  std::uint32_t join_answer = 12;  // RDMA_CM_EVENT_MULTICAST_JOIN
  // Every joined group gets this address.  An IPv4 group replaces the end of its dgid.
  vb_ah_attr join_address = kEthernetGroup;
  vb_handle newest_id = 0;
  std::vector<vb_service> services{};  // the services that every query finds
  std::string asked_service{};         // the last query: a name, or "#" and an id
  std::uint32_t asked_device = 0;
};

State& state();

}  // namespace fake
