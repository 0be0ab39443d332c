#include "cli/arguments.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "base/port_id.h"
#include "cli/executable.h"
#include "plan/plan.h"
#include "subnet/generate.h"
#include "verbena_build.h"

namespace verbena::cli {
namespace {

using Words = std::vector<std::string>;

// Refuses numbers that CLI11 would read as 2^64 - 1, because they are larger.
CLI::Validator fits_64_bits() {
  return {[](std::string& text) -> std::string {
            errno = 0;
            (void)std::strtoull(text.c_str(), nullptr, 0);
            return errno == ERANGE ? text + " is not below 2^64" : "";
          },
          ""};
}

// Defines the grammar of the command line, except for the program of `run` (see
// find_program_start).
struct Grammar {
  CLI::App app{"Verbena runs RDMA programs on machines without RDMA hardware.", "verbena"};
  CLI::App* run = app.add_subcommand("run", "Run a program on Verbena's RDMA device");
  CLI::App* ps = app.add_subcommand("ps", "List the queue pairs and connections of all programs");
  CLI::App* sa = app.add_subcommand(
      "sa", "Show what a node of an InfiniBand fabric has learned from its subnet manager");
  CLI::App* paths = sa->add_subcommand("paths", "List the paths that the node remembers");
  CLI::App* groups = sa->add_subcommand("groups", "List the multicast groups of its ports");
  CLI::App* addresses = sa->add_subcommand("addresses", "List the IP addresses of its neighbours");
  CLI::App* sa_stats = sa->add_subcommand("stats", "Print the counters of these requests");
  CLI::App* flush = sa->add_subcommand("flush", "Remove all paths and addresses from the cache");
  CLI::App* services = sa->add_subcommand("services", "Ask which services are registered");
  CLI::App* register_service =
      sa->add_subcommand("register", "Register a service, as long as this command runs");
  CLI::App* doctor =
      app.add_subcommand("doctor", "Find out what stops programs on this host or slows them down");
  CLI::App* agent = app.add_subcommand("agent", "Show the state of the agent, or start or stop it");
  CLI::App* status = agent->add_subcommand("status", "Show the state of the agent");
  CLI::App* start = agent->add_subcommand("start", "Start an agent, before a program does");
  CLI::App* stop = agent->add_subcommand("stop", "Stop the agent and wait until it has ended");
  CLI::App* fabric = app.add_subcommand("fabric", "Run virtual hosts on a network of their own");
  CLI::App* up = fabric->add_subcommand("up", "Start the hosts that a file describes");
  CLI::App* down = fabric->add_subcommand("down", "Stop a fabric; its programs lose their devices");
  CLI::App* fabric_ls = fabric->add_subcommand("ls", "List the fabrics that are up");
  CLI::App* show = fabric->add_subcommand("show", "List the hosts of a fabric and its counters");
  CLI::App* fabric_log =
      fabric->add_subcommand("log", "Print the log of a fabric, and those of its subnet managers");
  CLI::App* fault = fabric->add_subcommand("fault", "Break a link or a node, or mend it");
  CLI::App* fault_link = fault->add_subcommand("link", "Break or mend the link between A and B");
  CLI::App* fault_node = fault->add_subcommand("node", "Switch a node off or on");
  CLI::App* check =
      fabric->add_subcommand("check", "Say what is wrong with a file, and start nothing");
  CLI::App* make = fabric->add_subcommand("make", "Write a file for hosts that reach each other");
  CLI::App* sockets =
      app.add_subcommand("sockets", "List the TCP connections of programs under run --sockets");
  CLI::App* sockets_ls = sockets->add_subcommand("ls", "List each end of each connection");
  CLI::App* sockets_stat =
      sockets->add_subcommand("stat", "Print the totals, also of ended connections");
  CLI::App* sockets_trace =
      sockets->add_subcommand("trace", "Print events of connections as they happen");
  Command command{};

