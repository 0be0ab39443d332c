#pragma once

#include <array>
#include <cstddef>
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

// What a program has got wrong, or wants and does not get: no mere moment, and no full queue.
constexpr bool is_programs_fault(Errc code) {
  return code == Errc::kInvalidArgument || code == Errc::kBadState || code == Errc::kNotSupported;
}

// Programs find out what a device can do by asking for more and more, or less and less, until it is
// refused or given.  Of refusals that differ in nothing but numbers one is written; those that
// follow within a second are counted.
class Repeats {
 public:
  static constexpr std::size_t kKindsMax = 8;
  static constexpr Duration kWindow = std::chrono::seconds(1);

  // Returns the line to write, or none.  The line tells how many were left out before it.
  std::optional<std::string> take(const std::string& text, Time now);
  // " (19 repeats of 'refused: ...' were left out)", for all that were not told yet; empty if none.
  std::string untold();
  std::uint64_t folded() const { return folded_; }

 private:
  struct Kind {
    std::string text{};  // without its numbers
    std::string first{};
    Time written{};
    std::uint64_t more = 0;
  };
  std::array<Kind, kKindsMax> kinds_{};
  std::uint64_t folded_ = 0;
};

// Any thread.  Nothing happens unless it is wanted.
class Diagnostics {
 public:
  // As the environment has it.
  Diagnostics();

  bool wanted() const { return wanted_; }
  // Writes "verbena: PROGRAM[PID]: TEXT", if the budget and standard error have room for it: it
  // never waits.
  void write(const std::string& text, Time now);
  // The same for a call that is refused: repeats are folded.
  void refused(const std::string& text, Time now);
  std::uint64_t written() const;
  std::uint64_t left_out() const;
  std::uint64_t folded() const;

 private:
  void write_line(const std::string& text, Time now);

  bool wanted_;
  mutable std::mutex mutex_;
  LineBudget budget_{};
  Repeats repeats_{};
  std::uint64_t written_ = 0;
  std::uint64_t left_out_ = 0;
  std::uint64_t untold_ = 0;  // left out since the last line
};

}  // namespace verbena::client
