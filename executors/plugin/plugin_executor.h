// Executor of a plugin: the plugin chooses the program of a job, mycojobs-exechost runs it in the job's sandbox, and
// the plugin may interpret the program's end.
//
// Failures are classified as follows:
//   invalid       the plugin rejects the job permanently; the job becomes a dead letter
//   unavailable   the plugin failed or is paused; the job returns to its queue as if it had not been claimed
//   unsupported   the plugin failed three times in a row for the same job; the job ends with setup_error, which counts
//                 as an attempt
// Faults are counted by context and caller, so faults caused by one tenant neither end nor delay the jobs of another
// tenant. If interpret fails, the default interpretation of the program's end is used.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "executors/executor.h"
#include "executors/plugin/plugin_client.h"

namespace mycojobs::plugin {

class PluginExecutor final : public Executor {
 public:
  explicit PluginExecutor(std::shared_ptr<PluginClient> client) : client_(std::move(client)) {}

  std::string_view name() const override { return client_->description().name; }
  std::vector<std::string> script_types() const override { return client_->description().script_types; }
  std::vector<Stage> stages() const override { return {stage()}; }
  Result<std::string> probe() const override;
  bool can_block() const override { return true; }
  bool is_paused(Id context, Id caller) const override { return client_->has_faults({context, caller}); }
  // Blocks for at most 2 s, plus 5 s if the plugin host must be started.
  Result<std::unique_ptr<Conversation>> begin(const JobFacts&, ArtifactSink*) const override;

 private:
  Stage stage() const;
  Error count_fault(Error, const std::string& job) const;

  std::shared_ptr<PluginClient> client_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::uint32_t> faults_;  // by context and job; bounded
};

}  // namespace mycojobs::plugin