  Grammar() {
    app.set_version_flag("-V,--version", "verbena " VB_VERSION " (build " VB_BUILD_ID ")",
                         "Print the version and exit");
    app.footer(
        "Examples to begin with:\n"
        "  verbena run -- ibv_devinfo          shows the device\n"
        "  verbena run -- rping -s             starts a server; in another terminal, its client:\n"
        "  verbena run -- rping -c -a 127.0.0.1 -v -C 3\n"
        "  verbena run -- bash                 starts a shell whose programs have the device\n"
        "'verbena help COMMAND' says more; so does 'man verbena'.");
    run->add_option("--pcap", command.run.pcap,
                    "Record every RDMA packet that the program sends or receives to FILE "
                    "(pcapng; open it with Wireshark)")
        ->type_name("FILE");
    run->add_option("--personality", command.run.personality,
                    "Behave as NAME where adapters differ: connectx (an event for each completion, "
                    "requests flushed at once; the default), or rxe (completions in batches, "
                    "requests flushed late)")
        ->type_name("NAME")
        ->check(CLI::IsMember({"connectx", "rxe"}));
    run->add_option("--link", command.run.link,
                    "Exchange packets with programs of this host by NAME: lane (shared memory, if "
                    "both programs can use it; the default), or udp (the loopback interface)")
        ->type_name("NAME")
        ->check(CLI::IsMember({"lane", "udp"}));
    run->add_option("--adapter", command.run.adapter,
                    "For programs of the C++ API: use the RDMA adapter NAME of this host in place "
                    "of Verbena's own. NAME is as in 'rdma link show' (mlx5_0, mlx5_0/2), or any")
        ->type_name("NAME");
    run->add_option("--node", command.run.node,
                    "Run on the virtual host NAME of a fabric (see verbena fabric), with its "
                    "devices and addresses. The description or the GUID of an HCA also names it")
        ->type_name("NAME");
    run->add_option("--fabric", command.run.fabric,
                    "The fabric of that host (default: the one that is up)")
        ->type_name("NAME")
        ->needs("--node");
    run->add_option(
           "--interfaces", command.run.interfaces,
           "Let getifaddrs() and if_nameindex() show the network interfaces of WHOSE: node "
           "(the default), or machine")
        ->type_name("WHOSE")
        ->check(CLI::IsMember({"node", "machine"}))
        ->needs("--node");
    run->add_option("--sockets", command.run.sockets,
                    "Move the program's TCP connections to shared memory if the peer also runs "
                    "under --sockets on this host: auto (if both ends can; the default with "
                    "--sockets alone), only (connections within this host fail if they cannot), or "
                    "off")
        ->type_name("MODE")
        ->check(CLI::IsMember({"auto", "only", "off"}));
    run->add_option("--socket-rules", command.run.socket_rules,
                    "For --sockets: decide for each connection by the rules in FILE, in the "
                    "language of libsdp.conf")
        ->type_name("FILE");
    run->add_flag("--verbose", command.run.verbose,
                  "Print on standard error why connections fail, requests end in error, and calls "
                  "are refused");
    run->add_flag(
        "--sysfs", command.run.sysfs,
        "Let the program see the device in /sys/class/infiniband and /dev/infiniband, too");
    run->footer(
        "The program is not changed and needs no rights; it finds Verbena's libibverbs and\n"
        "librdmacm in place of the system's. Its exit code is its own; 125 means that Verbena\n"
        "failed, 126 that the program cannot be run, 127 that no such program was found.\n"
        "  verbena run -- rping -s\n"
        "  verbena run --pcap ping.pcapng -- rping -c -a 192.168.1.7 -C 3");
    ps->add_flag("--json", command.json, "Print JSON");
    ps->add_flag("--counters", command.counters,
                 "Print what each program and the agent have counted: packets dropped by reason, "
                 "retransmissions, limits reached");
    ps->footer("Works on stopped processes, too. Never starts an agent.");
    doctor->add_flag("--json", command.json, "Print JSON");
    doctor->footer(
        "Looks at the port, the limits, the interfaces, what the kernel allows, and Verbena's own\n"
        "files. Each finding is a line 'ok', 'note' or 'problem'. The next line says what to do.\n"
        "Exits with 1 if a problem keeps programs from running. Changes nothing, and never\n"
        "starts an agent.");
    define_sa();
    define_fabric();
    for (CLI::App* subcommand : {sockets_ls, sockets_stat}) {
      subcommand->add_flag("--json", command.sockets.json, "Print JSON");
    }
    sockets_trace->add_flag("--json", command.trace.json, "Print a JSON object for each event");
    sockets_trace->add_option("PID", command.trace.pids, "Only connections of these processes")
        ->check(CLI::PositiveNumber);
    sockets_trace->footer(
        "Says which ends are offered to the socket service and introduced to each other, from\n"
        "which byte on they send by the ring, when and why they go back to TCP, and what they\n"
        "have sent when they end. Connections that carry little and end soon are not offered.\n"
        "Waits for a service if there is none. Runs until it is interrupted.");
    sockets->footer(
        "WAY is 'ring' if bytes can go through shared memory and TCP, or 'tcp' if they go only\n"
        "through TCP, for example while the peer is not known. Never starts the service.");
    status->add_flag("--json", command.json, "Print JSON");
    agent->footer(
        "All programs of a user share the agent (verbenad). It sets up connections and owns UDP\n"
        "port 4791. It starts with the first program, and ends when no program needs it.\n"
        "Root can start one for the programs of all users, which then reach each other.");
    start->add_flag("--all-users", command.all_users,
                    "Serve the programs of all users, until it is stopped; for root");
    stop->footer("Running programs lose their RDMA device.");
  }

