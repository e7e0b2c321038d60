// An in-process imitation of Redis 7.0, limited to the features that the scripts and the store need: data, commands,
// Lua. Replies and error texts are those of Redis (tests/contract/redis/memory_redis_test.cpp compares them with a real
// server), with these differences: no command is random, SCAN returns all keys at once, and XADD MAXLEN ~ trims
// exactly.
//
// The imitation is deterministic: the same calls at the same times return the same replies. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "base/clock.h"
#include "support/redis/memory_lua.h"
#include "support/redis/memory_values.h"

namespace mycojobs::memory {

inline constexpr std::string_view kRunId = "696d69746174696f6e206f662052656469732037";

class MemoryRedis {
 public:
  // Returns the number of receivers.
  using Publish = std::function<std::size_t(std::string_view channel, std::string_view text)>;
  MemoryRedis(const Clock& clock, Publish publish) : clock_(clock), publish_(std::move(publish)) {}

  MemoryReply execute(Id database, Words words);
  // Runs a script without keys.
  MemoryReply run(Id database, std::string_view sha1, std::string_view text, Words arguments);

  // Runs a script for the EVAL and EVALSHA commands.
  MemoryReply evaluate(Id database, std::string_view sha1, std::string_view text, Words keys, Words arguments);
  Databases& databases() { return databases_; }
  const Databases& databases() const { return databases_; }
  // Start time of the current command or script; constant while it runs.
  std::uint64_t now_ms() const { return now_ms_; }
  std::size_t publish(std::string_view channel, std::string_view text) const { return publish_(channel, text); }
  // Work so far in steps: one step per command, per value in a reply, and per list entry that was compared. Tests count
  // steps, because measured times depend on the machine.
  std::uint64_t steps() const { return steps_; }
  void add_steps(std::uint64_t count) { steps_ += count; }

 private:
  MemoryReply perform(Id database, Words words, bool in_script);

  const Clock& clock_;
  Publish publish_;
  Databases databases_;
  MemoryLua lua_;
  std::uint64_t now_ms_ = 0;
  std::uint64_t steps_ = 0;
};

// The name of the command in the table, and whether the command can write. An unknown command keeps its own name and
// counts as read-only.
struct CommandKind {
  std::string_view name;
  bool writes = false;
};
CommandKind command_kind(Words words);

}  // namespace mycojobs::memory
