#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace verbena::wire_bench {

// One end of the line.  Whole Ethernet frames go in and out, and no call waits.
class Port {
 public:
  virtual ~Port() = default;

  // The descriptor to wait on for input; it may change after any call.
  virtual int fd() const = 0;
  // True if the caller must wait on fd() for output, too.
  virtual bool wants_output() const = 0;
  // True if frames have been read and not taken; do not wait then.
  virtual bool has_input() const = 0;
  // Puts the next frame from the host into `buffer`; empty if there is none now.
  virtual std::span<const std::byte> read(std::span<std::byte> buffer) = 0;
  // Returns false if the frame is lost because the host is away or its queue is full.
  virtual bool write(std::span<const std::byte> frame) = 0;
};

// Creates an Ethernet interface in a network namespace ("/proc/PID/ns/net").  It is removed with
// the port.  On an error it returns null, and `problem` names the step.
std::unique_ptr<Port> open_tap(const std::string& network_namespace, const std::string& name,
                               std::string& problem);

// Creates a UNIX socket for the interface of a virtual machine.  QEMU connects to it
// (-netdev stream,server=off,addr.type=unix,addr.path=PATH), and may connect again later.
std::unique_ptr<Port> open_guest(const std::string& path, std::string& problem);

}  // namespace verbena::wire_bench
