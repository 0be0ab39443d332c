#pragma once

#include <infiniband/umad.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>

#include "abi/umad/service.h"

namespace verbena::abi::umad {

// Represents an open port.  Its descriptor for the program is the connection on which MADs arrive.
// Threads may send, register and receive at the same time.
class OpenPort {
 public:
  // Returns the descriptor, or a negative errno as umad_open_port() does.
  static int open(const char* name, int number, bool enforce_smi);
  // Returns null if the descriptor is not that of an open port.
  static std::shared_ptr<OpenPort> find(int fd);
  static void close(int fd);

  // Sends a request with these descriptors, and waits for the answer.
  ipc::umad::Reply ask(std::span<const std::byte> request, std::span<const int> fds_to_pass = {});

  enum class ReceiveResult { kMad, kNothing, kTooShort, kInvalid, kLost, kDisconnected };
  // Receives the next MAD without waiting, with its header, into a buffer of `capacity` bytes.
  // `mad_bytes` gets the length of the MAD.  kTooShort: the buffer got the header and the first
  // segment of a longer message, which remains in the queue.  kInvalid: the buffer is too small for
  // the header and the first segment.  kLost: a long message is lost, because this process has no
  // descriptor for its shared memory (RLIMIT_NOFILE).  kDisconnected: the service has ended, its
  // message is malformed, or this process cannot map the shared memory of a long message.
  ReceiveResult receive(ib_user_mad& buffer, std::size_t capacity, std::size_t& mad_bytes);

 private:
  OpenPort(ServiceConnection requests, os::Fd mads)
      : requests_(std::move(requests)), mads_(os::UnixChannel::adopt(std::move(mads))) {}

  // Receives a long MAD, which comes in shared memory with the message.
  ReceiveResult receive_in_shared_memory(std::byte* buffer, std::size_t mad_bytes);

  std::mutex ask_lock_;
  ServiceConnection requests_;
  std::mutex receive_lock_;
  os::UnixChannel mads_;
};

}  // namespace verbena::abi::umad
