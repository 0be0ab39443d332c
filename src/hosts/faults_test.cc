#include "hosts/faults.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "hosts/fault_schedule.h"
#include "os/clock.h"

namespace verbena::hosts {
namespace {

using faults::Fault;

// Simulates a fabric with the link 7, "a - b", and the node 3, "n".  `calls` records the calls.
class FakeFabric final : public Breakable {
 public:
  std::vector<std::string> calls{};
  std::set<Pkey> pkeys{Pkey{0xffff}, Pkey{0x8001}};

  std::optional<std::string> problem_with(const Fault& fault) const override {
    if (fault.a == "a" ? fault.b == "b" : fault.a == "n") return std::nullopt;
    return "there is no " + fault.a;
  }
  Link find_link(const std::string&, const std::string&) const override { return 7; }
  Node find_node(const std::string&) const override { return 3; }
  std::string link_text(Link) const override { return "a - b"; }
  std::string node_name(Node) const override { return "n"; }
  void set_link(Link link, bool up) override { record("link", link, up); }
  std::string up_text(Link) const override { return "is up"; }
  void set_loss(Link link, const faults::Loss& loss) override {
    record("loss", link, loss.per_million);
  }
  void set_delay(Link link, Duration delay) override {
    record("delay", link, static_cast<std::uint64_t>(delay.count()));
  }
  void set_mtu(Link link, std::uint32_t mtu_bytes) override { record("mtu", link, mtu_bytes); }
  void set_power(Node node, bool on) override { record("power", node, on); }
  std::string off_text() const override { return "is off"; }
  void set_paused(Node node, bool paused) override { record("paused", node, paused); }
  Answer<void> set_pkey(Node, Pkey pkey, bool present) override {
    if (present) {
      pkeys.insert(pkey);
    } else if (pkeys.erase(pkey) == 0) {
      return std::unexpected("no such P_Key");
    }
    return {};
  }
  bool has_pkey(Node, Pkey pkey) const override { return pkeys.contains(pkey); }

 private:
  void record(const std::string& what, std::uint64_t which, std::uint64_t value) {
    calls.push_back(what + " " + std::to_string(which) + " " + std::to_string(value));
  }
};

class FaultsTest : public testing::Test {
 protected:
  // Sets the fault, and returns the line for the user.
  std::string set_fault(const std::string& text, std::optional<std::uint64_t> seed = {}) {
    const auto fault = faults::parse_fault(faults::split_words(text), seed);
    EXPECT_TRUE(fault.has_value()) << fault.error();
    const auto state = faults_.set(*fault);
    return state ? *state : "refused: " + state.error();
  }
  std::vector<std::string> status() const {
    std::vector<std::string> all;
    for (const ipc::FaultStatus& fault : faults_.status())
      all.push_back(fault.what + " " + fault.state);
    return all;
  }
  std::vector<std::string> calls() { return std::exchange(fabric_.calls, {}); }

