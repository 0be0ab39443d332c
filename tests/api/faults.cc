// Tests verbena::Fabric on a fabric of two hosts, a and b, in the network red, or on a fabric of
// two HCAs at a switch:
//     faults NAME A B NODE
// NAME is the name of the fabric.  A and B are the ends of a link.  When the test ends, the link is
// slow and NODE is paused.
// Prints "all good"; a failure ends the test with one line.
#include <verbena/fabric.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <source_location>
#include <stdexcept>
#include <string>

using namespace verbena;
using namespace std::chrono_literals;

namespace {

void expect_state(const Fabric::State& state, const std::string& wanted,
                  const std::source_location& location = std::source_location::current()) {
  const std::string& text = state ? *state : state.error().text;
  if (state && text.ends_with(wanted)) return;
  throw std::runtime_error("line " + std::to_string(location.line()) + ": " + text);
}

void expect_failure(const Fabric::State& state, std::errc code, const std::string& wanted,
                    const std::source_location& location = std::source_location::current()) {
  const std::string text = state ? *state : state.error().text;
  if (!state && state.error().code == code && text.find(wanted) != std::string::npos) return;
  throw std::runtime_error("line " + std::to_string(location.line()) + ": " + text);
}

void test(const Fabric& fabric, const FabricLink& link, const std::string& node) {
  expect_state(fabric.take_down(link), " is down");
  expect_state(fabric.bring_up(link), " is up");
  expect_state(fabric.lose(link, 2.5, 7), " loses 2.5 % of its packets (seed 7)");
  expect_state(fabric.lose(link, 0), " loses nothing");
  expect_state(fabric.flap(link, 50ms, 1s, 3), " flaps: 50ms down, 1s up, at random (seed 3)");
  expect_state(fabric.bring_up(link), " is up");
  expect_state(fabric.set_mtu(link, 1024), " has an MTU of 1024 bytes");
  expect_state(fabric.set_mtu(link, {}), " has its default MTU");
  expect_state(fabric.slow_down(link, 1500us), " delays packets by 1500us");
  expect_state(fabric.add_pkey(node, 0x8123), " has got P_Key 0x8123");
  expect_state(fabric.remove_pkey(node, 0x8123), " has lost P_Key 0x8123");
  expect_state(fabric.switch_off(node), "");
  expect_state(fabric.switch_on(node), " is on");
  expect_state(fabric.pause(node), " is paused");

  expect_failure(fabric.take_down({"nobody", link.b}), std::errc::invalid_argument, "there is no");
  expect_failure(fabric.slow_down(link, 11s), std::errc::invalid_argument, "is not a delay");
  expect_failure(fabric.lose(link, 101), std::errc::invalid_argument, "must be 0 to 100");
  expect_failure(fabric.fault({"link", "a"}), std::errc::invalid_argument, "a fault of a link is");
  expect_failure(fabric.remove_pkey(node, 0x8124), std::errc::invalid_argument,
                 "has no P_Key 0x8124");
  expect_failure(Fabric("nowhere").pause(node), std::errc::no_such_device, "'nowhere' is not up");
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 5) throw std::runtime_error("usage: faults NAME A B NODE");
  test(Fabric(argv[1]), {argv[2], argv[3]}, argv[4]);
  std::puts("all good");
  return 0;
} catch (const std::exception& e) {
  std::puts(e.what());
  return 1;
}
