// Compiled programs of one context, by all that went into them: <state_dir>/contexts/<context>/v-cache/<key>.
//
//   file = SHA-256 of the program, 64 digits | newline | the program
//
// Never shared between contexts: what a context has compiled is its own word. Any number of agents and threads may use
// a folder at a time: a file comes to its name whole, and stays whole for who has it open.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

inline constexpr std::uint64_t kMaxBinaryBytes = 64ULL << 20;  // a larger one is not kept, and no job gets it

class BinaryCache {
 public:
  static constexpr std::uint64_t kMostBytes = 1ULL << 30;  // the least recently used go then

  BinaryCache(const std::string& state_dir, Id context, std::uint64_t most_bytes = kMostBytes);
  explicit BinaryCache(std::string folder) : folder_(std::move(folder)), most_bytes_(kMostBytes) {}

  // Nothing: there is none, or it is not what was kept; it is removed then.
  std::optional<std::string> find(const std::string& key) const;
  // Error io.
  Result<void> keep(const std::string& key, std::string_view program) const;
  const std::string& folder() const { return folder_; }

 private:
  void trim(const std::string& newest) const;

  std::string folder_;
  std::uint64_t most_bytes_;
};

// The SHA-256 of all parts and their lengths, so that no two lists have the same key.
std::string key_of(const std::vector<std::string>& parts);

}  // namespace mycojobs
