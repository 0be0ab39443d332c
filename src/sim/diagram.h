#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "base/time.h"

namespace verbena::sim {

// Writes a message exchange as text, one line for each event, so that a test can compare it:
//
//        0 us  a -- ConnectRequest --> b   (lost)
//    20000 us  a -- ConnectRequest --> b
class Diagram {
 public:
  void note(Time now, std::string_view line) {
    using std::chrono::microseconds;
    const auto us = std::chrono::duration_cast<microseconds>(now.time_since_epoch()).count();
    const std::string stamp = std::to_string(us);
    text_ += '\n';
    text_ += std::string(8 - std::min<std::size_t>(8, stamp.size()), ' ') + stamp + " us  ";
    text_ += line;
  }
  void arrow(Time now, std::string_view from, std::string_view what, std::string_view to,
             std::string_view remark = {}) {
    std::string line;
    line += from;
    line += " -- ";
    line += what;
    line += " --> ";
    line += to;
    if (!remark.empty()) {
      line += "   (";
      line += remark;
      line += ')';
    }
    note(now, line);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace verbena::sim
