// Runs the line between two hosts.  It carries frames in both directions, and applies faults such
// as loss to RoCEv2 packets, and to TCP if it is told so.  A host is a network namespace, in which
// this program creates an Ethernet interface, or a virtual machine (port.h).
//
//   wire_line --a HOST --b HOST [--seed N] [--pcap PREFIX]      HOST: /proc/PID/ns/net, guest:PATH
//
// Prints "ready" when the interfaces (eth0) and the guests' sockets exist.  Then it reads commands
// from its standard input, one on each line.  It answers each with a line: "ok", "error: ..." or
// the counts.
//
//   a>b FAULTS | b>a FAULTS | both FAULTS   sets the faults (faults.h); without FAULTS, the line is
//                                           perfect
//   counts                                  prints the counts since the start: a line for a>b, and
//                                           a line for b>a
//   seed N                                  restarts the random generator with the seed N
//
// The program ends when its standard input ends.  Then the captures are complete.

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <string>

#include "faults.h"
#include "os/clock.h"
#include "pcap.h"
#include "port.h"

namespace verbena::wire_bench {
namespace {

constexpr std::size_t kFrameBytesMax = 65'536;
constexpr int kFramesPerReadMax = 256;

struct Side {
  const char* name;
  std::unique_ptr<Port> port{};
  std::unique_ptr<Pcap> pcap{};
  Direction out;  // carries the frames that this host sends
};

std::string counts_text(const char* name, const Counts& c) {
  return fmt::format(
      "{} frames={} others={} lost={} duplicated={} reordered={} corrupted={} cut={} overflowed={}",
      name, c.frames, c.others, c.lost, c.duplicated, c.reordered, c.corrupted, c.cut,
      c.overflowed);
}

// Carries out a command, and returns the answer.
std::string run_command(std::string_view line, Side& a, Side& b, Time now) {
  if (line == "counts")
    return counts_text("a>b", a.out.counts()) + "\n" + counts_text("b>a", b.out.counts());
  if (unsigned seed = 0; line.starts_with("seed ")) {
    std::string_view digits = line;
    digits.remove_prefix(5);
    const auto [end, error] = std::from_chars(digits.begin(), digits.end(), seed);
    if (error != std::errc() || end != digits.end()) return "error: no such seed";
    Random random(seed);
    a.out.reseed(random.fork());
    b.out.reseed(random.fork());
    return "ok";
  }
  const auto space = line.find(' ');
  const std::string_view direction = line.substr(0, space);
  const bool both = direction == "both";
  if (!both && direction != "a>b" && direction != "b>a") return "error: no such command";
  std::string problem;
  const auto faults =
      parse_faults(space == std::string_view::npos ? "" : line.substr(space + 1), problem);
  if (!faults) return "error: " + problem;
  if (both || direction == "a>b") a.out.set_faults(*faults, now);
  if (both || direction == "b>a") b.out.set_faults(*faults, now);
  return "ok";
}

// Reads frames that the host has sent, and draws their faults.
void read_frames(Side& from) {
  std::array<std::byte, kFrameBytesMax> buffer;
  for (int i = 0; i < kFramesPerReadMax; ++i) {
    const auto frame = from.port->read(buffer);
    if (frame.empty()) return;
    const Time now = os::now();
    if (from.pcap) from.pcap->write(frame, now);
    from.out.accept(frame, now);
  }
}

// Delivers frames to the other host when they are due.
void deliver(Side& from, Side& to) {
  while (const auto frame = from.out.next_due_frame(os::now())) {
    if (to.pcap) to.pcap->write(*frame, os::now());
    to.port->write(*frame);
  }
}

// Reads commands and answers them.  `pending` has the beginning of an incomplete line.  Returns
// false at the end of the input.
bool read_commands(std::string& pending, Side& a, Side& b) {
  std::array<char, 4096> buffer;
  const ssize_t bytes = ::read(STDIN_FILENO, buffer.data(), buffer.size());
  if (bytes <= 0) return false;
  pending.append(buffer.data(), static_cast<std::size_t>(bytes));
  for (auto end = pending.find('\n'); end != std::string::npos; end = pending.find('\n')) {
    fmt::print("{}\n", run_command(std::string_view(pending).substr(0, end), a, b, os::now()));
    std::fflush(stdout);
    pending.erase(0, end + 1);
  }
  return true;
}

pollfd make_pollfd(const Port& port) {
  return {port.fd(), static_cast<short>(POLLIN | (port.wants_output() ? POLLOUT : 0)), 0};
}

void run_line(Side& a, Side& b) {
  std::string pending;
  for (;;) {
    const bool has_input = a.port->has_input() || b.port->has_input();
    const Time due = has_input ? Time{} : std::min(a.out.deadline(), b.out.deadline());
    const Duration remaining = due == kNever ? Duration::max() : due - os::now();
    timespec wait{};
    if (remaining > Duration{}) {
      wait.tv_sec = remaining / std::chrono::seconds(1);
      wait.tv_nsec = (remaining % std::chrono::seconds(1)).count();
    }
    std::array<pollfd, 3> fds{
        {make_pollfd(*a.port), make_pollfd(*b.port), {STDIN_FILENO, POLLIN, 0}}};
    if (::ppoll(fds.data(), fds.size(), due == kNever ? nullptr : &wait, nullptr) < 0 &&
        errno != EINTR) {
      return;
    }
    if (fds[2].revents != 0 && !read_commands(pending, a, b)) return;
    read_frames(a);
    read_frames(b);
    deliver(a, b);
    deliver(b, a);
  }
}

int run(int argc, char** argv) {
  CLI::App app("The line between two hosts.");
  std::string a_place, b_place, pcap;
  std::uint64_t seed = 1;
  app.add_option("--a", a_place, "host a: network namespace, or guest:PATH for QEMU")->required();
  app.add_option("--b", b_place, "host b")->required();
  app.add_option("--seed", seed, "seed of the random generator (default 1)");
  app.add_option("--pcap", pcap, "captures each host's side in PREFIX.a.pcap and PREFIX.b.pcap");
  CLI11_PARSE(app, argc, argv);

  Random random(seed);
  const Time start = os::now();
  Side a{.name = "a", .out = Direction(random.fork(), start)};
  Side b{.name = "b", .out = Direction(random.fork(), start)};
  for (const auto& [side, place] : {std::pair(&a, &a_place), std::pair(&b, &b_place)}) {
    std::string problem;
    constexpr std::string_view guest = "guest:";
    side->port = place->starts_with(guest) ? open_guest(place->substr(guest.size()), problem)
                                           : open_tap(*place, "eth0", problem);
    if (!side->port) {
      fmt::print(stderr, "wire_line: {}\n", problem);
      return 1;
    }
    if (pcap.empty()) continue;
    const std::string path = pcap + "." + side->name + ".pcap";
    side->pcap = Pcap::create(path);
    if (!side->pcap) {
      fmt::print(stderr, "wire_line: {}: {}\n", path, std::strerror(errno));
      return 1;
    }
  }
  fmt::print("ready\n");
  std::fflush(stdout);
  run_line(a, b);
  return 0;
}

}  // namespace
}  // namespace verbena::wire_bench

int main(int argc, char** argv) { return verbena::wire_bench::run(argc, argv); }
