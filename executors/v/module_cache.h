// Cache of compiled objects of V's standard modules: net.http, which includes the TLS library, takes 8 s to compile.
//
//   find() --not cached--> thread: build_network_modules() --> <state_dir>/v-trusted/<key>
//     ^------------------------ cached --------------------------------/
//
// The key includes the compiler's version and file, and the flags. Only builds of trusted sources are cached: a script
// can choose flags of the C compiler, so an object compiled by a job cannot be trusted. Each compile run receives a
// copy, and nothing is copied back. Thread-safe.
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
  ~ModuleCache();  // stops a running build
  ModuleCache(const ModuleCache&) = delete;
  ModuleCache& operator=(const ModuleCache&) = delete;

  // Returns the files for a compile run, as frames of its request, or nullopt if they are not built yet. The first call
  // starts the build; this object does not repeat a failed build.
  std::optional<std::string> find(const VCompiler&, const std::string& version, const std::vector<std::string>& flags);

 private:
  void build(const VCompiler&, const std::string& key, const std::vector<std::string>& flags);

  const BinaryCache files_;
  std::mutex mutex_;
  std::set<std::string> started_;  // keys of builds that were started
  std::atomic<bool> stop_{false};
  std::vector<std::thread> builds_;
};

// Returns whether the script imports net, one of its modules, or the web framework, which uses them.
bool imports_network(std::string_view script);

}  // namespace mycojobs