  using Texts = std::vector<std::string>;
  asio::io_context loop_{1};
  FakeFabric fabric_{};
  Faults faults_{loop_, fabric_};
};

TEST_F(FaultsTest, FaultsAreListedUntilTheyAreRepaired) {
  EXPECT_EQ(set_fault("link a b down"), "link a - b is down");
  EXPECT_EQ(set_fault("link a b lossy 2", 7), "link a - b loses 2 % of its packets (seed 7)");
  EXPECT_EQ(set_fault("link a b slow 5ms"), "link a - b delays packets by 5ms");
  EXPECT_EQ(set_fault("link a b mtu 1500"), "link a - b has an MTU of 1500 bytes");
  EXPECT_EQ(calls(), (Texts{"link 7 0", "loss 7 20000", "delay 7 5000000", "mtu 7 1500"}));
  EXPECT_EQ(status(),
            (Texts{"link a - b is down", "link a - b loses 2 % of its packets (seed 7)",
                   "link a - b delays packets by 5ms", "link a - b has an MTU of 1500 bytes"}));
  EXPECT_EQ(set_fault("link a b up"), "link a - b is up");
  EXPECT_EQ(set_fault("link a b lossy 0"), "link a - b loses nothing");
  EXPECT_EQ(set_fault("link a b slow 0"), "link a - b is not slow");
  EXPECT_EQ(set_fault("link a b mtu default"), "link a - b has its default MTU");
  EXPECT_EQ(calls(), (Texts{"link 7 1", "loss 7 0", "delay 7 0", "mtu 7 0"}));
  EXPECT_EQ(status(), Texts{});
}

TEST_F(FaultsTest, ANodeIsOffPausedOrOn) {
  EXPECT_EQ(set_fault("node n paused"), "node n is paused");
  EXPECT_EQ(status(), Texts{"node n is paused"});
  EXPECT_EQ(calls(), Texts{"paused 3 1"});
  EXPECT_EQ(set_fault("node n off"), "node n is off");
  EXPECT_EQ(status(), Texts{"node n is off"});
  EXPECT_EQ(calls(), (Texts{"paused 3 0", "power 3 0"}));
  EXPECT_EQ(set_fault("node n paused"), "refused: node n is off, so it cannot be paused");
  EXPECT_EQ(set_fault("node n on"), "node n is on");
  EXPECT_EQ(status(), Texts{});
}

TEST_F(FaultsTest, PkeyFaultsAreListedWhileTheTableConfirmsThem) {
  EXPECT_EQ(set_fault("node n pkey 0x8001 removed"), "node n has lost P_Key 0x8001");
  EXPECT_EQ(set_fault("node n pkey 0x8002 added"), "node n has got P_Key 0x8002");
  EXPECT_EQ(set_fault("node n pkey 0x8003 removed"), "refused: no such P_Key");
  EXPECT_EQ(status(), (Texts{"node n has lost P_Key 0x8001", "node n has got P_Key 0x8002"}));
  fabric_.pkeys = {Pkey{0x8001}};  // the subnet manager has written the table again
  EXPECT_EQ(status(), Texts{});
}

TEST_F(FaultsTest, AFlappingLinkGoesDownAndComesUpByItself) {
  EXPECT_EQ(set_fault("link a b flapping 5ms 1ms"), "link a - b flaps: 5ms down, 1ms up");
  EXPECT_EQ(status(), Texts{"link a - b flaps: 5ms down, 1ms up"});
  EXPECT_EQ(fabric_.calls, Texts{"link 7 0"});
  while (fabric_.calls.size() < 3) loop_.run_one();
  EXPECT_EQ(calls(), (Texts{"link 7 0", "link 7 1", "link 7 0"}));
  EXPECT_EQ(set_fault("link a b up"), "link a - b is up");
  EXPECT_EQ(status(), Texts{});
  EXPECT_EQ(calls(), Texts{"link 7 1"});
  loop_.restart();
  loop_.run_for(std::chrono::milliseconds(20));
  EXPECT_EQ(calls(), Texts{}) << "the link does not flap any more";
  EXPECT_EQ(set_fault("link a b flapping 50ms 2s", 9),
            "link a - b flaps: 50ms down, 2s up, at random (seed 9)");
}

TEST_F(FaultsTest, RefusedFaultsChangeNothing) {
  EXPECT_EQ(set_fault("link c b down"), "refused: there is no c");
  EXPECT_EQ(set_fault("node m off"), "refused: there is no m");
  EXPECT_EQ(calls(), Texts{});
  EXPECT_EQ(status(), Texts{});
}

TEST_F(FaultsTest, FaultsOfAFileHappenAtTheirTimes) {
  const auto scheduled = [](Duration after, const char* text) {
    return plan::ScheduledFault{
        .after = after, .fault = faults::parse_fault(faults::split_words(text), {}).value()};
  };
  constexpr Duration kLater = std::chrono::milliseconds(20);
  agent::Log log;
  log.store_lines(10);
  const Time began = os::now();
  const FaultSchedule schedule(loop_, faults_,
                               {scheduled(kLater, "link a b up"), scheduled({}, "link a b down"),
                                scheduled({}, "node m off"), scheduled({}, "node n off")},
                               log);
  while (schedule.remaining() > 1) loop_.run_one();
  EXPECT_EQ(status(), (Texts{"node n is off", "link a - b is down"}));
  while (schedule.remaining() > 0) loop_.run_one();
  EXPECT_GE(os::now() - began, kLater);
  EXPECT_EQ(status(), Texts{"node n is off"});
  std::string lines;
  for (const std::string& line : log.stored_lines(0, 10).lines) lines += line + "\n";
  EXPECT_NE(lines.find("link a - b is down\n"), std::string::npos) << lines;
  EXPECT_NE(lines.find("the fault 'node m off' of the file is refused: there is no m\n"),
            std::string::npos)
      << lines;
}

}  // namespace
}  // namespace verbena::hosts
