#pragma once

#include <cerrno>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "adapter/libraries.h"
#include "base/handle.h"
#include "border/call.h"
#include "os/fd.h"
#include "verbena/border.h"

// The border over an adapter of this host.  A handle is what the kernel's object is behind; events
// are the kernel's own, so their descriptors are, too.
namespace verbena::adapter {

// Remembers what the system refused and how, and gives its errno; some forget to set it.
int refused(const char* what, int error);
int no_such_object();

// Objects of one kind.  find() in any thread; the others under the adapter's lock.
template <class T>
class Table {
  struct Entry {
    T* raw;
  };

 public:
  explicit Table(std::uint32_t limit) : slots_(limit) {}

  T* find(vb_handle handle) const {
    const Entry* const entry = slots_.find({handle});
    return entry == nullptr ? nullptr : entry->raw;
  }
  Result<Handle<Entry>> insert(T* raw) { return slots_.insert(std::make_unique<Entry>(raw)); }
  void remove(vb_handle handle) { slots_.remove({handle}); }

 private:
  Slots<Entry> slots_;
};

struct Channel {
  rdma_event_channel* raw;
  std::uint32_t ids = 0;
};

// Where the kernel's id has its context pointer to.
struct Id {
  rdma_cm_id* raw = nullptr;
  Channel* channel = nullptr;
  vb_handle handle = 0;
  std::uint64_t cookie = 0;
  std::map<std::uint64_t, sockaddr_storage> joins{};
};

// A QP's place in a group, and the socket whose membership brings the group's packets to the port.
struct Membership {
  ibv_gid group;
  os::Fd socket;
};

class Adapter {
 public:
  // The one of this process, opened at first use; VERBENA_ADAPTER says which.  nullptr, and the
  // error's number: there is none, and vb_last_error() says why.
  static Adapter* get(int& error);
  static Adapter* if_any();

  Adapter(const Libraries& libraries, ibv_context* its, std::uint8_t port_number)
      : system(libraries), context(its), port(port_number) {}

  const Libraries system;
  ibv_context* const context;
  const std::uint8_t port;

  // Commands come one at a time: a handle is looked up under it, so that no object ends while
  // another thread is in a command about it.  Held while the kernel works.  Before `mutex`.
  std::mutex commands;
  std::map<ibv_qp*, rdma_cm_id*> users{};  // ids that move a queue pair on
  std::multimap<ibv_qp*, Membership> memberships{};

  std::mutex mutex;  // of all below, but for find(); held for no call of the system's
  Table<ibv_pd> pds{kMax};
  Table<ibv_mr> mrs{kMax};
  Table<ibv_mw> mws{kMax};
  Table<ibv_comp_channel> comp_channels{kMax};
  Table<ibv_cq> cqs{kMax};
  Table<ibv_ah> ahs{kMax};
  Table<ibv_srq> srqs{kMax};
  Table<ibv_qp> qps{kMax};
  Table<Channel> channels{kMax};
  Table<Id> ids{kMax};
  // Requests name windows and regions by their keys, of which the low byte changes.
  std::map<std::uint32_t, ibv_mw*> windows{};
  std::map<std::uint32_t, ibv_mr*> regions{};

 private:
  static constexpr std::uint32_t kMax = 1u << 20;
};

// The body of a call that may be the first.
template <class Body>
int on_adapter(Body body) {
  return border::guarded([&] {
    int error = 0;
    Adapter* const adapter = Adapter::get(error);
    return adapter == nullptr ? error : body(*adapter);
  });
}

// The body of what is posted: body(adapter, object).  It waits for nobody.
template <class T, class Body>
int on_object(Table<T> Adapter::*table, vb_handle handle, Body body) {
  return border::guarded([&] {
    Adapter* const adapter = Adapter::if_any();
    T* const object = adapter == nullptr ? nullptr : (adapter->*table).find(handle);
    return object == nullptr ? no_such_object() : body(*adapter, *object);
  });
}

// The body of a command on an object: body(adapter, object).
template <class T, class Body>
int on_command(Table<T> Adapter::*table, vb_handle handle, Body body) {
  return border::guarded([&] {
    Adapter* const adapter = Adapter::if_any();
    if (adapter == nullptr) return no_such_object();
    const border::NoCancellation whole_call;
    const std::lock_guard lock(adapter->commands);
    T* const object = (adapter->*table).find(handle);
    return object == nullptr ? no_such_object() : body(*adapter, *object);
  });
}

// Gives what the system has made (nullptr: errno) a handle.  Without a place for it `end` ends it.
template <class T, class End>
int add(Adapter& adapter, Table<T> Adapter::*table, const char* what, T* made, vb_handle* handle,
        End end) {
  if (made == nullptr) return refused(what, errno);
  const std::lock_guard lock(adapter.mutex);
  const auto place = (adapter.*table).insert(made);
  if (!place) {
    end(made);
    return border::failed(place.error());
  }
  *handle = place->value;
  return 0;
}

// Ends an object by `end`, 0 or an errno; after EBUSY it stays.
template <class T, class End>
int remove(Table<T> Adapter::*table, const char* what, vb_handle handle, End end) {
  return on_command(table, handle, [&](Adapter& adapter, T& object) {
    if (const int error = end(adapter, object); error != 0) return refused(what, error);
    const std::lock_guard lock(adapter.mutex);
    (adapter.*table).remove(handle);
    return 0;
  });
}

}  // namespace verbena::adapter
