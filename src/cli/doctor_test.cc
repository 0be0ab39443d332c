#include "cli/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "ipc/tool_messages.h"
#include "wire/ip.h"

namespace verbena::cli {
namespace {

using ::testing::HasSubstr;
using Level = Finding::Level;

// Describes a host without problems, on which no agent runs.
HostFacts healthy_host() {
  return {.build = "b1",
          .library_directory = "/opt/lib/verbena",
          .agent_path = "/opt/lib/verbena/verbenad",
          .send = os::CheckResult{true, 0},
          .open_files = {1024, 524288},
          .locked_memory = {65536, 65536},
          .receive_buffer_bytes = 8 << 20,
          .send_buffer_bytes = 8 << 20,
          .links =
              std::vector<os::NetworkLink>{
                  {.index = 1, .name = "lo", .mtu_bytes = 65536, .loopback = true, .up = true},
                  {.index = 2, .name = "eth0", .mtu_bytes = 1500, .up = true}},
          .addresses = {
              {.address = wire::ipv4_gid(0x7f000001),
               .index = 1,
               .name = "lo",
               .loopback = true,
               .up = true},
              {.address = wire::ipv4_gid(0x0a000001), .index = 2, .name = "eth0", .up = true}}};
}

// Returns those facts with an agent that runs.
HostFacts host_with_agent() {
  HostFacts facts = healthy_host();
  facts.agent = ipc::StatusReply{.pid = 42, .ports = {{.device = "verbena0", .active = true}}};
  return facts;
}

Finding finding_about(const HostFacts& facts, const std::string& what) {
  const auto findings = diagnose(facts);
  const auto found = std::ranges::find(findings, what, &Finding::what);
  return found == findings.end() ? Finding{.what = "nothing about " + what} : *found;
}

Level worst_level(const HostFacts& facts) {
  return std::ranges::max(diagnose(facts), {}, &Finding::level).level;
}

TEST(Doctor, HealthyHostHasNoProblem) {
  // There is a note, because an agent would open the port on all addresses.
  EXPECT_EQ(worst_level(healthy_host()), Level::kNote);
  HostFacts bound_host = healthy_host();
  bound_host.bind = "10.0.0.1";
  EXPECT_EQ(worst_level(bound_host), Level::kOk);
  EXPECT_EQ(finding_about(bound_host, "interface eth0"),
            (Finding{Level::kOk, "interface eth0", "MTU 1500 (RDMA 1024), 10.0.0.1", ""}));
}

TEST(Doctor, EveryNoteAndProblemSaysWhatToDo) {
  HostFacts sick_host = healthy_host();
  sick_host.agent_can_be_run = false;
  sick_host.holder = {.is_bound = true, .pid = 12, .uid = 7, .program = "nc"};
  sick_host.open_files = {8, 8};
  sick_host.file_size = {1024, 1024};
  sick_host.receive_buffer_bytes = sick_host.send_buffer_bytes = 212992;
  sick_host.links->push_back({.index = 3, .name = "eth1", .mtu_bytes = 1500});
  sick_host.addresses.clear();
  sick_host.kernel_devices = {"mlx5_0"};
  sick_host.libraries_before = {"/opt/conda/lib/libibverbs.so.1"};
  sick_host.send = os::CheckResult{false, EPERM};
  for (os::CheckResult* check :
       {&sick_host.shared_memory, &sick_host.steering, &sick_host.segmentation, &sick_host.pidfd,
        &sick_host.peer_pidfd, &sick_host.process_vm_readv, &sick_host.user_namespace,
        &sick_host.private_files, &sick_host.ipv6}) {
    *check = {false, EPERM};
  }
  std::size_t problems = 0;
  for (const Finding& finding : diagnose(sick_host)) {
    EXPECT_EQ(finding.fix.empty(), finding.level == Level::kOk) << finding.what;
    EXPECT_FALSE(finding.fact.empty()) << finding.what;
    if (finding.level == Level::kProblem) ++problems;
  }
  EXPECT_EQ(problems, 8u);
}

TEST(Doctor, NamesTheHolderOfThePort) {
  HostFacts facts = healthy_host();
  facts.holder = {
      .is_bound = true, .pid = 12, .address = wire::ipv4_gid(0), .uid = 7, .program = "nc"};
  facts.holder_user = "bob";
  EXPECT_EQ(finding_about(facts, "UDP port 4791").level, Level::kProblem);
  EXPECT_EQ(finding_about(facts, "UDP port 4791").fact,
            "pid 12 (nc) of bob holds it on all addresses");
  facts.holder = {.is_bound = true, .address = wire::ipv4_gid(0x0a000001), .uid = 7};
  EXPECT_EQ(finding_about(facts, "UDP port 4791").fact,
            "a process of bob that is not visible here holds it on 10.0.0.1");
  facts.holder = {.is_bound = true, .pid = 12, .is_stopped = true, .uid = 7, .program = "verbenad"};
  EXPECT_THAT(finding_about(facts, "UDP port 4791").fact, HasSubstr("is stopped"));
  EXPECT_THAT(finding_about(facts, "UDP port 4791").fix, HasSubstr("kill -CONT 12"));
  facts.holder = {.is_bound = true, .uid = 0};
  facts.rxe_loaded = true;
  EXPECT_THAT(finding_about(facts, "UDP port 4791").fact, HasSubstr("a socket without a process"));
  EXPECT_THAT(finding_about(facts, "UDP port 4791").fix, HasSubstr("rdma link delete"));
}

TEST(Doctor, AdvisesHowSeveralUsersShareAHost) {
  HostFacts facts = healthy_host();
  facts.holder = {.is_bound = true, .pid = 12, .uid = 7, .program = "verbenad"};
  facts.holder_user = "bob";
  EXPECT_THAT(finding_about(facts, "UDP port 4791").fix, HasSubstr("'verbena agent stop' as bob"));
  EXPECT_THAT(finding_about(facts, "UDP port 4791").fix, HasSubstr("VERBENA_BIND=ADDRESS"));
  facts.holder.pid = 0;  // other users' processes may be hidden
  facts.holder.program.clear();
  EXPECT_THAT(finding_about(facts, "UDP port 4791").fix, HasSubstr("VERBENA_BIND=ADDRESS"));
}

TEST(Doctor, NamesTheHolderOfTheAgentsName) {
  HostFacts facts = healthy_host();
  facts.agent_problem = "cannot be reached";
  facts.name_owner = "pid 12 (nc) of another user (uid 7)";
  EXPECT_EQ(finding_about(facts, "agent").level, Level::kProblem);
  EXPECT_EQ(finding_about(facts, "agent").fact,
            "pid 12 (nc) of another user (uid 7) has the name of this user's agent");
  EXPECT_THAT(finding_about(facts, "agent").fix, HasSubstr("unshare"));
}

TEST(Doctor, SaysWhetherProgramsOfThisHostUseSharedMemory) {
  HostFacts facts = healthy_host();
  EXPECT_THAT(finding_about(facts, "packets within the host").fact, HasSubstr("by shared memory"));
  facts.shared_memory = {false, EPERM};
  EXPECT_THAT(finding_about(facts, "packets within the host").fact, HasSubstr("memfd_create"));
  facts.link = "udp";
  EXPECT_EQ(finding_about(facts, "packets within the host").level, Level::kNote);
  EXPECT_THAT(finding_about(facts, "packets within the host").fact,
              HasSubstr("VERBENA_LINK is udp"));
  EXPECT_EQ(finding_about(facts, "direct access").level, Level::kOk);
  facts.process_vm_readv = {false, EPERM};
  EXPECT_THAT(finding_about(facts, "direct access").fix, HasSubstr("ptrace_scope"));
}

TEST(Doctor, PortHeldByTheAgentIsNoProblem) {
  HostFacts facts = healthy_host();
  facts.agent = ipc::StatusReply{
      .pid = 9, .build = "b1", .programs = 2, .ports = {{.device = "verbena0", .active = true}}};
  facts.holder = {.is_bound = true, .pid = 9, .program = "verbenad"};
  facts.gids = {{.gid = wire::ipv4_gid(0x0a000001), .interface = 2, .index = 1}};
  EXPECT_EQ(finding_about(facts, "UDP port 4791").level, Level::kNote);
  EXPECT_EQ(finding_about(facts, "agent").fact, "pid 9, build b1, 2 programs");
  facts.agent->programs = 1;
  EXPECT_EQ(finding_about(facts, "agent").fact, "pid 9, build b1, 1 program");
  EXPECT_THAT(finding_about(facts, "interface eth0").fact, HasSubstr("10.0.0.1 (GID 1)"));
  facts.holder.address = wire::ipv4_gid(0x0a000001);
  EXPECT_EQ(finding_about(facts, "UDP port 4791").level, Level::kOk);
  facts.agent->ports[0].active = false;
  facts.agent->ports[0].down_reason = "UDP port 4791 is held by pid 12 (nc)";
  EXPECT_EQ(finding_about(facts, "UDP port 4791").level, Level::kProblem);
  EXPECT_THAT(finding_about(facts, "UDP port 4791").fact, HasSubstr("pid 12 (nc)"));
  facts.agent->counters = {{"udp_out_not_allowed", 3}};
  EXPECT_EQ(finding_about(facts, "firewall").level, Level::kProblem);
}

TEST(Doctor, LowLimitOfOpenFilesIsANoteOrAProblem) {
  HostFacts facts = healthy_host();
  facts.open_files = {16, 16};
  EXPECT_EQ(finding_about(facts, "open files").level, Level::kProblem);
  facts.open_files = {256, 256};
  EXPECT_EQ(finding_about(facts, "open files").level, Level::kNote);
  EXPECT_THAT(finding_about(facts, "open files").fact, HasSubstr("about 32 programs"));
  facts.open_files = {os::kUnlimited, os::kUnlimited};
  EXPECT_EQ(finding_about(facts, "open files").level, Level::kOk);
}

TEST(Doctor, HostWithoutAnAddressIsAProblem) {
  HostFacts facts = healthy_host();
  facts.addresses.clear();
  EXPECT_EQ(finding_about(facts, "addresses").level, Level::kProblem);
  EXPECT_EQ(finding_about(facts, "interface eth0").fact, "no address, so no GID");
  facts = healthy_host();
  for (auto& address : facts.addresses) address.up = false;
  (*facts.links)[1].up = false;
  EXPECT_EQ(finding_about(facts, "addresses").level, Level::kProblem);
  EXPECT_THAT(finding_about(facts, "interface eth0").fact, HasSubstr("down"));
  facts.links.reset();
  EXPECT_EQ(finding_about(facts, "interfaces").level, Level::kProblem);
}

TEST(Doctor, ReportsWhenRunSysfsDoesNotWork) {
  EXPECT_EQ(finding_about(healthy_host(), "run --sysfs").level, Level::kOk);
  HostFacts facts = healthy_host();
  facts.private_files = {false, EPERM};
  EXPECT_EQ(finding_about(facts, "run --sysfs").level, Level::kNote);
  EXPECT_THAT(finding_about(facts, "run --sysfs").fact, HasSubstr("UCX, ibstatus"));
  EXPECT_THAT(finding_about(facts, "run --sysfs").fact, HasSubstr("Operation not permitted"));
  EXPECT_THAT(finding_about(facts, "run --sysfs").fix, HasSubstr("CAP_SYS_ADMIN"));
}

TEST(Doctor, PrintsTextAndJson) {
  const std::vector<Finding> findings{{Level::kOk, "a", "fine", ""},
                                      {Level::kProblem, "b", "\xff", "mend it"}};
  EXPECT_EQ(as_text(findings), "ok       a: fine\nproblem  b: \\xff\n         -> mend it\n");
  const auto json = nlohmann::json::parse(as_json(findings));
  EXPECT_EQ(json["findings"][0]["level"], "ok");
  EXPECT_EQ(json["findings"][1]["fix"], "mend it");
}

TEST(Doctor, LowLimitOfTheAgentIsNamed) {
  HostFacts facts = host_with_agent();
  EXPECT_THAT(finding_about(facts, "agent's open files").what, HasSubstr("nothing"));
  facts.agent->open_files_max = 60;
  const Finding files = finding_about(facts, "agent's open files");
  EXPECT_EQ(files.level, Level::kNote);
  EXPECT_THAT(files.fact, HasSubstr("RLIMIT_NOFILE of the agent (pid 42) is 60"));
  facts.agent->cpu_seconds_max = 100;
  EXPECT_THAT(finding_about(facts, "agent's CPU time").fact, HasSubstr("100 s"));
}

TEST(Doctor, StrangerWithTheNameOfAServiceIsNamed) {
  HostFacts facts = healthy_host();
  facts.name_squatters = {{.whose = "root's socket service", .owner = "a process of mallory"}};
  const Finding names = finding_about(facts, "names");
  EXPECT_EQ(names.level, Level::kNote);
  EXPECT_THAT(names.fact, HasSubstr("a process of mallory has the name of root's socket service"));
}

}  // namespace
}  // namespace verbena::cli
