#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace verbena::wire_bench {

// One end of the line: whole Ethernet frames in and out, nothing ever waited for.
class Port {
 public:
  virtual ~Port() = default;

  // To wait on, for input; it may change after any call.
  virtual int fd() const = 0;
  // Whether fd() is to be waited on for output, too.
  virtual bool wants_output() const = 0;
  // Whether frames have been read and not taken: do not wait then.
  virtual bool has_input() const = 0;
  // The next frame from the host, in `buffer`; empty: none now.
  virtual std::span<const std::byte> read(std::span<std::byte> buffer) = 0;
  // False if the host is away or full; the frame is lost then, as on any line.
  virtual bool write(std::span<const std::byte> frame) = 0;
};

// A new Ethernet interface in a network namespace ("/proc/PID/ns/net"); it goes with the port.  The
// error names the step; the result is null then.
std::unique_ptr<Port> open_tap(const std::string& network_namespace, const std::string& name,
                               std::string& problem);

// A virtual machine's interface: QEMU connects to the UNIX socket that this makes
// (-netdev stream,server=off,addr.type=unix,addr.path=PATH), and may come again.
std::unique_ptr<Port> open_guest(const std::string& path, std::string& problem);

}  // namespace verbena::wire_bench
