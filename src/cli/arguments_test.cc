#include "cli/arguments.h"

#include <gtest/gtest.h>

namespace verbena::cli {
namespace {

using Words = std::vector<std::string>;

// Parses the words and returns "EXIT-CODE TEXT" of the message; empty if they name a command.
std::string said(const Words& words) {
  const auto command = parse(words);
  if (command) return "";
  return std::to_string(command.error().exit_code) + " " + command.error().text;
}

Words program(const Words& words) {
  const auto command = parse(words);
  return command ? command->run.command : Words{said(words)};
}

TEST(Arguments, RunTakesAProgramWithOrWithoutDashes) {
  EXPECT_EQ(program({"run", "--", "rping", "-s"}), (Words{"rping", "-s"}));
  EXPECT_EQ(program({"run", "rping", "-s"}), (Words{"rping", "-s"}));
  EXPECT_EQ(program({"run", "a", "--", "b"}), (Words{"a", "--", "b"}))
      << "the program's own dashes";
  EXPECT_EQ(program({"run", "--", "a", "--", "b"}), (Words{"a", "--", "b"}));
  EXPECT_EQ(program({"run", "a", "--help"}), (Words{"a", "--help"}));
  EXPECT_EQ(program({"run", "--", "ps", "--json"}), (Words{"ps", "--json"}));
  EXPECT_EQ(program({"run", "ps", "--json"}), (Words{"ps", "--json"}));
  EXPECT_EQ(program({"run", "a", "--pcap", "f"}), (Words{"a", "--pcap", "f"}));
  EXPECT_EQ(program({"run", "a", ""}), (Words{"a", ""}));
}

TEST(Arguments, RunTakesACaptureFile) {
  const auto command = parse({"run", "--pcap", "f.pcapng", "--", "a"});
  ASSERT_TRUE(command);
  EXPECT_EQ(command->run.pcap, "f.pcapng");
  EXPECT_EQ(command->run.command, (Words{"a"}));
  EXPECT_EQ(parse({"run", "--pcap=f", "a"})->run.pcap, "f");
}

TEST(Arguments, VerboseTakesNoValue) {
  EXPECT_TRUE(parse({"run", "--verbose", "a"})->run.verbose);
  EXPECT_TRUE(parse({"run", "--sysfs", "a"})->run.sysfs);
  EXPECT_FALSE(parse({"run", "a", "--sysfs"})->run.sysfs);
  EXPECT_EQ(parse({"run", "--verbose", "a", "b"})->run.command, (Words{"a", "b"}));
  EXPECT_FALSE(parse({"run", "a", "--verbose"})->run.verbose);
}

TEST(Arguments, RunAcceptsOnlyKnownPersonalities) {
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

TEST(Arguments, ReportsMistakesInOneLine) {
  EXPECT_EQ(
      said({}),
      "2 verbena: no command given; there are run, ps, doctor and agent; see 'verbena --help'");
  EXPECT_EQ(said({"foo"}),
            "2 verbena: there is no command 'foo'; there are run, ps, doctor and agent; see "
            "'verbena --help'");
  EXPECT_EQ(
      said({"agent"}),
      "2 verbena agent: no command given; there are status and stop; see 'verbena agent --help'");
  EXPECT_EQ(said({"agent", "start"}),
            "2 verbena agent: there is no command 'start'; there are status and stop; see 'verbena "
            "agent --help'");
  EXPECT_EQ(said({"ps", "--jsn"}),
            "2 verbena ps: unknown argument '--jsn'; see 'verbena ps --help'");
  EXPECT_EQ(said({"ps", "x"}), "2 verbena ps: unknown argument 'x'; see 'verbena ps --help'");
  EXPECT_EQ(said({"--foo"}).find('\n'), std::string::npos);
  EXPECT_EQ(said({"--foo"}).substr(0, 10), "2 verbena:");
  EXPECT_EQ(said({"ps", "--", "x"}), "2 verbena ps: unknown argument 'x'; see 'verbena ps --help'");
}

TEST(Arguments, MistakesInRunHaveExitCode125) {
  EXPECT_EQ(said({"run"}), "125 verbena run: no program given; see 'verbena run --help'");
  EXPECT_EQ(said({"run", "--"}), "125 verbena run: no program given; see 'verbena run --help'");
  EXPECT_EQ(said({"run", "--foo", "a"}),
            "125 verbena run: unknown argument '--foo'; see 'verbena run --help'");
  EXPECT_EQ(said({"run", "--pcap"}).substr(0, 17), "125 verbena run: ");
  EXPECT_EQ(said({"run", "--pcap"}).find('\n'), std::string::npos);
}

TEST(Arguments, HelpAndVersionExitWithZero) {
  EXPECT_EQ(said({"--help"}).substr(0, 2), "0 ");
  EXPECT_NE(said({"--help"}).find("rping"), std::string::npos);
  EXPECT_NE(said({"run", "--help"}).find("verbena run [OPTIONS] [--] PROGRAM [ARGUMENT...]"),
            std::string::npos)
      << said({"run", "--help"});
  EXPECT_EQ(said({"agent", "stop", "--help"}).substr(0, 2), "0 ");
  EXPECT_EQ(said({"--version"}).substr(0, 10), "0 verbena ");
  EXPECT_EQ(said({"-V"}), said({"--version"}));
  EXPECT_EQ(said({"help"}), said({"--help"}));
  EXPECT_EQ(said({"help", "run"}), said({"run", "--help"}));
  EXPECT_EQ(said({"help", "agent", "stop"}), said({"agent", "stop", "--help"}));
  EXPECT_EQ(said({"help", "foo"}),
            "2 verbena: there is no command 'foo'; there are run, ps, doctor and agent; see "
            "'verbena --help'");
}

TEST(Run, PutsItsLibrariesFirst) {
  EXPECT_EQ(prepend_path("/v", nullptr), "/v");
  EXPECT_EQ(prepend_path("/v", ""), "/v") << "an empty part would be the working directory";
  EXPECT_EQ(prepend_path("/v", "/a:/b"), "/v:/a:/b");
}

}  // namespace
}  // namespace verbena::cli
