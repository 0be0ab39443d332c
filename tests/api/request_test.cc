// Tests the three ways to get the outcome of a command, over an adapter that takes a second of
// virtual time for each command, and over one that carries it out at once.
#include <gtest/gtest.h>
#include <poll.h>
#include <verbena/verbena.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "fake_adapter.h"

namespace {

using namespace verbena;
using fake::Duration;
constexpr Duration kSecond = std::chrono::seconds(1);
constexpr Duration kNearly = kSecond - Duration(1);

// Holds the objects that commands need.
struct Objects {
  std::array<std::byte, 64> memory{};
  std::unique_ptr<Loop> loop;
  std::optional<Device> device;
  std::optional<ProtectionDomain> pd;
  std::optional<CompletionQueue> cq;
  std::optional<MemoryRegion> mr;
  std::optional<QueuePair> qp;
  std::optional<ConnectionId> id;
  std::optional<AddressHandle> ah;
  std::optional<SharedReceiveQueue> srq;
  std::optional<MemoryWindow> window;

  explicit Objects(Duration hold) {
    fake::reset(hold);
    loop = value_of(Loop::create());
    device.emplace(value_of(Device::open(*loop).wait()));
    pd.emplace(value_of(device->create_pd().wait()));
    cq.emplace(value_of(device->create_cq(16).wait()));
    mr.emplace(value_of(pd->register_memory(memory, Access::kLocalWrite).wait()));
    qp.emplace(value_of(QueuePair::create(*pd, *cq, *cq).wait()));
    id.emplace(value_of(ConnectionId::create(*loop).wait()));
    ah.emplace(value_of(AddressHandle::create(*pd, {}, {}).wait()));
    srq.emplace(value_of(SharedReceiveQueue::create(*pd, 16).wait()));
    window.emplace(value_of(MemoryWindow::create(*pd, MemoryWindow::Type::kTwo).wait()));
  }
  void turn() const {
    while (loop->run_ready()) {
    }
  }
};

// A started command, with the three ways to get its outcome.
struct Started {
  std::function<void(std::function<void(bool)>)> then;  // true: it succeeded
  std::function<bool()> wait;
  std::function<Task<bool>()> await;
  std::function<void()> drop;
};

template <class T>
Task<bool> awaited(Request<T> request) {
  const Outcome<T> outcome = co_await std::move(request);
  co_return outcome.has_value();
}

template <class T>
Started faces(Request<T> made) {
  auto request = std::make_shared<std::optional<Request<T>>>(std::move(made));
  return {.then =
              [request](std::function<void(bool)> told) {
                (*request)->then([told](Outcome<T> outcome) { told(outcome.has_value()); });
              },
          .wait = [request] { return std::move(**request).wait().has_value(); },
          .await = [request] { return awaited(std::move(**request)); },
          .drop = [request] { request->reset(); }};
}

using Command = std::function<Started(Objects&)>;
const std::vector<std::pair<std::string, Command>>& commands() {
  static const std::vector<std::pair<std::string, Command>> all{
      {"Open", [](Objects& o) { return faces(Device::open(*o.loop)); }},
      {"CreatePd", [](Objects& o) { return faces(o.device->create_pd()); }},
      {"RegisterMemory",
       [](Objects& o) { return faces(o.pd->register_memory(o.memory, Access::kRead)); }},
      {"Deregister", [](Objects& o) { return faces(o.mr->deregister()); }},
      {"Reregister",
       [](Objects& o) { return faces(o.mr->reregister(o.memory, Access::kLocalWrite)); }},
      {"CreateNullRegion", [](Objects& o) { return faces(o.pd->create_null_region()); }},
      {"Prefetch",
       [](Objects& o) {
         const Segment segment = o.mr->whole();
         return faces(o.pd->prefetch({&segment, 1}, true));
       }},
      {"CreateWindow",
       [](Objects& o) { return faces(MemoryWindow::create(*o.pd, MemoryWindow::Type::kOne)); }},
      {"DestroyWindow", [](Objects& o) { return faces(o.window->destroy()); }},
      {"CreateSrq", [](Objects& o) { return faces(SharedReceiveQueue::create(*o.pd, 4)); }},
      {"LimitSrq", [](Objects& o) { return faces(o.srq->set_limit(2)); }},
      {"ResizeSrq", [](Objects& o) { return faces(o.srq->resize(32)); }},
      {"QuerySrq", [](Objects& o) { return faces(o.srq->query()); }},
      {"DestroySrq", [](Objects& o) { return faces(o.srq->destroy()); }},
      {"ResizeCq", [](Objects& o) { return faces(o.cq->resize(32)); }},
      {"CreateCq", [](Objects& o) { return faces(o.device->create_cq(4)); }},
      {"CreateQp", [](Objects& o) { return faces(QueuePair::create(*o.pd, *o.cq, *o.cq)); }},
      {"ModifyQp", [](Objects& o) { return faces(o.qp->modify({}, 1)); }},
      {"QueryQp", [](Objects& o) { return faces(o.qp->query()); }},
      {"Attach", [](Objects& o) { return faces(o.qp->attach({0xff})); }},
      {"Detach",
       [](Objects& o) {
         return faces(GroupMembership(*o.loop, {o.qp->handle(), {0xff}, 0}, {}).detach());
       }},
      {"CreateAddress", [](Objects& o) { return faces(AddressHandle::create(*o.pd, {}, {})); }},
      {"DestroyAddress", [](Objects& o) { return faces(o.ah->destroy()); }},
      {"DestroyQp", [](Objects& o) { return faces(o.qp->destroy()); }},
      {"CreateId", [](Objects& o) { return faces(ConnectionId::create(*o.loop)); }},
      {"Bind", [](Objects& o) { return faces(o.id->bind(*Address::find("127.0.0.1", 1))); }},
      {"Listen", [](Objects& o) { return faces(o.id->listen(1)); }},
      {"Resolve",
       [](Objects& o) { return faces(o.id->resolve_address(*Address::find("127.0.0.1", 1), 1)); }},
      {"Connect", [](Objects& o) { return faces(o.id->connect()); }},
      {"Accept", [](Objects& o) { return faces(o.id->accept()); }},
      {"Reject", [](Objects& o) { return faces(o.id->reject()); }},
      {"Disconnect", [](Objects& o) { return faces(o.id->disconnect()); }},
  };
  return all;
}

class EveryCommand : public testing::TestWithParam<std::size_t> {
 protected:
  static Started start(Objects& objects) { return commands()[GetParam()].second(objects); }
};
INSTANTIATE_TEST_SUITE_P(Requests, EveryCommand, testing::Range(std::size_t{0}, commands().size()),
                         [](const auto& one) { return commands()[one.param].first; });

TEST_P(EveryCommand, CallsTheCallbackOnceWhenDone) {
  Objects o(kSecond);
  Started command = start(o);
  int told = 0;
  command.then([&](bool good) { told += good ? 1 : 100; });
  o.turn();
  fake::advance(kNearly);
  o.turn();
  EXPECT_EQ(told, 0);
  fake::advance(Duration(1));
  EXPECT_EQ(told, 0);  // only the loop calls the callback
  o.turn();
  EXPECT_EQ(told, 1);
  fake::advance(10 * kSecond);
  o.turn();
  EXPECT_EQ(told, 1);
}

TEST_P(EveryCommand, NeverCallsTheCallbackInsideTheStartingCall) {
  Objects o(Duration{});
  Started command = start(o);
  int told = 0;
  command.then([&](bool good) { told += good ? 1 : 100; });
  EXPECT_EQ(told, 0);
  o.turn();
  EXPECT_EQ(told, 1);
}

TEST_P(EveryCommand, CanBeAwaited) {
  for (const Duration hold : {Duration{}, kSecond}) {
    Objects o(hold);
    Task<bool> task = start(o).await();
    task.start();
    EXPECT_EQ(task.done(), hold == Duration{});
    fake::advance(kNearly);
    o.turn();
    EXPECT_EQ(task.done(), hold == Duration{});
    fake::advance(Duration(1));
    o.turn();
    ASSERT_TRUE(task.done());
    EXPECT_TRUE(task.take());
  }
}

TEST_P(EveryCommand, CanBeWaitedFor) {
  Objects o(kSecond);
  const Duration begun = fake::now();
  EXPECT_TRUE(start(o).wait());
  EXPECT_EQ(fake::now() - begun, kSecond);
  EXPECT_EQ(fake::requests(), 0u);
}

TEST_P(EveryCommand, IsNotCarriedOutWhenDroppedBefore) {
  Objects o(kSecond);
  const std::uint64_t carried_out = fake::carried_out(), objects = fake::objects();
  {
    Started command = start(o);
    int told = 0;
    command.then([&](bool) { ++told; });
    fake::advance(kNearly);
    command.drop();
    fake::advance(kSecond);
    o.turn();
    EXPECT_EQ(told, 0);
  }
  EXPECT_EQ(fake::carried_out(), carried_out);
  EXPECT_EQ(fake::objects(), objects);
  EXPECT_EQ(fake::requests(), 0u);
}

TEST_P(EveryCommand, LeavesNoObjectWhenDroppedAfter) {
  for (const Duration hold : {Duration{}, kSecond}) {
    Objects o(hold);
    const std::uint64_t objects = fake::objects();
    Started command = start(o);
    int told = 0;
    command.then([&](bool) { ++told; });
    fake::advance(kSecond);  // done, but its outcome was not delivered
    command.drop();
    o.turn();
    EXPECT_EQ(told, 0);
    EXPECT_LE(fake::objects(), objects);  // fewer if the command has destroyed one
    EXPECT_EQ(fake::requests(), 0u);
  }
}

TEST_P(EveryCommand, IsCancelledWithTheCoroutineThatAwaitsIt) {
  Objects o(kSecond);
  const std::uint64_t carried_out = fake::carried_out();
  {
    const Task<bool> task = start(o).await();
    task.start();
    o.turn();
  }
  fake::advance(kSecond);
  o.turn();
  EXPECT_EQ(fake::carried_out(), carried_out);
  EXPECT_EQ(fake::requests(), 0u);
}

TEST_P(EveryCommand, CanBeStartedAndWaitedForInACallback) {
  Objects o(kSecond);
  auto first = o.device->create_pd();
  bool good = false;
  first.then([&](const Outcome<ProtectionDomain>&) { good = start(o).wait(); });
  fake::advance(kSecond);
  o.turn();
  EXPECT_TRUE(good);
}

TEST(Requests, ACallbackMayDropItsOwnRequestAndOthers) {
  Objects o(kSecond);
  std::vector<Request<ProtectionDomain>> requests;
  int told = 0;
  for (int i = 0; i < 3; ++i) {
    requests.push_back(o.device->create_pd());
    requests.back().then([&](const Outcome<ProtectionDomain>&) {
      ++told;
      requests.clear();
    });
  }
  fake::advance(kSecond);  // completes all three
  o.turn();
  EXPECT_EQ(told, 1);
  EXPECT_EQ(fake::requests(), 0u);
}

TEST(Requests, CompleteInTheOrderOfStarting) {
  Objects o(kSecond);
  std::string order;
  auto a = o.device->create_pd();
  auto b = o.device->create_pd();
  b.then([&](const Outcome<ProtectionDomain>&) { order += "b"; });
  a.then([&](const Outcome<ProtectionDomain>&) { order += "a"; });
  fake::advance(kSecond);
  o.turn();
  EXPECT_EQ(order, "ab");
}

TEST(Requests, DestroyingAUsedObjectIsBusyAndChangesNothing) {
  Objects o(kSecond);
  auto busy = o.pd->destroy().wait();
  ASSERT_FALSE(busy);
  EXPECT_EQ(busy.error().code, std::errc::device_or_resource_busy);
  EXPECT_FALSE(busy.error().text.empty());
  EXPECT_FALSE(o.cq->destroy().wait());
  EXPECT_TRUE(o.qp->destroy().wait());
  EXPECT_TRUE(o.cq->destroy().wait());
  EXPECT_FALSE(o.pd->destroy().wait());
  EXPECT_TRUE(o.mr->deregister().wait());
  EXPECT_FALSE(o.pd->destroy().wait());
  EXPECT_TRUE(o.ah->destroy().wait());
  QueuePairOptions options;
  options.receives = &*o.srq;
  o.cq.emplace(value_of(o.device->create_cq(4).wait()));
  auto qp = value_of(QueuePair::create(*o.pd, *o.cq, *o.cq, options).wait());
  EXPECT_FALSE(o.srq->destroy().wait());
  EXPECT_TRUE(qp.destroy().wait());
  EXPECT_TRUE(o.srq->destroy().wait());
  EXPECT_TRUE(o.window->destroy().wait());
  EXPECT_TRUE(o.pd->destroy().wait());
  EXPECT_FALSE(o.pd->destroy().wait());  // it is destroyed already
}

Task<> takes(CompletionQueue& cq, std::vector<std::uint64_t>& seen, std::size_t count) {
  std::array<Completion, 2> room{};
  while (seen.size() < count) {
    for (const Completion& done : co_await cq.next(room)) seen.push_back(done.wr_id);
  }
}

TEST(CompletionQueues, GiveACoroutineEachCompletionOnce) {
  Objects o(Duration{});
  std::vector<std::uint64_t> seen;
  fake::complete(o.cq->handle(), 1);  // comes before the coroutine waits
  o.loop->spawn(takes(*o.cq, seen, 6));
  EXPECT_EQ(seen, (std::vector<std::uint64_t>{1}));
  for (std::uint64_t id = 2; id <= 4; ++id) fake::complete(o.cq->handle(), id);
  o.turn();
  EXPECT_EQ(seen, (std::vector<std::uint64_t>{1, 2, 3, 4}));
  for (std::uint64_t id = 5; id <= 6; ++id) {
    fake::complete(o.cq->handle(), id);
    o.turn();
  }
  EXPECT_EQ(seen, (std::vector<std::uint64_t>{1, 2, 3, 4, 5, 6}));
}

// These tasks end with the loop, after the objects that they wait for are destroyed.
Task<> waits(CompletionQueue& cq) {
  std::array<Completion, 1> room{};
  co_await cq.next(room);
}
Task<> waits(ConnectionId& id) { co_await id.event(); }

TEST(CompletionQueues, MayBeDestroyedBeforeAWaitingCoroutine) {
  Objects o{Duration{}};
  auto cq = std::make_unique<CompletionQueue>(value_of(o.device->create_cq(4).wait()));
  auto id = std::make_unique<ConnectionId>(value_of(ConnectionId::create(*o.loop).wait()));
  o.loop->spawn(waits(*cq));
  o.loop->spawn(waits(*id));
  cq.reset();
  id.reset();
  o.turn();
}

// The queue pair keeps its queues, but their events are dropped.
TEST(CompletionQueues, MayBeDestroyedBeforeTheQueuePairsThatUseThem) {
  Objects o{Duration{}};
  auto cq = std::make_unique<CompletionQueue>(value_of(o.device->create_cq(4).wait()));
  auto srq =
      std::make_unique<SharedReceiveQueue>(value_of(SharedReceiveQueue::create(*o.pd, 4).wait()));
  QueuePairOptions options;
  options.receives = srq.get();
  auto qp = value_of(QueuePair::create(*o.pd, *cq, *cq, options).wait());
  const vb_handle queue = cq->handle(), receives = srq->handle();
  o.loop->spawn(waits(*cq));  // arms it
  cq.reset();
  srq.reset();
  fake::complete(queue, 1);
  fake::tell(queue, 0);
  fake::tell(receives, 15);
  o.turn();
  const std::size_t objects = fake::objects();
  { const QueuePair last = std::move(qp); }
  EXPECT_EQ(fake::objects(), objects - 3);
}

TEST(CompletionQueues, ForgetADestroyedCoroutine) {
  Objects o(Duration{});
  std::vector<std::uint64_t> seen;
  {
    const Task<> task = takes(*o.cq, seen, 1);
    task.start();
  }
  fake::complete(o.cq->handle(), 1);
  o.turn();
  EXPECT_TRUE(seen.empty());
}

// ---- events of objects

Task<> hears(QueuePair& qp, std::vector<QueuePair::Event>& heard, std::size_t count) {
  while (heard.size() < count) heard.push_back(co_await qp.event());
}

TEST(Events, GoToTheirObject) {
  using Event = QueuePair::Event;
  Objects o{Duration{}};
  auto other = value_of(QueuePair::create(*o.pd, *o.cq, *o.cq).wait());
  std::vector<Event> heard, of_other;
  fake::tell(o.qp->handle(), 4);
  fake::tell(o.qp->handle(), 6);
  fake::tell(o.qp->handle(), 6);  // is dropped: the first one was not taken yet
  fake::tell(other.handle(), 1);
  o.turn();
  o.loop->spawn(hears(*o.qp, heard, 3));
  EXPECT_EQ(heard, (std::vector<Event>{Event::kEstablished, Event::kMigrated}));
  fake::tell(o.qp->handle(), 6);
  o.turn();
  EXPECT_EQ(heard.size(), 3u);
  o.loop->spawn(hears(other, of_other, 1));
  EXPECT_EQ(of_other, (std::vector<Event>{Event::kFatal}));
}

Task<> hears(SharedReceiveQueue& srq, int& limits) {
  for (;;) {
    const SharedReceiveQueue::Event event = co_await srq.event();
    if (event == SharedReceiveQueue::Event::kLimitReached) ++limits;
  }
}

TEST(Events, ASharedReceiveQueueMayBeDestroyedBeforeAWaitingCoroutine) {
  Objects o{Duration{}};
  int limits = 0;
  o.loop->spawn(hears(*o.srq, limits));
  fake::tell(o.srq->handle(), 15);
  o.turn();
  EXPECT_EQ(limits, 1);
  o.srq.reset();
  o.turn();
}

TEST(Windows, EachBindingHasAnotherKey) {
  Objects o{Duration{}};
  const Send first = o.window->bind(*o.mr, 8, 16, Access::kRemoteRead);
  EXPECT_EQ(first.opcode, Opcode::kBindWindow);
  EXPECT_EQ(first.bind.address, o.memory.data() + 8);
  EXPECT_EQ(first.bind_bytes, 16u);
  EXPECT_EQ(o.window->remote().bytes, 16u);
  EXPECT_EQ(o.window->remote().rkey, first.remote.rkey);
  EXPECT_EQ(o.window->invalidate().remote.rkey, first.remote.rkey);
  const Send second = o.window->bind(*o.mr, 0, 64, Access::kRemoteRead);
  EXPECT_NE(second.remote.rkey, first.remote.rkey);
  EXPECT_EQ(second.remote.rkey & ~0xffu, first.remote.rkey & ~0xffu);
}

bool readable(int fd) {
  pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&one, 1, 0) == 1;
}

