#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/operation.h"
#include "base/random.h"
#include "base/time.h"
#include "process/process.h"

namespace verbena::fabric {

class Host;

// What runs on a host: reacts to what its process tells it.  Calls come from the host, one at a
// time; all that the program asks for in one goes out when it returns.
class Program {
 public:
  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  virtual ~Program() = default;

  virtual void start() = 0;  // the agent has said Welcome
  virtual void on_notice(const process::Notice& notice) = 0;
};

// What a program stands on: its process, its way to the agent, the clock.
class Seat {
 public:
  using Id = std::uint64_t;

  // Messages between this program and the agent.
  struct Traffic {
    std::uint64_t requests = 0;
    std::uint64_t replies = 0;
    std::uint64_t events = 0;
    friend bool operator==(const Traffic&, const Traffic&) = default;
  };
  struct Refusal {
    std::string what{};
    Errc code{};
    friend bool operator==(const Refusal&, const Refusal&) = default;
  };

  Seat(Host& host, Id id, std::string name, Random random);
  Seat(const Seat&) = delete;
  Seat& operator=(const Seat&) = delete;

  Id id() const { return id_; }
  const std::string& name() const { return name_; }
  Host& host() { return host_; }
  process::Process& process() { return process_; }
  hca::Engine& engine() { return process_.engine(); }
  Time now() const;

  // The stack has broken a promise: the run has failed.
  void complain(const std::string& what);
  // What the program was told, for the diagram.
  void note(const rdmacm::Event& event);
  // A result that cannot fail.
  template <class T>
  T sure(const char* what, Result<T> result) {
    if (!result) complain(std::string(what) + ": " + result.error().context);
    VB_CHECK(result.has_value());
    if constexpr (!std::is_void_v<T>) return *std::move(result);
  }

  // Requests: kept until they are done.  A no, at once or later, is a Refusal.
  Completion<ipc::Done> answer(const char* what);
  template <class T>
  void expect(const char* what, Started<T> started) {
    if (auto* result = std::get_if<Result<T>>(&started)) {
      if (!*result) refused(what, result->error());
    } else {
      pending_.push_back(std::move(std::get<Pending>(started)));
    }
  }
  void refused(const char* what, const Error& error) { refusals.push_back({what, error.code}); }

  // What runs here from now on: P(seat, arguments...).
  template <class P, class... Arguments>
  P& install(Arguments&&... arguments) {
    auto program = std::make_unique<P>(*this, std::forward<Arguments>(arguments)...);
    P& running = *program;
    program_ = std::move(program);
    return running;
  }
  Program* program() { return program_.get(); }

  Traffic traffic{};
  std::vector<Refusal> refusals{};
  Time armed = kNever;  // the host's: when it looks at this seat again

 private:
  Host& host_;
  Id id_;
  std::string name_;
  process::Process process_;
  std::vector<Pending> pending_{};
  std::unique_ptr<Program> program_{};
};

}  // namespace verbena::fabric
