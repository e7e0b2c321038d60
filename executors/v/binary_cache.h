// Cache of the compiled programs of one context. The key is a hash of all inputs of the compilation:
// <state_dir>/contexts/<context>/v-cache/<key>.
//
//   file = SHA-256 of the program, 64 digits | newline | the program
//
// The cache is never shared between contexts, because only the context that compiled a program trusts it.
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

// Larger programs are neither cached nor run.
inline constexpr std::uint64_t kMaxBinaryBytes = 64ULL << 20;

class BinaryCache {
 public:
  // Default limit of the total size of the files. If it is exceeded, the least recently used files are removed.
  static constexpr std::uint64_t kDefaultMaxBytes = 1ULL << 30;

  BinaryCache(const std::string& state_dir, Id context, std::uint64_t max_bytes = kDefaultMaxBytes);
  explicit BinaryCache(std::string folder) : folder_(std::move(folder)), max_bytes_(kDefaultMaxBytes) {}

  // Returns the program, or no value if there is no file or its hash is wrong. A damaged file is removed.
  std::optional<std::string> find(const std::string& key) const;
  // Stores a program and removes old files if the cache exceeds its limit. Error: io.
  Result<void> store(const std::string& key, std::string_view program) const;
  const std::string& folder() const { return folder_; }

 private:
  void remove_old_files(const std::string& newest_key) const;

  std::string folder_;
  std::uint64_t max_bytes_;
};

// Returns the SHA-256 of all parts with their lengths, so that different lists of parts have different keys.
std::string hash_parts(const std::vector<std::string>& parts);

}  // namespace mycojobs
