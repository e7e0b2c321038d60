// The imitation of Redis 7.0 in this process, as far as the scripts and the store need it: data, commands, Lua. Replies
// and error texts are those of Redis (tests/contract/memory_redis_test.cpp compares them with a real one); but nothing
// is random, SCAN returns everything at once, and XADD MAXLEN ~ trims exactly.
//
// The same calls at the same times give the same replies. No locks: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "mycojobs/clock.h"
#include "support/redis/memory_lua.h"
#include "support/redis/memory_values.h"

namespace mycojobs::memory {

inline constexpr std::string_view kRunId = "696d69746174696f6e206f662052656469732037";

class MemoryRedis {
 public:
  // How many got it.
  using Publish = std::function<std::size_t(std::string_view channel, std::string_view text)>;
  MemoryRedis(const Clock& clock, Publish publish) : clock_(clock), publish_(std::move(publish)) {}

  Answer execute(Id database, Words words);
  // A script without keys.
  Answer run(Id database, std::string_view sha1, std::string_view text, Words arguments);

  // For commands under way.
  Answer evaluate(Id database, std::string_view sha1, std::string_view text, Words keys, Words arguments);
  Databases& databases() { return databases_; }
  const Databases& databases() const { return databases_; }
  std::uint64_t now_ms() const { return now_ms_; }  // of the command or script that runs; it stands still meanwhile
  std::size_t publish(std::string_view channel, std::string_view text) const { return publish_(channel, text); }
  // The work so far: one step for each command, for each value in its reply, and for each entry of a list that was
  // compared. Tests count steps where a measured time would depend on the machine.
  std::uint64_t steps() const { return steps_; }
  void add_steps(std::uint64_t count) { steps_ += count; }

 private:
  Answer perform(Id database, Words words, bool in_script);

  const Clock& clock_;
  Publish publish_;
  Databases databases_;
  MemoryLua lua_;
  std::uint64_t now_ms_ = 0;
  std::uint64_t steps_ = 0;
};

// What a command is called in the table, and whether it can change anything. Unknown: its own word, which changes
// nothing.
struct CommandKind {
  std::string_view name;
  bool writes = false;
};
CommandKind command_kind(Words words);

}  // namespace mycojobs::memory
