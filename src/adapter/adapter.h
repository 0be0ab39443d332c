#pragma once

#include <cerrno>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "adapter/libraries.h"
#include "base/handle.h"
#include "c_api/call.h"
#include "os/fd.h"
#include "verbena/c_api.h"

// Implements the C API (verbena/c_api.h) over an adapter of this host.  Each handle represents an
// object of the system's libraries.  Events and their descriptors come from the kernel.
namespace verbena::adapter {

// Stores "cannot `what`: ..." as the last error, and returns `error`.  An error of 0 becomes
// ENOMEM, because some functions fail without setting errno.
int fail_with_errno(const char* what, int error);
// Stores the last error for a handle without an object, and returns EINVAL.
int fail_without_object();

// Holds the objects of one kind.  Any thread may call find().  Lock Adapter::mutex to call the
// other functions.
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
  std::uint32_t id_count = 0;
};

// Represents an rdma_cm_id of the system's librdmacm.  raw->context points to this object.
struct Id {
  rdma_cm_id* raw = nullptr;
  Channel* channel = nullptr;
  vb_handle handle = 0;
  std::uint64_t cookie = 0;
  std::map<std::uint64_t, sockaddr_storage> joins{};  // the joined groups, by cookie
};

// Describes the membership of a QP in a multicast group.  The socket has joined the group too, so
// that the group's packets reach the port.
struct Membership {
  ibv_gid group;
  os::Fd socket;
};

class Adapter {
 public:
  // Returns the adapter of this process, and opens it on first use.  The environment variable
  // VERBENA_ADAPTER may name the adapter and its port.  If no adapter is usable, returns nullptr
  // and an errno, and vb_last_error() gives the reason.
  static Adapter* get(int& error);
  // Returns the adapter if it is already open, else nullptr.
  static Adapter* get_if_open();

  Adapter(const Libraries& libraries, ibv_context* device_context, std::uint8_t port_number)
      : system(libraries), context(device_context), port(port_number) {}

  const Libraries system;
  ibv_context* const context;
  const std::uint8_t port;

  // Serializes commands.  A command looks up its handle while it has locked this mutex, so that no
  // other thread destroys the object.  The mutex remains locked during system calls.  Lock it
  // before `mutex`.
  std::mutex command_mutex;
  std::map<ibv_qp*, rdma_cm_id*> ids_of_qps{};  // has only queue pairs that belong to an id
  std::multimap<ibv_qp*, Membership> memberships{};

  // Lock this mutex to use the members below.  Only Table::find() needs no lock.  Calls of the
  // system's libraries are made without this mutex, except when add() destroys an object because
  // the table is full.
  std::mutex mutex;
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
  // Bind requests name windows and regions by their keys.  The index of `windows` is the upper bits
  // of a key, because the low byte of a window's key changes.  The index of `regions` is the L_Key.
  std::map<std::uint32_t, ibv_mw*> windows{};
  std::map<std::uint32_t, ibv_mr*> regions{};

 private:
  static constexpr std::uint32_t kMax = 1u << 20;  // limits the objects of each table
};

// Runs body(adapter).  Opens the adapter if it is not open yet.
template <class Body>
int on_adapter(Body body) {
  return c_api::guarded([&] {
    int error = 0;
    Adapter* const adapter = Adapter::get(error);
    return adapter == nullptr ? error : body(*adapter);
  });
}

// Runs body(adapter, object) for a call on the data path, without locking `command_mutex`.
template <class T, class Body>
int on_object(Table<T> Adapter::*table, vb_handle handle, Body body) {
  return c_api::guarded([&] {
    Adapter* const adapter = Adapter::get_if_open();
    T* const object = adapter == nullptr ? nullptr : (adapter->*table).find(handle);
    return object == nullptr ? fail_without_object() : body(*adapter, *object);
  });
}

// Runs body(adapter, object) for a command, while `command_mutex` is locked.
template <class T, class Body>
int on_command(Table<T> Adapter::*table, vb_handle handle, Body body) {
  return c_api::guarded([&] {
    Adapter* const adapter = Adapter::get_if_open();
    if (adapter == nullptr) return fail_without_object();
    const c_api::NoCancellation no_cancellation;
    const std::lock_guard lock(adapter->command_mutex);
    T* const object = (adapter->*table).find(handle);
    return object == nullptr ? fail_without_object() : body(*adapter, *object);
  });
}

// Stores an object that the system has created, and sets its handle.  If `object` is nullptr,
// the system has failed with errno.  If the table is full, destroys the object with `end`.
template <class T, class End>
int add(Adapter& adapter, Table<T> Adapter::*table, const char* what, T* object, vb_handle* handle,
        End end) {
  if (object == nullptr) return fail_with_errno(what, errno);
  const std::lock_guard lock(adapter.mutex);
  const auto slot = (adapter.*table).insert(object);
  if (!slot) {
    end(object);
    return c_api::failed(slot.error());
  }
  *handle = slot->value;
  return 0;
}

// Destroys an object with `end`, which returns 0 or an errno.  After an error the object remains
// valid.
template <class T, class End>
int remove(Table<T> Adapter::*table, const char* what, vb_handle handle, End end) {
  return on_command(table, handle, [&](Adapter& adapter, T& object) {
    if (const int error = end(adapter, object); error != 0) return fail_with_errno(what, error);
    const std::lock_guard lock(adapter.mutex);
    (adapter.*table).remove(handle);
    return 0;
  });
}

}  // namespace verbena::adapter
