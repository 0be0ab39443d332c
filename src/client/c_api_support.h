#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "c_api/call.h"
#include "client/client.h"
#include "verbena/c_api_requests.h"

// Provides helpers that the source files of the C API share.
namespace verbena::client {

// Returns the program's Client.  The first call makes the Client and joins an agent.  If the agent
// has died, the Client joins the next agent.  Returns nullptr if the program gets no agent; then
// `error` is the errno, and vb_last_error() returns the reason.
Client* client_with_agent(int& error);
// Returns the Client, or nullptr if there is none yet.  Calls on an existing object use this
// function.
Client* client_if_any();

// Converts a path to the C API.  `port` is the number of the QP's or id's port.
void convert_path(const hca::Path& path, std::uint8_t port, vb_ah_attr& out);
// Converts the attributes of a transition or a query to the C API.
void convert_attributes(const hca::QpAttributes& attributes, vb_qp_attr& out);

using c_api::failed;
using c_api::guarded;
using c_api::result_of;
using c_api::set_last_error;
// Sets the last error to the Client's explanation, and returns the errno.
int failed(Client& client, const Error& error);

template <class T>
T as_handle(vb_handle handle) {
  return T{handle};
}

// Registers an object with the channels before the engine creates the object.  The destructor
// withdraws the registration unless commit() was called, because the engine may refuse to create
// the object, or the request may be cancelled.
class Registration {
 public:
  static Result<std::shared_ptr<Registration>> add(Channels& channels, const EventTarget& target) {
    auto registration = std::make_shared<Registration>(channels);
    registration->object_ = VB_TRY(channels.add_object(target));
    return registration;
  }
  explicit Registration(Channels& channels) : channels_(channels) {}
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration() {
    if (!is_committed_) channels_.remove_object(object_);
  }

  std::uint64_t object() const { return object_; }
  // Makes the registration permanent, because the engine has created the object.
  void commit() { is_committed_ = true; }

 private:
  Channels& channels_;
  std::uint64_t object_ = 0;
  bool is_committed_ = false;
};

// Runs body(client) for a call on an object.  Returns EINVAL if there is no Client, because then
// there is no object.
template <class Body>
int on_object(Body body) {
  return guarded([&] {
    Client* client = client_if_any();
    if (client == nullptr) return failed({Errc::kBadHandle, 0, "no such object"});
    return body(*client);
  });
}

// Runs body(client) for a call that may be the program's first call, or the first call after the
// agent's death.
template <class Body>
int on_client(Body body) {
  return guarded([&] {
    int error = 0;
    Client* client = client_with_agent(error);
    if (client == nullptr) return error;
    return body(*client);
  });
}

// Runs body(client) for a call on an object that needs the agent.  Works as on_object(), but joins
// the next agent if the last one has died.
template <class Body>
int on_object_with_agent(Body body) {
  if (client_if_any() == nullptr) return failed({Errc::kBadHandle, 0, "no such object"});
  return on_client(std::move(body));
}

// ---- commands that may wait for the agent, called or submitted ----------------------------------

// Begins a command by start(process, now, done).  When the command has ended, calls finish(process,
// result), which returns a Result<void>.  Both functions run under the drive lock.  If `submission`
// is nullptr, waits for the end of the command.  Returns 0 or an errno.  EINPROGRESS means that
// `submission` ends later.
template <class T, class Start, class Finish>
int call_or_submit(Client& client, const Submission* submission, Start start, Finish finish) {
  if (submission != nullptr) {
    return client.submit<T>(*submission, std::move(start), std::move(finish));
  }
  const auto result = client.call<T>(std::move(start));
  const Result<void> end =
      client.command([&](process::Process& process, Time) { return finish(process, result); });
  return end ? 0 : failed(client, end.error());
}

// Works as call_or_submit() for an existing id, which it passes to `start(process, id, now, done)`.
// Returns only the success or failure of the reply, and ignores its fields.
template <class Reply, class Start>
int call_or_submit_for_id(const Submission* submission, vb_handle id, Start start) {
  return on_object([&](Client& client) {
    return call_or_submit<Reply>(
        client, submission,
        [&](process::Process& process, Time now, Completion<Reply> done) {
          return start(process, process::ConnectionHandle{id}, now, std::move(done));
        },
        [](process::Process&, const Result<Reply>& reply) -> Result<void> {
          if (!reply) return std::unexpected(reply.error());
          return {};
        });
  });
}

// These two functions carry out vb_qp_create() and vb_qp_attach().
int qp_create(const Submission* submission, vb_qp_init* init, vb_handle* qp, std::uint32_t* qp_num);
int qp_attach(const Submission* submission, const vb_group_args& args);
// Sets the path of an id (RDMA_OPTION_IB_PATH).  `value` is an array of struct ibv_path_data.  Uses
// the first primary path for both directions.
int set_paths(vb_handle id, const void* value, std::size_t bytes);
// Carries out a command, one of VB_CM_BIND to VB_CM_ANSWER_PATH.
int cm_command(const Submission* submission, std::uint32_t command, const vb_cm_args& args);

}  // namespace verbena::client
