// Simulates the path queries of a job in which each process connects to all other hosts.
// Prints one JSON object.  Time is virtual, so a seed gives the same figures on every machine,
// except for the figures whose names begin with "real".
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>
#include <string_view>

#include "sa/job_test.h"

namespace verbena {
namespace {

using sa::Job;
using Mode = sa::PathCache::Mode;

constexpr const char* kUsage =
    "usage: job_start [NAME=VALUE]...\n"
    "  mode=get|table|uncached  how a host gets paths from the SA (default: get)\n"
    "  hosts=N                  number of hosts, 2 to 4096 (default: 16)\n"
    "  processes=N              processes of each host; each connects to all other hosts\n"
    "                           (default: 1)\n"
    "  window=N                 connections that a process makes at once (default: 16)\n"
    "  request_ns=N record_ns=N the manager's time for a request, and for a record of a table\n"
    "  deaf=N busy=N            percentages of requests that the manager ignores, or answers\n"
    "                           with BUSY\n"
    "  seed=N                   seed of the random generator\n";
constexpr unsigned kHostsMax = 4096;

[[noreturn]] void exit_with_usage(std::string_view word) {
  std::fprintf(stderr, "job_start: invalid argument '%.*s'\n%s", static_cast<int>(word.size()),
               word.data(), kUsage);
  std::exit(2);
}

std::uint32_t parse_number(std::string_view word, std::string_view value, std::uint32_t low,
                           std::uint32_t high) {
  char* end = nullptr;
  const std::string text(value);
  const unsigned long long number = std::strtoull(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || number < low || number > high) exit_with_usage(word);
  return static_cast<std::uint32_t>(number);
}

const char* name_of(Mode mode) {
  switch (mode) {
    case Mode::kGet: return "get";
    case Mode::kTable: return "table";
    case Mode::kUncached: return "uncached";
  }
  return "";
}

Mode parse_mode(std::string_view word, std::string_view value) {
  for (const Mode mode : {Mode::kGet, Mode::kTable, Mode::kUncached}) {
    if (value == name_of(mode)) return mode;
  }
  exit_with_usage(word);
}

// Changes the plan as an argument such as "hosts=16" says.
void apply_argument(Job::Plan& plan, std::string_view word) {
  constexpr std::uint32_t kMillion = 1'000'000;
  const std::size_t at = word.find('=');
  if (at == std::string_view::npos) exit_with_usage(word);
  const std::string_view name = word.substr(0, at);
  const std::string_view value = word.substr(at + 1);
  const auto number = [&](std::uint32_t low, std::uint32_t high) {
    return parse_number(word, value, low, high);
  };
  if (name == "mode") return void(plan.mode = parse_mode(word, value));
  if (name == "hosts") return void(plan.manager.hosts = number(2, kHostsMax));
  if (name == "processes") return void(plan.processes = number(1, 64));
  if (name == "window") return void(plan.window = number(1, 1024));
  if (name == "request_ns") {
    return void(plan.manager.per_request = std::chrono::nanoseconds(number(1, 1000 * kMillion)));
  }
  if (name == "record_ns") {
    return void(plan.manager.per_record = std::chrono::nanoseconds(number(0, kMillion)));
  }
  if (name == "deaf") return void(plan.manager.deaf = {number(0, 99), 100});
  if (name == "busy") return void(plan.manager.busy = {number(0, 99), 100});
  if (name == "seed") return void(plan.seed = number(0, ~0u));
  exit_with_usage(word);
}

// Returns the peak memory of this process.  Does not use ru_maxrss of getrusage(), because after
// fork() and exec() this is at least the peak memory of the parent process.
double peak_mib() {
  constexpr std::string_view kField = "VmHWM:";
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(kField)) return std::stod(line.substr(kField.size())) / 1024;
  }
  return 0;
}

void print_result(const Job::Plan& plan, const Job& job, const Job::Result& result,
                  double real_seconds) {
  const auto& manager = job.manager().counters();
  const double cpu_seconds = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  const auto seconds = std::chrono::duration<double>(result.took).count();
  const auto number = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
  std::printf(
      "{\"mode\": \"%s\", \"hosts\": %u, \"processes\": %u, \"routes\": %llu, \"failed\": %llu, "
      "\"queries\": %llu, \"subscriptions\": %llu, \"sent\": %llu, \"repeated\": %llu, "
      "\"served\": %llu, \"busy\": %llu, \"unseen\": %llu, \"queue_max\": %zu, "
      "\"seconds\": %.6f, \"real_seconds\": %.3f, \"real_cpu_seconds\": %.3f, \"real_mib\": "
      "%.1f}\n",
      name_of(plan.mode), plan.manager.hosts, plan.processes, number(result.routes),
      number(result.failed), number(result.queries), number(result.subscriptions),
      number(result.sent), number(result.repeated), number(manager.paths + manager.tables),
      number(manager.busy), number(manager.unseen), manager.queue_max, seconds, real_seconds,
      cpu_seconds, peak_mib());
}

}  // namespace
}  // namespace verbena

int main(int argc, char** argv) {
  verbena::sa::Job::Plan plan{.manager = {.hosts = 16}};
  for (int i = 1; i < argc; ++i) verbena::apply_argument(plan, argv[i]);
  const auto start = std::chrono::steady_clock::now();
  verbena::sa::Job job(plan);
  const auto result = job.run();
  const std::chrono::duration<double> real = std::chrono::steady_clock::now() - start;
  verbena::print_result(plan, job, result, real.count());
  return result.failed == 0 ? 0 : 1;
}
