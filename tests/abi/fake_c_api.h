#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "verbena/c_api.h"

// Defines a fake libverbena.so.0, which records calls and gives answers that the tests set.  So
// tests can check the drop-in libraries without the real libverbena.  The tests' LD_LIBRARY_PATH
// has the fake library before the real one.  Tests use this header to read the recorded calls and
// to set the answers.
namespace fake {

struct Event {
  vb_cm_event cm{};
  vb_async_event async{};
  std::uint64_t cookie = 0;  // the CQ's cookie, in an event of a completion channel
};

// Holds a queue of events.  Its descriptor is readable while the queue has events, as in the real
// library.
class Queue {
 public:
  Queue();
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  int fd() const { return fd_; }
  void push(const Event& event);
  // Removes the first event from the queue.  Returns 0 or errno.  If the queue is empty, waits
  // unless O_NONBLOCK is set.
  int next_event(Event& event);
  // Removes the events for which `matches(event)` is true.
  void remove_events(auto&& matches) {
    std::scoped_lock lock(mutex_);
    const std::size_t before = events_.size();
    std::erase_if(events_, matches);
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
  std::vector<std::string> inlined;  // the inline data of each request; empty if it is not inline
  std::vector<int> more;             // the argument `more` of each vb_post_send()
  std::vector<vb_recv_wr> receives;
};

struct Srq {
  vb_handle context;
  std::uint64_t cookie;
  vb_srq_attr attr;
  std::vector<vb_recv_wr> receives;
};

struct Id {
  vb_handle channel;
  std::uint64_t cookie;
  vb_handle qp;
  vb_cm_addresses addresses;
  std::uint32_t ece_vendor_id = 0, ece_options = 0;  // of vb_cm_connect()
  std::vector<std::uint8_t> private_data;
  std::map<std::uint64_t, bool> groups;  // maps the cookie of a join to its `send_only`
  sockaddr_storage joined_address{};     // the address of the last join
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
  vb_handle last_handle = 0x100000000;
  // Maps the name of a function to the errno with which the function must fail.
  std::map<std::string, int> injected_errors;
  std::string build_id;              // the result of vb_build_id(); empty: that of this build
  std::uint32_t queue_capacity = 4;  // the maximum number of requests in each queue
  std::uint32_t reject_reason = 0;   // of the last vb_cm_reject()
  std::map<vb_handle, Queue*> channels;
  std::map<vb_handle, Cq> cqs;
  std::map<vb_handle, Qp> qps;
  std::function<void()> on_qp_query{};  // vb_qp_query() calls it first
  std::map<vb_handle, Srq> srqs;
  std::map<vb_handle, Id> ids;
  std::set<vb_handle> other_objects;  // all PDs, MRs, MWs and AHs
  std::uint32_t mr_access = 0;        // of the last registration
  struct Rereg {
    std::uint32_t flags;
    vb_handle pd;
    void* address;
    std::uint64_t length;
  } rereg{};                       // the last vb_mr_reregister()
  std::vector<vb_sge> prefetched;  // the list of the last vb_mr_prefetch()
  vb_ah_attr ah{};                 // of the last vb_ah_create()
  std::uint32_t ah_device = 0;
  // If true, the host has a second device, which has two InfiniBand ports.
  bool has_two_devices = false;
  std::uint8_t active_width = 2;   // of each port: the code of 4x
  std::uint8_t active_speed = 32;  // the code of EDR
  std::map<vb_handle, std::uint32_t> context_devices{};
  std::map<vb_handle, std::unique_ptr<Queue>> contexts;  // the asynchronous events of each context
  vb_cm_event connect_answer{};                          // the event that vb_cm_connect() reports
  std::uint32_t join_answer = 12;  // the event that vb_cm_join() reports: MULTICAST_JOIN
  // The event of each join has this address.  For an IPv4 group, the last 4 bytes of the dgid are
  // replaced by the group's address.
  vb_ah_attr join_address = kEthernetGroup;
  vb_handle newest_id = 0;
  std::vector<vb_service> services{};  // the services that every query finds
  std::string queried_service{};       // the service of the last query: a name, or "#" and an id
  std::uint32_t queried_device = 0;    // the device of the last vb_services_find()
};

State& state();

}  // namespace fake
