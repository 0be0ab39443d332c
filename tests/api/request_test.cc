// Tests the three ways to get the outcome of a command (a callback, co_await and wait()), and the
// completions and events of objects.  A fake adapter carries out each command at once, or after a
// second of virtual time.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <verbena/verbena.h>

#include <array>
#include <cerrno>
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
constexpr Duration kAlmostASecond = kSecond - Duration(1);

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

  explicit Objects(Duration command_time) {
    fake::reset(command_time);
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
  void run_loop() const {
    while (loop->run_ready()) {
    }
  }
};

// Holds a started command, with the three ways to get its outcome.
struct StartedCommand {
  std::function<void(std::function<void(bool)>)> then;  // true: it succeeded
  std::function<bool()> wait;
  std::function<Task<bool>()> await;
  std::function<void()> cancel;
};

template <class T>
Task<bool> await_outcome(Request<T> request) {
  const Outcome<T> outcome = co_await std::move(request);
  co_return outcome.has_value();
}

template <class T>
StartedCommand wrap(Request<T> new_request) {
  auto request = std::make_shared<std::optional<Request<T>>>(std::move(new_request));
  return {.then =
              [request](std::function<void(bool)> callback) {
                (*request)->then([callback](Outcome<T> outcome) { callback(outcome.has_value()); });
              },
          .wait = [request] { return std::move(**request).wait().has_value(); },
          .await = [request] { return await_outcome(std::move(**request)); },
          .cancel = [request] { request->reset(); }};
}

using Command = std::function<StartedCommand(Objects&)>;
const std::vector<std::pair<std::string, Command>>& commands() {
  static const std::vector<std::pair<std::string, Command>> all{
      {"Open", [](Objects& o) { return wrap(Device::open(*o.loop)); }},
      {"CreatePd", [](Objects& o) { return wrap(o.device->create_pd()); }},
      {"RegisterMemory",
       [](Objects& o) { return wrap(o.pd->register_memory(o.memory, Access::kRead)); }},
      {"Deregister", [](Objects& o) { return wrap(o.mr->deregister()); }},
      {"Reregister",
       [](Objects& o) { return wrap(o.mr->reregister(o.memory, Access::kLocalWrite)); }},
      {"CreateNullRegion", [](Objects& o) { return wrap(o.pd->create_null_region()); }},
      {"Prefetch",
       [](Objects& o) {
         const Segment segment = o.mr->whole();
         return wrap(o.pd->prefetch({&segment, 1}, true));
       }},
      {"CreateWindow",
       [](Objects& o) { return wrap(MemoryWindow::create(*o.pd, MemoryWindow::Type::kOne)); }},
      {"DestroyWindow", [](Objects& o) { return wrap(o.window->destroy()); }},
      {"CreateSrq", [](Objects& o) { return wrap(SharedReceiveQueue::create(*o.pd, 4)); }},
      {"LimitSrq", [](Objects& o) { return wrap(o.srq->set_limit(2)); }},
      {"ResizeSrq", [](Objects& o) { return wrap(o.srq->resize(32)); }},
      {"QuerySrq", [](Objects& o) { return wrap(o.srq->query()); }},
      {"DestroySrq", [](Objects& o) { return wrap(o.srq->destroy()); }},
      {"ResizeCq", [](Objects& o) { return wrap(o.cq->resize(32)); }},
      {"CreateCq", [](Objects& o) { return wrap(o.device->create_cq(4)); }},
      {"CreateQp", [](Objects& o) { return wrap(QueuePair::create(*o.pd, *o.cq, *o.cq)); }},
      {"ModifyQp", [](Objects& o) { return wrap(o.qp->modify({}, 1)); }},
      {"QueryQp", [](Objects& o) { return wrap(o.qp->query()); }},
      {"Attach", [](Objects& o) { return wrap(o.qp->attach({0xff})); }},
      {"Detach",
       [](Objects& o) {
         auto membership = std::make_shared<detail::Membership>();
         membership->args.qp = o.qp->handle();
         return wrap(GroupMembership(*o.loop, std::move(membership)).detach());
       }},
      {"CreateAddress", [](Objects& o) { return wrap(AddressHandle::create(*o.pd, {}, {})); }},
      {"DestroyAddress", [](Objects& o) { return wrap(o.ah->destroy()); }},
      {"DestroyQp", [](Objects& o) { return wrap(o.qp->destroy()); }},
      {"CreateId", [](Objects& o) { return wrap(ConnectionId::create(*o.loop)); }},
      {"Bind", [](Objects& o) { return wrap(o.id->bind(*Address::find("127.0.0.1", 1))); }},
      {"Listen", [](Objects& o) { return wrap(o.id->listen(1)); }},
      {"Resolve",
       [](Objects& o) { return wrap(o.id->resolve_address(*Address::find("127.0.0.1", 1), 1)); }},
      {"Connect", [](Objects& o) { return wrap(o.id->connect()); }},
      {"Accept", [](Objects& o) { return wrap(o.id->accept()); }},
      {"Reject", [](Objects& o) { return wrap(o.id->reject()); }},
      {"Disconnect", [](Objects& o) { return wrap(o.id->disconnect()); }},
  };
  return all;
}

