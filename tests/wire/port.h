#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace verbena::wire_bench {

// Represents one end of the line, at a host.  It carries whole Ethernet frames, and no call blocks.
class Port {
 public:
  virtual ~Port() = default;

  // Returns the descriptor to wait on for input.  It may change after any call.
  virtual int fd() const = 0;
  // Returns true if the caller must wait on fd() for output, too.
  virtual bool wants_output() const = 0;
  // Returns true if read() would return a frame that has been received already.  The caller must
  // not wait then, because fd() may not be readable.
  virtual bool has_input() const = 0;
  // Stores the next frame from the host in `buffer`, and returns the frame.  Returns an empty span
  // if no frame has been received.
  virtual std::span<const std::byte> read(std::span<std::byte> buffer) = 0;
  // Sends a frame to the host.  Returns false if the frame is lost, because the host is not
  // connected or its queue is full.
  virtual bool write(std::span<const std::byte> frame) = 0;
};

// Creates an Ethernet interface in a network namespace ("/proc/PID/ns/net").  The interface exists
// as long as the port.  On an error, returns null, and `problem` names the step that failed.
std::unique_ptr<Port> open_tap(const std::string& network_namespace, const std::string& name,
                               std::string& problem);

// Creates a UNIX socket for the network interface of a virtual machine.  QEMU connects to it
// (-netdev stream,server=off,addr.type=unix,addr.path=PATH), and may connect again later.  On an
// error, returns null, and `problem` names the step that failed.
std::unique_ptr<Port> open_guest(const std::string& path, std::string& problem);

}  // namespace verbena::wire_bench