  void define_sa() {
    SaOptions& options = command.sa;
    for (CLI::App* subcommand :
         {paths, groups, addresses, sa_stats, flush, services, register_service}) {
      if (subcommand != register_service)
        subcommand->add_flag("--json", options.json, "Print JSON");
      subcommand
          ->add_option("--node", options.node,
                       "The node NAME of a fabric (default: the one on which this command runs)")
          ->type_name("NAME");
      subcommand
          ->add_option("--fabric", options.fabric,
                       "The fabric of that node (default: the one that is up)")
          ->type_name("NAME")
          ->needs("--node");
      if (subcommand != services && subcommand != register_service) continue;
      subcommand->add_option("--port", options.port, "The port of the node's first device")
          ->check(CLI::Range(1, int{kPortsPerDeviceMax}))
          ->capture_default_str();
    }
    services->add_option("NAME", options.service_name,
                         "Only services of this name (default: of any name)");
    services->add_option("--id", options.service_id, "Only services of this service id")
        ->check(fits_64_bits());
    register_service->add_option("NAME", options.service_name, "The name, of 64 bytes at most")
        ->required();
    register_service->add_option("ID", options.service_id, "The service id: 0x1061bbd, for example")
        ->check(fits_64_bits())
        ->required();
    register_service
        ->add_option("--lease", options.lease_seconds,
                     "Seconds after which the SA removes the service if no program renews it")
        ->check(CLI::Range(1u, 0xffffffffu))
        ->capture_default_str();
    sa->footer(
        "The agent of each node asks the subnet administration (SA) of its subnet for paths, and\n"
        "its neighbours for the GIDs of IP addresses. It remembers the answers for a while.\n"
        "  verbena sa paths --node host1       the paths from host1\n"
        "  verbena sa flush --node host1       lets it ask again\n"
        "  verbena sa register db 0x1061bbd --node host1      programs find it by RAI_SA\n"
        "Never starts an agent.");
  }

