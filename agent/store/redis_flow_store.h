// The FlowStore of redis_flows.h; its parts are in redis_flows*.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mycojobs/flows.h"
#include "store/redis_flows.h"

namespace mycojobs {

class RedisFlows final : public FlowStore, private ContextLinks {
 public:
  explicit RedisFlows(OpenLink open) : ContextLinks(std::move(open)) {}

  Result<FlowPlace> create(const FlowDraft&) override;
  Result<bool> adopt(Id context, Id flow, Id caller);  // adopt_flow_record()
  Result<void> put_jobs(Id context, Id flow, std::span<const Job>) override;
  Result<void> put_flow(const Flow&, const std::string& definition) override;
  Result<std::string> definition(Id context, const std::string& hash) override;

  Result<RunRead> read(Id context, Id flow, std::optional<std::uint64_t> after) override;
  Result<std::uint64_t> commit(const FlowCommit&) override;
  Result<std::vector<FlowJobView>> jobs(Id context, std::span<const std::string> job_keys) override;
  Result<void> await_flow(Id context, Id flow, Id other) override;

  Result<std::pair<std::vector<Id>, std::uint64_t>> due(Id context, std::uint32_t max) override;
  Result<std::vector<Id>> active(Id context, Id after, std::uint32_t max) override;
  Result<void> raise(Id context, Id flow) override;
  Result<bool> lead(Id context, const std::string& instance, const std::string& where, std::uint32_t ttl_ms) override;
  Result<void> stop_leading(Id context, const std::string& instance) override;
  Result<std::pair<std::string, std::string>> leader(Id context) override;

  Result<std::vector<FlowSummary>> list(Id context, const std::string& name, Id before, std::uint32_t max) override;
  Result<std::uint32_t> retire(Id context, std::uint64_t retention_ms, std::uint32_t max) override;
  Result<void> remove(Id context, Id flow) override;

  Result<FlowPlaces> places(Id context, Id flow) override;
  Result<void> repair(Id context, Id flow, const FlowRepair&) override;

  Result<void> put_schedule(Id context, const Schedule&, const std::string& definition,
                            std::uint64_t expected_revision) override;
  Result<std::vector<Schedule>> schedules(Id context) override;
  Result<void> remove_schedule(Id context, const std::string& name) override;

  Result<std::uint64_t> now_ms(Id context) override;

 private:
  Result<std::string> free_job_ids(Id context, Id caller, std::uint32_t count);
  Result<void> put_some_jobs(Id context, Id flow, std::span<const Job>);
  Result<std::string> leave(Id context, Id flow, bool asked, std::uint64_t before_ms);  // the script's word

  // How many events of a flow had been taken when it was read: a commit that takes some and has no facts would
  // otherwise, repeated, take others.
  std::map<std::pair<Id, Id>, std::uint64_t> taken_;
};

}  // namespace mycojobs
