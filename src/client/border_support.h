#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "border/call.h"
#include "client/client.h"
#include "verbena/border_requests.h"

// What the files of the border share.
namespace verbena::client {

// The program's engine, made at first use, with an agent: the next one if the last has died.
// nullptr: the agent cannot be had, and vb_last_error() says why.  `error`: the errno for it.
Client* client(int& error);
// The engine if there is one already: for calls that name an object of it.
Client* client_if_any();

// What a transition or a query says, in the border's form.
void put_attributes(const hca::QpAttributes& attributes, vb_qp_attr& out);

using border::failed;
using border::guarded;
using border::result_of;
using border::set_last_error;
int failed(Client& client, const Error& error);

template <class T>
T as_handle(vb_handle handle) {
  return T{handle};
}

// Registers an object that is about to be made with the channels.  The registration is taken back
// if no object is made: the engine refuses, or the request is cancelled.
class Registration {
 public:
  static Result<std::shared_ptr<Registration>> add(Channels& channels, const EventTarget& target) {
    auto made = std::make_shared<Registration>(channels);
    made->object_ = VB_TRY(channels.add_object(target));
    return made;
  }
  explicit Registration(Channels& channels) : channels_(channels) {}
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration() {
    if (!kept_) channels_.remove_object(object_);
  }

  std::uint64_t object() const { return object_; }
  void keep() { kept_ = true; }

 private:
  Channels& channels_;
  std::uint64_t object_ = 0;
  bool kept_ = false;
};

// The body of a call on an object: body(client), or EINVAL when there is no engine and so no
// object.
template <class Body>
int on_object(Body body) {
  return guarded([&] {
    Client* engine = client_if_any();
    if (engine == nullptr) return failed({Errc::kBadHandle, 0, "no such object"});
    return body(*engine);
  });
}

// The body of a call that may be the first, also after the agent's death.
template <class Body>
int on_engine(Body body) {
  return guarded([&] {
    int error = 0;
    Client* engine = client(error);
    if (engine == nullptr) return error;
    return body(*engine);
  });
}

// The body of a call on an object that needs the agent: as on_object(), and the next agent is
// joined if the last one has died.
template <class Body>
int on_agent(Body body) {
  if (client_if_any() == nullptr) return failed({Errc::kBadHandle, 0, "no such object"});
  return on_engine(std::move(body));
}

// ---- commands that the agent is asked about, called or submitted --------------------------------

// `start(process, now, done)`, and when it has ended `finish(process, result)` -> Result<void>,
// under the drive lock.  With a submission: its status or EINPROGRESS.
template <class T, class Start, class Finish>
int ask(Client& engine, const Submission* submission, Start start, Finish finish) {
  if (submission != nullptr) {
    return engine.submit<T>(*submission, std::move(start), std::move(finish));
  }
  const auto result = engine.call<T>(std::move(start));
  const Result<void> end =
      engine.command([&](process::Process& process, Time) { return finish(process, result); });
  return end ? 0 : failed(engine, end.error());
}

// About an id that there is: `start(process, id, now, done)`; what the agent answers changes
// nothing.
template <class Reply, class Start>
int ask_about_id(const Submission* submission, vb_handle id, Start start) {
  return on_object([&](Client& engine) {
    return ask<Reply>(
        engine, submission,
        [&](process::Process& process, Time now, Completion<Reply> done) {
          return start(process, process::ConnectionHandle{id}, now, std::move(done));
        },
        [](process::Process&, const Result<Reply>& reply) -> Result<void> {
          if (!reply) return std::unexpected(reply.error());
          return {};
        });
  });
}

int qp_create(const Submission* submission, vb_qp_init* init, vb_handle* qp, std::uint32_t* qp_num);
int qp_attach(const Submission* submission, const vb_group_args& args);
// VB_CM_BIND to VB_CM_ANSWER_PATH.
int cm_command(const Submission* submission, std::uint32_t command, const vb_cm_args& args);

}  // namespace verbena::client
