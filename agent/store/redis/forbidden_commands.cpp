#include "store/redis/forbidden_commands.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <map>
#include <mutex>
#include <set>

#include "base/log.h"

namespace mycojobs {
namespace {

constexpr std::array kOptionalCommands{
    ForbiddenCommand{"CLIENT",
                     "a command of a connection that timed out cannot be stopped and may still be executed later"},
    ForbiddenCommand{"CONFIG", "maxmemory-policy, appendonly, appendfsync and databases are not checked"},
    ForbiddenCommand{"INFO",
                     "restarts of the server and lost writes are not noticed, leases are not extended after a restart, "
                     "contexts are not found by their databases, and a command that timed out may be executed later"},
    ForbiddenCommand{"BGREWRITEAOF", "after a crash, an append-only file may repeat half of a step at a later start"},
};

// The services use different texts, such as "ERR unknown command 'CONFIG'" and "ERR Command is not available".
constexpr std::array<std::string_view, 9> kRefusalTexts{"unknown command", "unknown subcommand", "not allowed",
                                                        "not available",   "not supported",      "unsupported",
                                                        "disabled",        "not permitted",      "forbidden"};

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::set<std::string_view>> commands_by_server;
};
Registry& registry() {
  static Registry instance;
  return instance;
}

}  // namespace

bool is_forbidden_command(std::string_view error_text) {
  constexpr std::string_view kConvertedPrefix = "redis: ";
  if (error_text.starts_with(kConvertedPrefix)) error_text.remove_prefix(kConvertedPrefix.size());
  if (error_text.starts_with("NOPERM")) return true;
  if (!error_text.starts_with("ERR ")) return false;
  std::string text(error_text);
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::any_of(kRefusalTexts.begin(), kRefusalTexts.end(),
                     [&](std::string_view refusal) { return text.find(refusal) != std::string::npos; });
}

void note_forbidden_command(const std::string& server, std::string_view command, std::string_view error_text) {
  const auto row = std::find_if(kOptionalCommands.begin(), kOptionalCommands.end(),
                                [&](const ForbiddenCommand& entry) { return entry.command == command; });
  if (row == kOptionalCommands.end()) return;
  {
    const std::lock_guard lock(registry().mutex);
    if (!registry().commands_by_server[server].insert(row->command).second) return;
  }
  // The level is `info`, so that services log the line, but each short command does not repeat it.
  log(LogLevel::info, "store", "Redis at {} forbids {}: {} (docs/operations.md, \"Managed services\"): {}", server,
      row->command, row->lost_guarantee, error_text.substr(0, error_text.find(", with args")).substr(0, 120));
}

std::vector<ForbiddenCommand> forbidden_commands(const std::string& server) {
  const std::lock_guard lock(registry().mutex);
  std::vector<ForbiddenCommand> found;
  const auto noted = registry().commands_by_server.find(server);
  if (noted == registry().commands_by_server.end()) return found;
  std::copy_if(kOptionalCommands.begin(), kOptionalCommands.end(), std::back_inserter(found),
               [&](const ForbiddenCommand& entry) { return noted->second.contains(entry.command); });
  return found;
}

}  // namespace mycojobs
