#include "cli/arguments.h"

#include <gtest/gtest.h>

namespace verbena::cli {
namespace {

using Words = std::vector<std::string>;

// Parses the words and returns "EXIT-CODE TEXT" of the message; empty if they name a command.
std::string message_of(const Words& words) {
  const auto command = parse(words);
  if (command) return "";
  return std::to_string(command.error().exit_code) + " " + command.error().text;
}

// Returns the program that `run` would start, with its arguments.
Words program_in(const Words& words) {
  const auto command = parse(words);
  return command ? command->run.command : Words{message_of(words)};
}

TEST(Arguments, RunTakesAProgramWithOrWithoutDashes) {
  EXPECT_EQ(program_in({"run", "--", "rping", "-s"}), (Words{"rping", "-s"}));
  EXPECT_EQ(program_in({"run", "rping", "-s"}), (Words{"rping", "-s"}));
  EXPECT_EQ(program_in({"run", "a", "--", "b"}), (Words{"a", "--", "b"}))
      << "the program's own dashes";
  EXPECT_EQ(program_in({"run", "--", "a", "--", "b"}), (Words{"a", "--", "b"}));
  EXPECT_EQ(program_in({"run", "a", "--help"}), (Words{"a", "--help"}));
  EXPECT_EQ(program_in({"run", "--", "ps", "--json"}), (Words{"ps", "--json"}));
  EXPECT_EQ(program_in({"run", "ps", "--json"}), (Words{"ps", "--json"}));
  EXPECT_EQ(program_in({"run", "a", "--pcap", "f"}), (Words{"a", "--pcap", "f"}));
  EXPECT_EQ(program_in({"run", "a", ""}), (Words{"a", ""}));
}

TEST(Arguments, RunTakesACaptureFile) {
  const auto command = parse({"run", "--pcap", "f.pcapng", "--", "a"});
  ASSERT_TRUE(command);
  EXPECT_EQ(command->run.pcap, "f.pcapng");
  EXPECT_EQ(command->run.command, (Words{"a"}));
  EXPECT_EQ(parse({"run", "--pcap=f", "a"})->run.pcap, "f");
}

TEST(Arguments, VerboseAndSysfsTakeNoValue) {
  EXPECT_TRUE(parse({"run", "--verbose", "a"})->run.verbose);
  EXPECT_TRUE(parse({"run", "--sysfs", "a"})->run.sysfs);
  EXPECT_FALSE(parse({"run", "a", "--sysfs"})->run.sysfs);
  EXPECT_EQ(parse({"run", "--verbose", "a", "b"})->run.command, (Words{"a", "b"}));
  EXPECT_FALSE(parse({"run", "a", "--verbose"})->run.verbose);
}

TEST(Arguments, RunAcceptsOnlyKnownPersonalitiesAndLinks) {
  EXPECT_EQ(parse({"run", "a"})->run.personality, "");
  EXPECT_EQ(parse({"run", "--personality", "rxe", "a"})->run.personality, "rxe");
  EXPECT_EQ(parse({"run", "--personality=connectx", "a"})->run.personality, "connectx");
  EXPECT_FALSE(parse({"run", "--personality", "siw", "a"}));
  EXPECT_EQ(parse({"run", "--link", "udp", "a"})->run.link, "udp");
  EXPECT_EQ(parse({"run", "--link=lane", "a"})->run.link, "lane");
  EXPECT_FALSE(parse({"run", "--link", "tcp", "a"}));
  EXPECT_EQ(parse({"run", "--adapter", "mlx5_0/2", "a", "b"})->run.adapter, "mlx5_0/2");
  EXPECT_EQ(parse({"run", "--adapter", "any", "--", "a"})->run.command, Words{"a"});
  EXPECT_FALSE(parse({"run", "--adapter", "any", "--sysfs", "a"}));
}

TEST(Arguments, SocketsOptionOfRunHasADefaultMode) {
  EXPECT_EQ(parse({"run", "a"})->run.sockets, "");
  EXPECT_EQ(parse({"run", "--sockets", "a"})->run.sockets, "auto");
  EXPECT_EQ(parse({"run", "--sockets", "a"})->run.command, Words{"a"});
  EXPECT_EQ(parse({"run", "--sockets=off", "--", "a"})->run.sockets, "off");
  EXPECT_EQ(parse({"run", "--sockets=only", "--", "a"})->run.sockets, "only");
  EXPECT_FALSE(parse({"run", "--sockets=always", "a"}));
}

TEST(Arguments, SocketRulesNeedSockets) {
  EXPECT_EQ(parse({"run", "--sockets", "--socket-rules", "f", "a"})->run.socket_rules, "f");
  EXPECT_EQ(message_of({"run", "--socket-rules", "f", "a"}),
            "125 verbena run: --socket-rules requires --sockets; see 'verbena run --help'");
}

TEST(Arguments, SocketsAreListedOrCounted) {
  EXPECT_EQ(parse({"sockets", "ls"})->kind, Command::Kind::kSockets);
  EXPECT_FALSE(parse({"sockets", "ls"})->sockets.totals);
  EXPECT_TRUE(parse({"sockets", "stat", "--json"})->sockets.totals);
  EXPECT_TRUE(parse({"sockets", "stat", "--json"})->sockets.json);
  EXPECT_EQ(parse({"sockets", "trace"})->kind, Command::Kind::kSocketsTrace);
  EXPECT_TRUE(parse({"sockets", "trace", "--json"})->trace.json);
  EXPECT_EQ(parse({"sockets", "trace", "12", "34"})->trace.pids,
            (std::vector<std::uint32_t>{12, 34}));
  EXPECT_FALSE(parse({"sockets", "trace", "0"}));
  EXPECT_FALSE(parse({"sockets", "trace", "redis"}));
  EXPECT_EQ(
      message_of({"sockets"}),
      "2 verbena sockets: no command given; there are ls, stat and trace; see 'verbena sockets "
      "--help'");
  EXPECT_EQ(
      message_of({"sockets", "top"}),
      "2 verbena sockets: there is no command 'top'; there are ls, stat and trace; see 'verbena "
      "sockets --help'");
}

TEST(Arguments, FabricsHaveCommandsOfTheirOwn) {
  using Action = FabricOptions::Action;
  const auto up = parse({"fabric", "up", "lab.toml", "--name", "lab"});
  ASSERT_TRUE(up);
  EXPECT_EQ(up->kind, Command::Kind::kFabric);
  EXPECT_EQ(up->fabric.action, Action::kUp);
  EXPECT_EQ(up->fabric.file, "lab.toml");
  EXPECT_EQ(up->fabric.name, "lab");
  EXPECT_EQ(parse({"fabric", "down"})->fabric.name, "");
  EXPECT_EQ(parse({"fabric", "down", "lab"})->fabric.action, Action::kDown);
  EXPECT_TRUE(parse({"fabric", "ls", "--json"})->fabric.json);
  EXPECT_EQ(parse({"fabric", "show", "lab", "--json"})->fabric.name, "lab");
  EXPECT_EQ(parse({"fabric", "log", "lab"})->fabric.action, Action::kLog);
  const auto managed = parse({"fabric", "up", "net", "--sm", "a", "--sm", "b"});
  EXPECT_EQ(managed->fabric.managers, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(managed->fabric.file, "net");
  EXPECT_EQ(parse({"fabric", "check", "f"})->fabric.action, Action::kCheck);
  EXPECT_EQ(parse({"fabric", "make", "--hosts", "3"})->fabric.hosts, 3u);
  EXPECT_EQ(parse({"fabric", "make", "--rails", "2"})->fabric.rails, 2u);
  EXPECT_FALSE(parse({"fabric", "make", "--hosts", "0"}));
  EXPECT_FALSE(parse({"fabric", "make", "--rails", "9"}));
  EXPECT_TRUE(parse({"fabric", "make", "--hosts", "3", "--infiniband"})->fabric.infiniband);
  EXPECT_EQ(parse({"fabric", "make", "--fat-tree", "16"})->fabric.fat_tree_hosts, 16u);
  EXPECT_FALSE(parse({"fabric", "make", "--fat-tree", "0"}));
  EXPECT_FALSE(parse({"fabric", "make", "--fat-tree", "16", "--hosts", "3"}));
  EXPECT_FALSE(parse({"fabric", "make", "--fat-tree", "16", "--infiniband"}));
  EXPECT_FALSE(parse({"fabric", "up"}));
  EXPECT_EQ(message_of({"fabric", "top"}),
            "2 verbena fabric: there is no command 'top'; there are up, down, ls, show, log, "
            "fault, check and "
            "make; see 'verbena fabric --help'");
}

TEST(Arguments, FaultsNameALinkOrANode) {
  using faults::Kind;
  const auto request = [](const std::vector<std::string>& words) {
    const auto command = parse(words);
    EXPECT_TRUE(command) << command.error().text;
    EXPECT_EQ(command->fabric.action, FabricOptions::Action::kFault);
    return fault_of(command->fabric.fault).value();
  };
  const auto down = request({"fabric", "fault", "link", "a:1", "s1", "down"});
  EXPECT_EQ(down, (faults::Fault{.kind = Kind::kLinkDown, .a = "a:1", .b = "s1"}));
  const auto lossy =
      request({"fabric", "fault", "link", "a", "red", "lossy", "0.5", "--seed", "7"});
  EXPECT_EQ(lossy.kind, Kind::kLinkLossy);
  EXPECT_EQ(lossy.lost_per_million, 5000U);
  EXPECT_EQ(lossy.seed, 7U);
  EXPECT_EQ(request({"fabric", "fault", "link", "a", "red", "lossy", "0.5"}).seed, 1U);
  EXPECT_EQ(request({"fabric", "fault", "link", "a", "red", "flapping", "1s", "2s"}).up,
            std::chrono::seconds(2));
  const auto off = request({"fabric", "fault", "node", "a", "off"});
  EXPECT_EQ(off, (faults::Fault{.kind = Kind::kNodeOff, .a = "a"}));
  EXPECT_EQ(request({"fabric", "fault", "node", "a", "pkey", "0x8001", "removed"}).pkey,
            Pkey{0x8001});
  EXPECT_EQ(parse({"fabric", "fault", "node", "a", "on", "--name", "x"})->fabric.fault.fabric, "x");
}

TEST(Arguments, MistakesInFaultsAreReported) {
  EXPECT_EQ(message_of({"fabric", "fault", "link", "a", "b", "lossy"}),
            "2 verbena fabric fault: lossy needs the percentage of packets that are lost; see "
            "'verbena fabric fault --help'");
  EXPECT_EQ(message_of({"fabric", "fault", "link", "a", "b", "down", "--seed", "5"}),
            "2 verbena fabric fault: only lossy and flapping accept a seed; see 'verbena fabric "
            "fault --help'");
  EXPECT_EQ(message_of({"fabric", "fault", "link", "a", "b", "lossy", "1", "--seed",
                        "99999999999999999999999"}),
            "2 verbena fabric fault: --seed: 99999999999999999999999 is not below 2^64; see "
            "'verbena fabric fault --help'");
  EXPECT_TRUE(
      parse({"fabric", "fault", "link", "a", "b", "lossy", "1", "--seed", "18446744073709551615"}));
  EXPECT_FALSE(parse({"sa", "services", "--id", "99999999999999999999999"}));
  EXPECT_TRUE(parse({"sa", "services", "--id", "0xffffffffffffffff"}));
  EXPECT_FALSE(parse({"fabric", "fault", "link", "a", "b", "down", "5"}));
  EXPECT_FALSE(parse({"fabric", "fault", "link", "a", "b", "lossy", "101"}));
  EXPECT_FALSE(parse({"fabric", "fault", "link", "a", "b", "gone"}));
  EXPECT_FALSE(parse({"fabric", "fault", "link", "a", "b"}));
  EXPECT_FALSE(parse({"fabric", "fault", "node", "a", "down"}));
  EXPECT_FALSE(parse({"fabric", "fault"}));
}

TEST(Arguments, RunTakesAHostOfAFabric) {
  const auto command = parse({"run", "--node", "a", "--fabric", "lab", "p", "--node", "b"});
  ASSERT_TRUE(command);
  EXPECT_EQ(command->run.node, "a");
  EXPECT_EQ(command->run.fabric, "lab");
  EXPECT_EQ(command->run.command, (Words{"p", "--node", "b"}));
  EXPECT_EQ(parse({"run", "--node=a", "--", "p"})->run.node, "a");
  EXPECT_FALSE(parse({"run", "--fabric", "lab", "p"})) << "a fabric without a host";
  const auto machine = parse({"run", "--node", "a", "--interfaces", "machine", "--", "p"});
  ASSERT_TRUE(machine);
  EXPECT_EQ(machine->run.interfaces, "machine");
  EXPECT_EQ(machine->run.command, Words{"p"});
  EXPECT_FALSE(parse({"run", "--node", "a", "--interfaces", "b", "p"}));
  EXPECT_FALSE(parse({"run", "--interfaces", "machine", "p"})) << "interfaces without a host";
}

TEST(Arguments, ParsesTheOtherCommands) {
  EXPECT_EQ(parse({"ps"})->kind, Command::Kind::kPs);
  EXPECT_FALSE(parse({"ps"})->json);
  EXPECT_TRUE(parse({"ps", "--json"})->json);
  EXPECT_FALSE(parse({"ps"})->counters);
  EXPECT_TRUE(parse({"ps", "--counters"})->counters);
  EXPECT_EQ(parse({"doctor"})->kind, Command::Kind::kDoctor);
  EXPECT_TRUE(parse({"doctor", "--json"})->json);
  EXPECT_EQ(parse({"agent", "status"})->kind, Command::Kind::kAgentStatus);
  EXPECT_TRUE(parse({"agent", "status", "--json"})->json);
  EXPECT_EQ(parse({"agent", "stop"})->kind, Command::Kind::kAgentStop);
}

TEST(Arguments, SaTakesATopicAndANode) {
  using Action = SaOptions::Action;
  const auto paths = parse({"sa", "paths", "--node", "host1", "--fabric", "net", "--json"});
  ASSERT_TRUE(paths);
  EXPECT_EQ(paths->kind, Command::Kind::kSa);
  EXPECT_EQ(paths->sa.action, Action::kPaths);
  EXPECT_EQ(paths->sa.node, "host1");
  EXPECT_EQ(paths->sa.fabric, "net");
  EXPECT_TRUE(paths->sa.json);
  EXPECT_EQ(parse({"sa", "groups"})->sa.action, Action::kGroups);
  EXPECT_EQ(parse({"sa", "groups"})->sa.node, "");
  EXPECT_FALSE(parse({"sa", "groups"})->sa.json);
  EXPECT_EQ(parse({"sa", "addresses"})->sa.action, Action::kAddresses);
  EXPECT_EQ(parse({"sa", "stats"})->sa.action, Action::kStats);
  EXPECT_EQ(parse({"sa", "flush", "--node=a"})->sa.action, Action::kFlush);
  EXPECT_FALSE(parse({"sa", "paths", "--fabric", "net"})) << "a fabric without a node";
  EXPECT_EQ(message_of({"sa"}),
            "2 verbena sa: no command given; there are paths, groups, addresses, stats, flush, "
            "services and register; see 'verbena sa --help'");
  EXPECT_EQ(message_of({"sa", "path"}),
            "2 verbena sa: there is no command 'path'; there are paths, groups, addresses, stats, "
            "flush, services and register; see 'verbena sa --help'");
  const auto registers = parse({"sa", "register", "store", "0x1061bbd", "--lease", "30"});
  ASSERT_TRUE(registers);
  EXPECT_EQ(registers->sa.action, Action::kRegister);
  EXPECT_EQ(registers->sa.service_name, "store");
  EXPECT_EQ(registers->sa.service_id, 0x1061bbdu);
  EXPECT_EQ(registers->sa.lease_seconds, 30u);
  EXPECT_EQ(registers->sa.port, 1u);
  EXPECT_FALSE(parse({"sa", "register", "store"})) << "no service id";
  EXPECT_FALSE(parse({"sa", "register", "store", "7", "--lease", "0"}));
  EXPECT_FALSE(parse({"sa", "services", "--port", "3"}));
  const auto services = parse({"sa", "services", "--id", "7", "--port", "2"});
  ASSERT_TRUE(services);
  EXPECT_EQ(services->sa.action, Action::kServices);
  EXPECT_EQ(services->sa.service_name, "");
  EXPECT_EQ(services->sa.service_id, 7u);
  EXPECT_EQ(services->sa.port, 2u);
  EXPECT_EQ(message_of({"sa", "stats", "x"}),
            "2 verbena sa stats: unknown argument 'x'; see 'verbena sa stats --help'");
}

TEST(Arguments, ReportsMistakesInOneLine) {
  EXPECT_EQ(
      message_of({}),
      "2 verbena: no command given; there are run, ps, sa, doctor, agent, fabric and sockets; see "
      "'verbena --help'");
  EXPECT_EQ(
      message_of({"foo"}),
      "2 verbena: there is no command 'foo'; there are run, ps, sa, doctor, agent, fabric and "
      "sockets; see "
      "'verbena --help'");
  EXPECT_EQ(message_of({"agent"}),
            "2 verbena agent: no command given; there are status, start and stop; see 'verbena "
            "agent --help'");
  EXPECT_EQ(message_of({"agent", "restart"}),
            "2 verbena agent: there is no command 'restart'; there are status, start and stop; see "
            "'verbena agent --help'");
  EXPECT_EQ(message_of({"ps", "--jsn"}),
            "2 verbena ps: unknown argument '--jsn'; see 'verbena ps --help'");
  EXPECT_EQ(message_of({"ps", "x"}), "2 verbena ps: unknown argument 'x'; see 'verbena ps --help'");
  EXPECT_EQ(message_of({"--foo"}).find('\n'), std::string::npos);
  EXPECT_EQ(message_of({"--foo"}).substr(0, 10), "2 verbena:");
  EXPECT_EQ(message_of({"ps", "--", "x"}),
            "2 verbena ps: unknown argument 'x'; see 'verbena ps --help'");
}

TEST(Arguments, MistakesInRunHaveExitCode125) {
  EXPECT_EQ(message_of({"run"}), "125 verbena run: no program given; see 'verbena run --help'");
  EXPECT_EQ(message_of({"run", "--"}),
            "125 verbena run: no program given; see 'verbena run --help'");
  EXPECT_EQ(message_of({"run", "--foo", "a"}),
            "125 verbena run: unknown argument '--foo'; see 'verbena run --help'");
  EXPECT_EQ(message_of({"run", "--pcap"}).substr(0, 17), "125 verbena run: ");
  EXPECT_EQ(message_of({"run", "--pcap"}).find('\n'), std::string::npos);
}

TEST(Arguments, HelpAndVersionExitWithZero) {
  EXPECT_EQ(message_of({"--help"}).substr(0, 2), "0 ");
  EXPECT_NE(message_of({"--help"}).find("rping"), std::string::npos);
  EXPECT_NE(message_of({"run", "--help"}).find("verbena run [OPTIONS] [--] PROGRAM [ARGUMENT...]"),
            std::string::npos)
      << message_of({"run", "--help"});
  EXPECT_EQ(message_of({"agent", "stop", "--help"}).substr(0, 2), "0 ");
  EXPECT_EQ(message_of({"--version"}).substr(0, 10), "0 verbena ");
  EXPECT_EQ(message_of({"-V"}), message_of({"--version"}));
  EXPECT_EQ(message_of({"help"}), message_of({"--help"}));
  EXPECT_EQ(message_of({"help", "run"}), message_of({"run", "--help"}));
  EXPECT_EQ(message_of({"help", "agent", "stop"}), message_of({"agent", "stop", "--help"}));
  EXPECT_EQ(
      message_of({"help", "foo"}),
      "2 verbena: there is no command 'foo'; there are run, ps, sa, doctor, agent, fabric and "
      "sockets; see "
      "'verbena --help'");
}

TEST(Run, PutsVerbenasLibrariesFirst) {
  EXPECT_EQ(prepend_path("/v", nullptr), "/v");
  EXPECT_EQ(prepend_path("/v", ""), "/v") << "an empty part would be the working directory";
  EXPECT_EQ(prepend_path("/v", "/a:/b"), "/v:/a:/b");
}

}  // namespace
}  // namespace verbena::cli