class EveryCommand : public testing::TestWithParam<std::size_t> {
 protected:
  static StartedCommand start(Objects& objects) { return commands()[GetParam()].second(objects); }
};
INSTANTIATE_TEST_SUITE_P(Requests, EveryCommand, testing::Range(std::size_t{0}, commands().size()),
                         [](const auto& instance) { return commands()[instance.param].first; });

TEST_P(EveryCommand, CallsTheCallbackOnceWhenDone) {
  Objects o(kSecond);
  StartedCommand command = start(o);
  int calls = 0;
  command.then([&](bool succeeded) { calls += succeeded ? 1 : 100; });
  o.run_loop();
  fake::advance(kAlmostASecond);
  o.run_loop();
  EXPECT_EQ(calls, 0);
  fake::advance(Duration(1));
  EXPECT_EQ(calls, 0);  // only the loop calls the callback
  o.run_loop();
  EXPECT_EQ(calls, 1);
  fake::advance(10 * kSecond);
  o.run_loop();
  EXPECT_EQ(calls, 1);
}

TEST_P(EveryCommand, NeverCallsTheCallbackInsideTheStartingCall) {
  Objects o(Duration{});
  StartedCommand command = start(o);
  int calls = 0;
  command.then([&](bool succeeded) { calls += succeeded ? 1 : 100; });
  EXPECT_EQ(calls, 0);
  o.run_loop();
  EXPECT_EQ(calls, 1);
}

TEST_P(EveryCommand, CanBeAwaited) {
  for (const Duration command_time : {Duration{}, kSecond}) {
    Objects o(command_time);
    Task<bool> task = start(o).await();
    task.start();
    EXPECT_EQ(task.done(), command_time == Duration{});
    fake::advance(kAlmostASecond);
    o.run_loop();
    EXPECT_EQ(task.done(), command_time == Duration{});
    fake::advance(Duration(1));
    o.run_loop();
    ASSERT_TRUE(task.done());
    EXPECT_TRUE(task.take());
  }
}

TEST_P(EveryCommand, CanBeWaitedFor) {
  Objects o(kSecond);
  const Duration start_time = fake::now();
  EXPECT_TRUE(start(o).wait());
  EXPECT_EQ(fake::now() - start_time, kSecond);
  EXPECT_EQ(fake::requests(), 0u);
}

TEST_P(EveryCommand, IsNotCarriedOutIfCancelledBeforeItIsDone) {
  Objects o(kSecond);
  const std::uint64_t carried_out = fake::carried_out(), objects = fake::objects();
  {
    StartedCommand command = start(o);
    int calls = 0;
    command.then([&](bool) { ++calls; });
    fake::advance(kAlmostASecond);
    command.cancel();
    fake::advance(kSecond);
    o.run_loop();
    EXPECT_EQ(calls, 0);
  }
  EXPECT_EQ(fake::carried_out(), carried_out);
  EXPECT_EQ(fake::objects(), objects);
  EXPECT_EQ(fake::requests(), 0u);
}

