// Runs scripts of any language with a configured program: [executors.bash] command = ["/bin/bash", "{script}"].
#pragma once

#include <string>

#include "executors/executor.h"
#include "executors/executor_settings.h"

namespace mycojobs {

class CommandExecutor final : public Executor {
 public:
  explicit CommandExecutor(CommandSettings settings) : settings_(std::move(settings)) {}

  std::string_view name() const override { return settings_.name; }
  std::vector<std::string> script_types() const override { return {settings_.name}; }
  std::vector<Stage> stages() const override;
  Result<std::string> probe() const override;
  Result<std::unique_ptr<Conversation>> begin(const JobFacts&, ArtifactSink*) const override;

 private:
  CommandSettings settings_;
};

}  // namespace mycojobs
