// The row that a plugin adds to the table: it says which program runs a job, mycojobs-exechost runs it in the job's
// sandbox, and the plugin may say what its end means.
//
// Whose fault a failure is. The plugin says that a job can never run: invalid, and the job is a dead letter. The plugin
// cannot say, or rests: unavailable, and the job goes back to its queue as if it had not been taken. If it fails
// three times in a row over the same job: unsupported, and the job ends with setup_error, which its retries count. All
// of this by context and caller: faults that one tenant causes neither end nor delay the jobs of another tenant. If
// interpret fails, the default reading of the program's end stands.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "executors/plugin/plugin_client.h"
#include "mycojobs/executor.h"

namespace mycojobs::plugin {

class PluginExecutor final : public Executor {
 public:
  explicit PluginExecutor(std::shared_ptr<PluginClient> client) : client_(std::move(client)) {}

  std::string_view name() const override { return client_->description().name; }
  std::vector<std::string> script_types() const override { return client_->description().script_types; }
  std::vector<Stage> stages() const override { return {stage()}; }
  Result<std::string> probe() const override;
  bool may_wait() const override { return true; }
  bool holds_back(Id context, Id caller) const override { return client_->has_faults({context, caller}); }
  // Blocks for as long as the plugin may take: 2 s, and 5 s more where its host is to be started again.
  Result<std::unique_ptr<Conversation>> begin(const JobFacts&, ArtifactSink*) const override;

 private:
  Stage stage() const;
  Error blamed(Error, const std::string& job) const;

  std::shared_ptr<PluginClient> client_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::uint32_t>
      faults_;  // by context and job, of those that the plugin failed over last
};

}  // namespace mycojobs::plugin
