#include "adapter/worker.h"

#include <gtest/gtest.h>
#include <netinet/in.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "c_api/commands.h"

namespace verbena::adapter {
namespace {

// Simulates a kernel that carries out commands only when the test allows it, and records them.
struct Kernel {
  std::mutex mutex;
  std::condition_variable change;
  int allowed_count = 0;  // the number of commands that the kernel may still carry out
  bool is_running = false;
  std::vector<std::string> log{};

  void allow(int count) {
    const std::lock_guard lock(mutex);
    allowed_count += count;
    change.notify_all();
  }
  void wait_until_running() {
    std::unique_lock lock(mutex);
    change.wait(lock, [this] { return is_running; });
  }
};
Kernel* kernel = nullptr;

std::string text_of(vb_request& request) {
  if (request.command == VB_CM_CONNECT) {
    const auto& a = c_api::args_of<vb_cm_args>(request);
    return "connect " +
           std::string(static_cast<const char*>(a.param->private_data), a.param->private_data_len);
  }
  if (request.command == VB_CM_REJECT) {
    const auto& cm = c_api::args_of<vb_cm_args>(request);
    const auto text = [](const void* data, std::size_t bytes) {
      return std::string(static_cast<const char*>(data), bytes);
    };
    return "reject " + text(cm.data->private_data, cm.data->private_data_len) + " " +
           text(cm.filter->data_mask, cm.filter->data_len) + " " +
           std::to_string(cm.path->flow_label) + " " +
           std::to_string(cm.param->alternate->flow_label);
  }
  if (request.command == VB_CM_BIND) {
    const auto& a = c_api::args_of<vb_cm_args>(request);
    return "bind " + std::to_string(reinterpret_cast<const sockaddr_in*>(a.src)->sin_port);
  }
  if (request.command == VB_MR_PREFETCH) {
    const auto& a = c_api::args_of<vb_prefetch_args>(request);
    return "prefetch " + std::to_string(a.list[a.count - 1].addr);
  }
  return "pd " + std::to_string(c_api::args_of<vb_pd_args>(request).pd);
}

int call(vb_request& request) {
  std::unique_lock lock(kernel->mutex);
  kernel->is_running = true;
  kernel->change.notify_all();
  kernel->change.wait(lock, [] { return kernel->allowed_count > 0; });
  --kernel->allowed_count;
  kernel->is_running = false;
  kernel->log.push_back(text_of(request));
  return request.command == VB_PD_DESTROY ? c_api::failed({Errc::kBusy, 0, "other objects use it"})
                                          : 0;
}

void undo(vb_request& request) { kernel->log.push_back("undo " + text_of(request)); }

class WorkerTest : public testing::Test {
 protected:
  WorkerTest() { kernel = &test_kernel; }

  struct Command {
    vb_pd_args arguments{};
    vb_request request{};
  };
  void submit(Command& command, vb_handle pd, std::uint32_t command_number = VB_PD_CREATE) {
    command.arguments.pd = pd;
    command.request.command = command_number;
    command.request.arguments = &command.arguments;
    worker.submit(*queue, command.request);
  }
  // All tests share one worker, because its thread never ends.
  static Worker& the_worker() {
    static Worker* const instance = *Worker::start({.call = call, .undo = undo});
    return *instance;
  }

