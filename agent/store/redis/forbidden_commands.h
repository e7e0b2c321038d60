// Commands that managed Redis services rename or forbid, and that mycojobs can do without. Each loses a guarantee,
// which is logged once for each server and process, and is shown by `doctor`. Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mycojobs {

// Returns whether an error of Redis means that the server does not have the command or forbids it. Accepts the text of
// the server, and the message of redis_error().
bool is_forbidden_command(std::string_view error_text);

// Logs the guarantee that is lost, at the first call for this server and command. command: CLIENT, CONFIG, INFO or
// BGREWRITEAOF.
void note_forbidden_command(const std::string& server, std::string_view command, std::string_view error_text);

struct ForbiddenCommand {
  std::string_view command, lost_guarantee;
};
// Returns the commands that were noted for this server.
std::vector<ForbiddenCommand> forbidden_commands(const std::string& server);

}  // namespace mycojobs