  void define_fabric() {
    FabricOptions& options = command.fabric;
    for (CLI::App* subcommand : {up, check}) {
      subcommand
          ->add_option("FILE", options.file,
                       "File that describes the hosts (TOML), or an InfiniBand subnet (a netlist)")
          ->required();
    }
    for (CLI::App* subcommand : {up, check}) {
      subcommand
          ->add_option("--faults", options.faults,
                       "File of faults (TOML) that happen by themselves when the fabric is up")
          ->type_name("FILE");
    }
    up->add_option("--name", options.name,
                   "Name of the fabric (default: the one in the file, else the file's own)");
    up->add_option("--sm", options.managers,
                   "Run OpenSM on the HCA NODE of a subnet, and wait until it has configured the "
                   "ports (default: the first HCA with a cable); twice for a standby; or none")
        ->type_name("NODE")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    for (CLI::App* subcommand : {down, show, fabric_log}) {
      subcommand->add_option("NAME", options.name,
                             "Name of the fabric (default: the one that is up)");
    }
    for (CLI::App* subcommand : {fabric_ls, show})
      subcommand->add_flag("--json", options.json, "Print JSON");
    make->add_option("--hosts", options.hosts, "Number of hosts")
        ->check(CLI::Range(std::size_t{1}, plan::kHostsMax))
        ->capture_default_str();
    make->add_option("--rails", options.rails, "Number of devices of each host")
        ->check(CLI::Range(1, int{kDevicesMax}))
        ->capture_default_str();
    CLI::Option* const infiniband = make->add_flag("--infiniband", options.infiniband,
                                                   "Netlist of hosts at one switch for each port");
    make->add_option("--fat-tree", options.fat_tree_hosts,
                     "Netlist of that many hosts at two levels of switches")
        ->check(CLI::Range(std::uint32_t{1}, subnet::kHostsOfFatTreeMax))
        ->excludes(infiniband)
        ->excludes("--hosts")
        ->excludes("--rails");
    define_fault();
    fabric->footer(
        "A fabric is a set of hosts with RDMA devices (rails), which exist for programs under\n"
        "Verbena alone. It needs no rights and changes nothing on this machine.\n"
        "  verbena fabric make --hosts 2 > lab.toml\n"
        "  verbena fabric up lab.toml\n"
        "  verbena run --node a -- rping -s\n"
        "  verbena run --node b -- rping -c -a 10.31.0.1 -v -C 3\n"
        "  verbena fabric down");
  }