  Kernel test_kernel;
  Worker& worker = the_worker();
  std::unique_ptr<c_api::RequestQueue> queue = *c_api::RequestQueue::create();
};

TEST_F(WorkerTest, EachCommandIsCarriedOutOnceInOrder) {
  std::array<Command, 8> commands;
  for (vb_handle i = 0; i < 8; ++i) submit(commands[i], i, i == 3 ? VB_PD_DESTROY : VB_PD_CREATE);
  EXPECT_EQ(queue->next(), nullptr) << "submit() does not wait";
  test_kernel.allow(8);
  for (vb_handle i = 0; i < 8; ++i) {
    queue->wait(commands[i].request);
    EXPECT_EQ(commands[i].request.status, i == 3 ? EBUSY : 0);
    EXPECT_STREQ(commands[i].request.text, i == 3 ? "other objects use it" : "");
  }
  ASSERT_EQ(test_kernel.log.size(), 8u);
  for (vb_handle i = 0; i < 8; ++i) EXPECT_EQ(test_kernel.log[i], "pd " + std::to_string(i));
  EXPECT_FALSE(queue->busy());
}

TEST_F(WorkerTest, ACommandCancelledInTimeIsNotCarriedOut) {
  std::array<Command, 3> commands;
  for (vb_handle i = 0; i < 3; ++i) submit(commands[i], i);
  test_kernel.wait_until_running();
  EXPECT_TRUE(worker.cancel(*queue, commands[1].request).has_value());
  EXPECT_EQ(worker.cancel(*queue, commands[1].request).error().code, Errc::kBadHandle);
  test_kernel.allow(2);
  queue->wait(commands[2].request);
  EXPECT_EQ(test_kernel.log, (std::vector<std::string>{"pd 0", "pd 2"}));
  EXPECT_EQ(queue->next(), &commands[0].request);
}

TEST_F(WorkerTest, ACommandCancelledTooLateIsUndone) {
  std::array<Command, 2> commands;
  submit(commands[0], 1);
  test_kernel.allow(1);
  queue->wait(commands[0].request);
  submit(commands[0], 2);
  test_kernel.wait_until_running();
  // The kernel is carrying out the command, so cancel() waits until it has ended.
  std::thread kernel_thread([&] { test_kernel.allow(1); });
  EXPECT_TRUE(worker.cancel(*queue, commands[0].request).has_value());
  kernel_thread.join();
  EXPECT_EQ(test_kernel.log, (std::vector<std::string>{"pd 1", "pd 2", "undo pd 2"}));
  EXPECT_FALSE(queue->busy());
}

TEST_F(WorkerTest, CommandUsesCopiesOfTheDataThatItsArgumentsPointTo) {
  vb_cm_args cm{};
  vb_prefetch_args prefetch{};
  std::array<vb_request, 4> requests{};
  requests[0].command = VB_CM_CONNECT;
  requests[1].command = VB_CM_BIND;
  requests[2].command = VB_MR_PREFETCH;
  requests[3].command = VB_CM_REJECT;
  requests[0].arguments = requests[1].arguments = requests[3].arguments = &cm;
  requests[2].arguments = &prefetch;
  {
    std::string data = "hello";
    vb_conn_param param{};
    param.private_data = data.data();
    param.private_data_len = static_cast<std::uint8_t>(data.size());
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = 7471;
    std::array<vb_sge, 2> segments{{{1, 2, 3}, {42, 5, 6}}};
    vb_cm_path alternate{}, path{};
    alternate.flow_label = 8;
    path.flow_label = 9;
    param.alternate = &alternate;
    vb_cm_message_data message{};
    message.private_data = data.data();
    message.private_data_len = 2;
    vb_cm_filter filter{};
    filter.data = filter.data_mask = data.data();
    filter.data_len = 3;
    cm.param = &param;
    cm.data = &message;
    cm.filter = &filter;
    cm.path = &path;
    cm.src = reinterpret_cast<const sockaddr*>(&address);
    prefetch.list = segments.data();
    prefetch.count = 2;
    for (vb_request& request : requests) worker.submit(*queue, request);
    data = "olleh";
    address.sin_port = 1;
    segments[1].addr = 0;
    param = {};
    message = {};
    filter = {};
    path = alternate = {};
  }
  test_kernel.allow(4);
  for (vb_request& request : requests) queue->wait(request);
  EXPECT_EQ(test_kernel.log, (std::vector<std::string>{"connect hello", "bind 7471", "prefetch 42",
                                                       "reject he hel 9 8"}));
}

}  // namespace
}  // namespace verbena::adapter