TEST_P(EveryCommand, LeavesNoObjectIfCancelledAfterItIsDone) {
  for (const Duration command_time : {Duration{}, kSecond}) {
    Objects o(command_time);
    const std::uint64_t objects = fake::objects();
    StartedCommand command = start(o);
    int calls = 0;
    command.then([&](bool) { ++calls; });
    fake::advance(kSecond);  // completes the command, but does not deliver the outcome
    command.cancel();
    o.run_loop();
    EXPECT_EQ(calls, 0);
    EXPECT_LE(fake::objects(), objects);  // some commands destroy an object
    EXPECT_EQ(fake::requests(), 0u);
  }
}

TEST_P(EveryCommand, IsCancelledWithTheCoroutineThatAwaitsIt) {
  Objects o(kSecond);
  const std::uint64_t carried_out = fake::carried_out();
  {
    const Task<bool> task = start(o).await();
    task.start();
    o.run_loop();
  }
  fake::advance(kSecond);
  o.run_loop();
  EXPECT_EQ(fake::carried_out(), carried_out);
  EXPECT_EQ(fake::requests(), 0u);
}

TEST_P(EveryCommand, CanBeStartedAndWaitedForInACallback) {
  Objects o(kSecond);
  auto first = o.device->create_pd();
  bool succeeded = false;
  first.then([&](const Outcome<ProtectionDomain>&) { succeeded = start(o).wait(); });
  fake::advance(kSecond);
  o.run_loop();
  EXPECT_TRUE(succeeded);
}

TEST(Requests, ACallbackMayDropItsOwnRequestAndOthers) {
  Objects o(kSecond);
  std::vector<Request<ProtectionDomain>> requests;
  int calls = 0;
  for (int i = 0; i < 3; ++i) {
    requests.push_back(o.device->create_pd());
    requests.back().then([&](const Outcome<ProtectionDomain>&) {
      ++calls;
      requests.clear();
    });
  }
  fake::advance(kSecond);  // completes all three
  o.run_loop();
  EXPECT_EQ(calls, 1);
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
  o.run_loop();
  EXPECT_EQ(order, "ab");
}

TEST(Requests, DestroyingAnObjectInUseFailsWithBusyAndChangesNothing) {
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
  EXPECT_FALSE(o.pd->destroy().wait()) << "a second destroy";
}

Task<> store_completions(CompletionQueue& cq, std::vector<std::uint64_t>& ids, std::size_t count) {
  std::array<Completion, 2> completions{};
  while (ids.size() < count) {
    for (const Completion& done : co_await cq.next(completions)) ids.push_back(done.wr_id);
  }
}

TEST(CompletionQueues, GiveACoroutineEachCompletionOnce) {
  Objects o(Duration{});
  std::vector<std::uint64_t> ids;
  fake::add_completion(o.cq->handle(), 1);  // comes before the coroutine waits
  o.loop->spawn(store_completions(*o.cq, ids, 6));
  EXPECT_EQ(ids, (std::vector<std::uint64_t>{1}));
  for (std::uint64_t id = 2; id <= 4; ++id) fake::add_completion(o.cq->handle(), id);
  o.run_loop();
  EXPECT_EQ(ids, (std::vector<std::uint64_t>{1, 2, 3, 4}));
  for (std::uint64_t id = 5; id <= 6; ++id) {
    fake::add_completion(o.cq->handle(), id);
    o.run_loop();
  }
  EXPECT_EQ(ids, (std::vector<std::uint64_t>{1, 2, 3, 4, 5, 6}));
}

// These tasks wait for events of objects that are destroyed first.  The tasks end with the loop.
Task<> await_event(CompletionQueue& cq) {
  std::array<Completion, 1> completions{};
  co_await cq.next(completions);
}
Task<> await_event(ConnectionId& id) { co_await id.event(); }

