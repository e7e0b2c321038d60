// The server itself: time, settings, channels, scripts.
#include <array>

#include "store/memory/memory_command.h"
#include "store/memory/memory_sha1.h"

namespace mycojobs::memory {
namespace {

Result<Answer> time(const Call& call) {
  const std::uint64_t ms = call.redis.now_ms();
  return list_of({text_of(std::to_string(ms / 1000)), text_of(std::to_string(ms % 1000 * 1000))});
}

// PING [text]
Result<Answer> ping(const Call& call) {
  if (call.words.size() > 2) return wrong_number_of_words("ping");
  return call.words.size() == 2 ? text_of(call.words[1]) : status("PONG");
}

Result<Answer> publish(const Call& call) { return number_of(call.redis.publish(call.words[1], call.words[2])); }

Result<Answer> info(const Call&) {
  return text_of("# Server\r\nredis_version:7.0.15\r\nrun_id:" + std::string(kRunId) +
                 "\r\n# Persistence\r\nrdb_last_bgsave_status:ok\r\naof_last_bgrewrite_status:ok\r\n"
                 "aof_last_write_status:ok\r\n# Replication\r\nrole:master\r\n# Cluster\r\ncluster_enabled:0\r\n");
}

struct Setting {
  std::string_view name, value;
};
constexpr std::array kSettings{
    Setting{"databases", "4294967295"},  // any context has one
    Setting{"appendonly", "yes"},
    Setting{"appendfsync", "always"},
    Setting{"maxmemory-policy", "noeviction"},
};

// CONFIG GET pattern
Result<Answer> config(const Call& call) {
  if (!is_word(call.words[1], "GET") || call.words.size() != 3) return not_imitated("CONFIG but for GET name");
  std::vector<Answer> found;
  for (const Setting& setting : kSettings) {
    if (!glob_matches(call.words[2], setting.name)) continue;
    found.push_back(text_of(setting.name));
    found.push_back(text_of(setting.value));
  }
  return list_of(std::move(found));
}

// WAIT replicas ms: there are none, and nothing is waited for.
Result<Answer> wait(const Call& call) {
  MJ_CHECK(integer(call.words[1]));
  MJ_CHECK(integer(call.words[2], "ERR timeout is not an integer or out of range"));
  return number_of(0);
}

// EVAL script keys key ... argument ...
Result<Answer> eval(const Call& call) {
  MJ_TRY(keys, integer(call.words[2]));
  if (keys < 0) return refuse("ERR Number of keys can't be negative");
  const auto count = static_cast<std::size_t>(keys);
  if (count > call.words.size() - 3) return refuse("ERR Number of keys can't be greater than number of args");
  const std::string_view script = call.words[1];
  return call.redis.evaluate(call.database, sha1_hex(script), script, call.words.subspan(3, count),
                             call.words.subspan(3 + count));
}

constexpr std::array kServerCommands{
    CommandRow{"TIME", 1, Access::reads, time},
    CommandRow{"PING", -1, Access::reads, ping},
    CommandRow{"PUBLISH", 3, Access::reads, publish},
    CommandRow{"INFO", -1, Access::reads, info},
    CommandRow{"CONFIG", -2, Access::reads, config, false},
    CommandRow{"WAIT", 3, Access::reads, wait, false},
    CommandRow{"EVAL", -3, Access::writes, eval, false},
};

}  // namespace

std::span<const CommandRow> server_commands() { return kServerCommands; }

}  // namespace mycojobs::memory
