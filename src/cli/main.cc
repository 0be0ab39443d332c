#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "cli/agent_command.h"
#include "cli/arguments.h"
#include "cli/doctor.h"
#include "cli/ps.h"
#include "cli/run.h"
#include "cli/sa.h"
#include "cli/sockets.h"
#include "cli/sockets_trace.h"

namespace {

using namespace verbena::cli;

int run_command(int argc, char** argv) {
  const auto command = parse(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
  if (!command) {
    const Message& message = command.error();
    if (message.exit_code == 0) {
      std::fputs(message.text.c_str(), stdout);
    } else {
      std::fprintf(stderr, "%s\n", message.text.c_str());
    }
    return message.exit_code;
  }
  switch (command->kind) {
    case Command::Kind::kRun: return run(command->run);
    case Command::Kind::kPs: return ps({.json = command->json, .counters = command->counters});
    case Command::Kind::kSa: return sa(command->sa);
    case Command::Kind::kDoctor: return doctor(command->json);
    case Command::Kind::kAgentStatus: return agent_status(command->json);
    case Command::Kind::kAgentStart: return agent_start(command->all_users);
    case Command::Kind::kAgentStop: return agent_stop();
    case Command::Kind::kFabric: return fabric(command->fabric);
    case Command::Kind::kSockets: return sockets(command->sockets);
    case Command::Kind::kSocketsTrace: return trace_sockets(command->trace);
  }
  return kExitUsage;
}

}  // namespace

// Runs the command line of verbena.
int main(int argc, char** argv) {
  const int exit_code = run_command(argc, argv);
  // stdout is buffered, so a full disk may cause an error only now.
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  std::fprintf(stderr, "verbena: cannot write to standard output: %s\n",
               errno != 0 ? std::strerror(errno) : "the output is incomplete");
  return exit_code != 0 ? exit_code : kExitOutputLost;
}
