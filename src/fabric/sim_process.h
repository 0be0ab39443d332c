#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/operation.h"
#include "base/random.h"
#include "base/time.h"
#include "link/lane.h"
#include "process/process.h"

namespace verbena::fabric {

class Host;

// Simulates the shared memory of a lane.
struct alignas(4096) LanePages {
  std::array<std::byte, link::Lane::kBytes> bytes{};
};
using LaneMemory = std::shared_ptr<LanePages>;

// Program is the base class of the programs on a host.  They react to the notices of their process.
// The host makes one call at a time.  When the call returns, the host carries out the requests that
// the program has made.
class Program {
 public:
  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  virtual ~Program() = default;

  virtual void start() = 0;  // the host calls start() when the agent's Welcome has arrived
  virtual void on_notice(const process::Notice& notice) = 0;
};

// Provides the environment of a program: its process::Process, its connection to the agent, and the
// clock.
class SimProcess {
 public:
  using Id = std::uint64_t;

  // Counts the messages between this program and the agent.
  struct Traffic {
    std::uint64_t requests = 0;
    std::uint64_t replies = 0;
    std::uint64_t events = 0;
    friend bool operator==(const Traffic&, const Traffic&) = default;
  };
  struct FailedCall {
    std::string call{};
    Errc code{};
    friend bool operator==(const FailedCall&, const FailedCall&) = default;
  };

  SimProcess(Host& host, Id id, std::string name, Random random);
  SimProcess(const SimProcess&) = delete;
  SimProcess& operator=(const SimProcess&) = delete;

  Id id() const { return id_; }
  const std::string& name() const { return name_; }
  Host& host() { return host_; }
  process::Process& process() { return process_; }
  hca::Engine& engine() { return process_.engine(); }
  Time now() const;

  // Reports that the stack has violated a guarantee, which means that the run has failed.
  void report_violation(const std::string& what);
  // Adds an event that the program received to the diagram.
  void note(const rdmacm::Event& event);
  // Returns the value of a call that must not fail.  A failure is a violation.
  template <class T>
  T require(const char* what, Result<T> result) {
    if (!result) report_violation(std::string(what) + ": " + result.error().context);
    VB_CHECK(result.has_value());
    if constexpr (!std::is_void_v<T>) return *std::move(result);
  }

  // track() and completion_for() handle the result of a request, which may arrive later.  They add
  // a failure to failed_calls.  `what` is the name of the call.
  Completion<ipc::Done> completion_for(const char* what);
  template <class T>
  void track(const char* what, Started<T> started) {
    if (auto* result = std::get_if<Result<T>>(&started)) {
      if (!*result) add_failed_call(what, result->error());
    } else {
      pending_.push_back(std::move(std::get<Pending>(started)));
    }
  }
  void add_failed_call(const char* what, const Error& error) {
    failed_calls.push_back({what, error.code});
  }

  // Creates the program P(process, arguments...), which replaces the current program.
  template <class P, class... Arguments>
  P& install(Arguments&&... arguments) {
    auto program = std::make_unique<P>(*this, std::forward<Arguments>(arguments)...);
    P& running = *program;
    program_ = std::move(program);
    return running;
  }
  Program* program() { return program_.get(); }

  Traffic traffic{};
  std::vector<FailedCall> failed_calls{};
  std::map<process::LaneManager::Id, LaneMemory> lanes{};
  bool lane_receive_is_scheduled = false;  // true: a timer will receive from the lanes
  Time timer_deadline = kNever;            // when the timer of this process expires

 private:
  Host& host_;
  Id id_;
  std::string name_;
  process::Process process_;
  std::vector<Pending> pending_{};
  std::unique_ptr<Program> program_{};
};

}  // namespace verbena::fabric
