// Sends the packets of a barrage (barrage.h) to a target host.  Creates an Ethernet interface in
// the target's network namespace.  This program is the other end of that interface's cable.
//
//   wire_barrage --host PID [--interface eth1] [--captures DIRECTORY] [--seed N]
//
// PID is any process in the target's network namespace.  Prints "ready" when the interface exists.
// Then it reads commands from its standard input, one on each line.  It answers each with a line:
// "error: ..." or the result.
//
//   target FILE          reads facts about the target (target.h), which replace earlier facts
//   fire COUNT [rush]    sends the next COUNT packets; without "rush" it waits while the target's
//                        sockets are full
//   from NUMBER          sets the number of the next packet, to repeat packets of an earlier run
//
// The program ends when its standard input ends.

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

#include "barrage.h"
#include "os/fd.h"
#include "port.h"
#include "wire/test_captures.h"

namespace verbena::wire_bench {
namespace {

constexpr std::uint64_t kBatch = 64;  // frames between two checks of the target's sockets
// Waits while all sockets of the target together have more unread bytes than this.  The default
// buffer of one socket is smaller, so one socket that nobody reads cannot stop the sender.
constexpr std::uint64_t kQueuedBytesMax = 512 * 1024;
constexpr int kAnswersMax = 1024;  // the largest number of frames to read after a batch

// Reads how many bytes are unread in the sockets of port 4791, from /proc/PID/net/udp or udp6.
class SocketQueues {
 public:
  explicit SocketQueues(const std::string& path)
      : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  bool is_open() const { return static_cast<bool>(file_); }
  std::uint64_t unread_bytes() {
    // Each read of such a file returns only about 30 sockets, so the loop reads until the end.
    std::string text;
    for (;;) {
      const ssize_t size =
          ::pread(file_.get(), buffer_.data(), buffer_.size(), static_cast<off_t>(text.size()));
      if (size <= 0) break;
      text.append(buffer_.data(), static_cast<std::size_t>(size));
    }
    std::uint64_t sum = 0;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      // A line is "SLOT: ADDRESS:PORT ADDRESS:PORT STATE TX:RX ...", with numbers in hexadecimal.
      std::istringstream words(line);
      std::string slot, local, remote, state, queues;
      words >> slot >> local >> remote >> state >> queues;
      const auto colon = queues.find(':');
      if (!local.ends_with(":12B7") || colon == std::string::npos) continue;
      sum += std::strtoull(queues.c_str() + colon + 1, nullptr, 16);
    }
    return sum;
  }

 private:
  os::Fd file_;
  std::array<char, 65536> buffer_{};
};

class Sender {
 public:
  Sender(std::unique_ptr<Port> tap, SocketQueues& ipv4, SocketQueues& ipv6, std::uint64_t seed,
         std::vector<std::vector<std::byte>> captured)
      : tap_(std::move(tap)),
        ipv4_(ipv4),
        ipv6_(ipv6),
        seed_(seed),
        captured_(std::move(captured)) {}

  std::string run_command(const std::string& line) {
    std::istringstream words(line);
    std::string command, argument;
    words >> command;
    if (command == "target" && words >> argument) return read_target(argument);
    if (command == "from" && words >> next_number_) return "ok";
    std::uint64_t count = 0;
    if (command != "fire" || !(words >> count)) return "error: no such command";
    if (!barrage_) return "error: no target";
    words >> argument;
    return send_packets(count, argument == "rush");
  }

 private:
  std::string read_target(const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    std::string problem = path;
    target_ = {};
    if (!file || !target_.read(text.str(), problem)) return "error: " + problem;
    barrage_ = std::make_unique<Barrage>(seed_, target_, captured_);
    return fmt::format("{} QPs, {} numbers without", target_.qps.size(), target_.absent.size());
  }

  std::string send_packets(std::uint64_t count, bool is_rush) {
    std::uint64_t intact = 0, refused = 0, answers = 0, waits = 0;
    const std::uint64_t first_number = next_number_;
    for (const std::uint64_t end = next_number_ + count; next_number_ < end; ++next_number_) {
      const Barrage::Packet packet = barrage_->packet_at(next_number_);
      const bool sent = tap_->write(packet.frame);
      intact += sent && packet.is_intact ? 1 : 0;
      refused += sent ? 0 : 1;
      if (next_number_ % kBatch != 0) continue;
      answers += learn_answers();
      while (!is_rush && ipv4_.unread_bytes() + ipv6_.unread_bytes() > kQueuedBytesMax) {
        ++waits;
        pollfd poll_fd{tap_->fd(), POLLIN, 0};
        ::poll(&poll_fd, 1, 1);
        answers += learn_answers();
      }
    }
    return fmt::format("fired={} first={} intact={} refused={} answers={} waits={} learned={}",
                       count, first_number, intact, refused, answers, waits,
                       target_.connections.size());
  }

  std::uint64_t learn_answers() {
    std::array<std::byte, Barrage::kFrameBytesMax> buffer;
    std::uint64_t frames = 0;
    for (int i = 0; i < kAnswersMax; ++i, ++frames) {
      const auto frame = tap_->read(buffer);
      if (frame.empty()) break;
      target_.learn(frame);
    }
    return frames;
  }

  std::unique_ptr<Port> tap_;
  SocketQueues& ipv4_;
  SocketQueues& ipv6_;
  std::uint64_t seed_;
  std::vector<std::vector<std::byte>> captured_;
  Target target_{};
  std::unique_ptr<Barrage> barrage_{};
  std::uint64_t next_number_ = 0;
};

std::vector<std::vector<std::byte>> read_captures(const std::string& directory) {
  std::vector<std::filesystem::path> files;
  if (!directory.empty()) {
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      if (entry.path().extension() == ".pcap") files.push_back(entry.path());
    }
  }
  std::ranges::sort(files);  // so that their order does not depend on the file system
  std::vector<std::vector<std::byte>> frames;
  for (const auto& file : files) {
    for (auto& frame : wire::testing::read_pcap(file)) frames.push_back(std::move(frame));
  }
  return frames;
}

int run(int argc, char** argv) {
  CLI::App app("The second host of a barrage.");
  std::string host, interface = "eth1", captures;
  std::uint64_t seed = 1;
  app.add_option("--host", host, "pid of a process in the target's network namespace")->required();
  app.add_option("--interface", interface, "name of the interface in the target (default eth1)");
  app.add_option("--captures", captures, "a directory with captures to mutate");
  app.add_option("--seed", seed, "seed of the random generator (default 1)");
  CLI11_PARSE(app, argc, argv);

  std::string problem;
  auto tap = open_tap("/proc/" + host + "/ns/net", interface, problem);
  SocketQueues ipv4("/proc/" + host + "/net/udp");
  SocketQueues ipv6("/proc/" + host + "/net/udp6");
  if (!tap || !ipv4.is_open() || !ipv6.is_open()) {
    fmt::print(stderr, "wire_barrage: {}\n", tap ? "/proc/" + host + "/net/udp" : problem);
    return 1;
  }
  Sender sender(std::move(tap), ipv4, ipv6, seed, read_captures(captures));
  fmt::print("ready\n");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    fmt::print("{}\n", sender.run_command(line));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace verbena::wire_bench

int main(int argc, char** argv) { return verbena::wire_bench::run(argc, argv); }
