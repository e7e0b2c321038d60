// Objects of V's own modules that take long to compile: those of net.http, with the TLS library in it, take 8 s.
//
//   find() --no file--> thread: build_network_modules() --> <state_dir>/v-trusted/<key>
//     ^------------------------ file ---------------------------------/
//
// The key holds the compiler's version and file, and the flags. Only builds of our own source are kept: scripts choose
// flags of the C compiler, so that an object which a job has compiled could be anything. Each compile run receives a
// copy, and nothing comes back from it. Thread-safe.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "executors/v/binary_cache.h"
#include "executors/v/compiler.h"
#include "executors/v/trusted_build.h"

namespace mycojobs {

class ModuleCache {
 public:
  explicit ModuleCache(const std::string& state_dir) : files_(trusted_folder(state_dir)) {}
  ~ModuleCache();  // ends a build
  ModuleCache(const ModuleCache&) = delete;
  ModuleCache& operator=(const ModuleCache&) = delete;

  // The files for a compile run, as frames of its request. Nothing: they are not built yet. The first call starts the
  // build; if it fails, it is not tried again by this object.
  std::optional<std::string> find(const Compiler&, const std::string& version, const std::vector<std::string>& flags);

 private:
  void build(const Compiler&, const std::string& key, const std::vector<std::string>& flags);

  const BinaryCache files_;
  std::mutex mutex_;
  std::set<std::string> started_;  // keys
  std::atomic<bool> stop_{false};
  std::vector<std::thread> builds_;
};

// Whether a script imports net or one of its modules, or the web framework, which is made of them.
bool imports_network(std::string_view script);

}  // namespace mycojobs