TEST(Loops, HaveAReadableDescriptorWhileThereIsWork) {
  Objects o(Duration{});
  EXPECT_FALSE(readable(o.loop->fd()));
  auto first = o.device->create_pd();
  auto second = o.device->create_pd();
  int told = 0;
  for (auto* request : {&first, &second}) {
    request->then([&](const Outcome<ProtectionDomain>&) { ++told; });
  }
  EXPECT_TRUE(readable(o.loop->fd()));  // the commands are done, and their callbacks wait
  while (readable(o.loop->fd())) o.loop->run_ready();
  EXPECT_EQ(told, 2);
  {
    auto dropped = o.device->create_pd();
    dropped.then([&](const Outcome<ProtectionDomain>&) { ++told; });
  }
  EXPECT_FALSE(readable(o.loop->fd()));
}

Task<> throws_when_it_is_done(const Device& device) {
  static_cast<void>(co_await device.create_pd());
  throw std::runtime_error("out of it");
}

TEST(Loops, RethrowExceptionsOfSpawnedTasks) {
  for (const Duration hold : {Duration{}, kSecond}) {
    Objects o(hold);
    const auto spawn_and_run = [&] {
      o.loop->spawn(throws_when_it_is_done(*o.device));
      fake::advance(kSecond);
      o.turn();
    };
    EXPECT_THROW(spawn_and_run(), std::runtime_error);
    EXPECT_FALSE(o.loop->run_ready());  // is thrown only once
  }
}