  void define_fault() {
    FaultOptions& options = command.fabric.fault;
    fault->require_subcommand(1);
    fault->footer(
        "  verbena fabric fault link Hca1 Switch1 down          pulls a cable of a subnet\n"
        "  verbena fabric fault link Hca1:2 Switch1:7 up        plugs it again\n"
        "  verbena fabric fault link a red down                 takes host a off network red\n"
        "  verbena fabric fault link a red flapping 50ms 2s     repeats that\n"
        "  verbena fabric fault link a red lossy 2 --seed 7     loses 2 % of its packets\n"
        "  verbena fabric fault link a red slow 5ms             delays them; 0 ends it\n"
        "  verbena fabric fault link a red mtu 1500             default ends it\n"
        "  verbena fabric fault node Switch1 off                switches a node off\n"
        "  verbena fabric fault node a paused                   pauses a host; 'on' resumes it\n"
        "  verbena fabric fault node a pkey 0x8001 removed      removes a partition\n"
        "'verbena fabric show' lists what is broken.");
    for (CLI::App* subcommand : {fault_link, fault_node}) {
      subcommand->add_option("--name", options.fabric,
                             "Name of the fabric (default: the one that is up)");
    }
    fault_link
        ->add_option("A", options.a,
                     "One end: NODE or NODE:PORT of a subnet; HOST or HOST:DEVICE of virtual hosts")
        ->required();
    fault_link
        ->add_option("B", options.b,
                     "The other end: NODE or NODE:PORT; the network of virtual hosts")
        ->required();
    fault_link
        ->add_option("STATE", options.state,
                     "down; up; flapping DOWN UP (its periods, as 50ms 2s); lossy PERCENT (of its "
                     "packets); slow DELAY (as 5ms); or mtu BYTES")
        ->required()
        ->expected(-1);
    fault_link
        ->add_option("--seed", options.seed,
                     "With lossy: decides which packets are lost, the same ones each time "
                     "(default: 1). With flapping: the periods are random")
        ->check(fits_64_bits());
    fault_node->add_option("NODE", options.a, "A host, HCA or switch")->required();
    fault_node
        ->add_option(
            "STATE", options.state,
            "off; on; paused (it takes and sends no packets until on); pkey P_KEY removed; "
            "or pkey P_KEY added")
        ->required()
        ->expected(-1);
  }
};

// Returns the help text.  Adds the program of `run` to it, because CLI11 never sees the program.
std::string help(const Grammar& g) {
  std::string text = g.app.help();
  constexpr std::string_view kUsage = "verbena run [OPTIONS]";
  if (const auto at = text.find(kUsage); at != std::string::npos) {
    text.replace(at, kUsage.size(), "verbena run [OPTIONS] [--] PROGRAM [ARGUMENT...]");
  }
  return text;
}

// Returns the names of an application's commands, in the order of their definition.
Words commands_of(const CLI::App& app) {
  Words names;
  for (const CLI::App* subcommand : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(subcommand->get_name());
  }
  return names;
}

// Returns "a, b and c".
std::string list_text(const Words& names) {
  std::string text = names.front();
  for (std::size_t i = 1; i < names.size(); ++i) {
    text += (i + 1 == names.size() ? " and " : ", ") + names[i];
  }
  return text;
}

// Returns the name of the command that was given, such as "agent status", for messages.
std::string command_name(const Grammar& g) {
  const auto commands = g.app.get_subcommands();
  if (commands.empty()) return "";
  const auto inner = commands.front()->get_subcommands();
  const std::string& name = commands.front()->get_name();
  return inner.empty() ? name : name + " " + inner.front()->get_name();
}

std::optional<SaOptions::Action> sa_action(const Grammar& g) {
  using Action = SaOptions::Action;
  if (g.paths->parsed()) return Action::kPaths;
  if (g.groups->parsed()) return Action::kGroups;
  if (g.addresses->parsed()) return Action::kAddresses;
  if (g.sa_stats->parsed()) return Action::kStats;
  if (g.flush->parsed()) return Action::kFlush;
  if (g.services->parsed()) return Action::kServices;
  if (g.register_service->parsed()) return Action::kRegister;
  return std::nullopt;
}

std::optional<FabricOptions::Action> fabric_action(const Grammar& g) {
  using Action = FabricOptions::Action;
  if (g.up->parsed()) return Action::kUp;
  if (g.down->parsed()) return Action::kDown;
  if (g.fabric_ls->parsed()) return Action::kList;
  if (g.show->parsed()) return Action::kShow;
  if (g.fabric_log->parsed()) return Action::kLog;
  if (g.fault->parsed()) return Action::kFault;
  if (g.check->parsed()) return Action::kCheck;
  if (g.make->parsed()) return Action::kMake;
  return std::nullopt;
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
  return usage_error(command_name(g), what);
}

// Turns "help ps" into "ps --help".
Words with_help_as_option(Words words) {
  if (words.empty() || words[0] != "help") return words;
  words.erase(words.begin());
  words.emplace_back("--help");
  return words;
}

// Adds the default value to a plain --sockets, because CLI11 would take the next word as the value.
Words with_default_sockets_mode(Words words) {
  std::ranges::replace(words, "--sockets", "--sockets=auto");
  return words;
}

// Returns an error if a word stands where a command should be, but is not a command.
std::optional<std::unexpected<Message>> find_unknown_command(const Grammar& g, const Words& words) {
  const CLI::App* app = &g.app;
  std::string path;
  for (const std::string& word : words) {
    const Words names = commands_of(*app);
    if (names.empty() || word.starts_with('-')) break;
    if (std::ranges::find(names, word) == names.end()) {
      return usage_error(
          path, fmt::format("there is no command '{}'; there are {}", word, list_text(names)));
    }
    app = app->get_subcommand(word);
    path += (path.empty() ? "" : " ") + word;
  }
  return std::nullopt;
}

std::unexpected<Message> no_command_error(const CLI::App& app, std::string_view name) {
  return usage_error(name,
                     fmt::format("no command given; there are {}", list_text(commands_of(app))));
}

// Finds the first word that is not an option of `run`, where the program begins.  If there is a
// "--" before this word, returns the position of the "--".  The words from the result on are not
// interpreted.
Words::const_iterator find_program_start(const Words& arguments) {
  if (arguments.empty() || arguments[0] != "run") return arguments.end();
  auto at = arguments.begin() + 1;
  while (at != arguments.end() && at->starts_with('-') && *at != "--") {
    constexpr std::array kOptionsWithValue{"--pcap",         "--personality", "--link",
                                           "--adapter",      "--node",        "--fabric",
                                           "--socket-rules", "--interfaces"};
    const bool has_value = std::ranges::find(kOptionsWithValue, *at) != kOptionsWithValue.end();
    ++at;
    if (has_value && at != arguments.end() && *at != "--") ++at;
  }
  return at;
}

}  // namespace

std::expected<Command, Message> parse(const Words& command_line) {
  const Words arguments = with_help_as_option(command_line);
  auto program = find_program_start(arguments);
  const Words words = with_default_sockets_mode(Words(arguments.begin(), program));
  if (program != arguments.end() && *program == "--") ++program;
  Grammar g;
  if (words.empty()) return no_command_error(g.app, "");
  if (auto unknown = find_unknown_command(g, words)) return *std::move(unknown);

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
    const bool has_own_device_option = !run.pcap.empty() || !run.personality.empty() ||
                                       !run.link.empty() || !run.node.empty() || run.sysfs ||
                                       run.verbose;
    if (!run.adapter.empty() && has_own_device_option) {
      return usage_error("run",
                         "--adapter excludes other options, which are for Verbena's own device");
    }
    if (!run.socket_rules.empty() && (run.sockets.empty() || run.sockets == "off")) {
      return usage_error("run", "--socket-rules requires --sockets");
    }
    return g.command;
  }
  if (g.ps->parsed()) {
    g.command.kind = Command::Kind::kPs;
  } else if (g.sa->parsed()) {
    const auto action = sa_action(g);
    if (!action) return no_command_error(*g.sa, "sa");
    g.command.kind = Command::Kind::kSa;
    g.command.sa.action = *action;
  } else if (g.doctor->parsed()) {
    g.command.kind = Command::Kind::kDoctor;
  } else if (g.status->parsed()) {
    g.command.kind = Command::Kind::kAgentStatus;
  } else if (g.start->parsed()) {
    g.command.kind = Command::Kind::kAgentStart;
  } else if (g.stop->parsed()) {
    g.command.kind = Command::Kind::kAgentStop;
  } else if (g.agent->parsed()) {
    return no_command_error(*g.agent, "agent");
  } else if (const auto action = fabric_action(g)) {
    g.command.kind = Command::Kind::kFabric;
    g.command.fabric.action = *action;
    if (g.fault->parsed()) {
      FaultOptions& fault = g.command.fabric.fault;
      fault.has_seed = g.fault_link->count("--seed") != 0;
      if (const auto parsed = fault_of(fault); !parsed) {
        return usage_error("fabric fault", parsed.error());
      }
    }
  } else if (g.fabric->parsed()) {
    return no_command_error(*g.fabric, "fabric");
  } else if (g.sockets_ls->parsed() || g.sockets_stat->parsed()) {
    g.command.kind = Command::Kind::kSockets;
    g.command.sockets.totals = g.sockets_stat->parsed();
  } else if (g.sockets_trace->parsed()) {
    g.command.kind = Command::Kind::kSocketsTrace;
  } else if (g.sockets->parsed()) {
    return no_command_error(*g.sockets, "sockets");
  } else {
    return no_command_error(g.app, "");
  }
  return g.command;
}

}  // namespace verbena::cli
