// Cache of the compiled programs of one context, keyed by all their inputs:
// <state_dir>/contexts/<context>/v-cache/<key>.
//
//   file = SHA-256 of the program, 64 digits | newline | the program
//
// The cache is never shared between contexts, since a compiled program is only trusted by the context that compiled it.
// Agents and threads may use a folder concurrently: files are renamed into place and never modified.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

// larger programs are not cached, and no job receives them
inline constexpr std::uint64_t kMaxBinaryBytes = 64ULL << 20;

class BinaryCache {
 public:
  static constexpr std::uint64_t kMaxBytes = 1ULL << 30;  // limit; the least recently used files are removed

  BinaryCache(const std::string& state_dir, Id context, std::uint64_t most_bytes = kMaxBytes);
  explicit BinaryCache(std::string folder) : folder_(std::move(folder)), most_bytes_(kMaxBytes) {}

  // Returns nullopt if there is no file, or if its hash is wrong; a damaged file is removed.
  std::optional<std::string> find(const std::string& key) const;
  // Error: io.
  Result<void> keep(const std::string& key, std::string_view program) const;
  const std::string& folder() const { return folder_; }

 private:
  void trim(const std::string& newest) const;

  std::string folder_;
  std::uint64_t most_bytes_;
};

// Returns the SHA-256 of all parts and their lengths, so that different lists have different keys.
std::string key_of(const std::vector<std::string>& parts);

}  // namespace mycojobs
