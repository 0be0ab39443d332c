#include "cli/arguments.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>

#include "cli/executable.h"
#include "verbena_build.h"

namespace verbena::cli {
namespace {

using Words = std::vector<std::string>;

// Defines the grammar of the command line, except for the program of `run` (see first_of_program).
struct Grammar {
  CLI::App app{"Verbena runs RDMA programs on machines without RDMA hardware.", "verbena"};
  CLI::App* run = app.add_subcommand("run", "Run a program on Verbena's RDMA device");
  CLI::App* ps = app.add_subcommand("ps", "List the queue pairs and connections of all programs");
  CLI::App* doctor =
      app.add_subcommand("doctor", "Message what on this host would keep it from work");
  CLI::App* agent = app.add_subcommand("agent", "Look at or stop the agent");
  CLI::App* status = agent->add_subcommand("status", "Message how the agent is");
  CLI::App* stop = agent->add_subcommand("stop", "Stop the agent and wait until it has ended");
  Command command{};

  Grammar() {
    app.set_version_flag("-V,--version", "verbena " VB_VERSION " (build " VB_BUILD_ID ")",
                         "Print the version and exit");
    app.footer(
        "Begin with:\n"
        "  verbena run -- ibv_devinfo          is there a device?\n"
        "  verbena run -- rping -s             a server; and in another terminal its client:\n"
        "  verbena run -- rping -c -a 127.0.0.1 -v -C 3\n"
        "  verbena run -- bash                 a shell whose programs have the device\n"
        "'verbena help COMMAND' says more; so does 'man verbena'.");
    run->add_option("--pcap", command.run.pcap,
                    "Record every RDMA packet that the program sends or receives to FILE "
                    "(pcapng; open it with Wireshark)")
        ->type_name("FILE");
    run->add_option("--personality", command.run.personality,
                    "Behave as NAME where adapters differ: connectx (each completion for itself, "
                    "requests flushed at once; the default), or rxe (completions in batches, "
                    "requests flushed late)")
        ->type_name("NAME")
        ->check(CLI::IsMember({"connectx", "rxe"}));
    run->add_option("--link", command.run.link,
                    "Exchange packets with programs of this host by NAME: lane (shared memory, "
                    "where both programs can; the default), or udp (the loopback interface)")
        ->type_name("NAME")
        ->check(CLI::IsMember({"lane", "udp"}));
    run->add_option("--adapter", command.run.adapter,
                    "For programs of the C++ API: use an RDMA adapter of this host in place of "
                    "Verbena's own, as rdma link show names it (mlx5_0, mlx5_0/2), or any")
        ->type_name("NAME");
    run->add_flag("--verbose", command.run.verbose,
                  "Tell on standard error why connections fail, requests end in error, and calls "
                  "are refused");
    run->add_flag(
        "--sysfs", command.run.sysfs,
        "Let the program see the device in /sys/class/infiniband and /dev/infiniband, too");
    run->footer(
        "The program is not changed and needs no rights; it finds Verbena's libibverbs and\n"
        "librdmacm in place of the system's. Its exit code is its own; 125 means that Verbena\n"
        "failed, 126 that the program cannot be run, 127 that there is none of that name.\n"
        "  verbena run -- rping -s\n"
        "  verbena run --pcap ping.pcapng -- rping -c -a 192.168.1.7 -C 3");
    ps->add_flag("--json", command.json, "Print JSON");
    ps->add_flag("--counters", command.counters,
                 "Print what each program and the agent have counted: packets dropped by reason, "
                 "retransmissions, limits reached");
    ps->footer("Works on stopped processes, too. Never starts an agent.");
    doctor->add_flag("--json", command.json, "Print JSON");
    doctor->footer(
        "Looks at the port, the limits, the interfaces, the kernel's rights and Verbena's own\n"
        "files. Each finding is a line 'ok', 'note' or 'problem', with what to do below it.\n"
        "Exits with 1 if a problem keeps programs from running. Changes nothing, and never\n"
        "starts an agent.");
    status->add_flag("--json", command.json, "Print JSON");
    agent->footer(
        "The agent (verbenad) is what the programs of a user share: it sets up connections and\n"
        "owns UDP port 4791. It starts with the first program and ends when none needs it.");
    stop->footer("Programs that run lose their RDMA device.");
  }
};

// Returns the help text.  Adds the program of `run` to it, because CLI11 never sees the program.
std::string help(const Grammar& g) {
  std::string text = g.app.help();
  constexpr std::string_view kShort = "verbena run [OPTIONS]";
  if (const auto at = text.find(kShort); at != std::string::npos) {
    text.replace(at, kShort.size(), "verbena run [OPTIONS] [--] PROGRAM [ARGUMENT...]");
  }
  return text;
}

// Returns the innermost command on the command line, for messages: "agent status".
std::string named_command(const Grammar& g) {
  if (g.run->parsed()) return "run";
  if (g.ps->parsed()) return "ps";
  if (g.doctor->parsed()) return "doctor";
  if (g.status->parsed()) return "agent status";
  if (g.stop->parsed()) return "agent stop";
  return g.agent->parsed() ? "agent" : "";
}

std::string full_name(std::string_view command) {
  return command.empty() ? "verbena" : fmt::format("verbena {}", command);
}

std::unexpected<Message> usage_error(std::string_view command, std::string_view what) {
  const std::string name = full_name(command);
  return std::unexpected(Message{command == "run" ? kExitOwnFailure : kExitUsage,
                                 fmt::format("{}: {}; see '{} --help'", name, what, name)});
}

// Turns an error of CLI11 into one line.
std::unexpected<Message> usage_error(const Grammar& g, const CLI::ParseError& error) {
  std::string what = error.what();
  if (const auto extra = dynamic_cast<const CLI::ExtrasError*>(&error); extra != nullptr) {
    what = fmt::format("unknown argument '{}'", what.substr(what.rfind(": ") + 2));
  }
  std::ranges::replace(what, '\n', ' ');
  return usage_error(named_command(g), what);
}

// Turns "help ps" into "ps --help".
Words with_help_as_option(Words words) {
  if (words.empty() || words[0] != "help") return words;
  words.erase(words.begin());
  words.emplace_back("--help");
  return words;
}

// Returns the first word that should be a command and is none; empty if there is none such.
std::string unknown_command(const Words& words) {
  const auto is_one_of = [](const std::string& word, std::initializer_list<const char*> names) {
    return word.starts_with('-') || std::ranges::find(names, word) != names.end();
  };
  if (words.empty()) return "";
  if (!is_one_of(words[0], {"run", "ps", "doctor", "agent"})) return words[0];
  if (words[0] == "agent" && words.size() > 1 && !is_one_of(words[1], {"status", "stop"})) {
    return words[1];
  }
  return "";
}

// Finds the beginning of the program of `run`: the first word that is not one of our options, with
// or without "--" before it.  We do not interpret the words from there on.
Words::const_iterator first_of_program(const Words& arguments) {
  if (arguments.empty() || arguments[0] != "run") return arguments.end();
  auto at = arguments.begin() + 1;
  while (at != arguments.end() && at->starts_with('-') && *at != "--") {
    const bool takes_one =
        *at == "--pcap" || *at == "--personality" || *at == "--link" || *at == "--adapter";
    ++at;
    if (takes_one && at != arguments.end() && *at != "--") ++at;
  }
  return at;
}

}  // namespace

std::expected<Command, Message> parse(const Words& given) {
  const Words arguments = with_help_as_option(given);
  auto program = first_of_program(arguments);
  const Words words(arguments.begin(), program);
  if (program != arguments.end() && *program == "--") ++program;
  if (words.empty())
    return usage_error("", "no command given; there are run, ps, doctor and agent");
  if (const std::string unknown = unknown_command(words); !unknown.empty()) {
    const bool of_agent = unknown != words[0];
    return usage_error(of_agent ? "agent" : "",
                       fmt::format("there is no command '{}'; there are {}", unknown,
                                   of_agent ? "status and stop" : "run, ps, doctor and agent"));
  }

  Grammar g;
  try {
    Words reversed(words.rbegin(), words.rend());
    g.app.parse(reversed);
  } catch (const CLI::CallForVersion& version) {
    return std::unexpected(Message{0, std::string(version.what()) + "\n"});
  } catch (const CLI::CallForHelp&) {
    return std::unexpected(Message{0, help(g)});
  } catch (const CLI::ParseError& error) {
    return usage_error(g, error);
  }

  if (g.run->parsed()) {
    g.command.kind = Command::Kind::kRun;
    g.command.run.command.assign(program, arguments.end());
    if (program == arguments.end()) return usage_error("run", "no program given");
    const RunOptions& run = g.command.run;
    const bool own = !run.pcap.empty() || !run.personality.empty() || !run.link.empty() ||
                     run.sysfs || run.verbose;
    if (!run.adapter.empty() && own) {
      return usage_error("run",
                         "--adapter goes with no other option: they are for Verbena's own device");
    }
    return g.command;
  }
  if (g.ps->parsed()) {
    g.command.kind = Command::Kind::kPs;
  } else if (g.doctor->parsed()) {
    g.command.kind = Command::Kind::kDoctor;
  } else if (g.status->parsed()) {
    g.command.kind = Command::Kind::kAgentStatus;
  } else if (g.stop->parsed()) {
    g.command.kind = Command::Kind::kAgentStop;
  } else if (g.agent->parsed()) {
    return usage_error("agent", "no command given; there are status and stop");
  } else {
    return usage_error("", "no command given; there are run, ps, doctor and agent");
  }
  return g.command;
}

}  // namespace verbena::cli
