#include "executors/v/module_cache.h"

#include <algorithm>
#include <iterator>

#include "base/log.h"

namespace mycojobs {

ModuleCache::~ModuleCache() {
  stop_ = true;
  for (std::thread& thread : builds_) thread.join();
}

std::optional<std::string> ModuleCache::find(const VCompiler& compiler, const std::string& version,
                                             const std::vector<std::string>& flags) {
  std::vector<std::string> parts{"1", version, compiler.identity};
  parts.insert(parts.end(), flags.begin(), flags.end());
  const std::string key = hash_parts(parts);
  if (auto objects = files_.find(key)) return objects;
  const std::lock_guard lock(mutex_);
  if (started_.insert(key).second) builds_.emplace_back([this, compiler, key, flags] { build(compiler, key, flags); });
  return std::nullopt;
}

void ModuleCache::build(const VCompiler& compiler, const std::string& key, const std::vector<std::string>& flags) {
  log(LogLevel::info, "v", "compiling net.http once, for all scripts that import it");
  const auto frames = build_network_modules(compiler, flags, stop_);
  if (stop_) return;
  const auto stored = frames ? files_.store(key, *frames) : tl::unexpected<Error>(frames.error());
  if (!stored) log(LogLevel::warn, "v", "every script compiles net.http itself: {}", stored.error().message);
}

bool imports_network(std::string_view script) {
  constexpr std::string_view kBlanks = " \t\r", kModules[] = {"net", "veb", "vweb"};
  while (!script.empty()) {
    const std::size_t end = std::min(script.find('\n'), script.size());
    std::string_view line = script.substr(0, end);
    script.remove_prefix(std::min(end + 1, script.size()));
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
    if (!line.starts_with("import ")) continue;
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks, 7), line.size()));
    const std::string_view module = line.substr(0, std::min(line.find_first_of(". \t\r"), line.size()));
    if (std::find(std::begin(kModules), std::end(kModules), module) != std::end(kModules)) return true;
  }
  return false;
}

}  // namespace mycojobs