TEST(CompletionQueues, MayBeDestroyedBeforeAWaitingCoroutine) {
  Objects o{Duration{}};
  auto cq = std::make_unique<CompletionQueue>(value_of(o.device->create_cq(4).wait()));
  auto id = std::make_unique<ConnectionId>(value_of(ConnectionId::create(*o.loop).wait()));
  o.loop->spawn(await_event(*cq));
  o.loop->spawn(await_event(*id));
  cq.reset();
  id.reset();
  o.run_loop();
}

// The queue pair still uses its CQ and SRQ, but their events are dropped.
TEST(CompletionQueues, MayBeDestroyedBeforeTheQueuePairsThatUseThem) {
  Objects o{Duration{}};
  auto cq = std::make_unique<CompletionQueue>(value_of(o.device->create_cq(4).wait()));
  auto srq =
      std::make_unique<SharedReceiveQueue>(value_of(SharedReceiveQueue::create(*o.pd, 4).wait()));
  QueuePairOptions options;
  options.receives = srq.get();
  auto qp = value_of(QueuePair::create(*o.pd, *cq, *cq, options).wait());
  const vb_handle queue = cq->handle(), receives = srq->handle();
  o.loop->spawn(await_event(*cq));  // arms the CQ
  cq.reset();
  srq.reset();
  fake::add_completion(queue, 1);
  fake::raise_event(queue, 0);
  fake::raise_event(receives, 15);
  o.run_loop();
  const std::size_t objects = fake::objects();
  { const QueuePair last = std::move(qp); }
  EXPECT_EQ(fake::objects(), objects - 3);
}

TEST(CompletionQueues, IgnoreADestroyedCoroutine) {
  Objects o(Duration{});
  std::vector<std::uint64_t> ids;
  {
    const Task<> task = store_completions(*o.cq, ids, 1);
    task.start();
  }
  fake::add_completion(o.cq->handle(), 1);
  o.run_loop();
  EXPECT_TRUE(ids.empty());
}

TEST(GroupMemberships, RemainIfTheRequestToDetachIsCancelled) {
  Objects o(kSecond);
  const std::uint64_t objects = fake::objects();
  {
    auto membership = value_of(o.qp->attach({0xff}).wait());
    { auto cancelled = membership.detach(); }
    fake::advance(kSecond);
    EXPECT_EQ(fake::objects(), objects + 1);
  }
  EXPECT_EQ(fake::objects(), objects);
}

TEST(GroupMemberships, EndWithTheLastOfTheObjectAndItsRequestToDetach) {
  Objects o(kSecond);
  const std::uint64_t objects = fake::objects();
  std::optional membership = value_of(o.qp->attach({0xff}).wait());
  std::optional request = membership->detach();
  membership.reset();
  EXPECT_EQ(fake::objects(), objects + 1) << "the request is pending";
  request.reset();
  EXPECT_EQ(fake::objects(), objects);
}

// ---- events of objects

Task<> store_events(QueuePair& qp, std::vector<QueuePair::Event>& events, std::size_t count) {
  while (events.size() < count) events.push_back(co_await qp.event());
}

TEST(Events, GoToTheirObject) {
  using Event = QueuePair::Event;
  Objects o{Duration{}};
  auto other = value_of(QueuePair::create(*o.pd, *o.cq, *o.cq).wait());
  std::vector<Event> events, other_events;
  fake::raise_event(o.qp->handle(), 4);
  fake::raise_event(o.qp->handle(), 6);
  fake::raise_event(o.qp->handle(), 6);  // dropped, because the first event 6 was not read yet
  fake::raise_event(other.handle(), 1);
  o.run_loop();
  o.loop->spawn(store_events(*o.qp, events, 3));
  EXPECT_EQ(events, (std::vector<Event>{Event::kEstablished, Event::kMigrated}));
  fake::raise_event(o.qp->handle(), 6);
  o.run_loop();
  EXPECT_EQ(events.size(), 3u);
  o.loop->spawn(store_events(other, other_events, 1));
  EXPECT_EQ(other_events, (std::vector<Event>{Event::kFatal}));
}

