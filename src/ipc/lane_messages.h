#pragma once

#include <cstdint>
#include <vector>

#include "ipc/messages.h"

// Defines the messages about lanes (link/lane.h) between a program and the agent.
namespace verbena::ipc {

// Asks for a lane (link/lane.h) to the program that has this range of QPNs.  The agent answers with
// Lane, LaneRange or NoLane.
struct AttachLane {
  static constexpr Type kType = Type::kAttachLane;
  std::uint16_t range = 0;
  void fields(auto& a) { a(range); }
};

// Reports that the program does not use a lane, because the peer has written invalid data to it, or
// because the program could not map the memory.
struct CloseLane {
  static constexpr Type kType = Type::kCloseLane;
  std::uint32_t lane = 0;
  bool broken = false;  // the peer has written invalid data
  void fields(auto& a) { a(lane, broken); }
};

// Gives a lane to both of its programs.  Carries descriptors: the memory, the eventfd that wakes
// this program (the same one with each lane), the eventfd that wakes the other program, and the
// access table of the other program if `direct` has a pid.  If the other program is of another
// user, the message carries only the memory, and a socket by which each program wakes the other
// (os::WakeSocket).
//
// If the program gets no sockets, a lane with the id kUplink comes before the reply to the first
// Lease.  Programs on virtual hosts, and programs of an agent of another user, get no sockets.  At
// the other end of this lane, the process of the fabric or the agent forwards packets.
struct Lane {
  static constexpr Type kType = Type::kLane;
  static constexpr std::uint32_t kUplink = 0;  // no other lane has this id
  std::uint32_t lane = 0;
  std::uint8_t side = 0;                // link::Lane::Side
  std::vector<std::uint16_t> ranges{};  // the QPN ranges of the other program
  DirectAccess direct{};                // how to access the other program's memory
  bool other_user = false;              // the other program is of another user
  void fields(auto& a) { a(lane, side, ranges, direct, other_user); }
};

// Reports that the program at the other end of a lane has got a range, or has returned a range.
struct LaneRange {
  static constexpr Type kType = Type::kLaneRange;
  std::uint32_t lane = 0;
  std::uint16_t range = 0;
  bool taken = false;  // true: the program has got the range; false: it has returned the range
  void fields(auto& a) { a(lane, range, taken); }
};

// Reports that the program at the other end of a lane has ended or has closed the lane.
struct LaneClosed {
  static constexpr Type kType = Type::kLaneClosed;
  std::uint32_t lane = 0;
  void fields(auto& a) { a(lane); }
};

// Reports that there is no lane to a range.  Either no other program has the range, one of the two
// programs does not use lanes, a limit was reached, or the memory for the lane is missing.
struct NoLane {
  static constexpr Type kType = Type::kNoLane;
  std::uint16_t range = 0;
  void fields(auto& a) { a(range); }
};

}  // namespace verbena::ipc
