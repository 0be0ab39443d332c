#include "sockets/service.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <variant>

#include "base/printable.h"
#include "os/clock.h"
#include "os/shared_memory.h"

namespace verbena::sockets {
namespace {

os::TcpTable open_table() {
  auto table = os::TcpTable::open();
  if (!table) throw std::runtime_error("cannot query the kernel's socket table (sock_diag)");
  return std::move(*table);
}

os::TcpTable::Name table_name(const broker::SocketName& name) {
  return {.address = name.address, .port = name.port};
}

void add(broker::Traffic& sum, const broker::Traffic& one) {
  sum.by_ring += one.by_ring;
  sum.by_tcp += one.by_tcp;
  sum.wakes += one.wakes;
  sum.overflows += one.overflows;
  sum.returns_to_tcp += one.returns_to_tcp;
  sum.implausible += one.implausible;
  if (one.return_reason != 0) sum.return_reason = one.return_reason;
}

}  // namespace

Service::Service(asio::io_context& loop, os::UnixListener listener, Options options, agent::Log log)
    : loop_(loop),
      options_(std::move(options)),
      ring_pause_(options_.ring_idle),
      log_(std::move(log)),
      tcp_table_(open_table()),
      listener_(std::move(listener)),
      signals_(loop, SIGTERM, SIGINT, SIGHUP),
      broker_timer_(loop,
                    [this] {
                      broker_.on_timer(os::now());
                      pump();
                    }),
      ring_timer_(loop, [this] { on_ring_timer(); }),
      trace_timer_(loop, [this] { on_trace_timer(); }),
      idle_timer_(loop, [this] { on_idle(); }),
      accept_timer_(loop, [this] { listener_watch_.read(true); }),
      hello_timer_(loop, [this] { on_hello_timer(); }),
      uid_(::geteuid()) {
  signals_.async_wait([this](const asio::error_code& failed, int) {
    if (!failed) stop("received a signal");
  });
  listener_watch_ = agent::Watch(loop_, listener_->fd(), [this] { on_listener(); });
  log_.line(fmt::format("service of build {} started", options_.build));
  update_idle();
}

Service::~Service() = default;

void Service::on_listener() {
  for (std::size_t i = 0; i < kAcceptsPerWakeup && listener_; ++i) {
    auto channel = listener_->accept();
    if (!channel) {
      if (os::would_block(channel.error())) break;
      // Probably this process has too many descriptors.  A pause prevents that the event loop tries
      // again and again without success.
      log_.line(fmt::format("accept: {}", std::strerror(channel.error().detail)));
      listener_watch_.read(false);
      accept_timer_.at(os::now() + kAcceptPause);
      return;
    }
    // Any user can connect to an abstract name.  The service refuses users that it does not serve.
    const auto peer = channel->peer();
    if (!peer || !may_connect(peer->uid)) continue;
    const std::uint64_t id = next_session_++;
    auto session = std::make_unique<Session>(loop_, std::move(*channel), id, *this);
    session->uid = peer->uid;
    session->hello_deadline = os::now() + kHelloTimeout;
    if (hello_timer_.deadline() == kNever) hello_timer_.at(session->hello_deadline);
    sessions_.emplace(id, std::move(session));
  }
  update_idle();
}

bool Service::may_connect(std::uint32_t uid) const {
  if (sessions_.size() >= kSessionsMax) return false;
  if (uid == uid_) return true;
  constexpr std::uint32_t kRoot = 0;
  return uid_ == kRoot && std::ranges::count_if(sessions_, [uid](const auto& one) {
                            return one.second->uid == uid;
                          }) < std::ptrdiff_t{kSessionsOfOtherUserMax};
}

// Ends sessions whose peers have sent no Hello in time, so that they do not keep the service
// running.
void Service::on_hello_timer() {
  Time next_deadline = kNever;
  for (const auto& [id, session] : sessions_) {
    if (session->hello_deadline > os::now()) {
      next_deadline = std::min(next_deadline, session->hello_deadline);
    } else {
      session->hello_deadline = kNever;
      session->finish();
    }
  }
  hello_timer_.at(next_deadline);
}

void Service::on_message(Session& from, std::span<const std::byte> message,
                         std::vector<os::Fd> fds) {
  switch (from.role) {
    case Session::Role::kNew: return on_hello(from, message, std::move(fds));
    case Session::Role::kProgram: return serve_program(from, message);
    case Session::Role::kTool: return serve_tool(from, message);
  }
}

void Service::on_hello(Session& session, std::span<const std::byte> message,
                       std::vector<os::Fd> fds) {
  const auto hello = broker::decode<broker::Hello>(message);
  if (!hello) return session.finish();
  session.hello_deadline = kNever;
  broker::Welcome welcome{.build = broker::text_field<broker::kBuildBytes>(options_.build)};
  if (broker::text_of(hello->build) != options_.build) {
    log_.line(fmt::format("{} (pid {}) comes from another build of Verbena",
                          printable_name(std::string(broker::text_of(hello->program))),
                          hello->pid));
    welcome.refused = 1;
    session.send(welcome);
    return session.finish();
  }
  session.pid = hello->pid;
  session.program = printable_name(std::string(broker::text_of(hello->program)));
  session.role = hello->is_tool != 0 ? Session::Role::kTool : Session::Role::kProgram;
  session.send(welcome);
  if (session.role == Session::Role::kTool) return;
  constexpr std::size_t kBytes = broker::MailboxMemory::kBytes;
  if (fds.size() == 1) {
    if (auto mailbox = os::map_shared(fds[0].get(), kBytes, kBytes, true)) {
      session.set_mailbox(std::move(*mailbox));
      return;
    }
  }
  session.finish();
}

void Service::serve_program(Session& session, std::span<const std::byte> message) {
  if (const auto report = broker::decode<broker::Report>(message)) {
    if (is_valid_claim(session, *report)) return accept_report(session, *report);
    refuse_report(session, *report);
  } else if (const auto forget = broker::decode<broker::Forget>(message)) {
    tracing_.on_forget(session, *forget);
    broker_.forget(session.id(), *forget, os::now());
  } else {
    log_.line(fmt::format("{} (pid {}) sent an invalid message", session.program, session.pid));
    session.finish();
  }
}

void Service::accept_report(const Session& session, const broker::Report& report) {
  const std::uint64_t limit_refusals = broker_.counters().limit_refusals;
  broker_.report(session.id(), report);
  tracing_.on_offer(session, report, broker_.counters().limit_refusals == limit_refusals);
}

void Service::refuse_report(Session& session, const broker::Report& report) {
  ++claims_refused_;
  tracing_.on_refusal(session, report);
  if (report.continues != 0) {
    session.send(broker::Unknown{.number = report.number, .cookie = report.cookie});
  }
}

bool Service::is_valid_claim(const Session& session, const broker::Report& report) {
  const auto found =
      tcp_table_.find(table_name(report.connection.local), table_name(report.connection.peer));
  return found && found->cookie == report.cookie &&
         (may_use_all_sockets(session) || found->uid == session.uid);
}

void Service::serve_tool(Session& session, std::span<const std::byte> message) {
  if (broker::decode<broker::List>(message)) return send_list(session);
  if (broker::decode<broker::Trace>(message)) {
    tracing_.add(session, may_use_all_sockets(session));
    return trace_timer_.at(tracing_.deadline());
  }
  if (may_use_all_sockets(session) && broker::decode<broker::Stop>(message))
    return stop("stopped by the command line tool");
  session.finish();
}

broker::Row Service::row_of(const broker::Broker::End& end) {
  broker::Row row{.cookie = end.cookie, .connection = end.connection};
  row.holders = static_cast<std::uint32_t>(end.holders.size());
  if (!end.holders.empty()) {
    const Session& holder = *sessions_.at(end.holders.front());
    row.pid = holder.pid;
    row.program = broker::text_field<broker::kNameBytes>(holder.program);
  }
  if (!end.pair) return row;
  if (const auto memory = memories_.find(*end.pair); memory != memories_.end()) {
    row.has_ring = 1;
    row.out = memory->second.traffic(end.side, os::now());
    row.in = memory->second.traffic(1 - end.side, os::now());
  }
  return row;
}

void Service::send_list(Session& tool) {
  const auto is_of_same_user = [&](broker::ProgramId program) {
    return sessions_.at(program)->uid == tool.uid;
  };
  for (const auto& end : broker_.ends()) {
    if (may_use_all_sockets(tool) || std::ranges::any_of(end.holders, is_of_same_user)) {
      tool.send(row_of(end));
    }
  }
  broker::EndOfRows end_of_rows{.pid = static_cast<std::uint32_t>(::getpid()),
                                .pairs_now = memories_.size(),
                                .pairs_made = broker_.counters().pairs_made,
                                .reports = broker_.counters().reports,
                                .claims_refused = claims_refused_,
                                .limit_refusals = broker_.counters().limit_refusals,
                                .released_bytes = given_back_bytes_};
  end_of_rows.total = ended_traffic_;
  for (auto& [id, memory] : memories_) {
    end_of_rows.memory_bytes += memory.bytes();
    end_of_rows.resident_bytes += memory.resident_bytes();
    for (const std::uint32_t side : {0U, 1U})
      add(end_of_rows.total, memory.traffic(side, os::now()));
  }
  tool.send(end_of_rows);
}

void Service::on_session_end(Session& session) {
  const std::uint64_t id = session.id();
  tracing_.on_program_end(session);
  tracing_.remove(id);
  broker_.program_ended(id, os::now());
  sessions_.erase(id);
  pump();
}

void Service::pump() {
  while (const auto output = broker_.poll()) {
    std::visit([this](const auto& one) { perform(one); }, *output);
  }
  broker_timer_.at(broker_.deadline());
  update_idle();
}

// Creates the memory for a connection.  If the system refuses the memory for large rings, makes
// rings of the next smaller size.
std::optional<PairMemory> Service::make_memory() {
  for (std::size_t bytes = ring_sizes_.choose(); bytes > 0; bytes = ring_sizes_.choose(bytes - 1)) {
    auto memory = PairMemory::create(bytes, os::now());
    if (memory) return std::move(*memory);
    log_.line(fmt::format("memory for a connection: {}", memory.error().context));
  }
  return std::nullopt;
}

void Service::perform(const broker::Broker::MakeMemory& output) {
  auto memory = make_memory();
  const bool has_memory = memory.has_value();
  if (has_memory) {
    ring_sizes_.add(memory->ring_bytes());
    memories_.emplace(output.pair, std::move(*memory));
    ring_pause_ = options_.ring_idle;
    ring_timer_.at(std::min(ring_timer_.deadline(), os::now() + ring_pause_));
  }
  broker_.memory_made(output.pair, has_memory);
  tracing_.on_introduction(output.pair, has_memory);
}

void Service::perform(const broker::Broker::SendMemory& output) {
  const auto session = sessions_.find(output.program);
  const auto memory = memories_.find(output.pair);
  if (session == sessions_.end() || memory == memories_.end()) return;
  session->second->send(output.message, {memory->second.fd().get(),
                                         memory->second.end_fd(output.message.side).get()});
}

void Service::perform(const broker::Broker::SendUnknown& output) {
  const auto session = sessions_.find(output.program);
  if (session != sessions_.end()) session->second->send(output.message);
}

void Service::perform(const broker::Broker::Release& output) {
  const auto memory = memories_.find(output.pair);
  if (memory == memories_.end()) return;
  for (const std::uint32_t side : {0U, 1U})
    add(ended_traffic_, memory->second.traffic(side, os::now()));
  ring_sizes_.remove(memory->second.ring_bytes());
  memories_.erase(memory);
  tracing_.on_release(output.pair);
}

void Service::perform(const broker::Broker::CheckSocket& output) {
  const auto found =
      tcp_table_.find(table_name(output.connection.local), table_name(output.connection.peer));
  broker_.socket_checked(output.cookie, found && found->cookie == output.cookie && found->held,
                         os::now());
}

// Releases the idle rings of the next few connections, and handles the other connections after
// other work of the event loop.  While no connection moves bytes, the pause between two rounds of
// all connections grows.
void Service::on_ring_timer() {
  auto entry = memories_.upper_bound(last_checked_pair_);
  for (std::size_t i = 0; i < kConnectionsPerWakeup && entry != memories_.end(); ++i, ++entry) {
    const PairMemory::ReleaseResult released = entry->second.release_idle_rings();
    active_rings_ += released.active_rings;
    given_back_bytes_ += released.released_bytes;
    last_checked_pair_ = entry->first;
  }
  if (entry != memories_.end()) return ring_timer_.at(os::now());
  last_checked_pair_ = 0;
  if (memories_.empty()) return;
  ring_pause_ = std::exchange(active_rings_, 0) > 0
                    ? options_.ring_idle
                    : std::min(2 * ring_pause_, kRingPauseFactorMax * options_.ring_idle);
  ring_timer_.at(os::now() + ring_pause_);
}

void Service::on_trace_timer() {
  tracing_.sample(os::now());
  trace_timer_.at(tracing_.deadline());
}

bool Service::is_needed() const {
  return std::ranges::any_of(sessions_,
                             [](const auto& s) { return s.second->role != Session::Role::kTool; });
}

void Service::update_idle() {
  if (is_needed()) {
    has_had_program_ = true;
    idle_timer_.cancel();
  } else if (idle_timer_.deadline() == kNever) {
    idle_timer_.at(os::now() + (has_had_program_ ? options_.idle
                                                 : std::max(options_.idle, kFirstProgramWaitMin)));
  }
}

void Service::on_idle() {
  on_listener();  // accepts connections that are already in the queue
  if (!is_needed()) stop("no program needs it");
}

void Service::stop(const char* why) {
  log_.line(fmt::format("ends: {}", why));
  listener_watch_ = agent::Watch();
  listener_.reset();
  loop_.stop();
}

}  // namespace verbena::sockets