Task<> store_events(SharedReceiveQueue& srq, int& limits) {
  for (;;) {
    const SharedReceiveQueue::Event event = co_await srq.event();
    if (event == SharedReceiveQueue::Event::kLimitReached) ++limits;
  }
}

TEST(Events, ASharedReceiveQueueMayBeDestroyedBeforeAWaitingCoroutine) {
  Objects o{Duration{}};
  int limits = 0;
  o.loop->spawn(store_events(*o.srq, limits));
  fake::raise_event(o.srq->handle(), 15);
  o.run_loop();
  EXPECT_EQ(limits, 1);
  o.srq.reset();
  o.run_loop();
}

TEST(Windows, EachBindingGetsANewKey) {
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

bool is_readable(int fd) {
  pollfd poll_fd{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&poll_fd, 1, 0) == 1;
}

TEST(Loops, HaveAReadableDescriptorWhileThereIsWork) {
  Objects o(Duration{});
  EXPECT_FALSE(is_readable(o.loop->fd()));
  auto first = o.device->create_pd();
  auto second = o.device->create_pd();
  int calls = 0;
  for (auto* request : {&first, &second}) {
    request->then([&](const Outcome<ProtectionDomain>&) { ++calls; });
  }
  EXPECT_TRUE(is_readable(o.loop->fd()));  // the loop has not called the callbacks yet
  while (is_readable(o.loop->fd())) o.loop->run_ready();
  EXPECT_EQ(calls, 2);
  {
    auto dropped = o.device->create_pd();
    dropped.then([&](const Outcome<ProtectionDomain>&) { ++calls; });
  }
  EXPECT_FALSE(is_readable(o.loop->fd()));
}

// A program may watch the descriptor edge-triggered (EPOLLET).
TEST(Loops, HaveAnEdgeOfTheirDescriptorForEachFinishedCommand) {
  Objects o(Duration{});
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{.events = EPOLLIN | EPOLLET, .data = {}};
  ASSERT_EQ(::epoll_ctl(epoll, EPOLL_CTL_ADD, o.loop->fd(), &event), 0);
  std::array requests{o.device->create_pd(), o.device->create_pd(), o.device->create_pd()};
  EXPECT_EQ(::epoll_wait(epoll, &event, 1, 0), 0);
  int calls = 0;
  for (auto& request : requests) {
    request.then([&](const Outcome<ProtectionDomain>&) { ++calls; });
    EXPECT_EQ(::epoll_wait(epoll, &event, 1, 0), 1);
  }
  EXPECT_EQ(calls, 0);
  o.run_loop();
  EXPECT_EQ(calls, 3);
  EXPECT_FALSE(is_readable(o.loop->fd()));
  ::close(epoll);
}

TEST(Loops, HaveAnEdgeOfTheirDescriptorForEachEventThatAnotherLoopPassesOn) {
  Objects taking(Duration{});
  const auto loop = value_of(Loop::create());
  const auto device = value_of(Device::open(*loop).wait());
  const auto pd = value_of(device.create_pd().wait());
  const auto cq = value_of(device.create_cq(16).wait());
  auto qp = value_of(QueuePair::create(pd, cq, cq).wait());
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{.events = EPOLLIN | EPOLLET, .data = {}};
  ASSERT_EQ(::epoll_ctl(epoll, EPOLL_CTL_ADD, loop->fd(), &event), 0);
  for (const std::uint32_t type : {4u, 6u}) {
    fake::raise_event(qp.handle(), type);
    (void)::epoll_wait(epoll, &event, 1, 0);  // both loops watch the descriptor of the library
    taking.run_loop();
    EXPECT_EQ(::epoll_wait(epoll, &event, 1, 0), 1) << "event " << type;
  }
  ::close(epoll);
}

// A loop that was attached only in part must not be used.
TEST(Loops, CanOpenADeviceAfterAFailure) {
  fake::reset(Duration{});
  auto loop = value_of(Loop::create());
  fake::fail_event_channels(EMFILE);
  for (int i = 0; i < 2; ++i) {
    const auto device = Device::open(*loop).wait();
    ASSERT_FALSE(device);
    EXPECT_EQ(device.error().code, std::errc::too_many_files_open);
    EXPECT_EQ(device.error().text, "no event channel");
    EXPECT_EQ(loop->completions(), 0u);
  }
  fake::fail_event_channels(0);
  EXPECT_TRUE(Device::open(*loop).wait());
  EXPECT_NE(loop->completions(), 0u);
  EXPECT_NE(loop->connections(), 0u);
}

Task<> throw_after_a_command(const Device& device) {
  static_cast<void>(co_await device.create_pd());
  throw std::runtime_error("thrown by the task");
}

TEST(Loops, RethrowExceptionsOfSpawnedTasks) {
  for (const Duration command_time : {Duration{}, kSecond}) {
    Objects o(command_time);
    const auto spawn_and_run = [&] {
      o.loop->spawn(throw_after_a_command(*o.device));
      fake::advance(kSecond);
      o.run_loop();
    };
    EXPECT_THROW(spawn_and_run(), std::runtime_error);
    EXPECT_FALSE(o.loop->run_ready()) << "the exception must be thrown only once";
  }
}

Task<> store_events(ConnectionId& listener, std::vector<std::uint32_t>& types) {
  detail::IdEvent request = co_await listener.event();
  types.push_back(request.type);
  ConnectionId incoming(std::move(request.incoming));
  const vb_cm_event next = co_await incoming.event();
  types.push_back(next.type);
}

TEST(ConnectionIds, GetTheEventsOfARequestThatWasAbortedBeforeItWasRead) {
  for (const bool reads_request : {true, false}) {
    Objects o(Duration{});
    const std::uint64_t objects = fake::objects();
    {
      ConnectionId listener = value_of(ConnectionId::create(*o.loop).wait());
      fake::request_and_abort(listener.handle());
      o.run_loop();
      std::vector<std::uint32_t> types;
      if (reads_request) {
        o.loop->run(store_events(listener, types));
        EXPECT_EQ(types, (std::vector<std::uint32_t>{4, 6}));
      }
    }
    EXPECT_EQ(fake::objects(), objects)
        << "the id of a request that was not read is destroyed, too";
  }
}

Task<> store_loop_of_request(ConnectionId& listener, Loop*& loop) {
  const auto request = co_await listener.event();
  loop = request.incoming->loop;
}

// A request that the program has not read yet moves with its listener.
TEST(ConnectionIds, MoveToAnotherLoopWithTheirRequests) {
  Objects o(Duration{});
  auto other = value_of(Loop::create());
  value_of(Device::open(*other).wait());
  ConnectionId listener = value_of(ConnectionId::create(*o.loop).wait());
  fake::request_and_abort(listener.handle());
  o.run_loop();
  value_of(listener.move_to(*other));
  EXPECT_EQ(&listener.loop(), other.get());
  Loop* loop = nullptr;
  other->run(store_loop_of_request(listener, loop));
  EXPECT_EQ(loop, other.get());
}

// After the listener has moved, the thread of the other loop may add requests to it.
TEST(ConnectionIds, MoveAfterTheirRequests) {
  Objects o(Duration{});
  auto other = value_of(Loop::create());
  value_of(Device::open(*other).wait());
  ConnectionId listener = value_of(ConnectionId::create(*o.loop).wait());
  fake::request_and_abort(listener.handle());
  fake::request_and_abort(listener.handle());
  o.run_loop();
  value_of(listener.move_to(*other));
  const std::vector<std::uint64_t> moved = fake::moved_ids();
  ASSERT_EQ(moved.size(), 3u);
  EXPECT_EQ(moved.back(), listener.handle());
}

}  // namespace