Task<> hears(ConnectionId& listener, std::vector<std::uint32_t>& types) {
  detail::IdEvent request = co_await listener.event();
  types.push_back(request.type);
  ConnectionId asked(std::move(request.incoming));
  const vb_cm_event next = co_await asked.event();
  types.push_back(next.type);
}

TEST(ConnectionIds, GetEventsOfAPeerThatLeftBeforeItsRequestWasTaken) {
  for (const bool taken : {true, false}) {
    Objects o(Duration{});
    const std::uint64_t objects = fake::objects();
    {
      ConnectionId listener = value_of(ConnectionId::create(*o.loop).wait());
      fake::ask_and_leave(listener.handle());
      o.turn();
      std::vector<std::uint32_t> types;
      if (taken) {
        o.loop->run(hears(listener, types));
        EXPECT_EQ(types, (std::vector<std::uint32_t>{4, 6}));
      }
    }
    EXPECT_EQ(fake::objects(), objects);  // even a request that was not taken is destroyed
  }
}

Task<> takes(ConnectionId& listener, Loop*& loop) {
  const auto request = co_await listener.event();
  loop = request.incoming->loop;
}

// A request that was not taken moves with its listener.
TEST(ConnectionIds, MoveToAnotherLoopWithTheirRequests) {
  Objects o(Duration{});
  auto other = value_of(Loop::create());
  value_of(Device::open(*other).wait());
  ConnectionId listener = value_of(ConnectionId::create(*o.loop).wait());
  fake::ask_and_leave(listener.handle());
  o.turn();
  value_of(listener.move_to(*other));
  EXPECT_EQ(&listener.loop(), other.get());
  Loop* loop = nullptr;
  other->run(takes(listener, loop));
  EXPECT_EQ(loop, other.get());
}

}  // namespace
