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

// Writes lines to standard error about failed connections, completions in error and refused calls.
// VERBENA_VERBOSE=1 (`verbena run --verbose`) turns the lines on.  Lines about peers name the peer,
// and, if known, the step and the time spent.
namespace verbena::client {

// Limits the rate of lines, because a program that fails in a loop must not fill a disk.
class LineBudget {
 public:
  static constexpr std::uint32_t kLinesMax = 20;  // in a burst
  static constexpr Duration kOneMoreEvery = std::chrono::milliseconds(100);

  // If a line may be written now, counts the line and returns true.
  bool take(Time now);

 private:
  std::uint32_t remaining_ = kLinesMax;
  Time since_{};
};

// Formats a duration: "12 ms", "3.2 s".
std::string duration_text(Duration spent);
// Returns a text that describes the failure that an event reports.  Returns none if the event
// reports no failure.
std::optional<std::string> text_of(const rdmacm::Event& event, process::Connection::Step step,
                                   Duration spent);
// Returns a text that describes a completion in error.
std::string text_of(const hca::RequestFailure& failure, Duration spent);

// Returns true if the program made a mistake or asked for something unsupported.  Returns false for
// temporary conditions, such as a full queue.
constexpr bool is_program_error(Errc code) {
  return code == Errc::kInvalidArgument || code == Errc::kBadState || code == Errc::kNotSupported;
}

// Suppresses repeated lines.  Many programs probe the limits of a device.  They ask for more and
// more until the device refuses, or for less and less until it accepts.  Lines that differ only in
// numbers are of one kind.  After a line was written, lines of its kind within one second are only
// counted.
class RepeatFilter {
 public:
  static constexpr std::size_t kKindsMax = 8;
  static constexpr Duration kWindow = std::chrono::seconds(1);

  // Returns the line to write, or none if the line is suppressed.  The line tells how many lines of
  // its kind were suppressed before it.
  std::optional<std::string> take(const std::string& text, Time now);
  // Returns " (19 repeats of 'refused: ...' were left out)" for each kind with unreported repeats,
  // and resets their counts.  Returns an empty text if there are none.
  std::string omitted_note();
  std::uint64_t suppressed() const { return suppressed_; }

 private:
  struct Kind {
    std::string text{};         // the text of its lines without numbers
    std::string last_line{};    // the last line that was written, with its numbers
    Time written_at{};          // the time of that line
    std::uint64_t repeats = 0;  // lines that were suppressed since then
  };
  std::array<Kind, kKindsMax> kinds_{};
  std::uint64_t suppressed_ = 0;
};

// Writes the lines.  Any thread may call any function.  Without VERBENA_VERBOSE this object writes
// nothing.
class Diagnostics {
 public:
  // Reads VERBENA_VERBOSE from the environment.
  Diagnostics();

  bool enabled() const { return enabled_; }
  // Writes "verbena: PROGRAM[PID]: TEXT" if the budget allows a line and standard error has space
  // for it.  Never waits.
  void write(const std::string& text, Time now);
  // Writes a line about a call that was refused, and suppresses repeats.
  void write_refusal(const std::string& text, Time now);
  // The next functions return numbers of lines.  omitted() counts the lines for which the budget
  // or standard error had no space, and suppressed() counts the repeats.
  std::uint64_t written() const;
  std::uint64_t omitted() const;
  std::uint64_t suppressed() const;

 private:
  void write_line(const std::string& text, Time now);

  bool enabled_;
  mutable std::mutex mutex_;
  LineBudget budget_{};
  RepeatFilter repeats_{};
  std::uint64_t written_ = 0;
  std::uint64_t omitted_ = 0;
  std::uint64_t omitted_since_line_ = 0;  // lines left out since the last written one
};

}  // namespace verbena::client
