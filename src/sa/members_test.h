#pragma once

#include <gtest/gtest.h>

#include <string>

#include "sa/manual_sa_test.h"
#include "sa/memberships.h"

// Provides the memberships of a port for which the test acts as the SA.
namespace verbena::sa {

constexpr Gid test_mgid(unsigned number) {
  Gid gid = test_gid(number);
  gid.bytes[0] = std::byte{0xff};
  gid.bytes[1] = std::byte{0x12};
  return gid;
}

class MembershipsTest : public ManualSaTest {
 protected:
  MembershipsTest() { memberships.set_port(port, PortChange::between({}, port), now); }

  Memberships memberships{queries, Random(3)};
  static constexpr Gid kGroup = test_mgid(1);

  void change_port(const PortState& state) {
    const auto change = PortChange::between(port, state);
    port = state;
    if (change.resends_queries()) memberships.delay_new_groups(now);
    queries.set_port({}, state, now);
    memberships.set_port(state, change, now);
  }
  void on_query_result(const QueryResult& result) override { memberships.receive(result, now); }
  void on_timer() override { memberships.on_timer(now); }
  Time deadline() override { return memberships.deadline(); }

  static wire::McMemberRecord record_of(const Gid& mgid) {
    return {.mgid = mgid,
            .port_gid = test_gid(5),
            .qkey = {0xb1b},
            .mlid = {0xc001},
            .mtu = 4,
            .pkey = wire::kDefaultPkey,
            .rate = 3,
            .scope = 2};
  }
  MemberId join(std::uint8_t state = wire::join_state::kFullMember, std::uint64_t cookie = 0,
                const Gid& mgid = kGroup) {
    return *memberships.join({.mgid = mgid, .join_state = state}, cookie, now);
  }
  // Makes a user a member: joins, and answers the join as the SA.
  MemberId become_member(std::uint8_t state = wire::join_state::kFullMember,
                         const Gid& mgid = kGroup) {
    const MemberId id = join(state, 0, mgid);
    answer(request(), record_of(mgid));
    EXPECT_EQ(events(), "joined ");
    return id;
  }
  std::string events() {
    std::string text;
    while (const auto event = memberships.next_event()) {
      switch (event->what) {
        case MemberEvent::What::kJoined: text += "joined "; break;
        case MemberEvent::What::kChanged: text += "changed "; break;
        case MemberEvent::What::kFailed: text += "failed "; break;
      }
    }
    return text;
  }
  // Describes a request: its method and join state.
  static std::string text_of(const mad::SendMad& packet) {
    const auto method = header_in(packet).mad.method;
    return std::string(method == wire::Method::kSet      ? "join "
                       : method == wire::Method::kDelete ? "leave "
                                                         : "? ") +
           std::to_string(record_in<wire::McMemberRecord>(packet).join_state);
  }
  std::string sent_text() {
    std::string text;
    for (const auto& packet : sent()) text += text_of(packet) + "; ";
    return text;
  }
};

}  // namespace verbena::sa
