#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/time.h"
#include "broker/messages.h"
#include "cli/agent_connection.h"
#include "os/unix_channel.h"

// Connects the commands of `verbena sockets` to the socket services of this host.
namespace verbena::cli {

// Returns the names of the services that this user's programs may use.
std::vector<std::string> socket_service_names();

// Connects to the service of that name and sends Hello.  Returns nothing if the service does not
// run.
Answer<std::optional<os::UnixChannel>> find_socket_service(const std::string& name, Time deadline);

// Returns "127.0.0.1:80" or "[::1]:80".
std::string socket_name_text(const broker::SocketName& name);

}  // namespace verbena::cli
