#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "agent/agent.h"
#include "base/printable.h"
#include "ipc/lane_messages.h"
#include "ipc/tool_messages.h"
#include "os/clock.h"
#include "os/file_rights.h"
#include "os/limits.h"
#include "os/process.h"

// Implements the part of Agent that serves programs and tools.
namespace verbena::agent {
namespace {

// Returns true if a program reports that its uplink is broken or could not be used.
bool closes_uplink(const ipc::Envelope& envelope) {
  if (envelope.type != ipc::Type::kCloseLane) return false;
  const auto closed = ipc::decode<ipc::CloseLane>(envelope);
  return closed && closed->lane == ipc::Lane::kUplink;
}

// Limits the length of a program's build id in messages, because a program may send any text.
constexpr std::size_t kBuildTextMax = 64;

}  // namespace

// Ensures that one more connection without Hello can be accepted.  At the limit, closes the oldest
// connection that has sent nothing.  Returns false if there is no such connection: the agent must
// first read what the new connections have sent.
bool Agent::free_new_session_slot() {
  if (sessions_.size() - welcomed_sessions() < kNewSessionsMax) return true;
  const auto is_silent = [](const auto& entry) {
    const Session& session = *entry.second;
    if (session.role != Role::kNew || session.hello_deadline == kNever) return false;
    const auto ready = os::wait_for(session.connection.channel().fd(), POLLIN, os::kNoWait);
    return ready && *ready == 0;
  };
  const auto oldest = std::ranges::find_if(sessions_, is_silent);
  if (oldest == sessions_.end()) return false;
  ++clients_refused_;
  sessions_.erase(oldest);
  return true;
}

void Agent::on_listener() {
  for (std::size_t i = 0; i < kAcceptsPerEvent && listener_; ++i) {
    if (!free_new_session_slot()) break;
    auto channel = listener_->accept();
    if (!channel) {
      if (os::would_block(channel.error())) return;
      // Probably this process can open no more descriptors.  Pause, because otherwise the loop
      // would spin on the pending connection.
      log_.line(fmt::format("accept: {}", std::strerror(channel.error().detail)));
      listener_watch_.read(false);
      accept_timer_.at(os::now() + kAcceptPause);
      return;
    }
    // Any user may connect to an abstract name.  Close connections of users without access at once.
    const auto peer = channel->peer();
    if (!peer || !may_connect(*peer)) {
      ++clients_refused_;
      continue;
    }
    const std::uint64_t id = next_session_++;
    auto session = std::make_unique<Session>(loop_, std::move(*channel), id, *this);
    session->user = *peer;
    session->hello_deadline = os::now() + kHelloTimeout;
    if (hello_timer_.deadline() == kNever) hello_timer_.at(session->hello_deadline);
    sessions_.emplace(id, std::move(session));
  }
  update_idle();
}

// Returns true if the process `peer` may connect to this agent.
bool Agent::may_connect(const os::Peer& peer) const {
  if (peer.uid == ::geteuid()) return true;
  const auto is_of_user = [&](const auto& entry) { return entry.second->user.uid == peer.uid; };
  return options_.all_users && std::ranges::count_if(sessions_, is_of_user) <
                                   static_cast<std::ptrdiff_t>(kClientsOfUserMax);
}

bool Agent::is_guest(const Session& session) { return session.user.uid != ::geteuid(); }

bool Agent::may_see(const Session& session, const Session& other) {
  return !is_guest(session) || session.user.uid == other.user.uid;
}

void Agent::received_all(Connection&, std::size_t messages) { pump_after(messages); }

// Closes connections that have not sent Hello in time, so that they neither count towards the limit
// of new connections nor keep the agent alive.
void Agent::on_hello_timer() {
  Time next = kNever;
  for (const auto& [id, session] : sessions_) {
    if (session->hello_deadline > os::now()) {
      next = std::min(next, session->hello_deadline);
      continue;
    }
    session->hello_deadline = kNever;
    ++clients_refused_;
    log_.line("a client connected, but sent no Hello");
    session->connection.finish();
  }
  hello_timer_.at(next);
}

void Agent::ended(Connection& connection, const std::string& why) {
  const auto found = sessions_.find(connection.id());
  Session& session = *found->second;
  if (session.role == Role::kProgram) {
    log_.line(fmt::format("{} (pid {}) disconnected: {}", printable_name(session.name), session.pid,
                          why));
  }
  captures_.leave(connection.id(), os::now());
  add_counters(session, ended_program_counters_);
  implausible_counts_of_ended_programs_ += session.counters.implausible();
  if (session.client) {
    session_of_client_.erase(*session.client);
    network_->detach(*session.client);
    node_.remove_program(*session.client, os::now());
  }
  sessions_.erase(found);
  if (!port_files_.empty()) refresh_port_files();
  pump();
}

void Agent::received(Connection& from, const ipc::Envelope& envelope,
                     std::span<const std::byte> message, std::vector<os::Fd> fds) {
  Session& session = *sessions_.at(from.id());
  session.hello_deadline = kNever;
  if (session.role == Role::kNew) {
    handle_hello(session, envelope, std::move(fds));
  } else if (session.client && ipc::is_for_node(envelope.type)) {
    if (envelope.type == ipc::Type::kLease && !session.qp_table && !fds.empty()) {
      session.qp_table = std::move(fds[0]);
      if (fds.size() > 1) session.access_table = std::move(fds[1]);
    }
    if (closes_uplink(envelope)) return network_->detach(*session.client);
    node_.on_message(*session.client, message, os::now());
  } else {
    serve(session, envelope, std::move(fds));
  }
}

void Agent::handle_hello(Session& session, const ipc::Envelope& envelope, std::vector<os::Fd> fds) {
  if (envelope.type != ipc::Type::kHello) {
    session.connection.reply_result(envelope.request, fail(Errc::kBadState, "Hello comes first"));
    session.connection.finish();
    return;
  }
  // Only the first field of a Hello from another build can be decoded.
  std::string build;
  ipc::Reader(envelope.body)(build);
  std::string reason = reason_to_refuse(session, build);
  if (!reason.empty()) return refuse(session, envelope.request, std::move(reason));

  const auto hello = ipc::decode<ipc::Hello>(envelope);
  if (!hello) return refuse(session, envelope.request, "the agent cannot read this Hello");
  if (!hello->tool) {  // some files are reserved for tools
    reason = reason_of_files();
    if (!reason.empty()) return refuse(session, envelope.request, reason);
  }
  const auto peer = session.connection.channel().peer();
  session.pid_in_own_namespace = hello->pid;
  session.pid = peer->pid != 0 ? static_cast<std::uint32_t>(peer->pid) : hello->pid;
  session.name = os::process_name(static_cast<pid_t>(session.pid));

  auto pidfd = pidfd_of(session, fds);
  if (!pidfd) return refuse(session, envelope.request, "the agent cannot see that process");
  session.pidfd = std::move(*pidfd);
  if (auto copy = session.pidfd.duplicate()) session.connection.watch_death(std::move(*copy));
  welcome(session, envelope.request, *hello);
}

std::string Agent::reason_to_refuse(const Session& session, const std::string& build) {
  const auto peer = session.connection.channel().peer();
  if (!peer || (peer->uid != ::geteuid() && !options_.all_users)) {
    return fmt::format("this agent (pid {}) serves only user id {}", ::getpid(), ::geteuid());
  }
  if (build != options_.build) {
    const std::string builds = fmt::format(
        "the agent (pid {}) is of build {}, the program of build {}", ::getpid(), options_.build,
        build.empty() ? "unknown" : printable_name(build.substr(0, kBuildTextMax)));
    if (options_.belongs_to_fabric) {
      return builds + "; it belongs to a fabric: end it with 'verbena fabric down'";
    }
    if (options_.all_users) return builds + "; it serves all users: root can stop and start it";
    if (programs() != 0 || !captures_.empty()) {
      return fmt::format("{}, and {} programs use it: end them, or 'verbena agent stop'", builds,
                         programs());
    }
    // Send the pending disconnects of programs that have ended.
    while (node_.flush_disconnects(os::now())) send_all();
    // Release the port and the name before the reply is sent, because the program may start an
    // agent of its own build as soon as it has read the reply.
    release_port_and_name();
    return builds + "; it was idle and ends now";
  }
  if (welcomed_sessions() >= kClientsMax) {
    return fmt::format("the agent serves {} programs already", kClientsMax);
  }
  return {};
}

std::string Agent::reason_of_files() const {
  const std::uint64_t limit = os::agent_limits().open_files;
  // Files are counted only if the usual number for each program would not fit.
  const std::uint64_t usual = os::kAgentFiles + programs() * os::kAgentFilesPerProgram;
  if (os::has_files_for_program(limit, usual)) return {};
  if (os::has_files_for_program(limit, os::count_open_files(limit))) return {};
  return fmt::format(
      "the agent (pid {}) may open only {} files (RLIMIT_NOFILE), as the program that started it, "
      "and serves {} programs already: 'verbena agent stop', then 'verbena agent start' with a "
      "higher limit (ulimit -n)",
      ::getpid(), limit, programs());
}

// Returns the pidfd of the session's process.  Uses the pidfd that the program has sent if it
// refers to the program itself.  Otherwise asks the kernel for the pidfd of the connection's peer.
Result<os::Fd> Agent::pidfd_of(const Session& session, std::vector<os::Fd>& fds) const {
  if (!fds.empty()) {
    const auto peer = session.connection.channel().peer();
    // The kernel shows no pid of a process in an unrelated PID namespace, so the pidfd is used
    // without a check.
    if (peer && peer->pid == 0 && !is_guest(session)) return std::move(fds[0]);
    const auto pid = os::pid_of_pidfd(fds[0].get());
    if (pid && peer && *pid == peer->pid) return std::move(fds[0]);
  }
  return session.connection.channel().peer_pidfd();
}

void Agent::welcome(Session& session, std::uint64_t request, const ipc::Hello& hello) {
  if (!hello.tool) network_->retry_port();  // the holder of the port may have ended by now
  session.role = hello.tool ? Role::kTool : Role::kProgram;
  ipc::Welcome reply = node_.welcome();
  std::vector<int> fds;
  if (hello.capture != 0 && !hello.tool) {
    if (const auto ring = captures_.join(hello.capture, session.connection.id())) {
      fds.push_back(*ring);
      reply.capture = true;
    } else {
      ++captures_refused_;
      log_.line(fmt::format("{} (pid {}) is not captured: {}", printable_name(session.name),
                            session.pid, ring.error().context));
    }
  }
  reply.agent_pid = static_cast<std::uint32_t>(::getpid());
  reply.build = options_.build;
  session.connection.reply(request, reply, fds);
  if (hello.tool) {
    session.served_until = os::now() + kToolTimeout;
    return;
  }
  session.client = node_.add_program(
      os::now(), {.pid = session.pid, .user = session.user.uid, .lanes = hello.lanes});
  if (!port_files_.empty()) refresh_port_files();
  session_of_client_.emplace(*session.client, session.connection.id());
  log_.line(fmt::format("{} (pid {}) connected", printable_name(session.name), session.pid));
}

void Agent::refuse(Session& session, std::uint64_t request, std::string text) {
  ++clients_refused_;
  log_.line(fmt::format("refused a program: {}", text));
  ipc::Welcome reply;
  reply.agent_pid = static_cast<std::uint32_t>(::getpid());
  reply.build = options_.build;
  reply.refusal = std::move(text);
  reply.should_retry = !listener_;  // this agent ends, and the next one will serve the program
  session.connection.reply(request, reply);
  session.connection.finish();
  if (!listener_) stop("a program of another build needs its own agent");
}

void Agent::serve(Session& session, const ipc::Envelope& envelope, std::vector<os::Fd> fds) {
  Connection& connection = session.connection;
  switch (envelope.type) {
    case ipc::Type::kFlushCapture:
      if (session.capture) {
        return connection.reply_result(envelope.request,
                                       captures_.conclude(*session.capture, os::now()));
      }
      captures_.flush(connection.id(), os::now());
      return connection.reply_result(envelope.request, {});
    case ipc::Type::kStatus: return connection.reply(envelope.request, status());
    case ipc::Type::kProcesses: return list_processes(session, envelope);
    case ipc::Type::kStop:
      if (is_guest(session)) {
        return connection.reply_result(envelope.request,
                                       fail(Errc::kPermission,
                                            "the agent serves all users: only root may "
                                            "stop it"));
      }
      if (options_.belongs_to_fabric) {
        return connection.reply_result(envelope.request,
                                       fail(Errc::kNotSupported,
                                            "this agent belongs to a fabric: use 'verbena "
                                            "fabric down'"));
      }
      connection.reply_result(envelope.request, {});
      return stop("stopped by 'verbena agent stop'");
    case ipc::Type::kCapture: return start_capture(session, envelope, std::move(fds));
    case ipc::Type::kUpdatePortFiles: return update_port_files(session, envelope, std::move(fds));
    case ipc::Type::kShowSa:
      if (session.role == Role::kTool) return show_sa(session, envelope);
      break;
    case ipc::Type::kFlushSa:
      if (session.role == Role::kTool) return flush_sa(session, envelope);
      break;
    default: break;  // a program may send a message of any type
  }
  connection.reply_result(envelope.request,
                          fail(Errc::kNotSupported, "the agent does not accept this request here"));
}

void Agent::start_capture(Session& session, const ipc::Envelope& envelope,
                          std::vector<os::Fd> fds) {
  const auto request = ipc::decode<ipc::Capture>(envelope);
  if (!request || fds.size() != 1) {
    return session.connection.reply_result(envelope.request,
                                           fail(Errc::kMalformed, "a capture needs one file"));
  }
  auto process = open_process(session, request->pid);
  if (!process) {
    return session.connection.reply_result(envelope.request, std::unexpected(process.error()));
  }
  if (is_guest(session) && !os::is_on_local_filesystem(fds[0].get())) {
    return session.connection.reply_result(
        envelope.request, fail(Errc::kInvalidArgument,
                               "this agent serves all users: it writes captures only to local "
                               "filesystems, for example to /tmp"));
  }
  // A guest's capture has no packets of QP1, because they belong to all users.
  const auto sources = is_guest(session) ? Captures::Sources::kPrograms : Captures::Sources::kAll;
  const auto id = captures_.start(std::move(fds[0]), std::move(*process), os::now(), sources);
  if (!id) return session.connection.reply_result(envelope.request, std::unexpected(id.error()));
  log_.line(fmt::format("capture for {} (pid {})", printable_name(session.name), session.pid));
  session.capture = *id;
  session.connection.reply(envelope.request, ipc::CaptureStarted{*id});
}

void Agent::update_port_files(Session& session, const ipc::Envelope& envelope,
                              std::vector<os::Fd> fds) {
  const auto request = ipc::decode<ipc::UpdatePortFiles>(envelope);
  if (!request || fds.size() != 1) {
    return session.connection.reply_result(
        envelope.request, fail(Errc::kMalformed, "the port's files need one directory"));
  }
  auto process = open_process(session, request->pid);
  const Result<void> added =
      process ? port_files_.add(fds[0], *std::move(process), session.user, port_counter_values())
              : std::unexpected(process.error());
  if (!added) ++port_files_refused_;
  session.connection.reply_result(envelope.request, added);
  if (added) refresh_port_files();
}

void Agent::show_sa(Session& session, const ipc::Envelope& envelope) {
  const auto request = ipc::decode<ipc::ShowSa>(envelope);
  const Result<ipc::SaReply> page =
      request ? node_.show_sa(*request, os::now()) : std::unexpected(request.error());
  if (!page)
    return session.connection.reply_result(envelope.request, std::unexpected(page.error()));
  session.connection.reply(envelope.request, *page);
}

void Agent::flush_sa(Session& session, const ipc::Envelope& envelope) {
  const auto flushed = node_.flush_sa(os::now());
  if (!flushed) {
    return session.connection.reply_result(envelope.request, std::unexpected(flushed.error()));
  }
  log_.line(fmt::format("'verbena sa flush' removed {} paths and {} addresses from the cache",
                        flushed->paths, flushed->addresses));
  session.connection.reply(envelope.request, *flushed);
}

// Returns a pidfd of a process.  `pid` names the session's own process by its pid in its own PID
// namespace, or another process by its pid in the agent's PID namespace.  A guest may only name its
// own process: captures and directories last as long as their process, and their number is limited.
Result<os::Fd> Agent::open_process(const Session& session, std::uint32_t pid) const {
  if (pid == session.pid_in_own_namespace) return session.pidfd.duplicate();
  if (is_guest(session)) {
    return fail(Errc::kPermission, "a program of another user may only name its own process");
  }
  return os::open_pidfd(static_cast<pid_t>(pid));
}

std::size_t Agent::welcomed_sessions() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(sessions_, [](const auto& s) { return s.second->role != Role::kNew; }));
}

std::size_t Agent::programs() const {
  return static_cast<std::size_t>(std::ranges::count_if(
      sessions_, [](const auto& s) { return s.second->role == Role::kProgram; }));
}

}  // namespace verbena::agent
