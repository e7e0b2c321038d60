// Commands for keys of any type, for strings, and for the server itself: time, settings, channels, scripts.
#include <array>

#include "support/redis/memory_command.h"
#include "support/redis/memory_lua.h"

namespace mycojobs::memory {
namespace {

// Keys of any type.

constexpr std::array<std::string_view, std::variant_size_v<Value>> kTypes{"string", "hash", "list",
                                                                          "set",    "zset", "stream"};

Result<MemoryReply> type(const Call& call) {
  const auto found = call.keys.find(call.words[1]);
  return status(found == call.keys.end() ? "none" : kTypes[found->second.index()]);
}

Result<MemoryReply> exists(const Call& call) {
  std::size_t count = 0;
  for (std::string_view key : call.words.subspan(1)) count += call.keys.contains(key) ? 1 : 0;
  return number_reply(count);
}

Result<MemoryReply> del(const Call& call) {
  std::size_t count = 0;
  for (std::string_view key : call.words.subspan(1)) {
    const auto found = call.keys.find(key);
    if (found == call.keys.end()) continue;
    call.keys.erase(found);
    ++count;
  }
  return number_reply(count);
}

// SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]: returns all keys at once.
Result<MemoryReply> scan(const Call& call) {
  const auto cursor = to_integer(call.words[1]);
  if (!cursor || *cursor < 0) return refuse("ERR invalid cursor");
  std::string_view pattern = "*", wanted;
  for (std::size_t i = 2; i < call.words.size(); i += 2) {
    if (i + 1 == call.words.size()) return syntax_error();
    if (is_word(call.words[i], "MATCH")) {
      pattern = call.words[i + 1];
    } else if (is_word(call.words[i], "TYPE")) {
      wanted = call.words[i + 1];
    } else if (is_word(call.words[i], "COUNT")) {
      MJ_TRY(count, parse_integer(call.words[i + 1]));
      if (count < 1) return syntax_error();
    } else {
      return syntax_error();
    }
  }
  std::vector<MemoryReply> found;
  for (const auto& [key, value] : call.keys) {
    const bool fits = wanted.empty() || is_word(wanted, kTypes[value.index()]);
    if (*cursor == 0 && fits && glob_matches(pattern, key)) found.push_back(text_reply(key));
  }
  return list_reply({text_reply("0"), list_reply(std::move(found))});
}

Result<MemoryReply> dbsize(const Call& call) { return number_reply(call.keys.size()); }

Result<MemoryReply> flushdb(const Call& call) {
  call.keys.clear();
  return status("OK");
}

Result<MemoryReply> flushall(const Call& call) {
  for (auto& each : call.redis.databases()) each.second.clear();
  return status("OK");
}

// MEMORY USAGE key [SAMPLES n]: the size of the fields and values of a hash; 0 for every other type.
Result<MemoryReply> memory(const Call& call) {
  if (!is_word(call.words[1], "USAGE")) return not_imitated("MEMORY but for USAGE");
  const auto found = call.keys.find(call.words[2]);
  std::size_t bytes = 0;
  if (found != call.keys.end()) {
    if (const auto* hash = std::get_if<Hash>(&found->second)) {
      for (const auto& [name, value] : *hash) bytes += name.size() + value.size();
    }
  }
  return number_reply(bytes);
}

constexpr std::array kKeysCommands{
    CommandRow{"TYPE", 2, Access::reads, type},           CommandRow{"EXISTS", -2, Access::reads, exists},
    CommandRow{"DEL", -2, Access::writes, del},           CommandRow{"UNLINK", -2, Access::writes, del},
    CommandRow{"SCAN", -2, Access::reads, scan},          CommandRow{"DBSIZE", 1, Access::reads, dbsize},
    CommandRow{"MEMORY", -3, Access::reads, memory},      CommandRow{"FLUSHDB", -1, Access::writes, flushdb},
    CommandRow{"FLUSHALL", -1, Access::writes, flushall},
};

// Strings.

Result<MemoryReply> get(const Call& call) {
  MJ_TRY(text, call.find<Text>(call.words[1]));
  return text == nullptr ? nil_reply() : text_reply(*text);
}

// SET key value [NX | XX] [PX milliseconds]. The key does not expire here.
Result<MemoryReply> set(const Call& call) {
  bool if_absent = false, if_present = false;
  for (std::size_t i = 3; i < call.words.size(); ++i) {
    const std::string_view option = call.words[i];
    if (is_word(option, "PX") && i + 1 < call.words.size()) {
      MJ_CHECK(parse_integer(call.words[++i]));
    } else if (is_word(option, "NX") && !if_present) {
      if_absent = true;
    } else if (is_word(option, "XX") && !if_absent) {
      if_present = true;
    } else if (is_word(option, "GET") || is_word(option, "EX")) {
      return not_imitated("SET " + std::string(option));
    } else {
      return syntax_error();
    }
  }
  const bool there = call.keys.contains(call.words[1]);
  if (there ? if_absent : if_present) return nil_reply();
  call.keys.insert_or_assign(std::string(call.words[1]), Text(call.words[2]));
  return status("OK");
}

Result<MemoryReply> add(const Call& call, std::int64_t by) {
  MJ_TRY(text, call.find<Text>(call.words[1]));
  std::int64_t number = 0;
  if (text != nullptr) {
    MJ_TRY(old, parse_integer(*text));
    number = old;
  }
  if (__builtin_add_overflow(number, by, &number)) return refuse("ERR increment or decrement would overflow");
  call.keys.insert_or_assign(std::string(call.words[1]), std::to_string(number));
  return number_reply(number);
}

Result<MemoryReply> incr(const Call& call) { return add(call, 1); }

Result<MemoryReply> incrby(const Call& call) {
  MJ_TRY(by, parse_integer(call.words[2]));
  return add(call, by);
}

constexpr std::array kTextsCommands{
    CommandRow{"GET", 2, Access::reads, get},
    CommandRow{"SET", -3, Access::writes, set},
    CommandRow{"INCR", 2, Access::writes, incr},
    CommandRow{"INCRBY", 3, Access::writes, incrby},
};

// Server.

Result<MemoryReply> time(const Call& call) {
  const std::uint64_t ms = call.redis.now_ms();
  return list_reply({text_reply(std::to_string(ms / 1000)), text_reply(std::to_string(ms % 1000 * 1000))});
}

// PING [text]
Result<MemoryReply> ping(const Call& call) {
  if (call.words.size() > 2) return wrong_number_of_words("ping");
  return call.words.size() == 2 ? text_reply(call.words[1]) : status("PONG");
}

Result<MemoryReply> publish(const Call& call) { return number_reply(call.redis.publish(call.words[1], call.words[2])); }

Result<MemoryReply> info(const Call&) {
  return text_reply("# Server\r\nredis_version:7.0.15\r\nrun_id:" + std::string(kRunId) +
                    "\r\n# Persistence\r\nrdb_last_bgsave_status:ok\r\naof_last_bgrewrite_status:ok\r\n"
                    "aof_last_write_status:ok\r\n# Replication\r\nrole:master\r\n# Cluster\r\ncluster_enabled:0\r\n");
}

struct ServerSetting {
  std::string_view name, value;
};
constexpr std::array kSettings{
    ServerSetting{"databases", "4294967295"},  // every context has a database
    ServerSetting{"appendonly", "yes"},
    ServerSetting{"appendfsync", "always"},
    ServerSetting{"maxmemory-policy", "noeviction"},
};

// CONFIG GET pattern
Result<MemoryReply> config(const Call& call) {
  if (!is_word(call.words[1], "GET") || call.words.size() != 3) return not_imitated("CONFIG but for GET name");
  std::vector<MemoryReply> found;
  for (const ServerSetting& setting : kSettings) {
    if (!glob_matches(call.words[2], setting.name)) continue;
    found.push_back(text_reply(setting.name));
    found.push_back(text_reply(setting.value));
  }
  return list_reply(std::move(found));
}

// WAIT replicas ms: returns 0 at once, since there are no replicas.
Result<MemoryReply> wait(const Call& call) {
  MJ_CHECK(parse_integer(call.words[1]));
  MJ_CHECK(parse_integer(call.words[2], "ERR timeout is not an integer or out of range"));
  return number_reply(0);
}

// EVAL script keys key ... argument ...
Result<MemoryReply> eval(const Call& call) {
  MJ_TRY(keys, parse_integer(call.words[2]));
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

std::span<const CommandRow> key_commands() { return kKeysCommands; }
std::span<const CommandRow> text_commands() { return kTextsCommands; }
std::span<const CommandRow> server_commands() { return kServerCommands; }

}  // namespace mycojobs::memory
