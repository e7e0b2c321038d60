// Compiles V scripts in one sandbox and runs them in another. Programs are cached for each context (binary_cache.h), so
// a known script starts immediately.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "executors/executor.h"
#include "executors/v/compiler.h"
#include "executors/v/module_cache.h"

namespace mycojobs {

class VExecutor final : public Executor {
 public:
  // compiler: see find_compiler().
  VExecutor(std::string compiler, std::vector<std::string> flags, std::string state_dir)
      : compiler_(std::move(compiler)),
        flags_(std::move(flags)),
        state_dir_(std::move(state_dir)),
        modules_(state_dir_) {}

  std::string_view name() const override { return "v"; }
  std::vector<std::string> script_types() const override { return {"v"}; }
  std::vector<Stage> stages() const override;
  Result<std::string> probe() const override;
  // begin() may wait for the disk with the cache and the inputs, and for the version of a new compiler.
  bool can_block() const override { return true; }
  bool can_block_in_finish() const override { return false; }
  Result<std::unique_ptr<Conversation>> begin(const JobFacts&, ArtifactSink*) const override;

 private:
  Result<std::string> get_version(const VCompiler&) const;

  std::string compiler_;
  std::vector<std::string> flags_;
  std::string state_dir_;
  mutable ModuleCache modules_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::string> versions_;  // by identity of the compiler
};

}  // namespace mycojobs
