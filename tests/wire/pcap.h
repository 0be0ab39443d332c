#pragma once

#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include "base/time.h"

namespace verbena::wire_bench {

// Writes a capture file in the classic format of libpcap: Ethernet, nanoseconds.
class Pcap {
 public:
  // Returns null if the file cannot be written.
  static std::unique_ptr<Pcap> create(const std::string& path);
  void write(std::span<const std::byte> frame, Time now);
  void flush() { std::fflush(file_.get()); }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  explicit Pcap(std::FILE* file) : file_(file) {}

  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace verbena::wire_bench
