#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "base/time.h"
#include "hca/types.h"
#include "process/process.h"

// One line on standard error for each failed connection and each completion in error, with peer,
// step and time spent: for who runs a program with VERBENA_VERBOSE=1 (`verbena run --verbose`) and
// wants to know what went wrong.
namespace verbena::client {

// How many lines may be written: a program that fails in a loop must not fill a disk.
class LineBudget {
 public:
  static constexpr std::uint32_t kLinesMax = 20;  // at once
  static constexpr Duration kOneMoreEvery = std::chrono::milliseconds(100);

  // Whether a line may be written now.
  bool take(Time now);

 private:
  std::uint32_t left_ = kLinesMax;
  Time since_{};
};

// "12 ms", "3.2 s".
std::string spent_text(Duration spent);
// What an event says of a failure, or nothing if it tells of none.
std::optional<std::string> text_of(const rdmacm::Event& event, process::Connection::Step step,
                                   Duration spent);
std::string text_of(const hca::RequestFailure& failure, Duration spent);

// Any thread.  Nothing happens unless it is wanted.
// What a program has got wrong, or wants and does not get: no mere moment, and no full queue.
constexpr bool is_programs_fault(Errc code) {
  return code == Errc::kInvalidArgument || code == Errc::kBadState || code == Errc::kNotSupported;
}

class Complaints {
 public:
  // As the environment has it.
  Complaints();

  bool wanted() const { return wanted_; }
  // Writes "verbena: PROGRAM[PID]: TEXT", if the budget and standard error have room for it: it
  // never waits.
  void write(const std::string& text, Time now);
  std::uint64_t written() const;
  std::uint64_t left_out() const;

 private:
  bool wanted_;
  mutable std::mutex mutex_;
  LineBudget budget_{};
  std::uint64_t written_ = 0;
  std::uint64_t left_out_ = 0;
  std::uint64_t untold_ = 0;  // left out since the last line
};

}  // namespace verbena::client
