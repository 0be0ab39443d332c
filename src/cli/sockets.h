#pragma once

#include <string>
#include <vector>

#include "broker/messages.h"
#include "cli/agent_connection.h"

// Implements `verbena sockets`, which shows the TCP connections of programs under
// `verbena run --sockets`, and starts the socket service for such programs.
namespace verbena::cli {

struct SocketListing {
  std::vector<broker::Row> rows{};
  broker::EndOfRows totals{};
};

struct SocketsOptions {
  bool totals = false;  // print the totals of the service, and no rows
  bool json = false;
};
// Carries out `verbena sockets ls` or `stat`, and returns its exit code.
int sockets(const SocketsOptions& options);

// Starts the socket service of this user in this network namespace.  Does nothing if this user's or
// root's service already runs.
Answer<void> start_socket_service(const std::string& library_directory);

// These four return what `ls` and `stat` print.
std::string sockets_as_text(const SocketListing& listing);
std::string sockets_as_json(const SocketListing& listing);
std::string socket_totals_as_text(const SocketListing& listing);
std::string socket_totals_as_json(const SocketListing& listing);

}  // namespace verbena::cli
