// A store at a given time, without agents: for single rows of the table in rows_test.cpp.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "stage.h"

namespace mycojobs::sim {

std::string get_error_code(const Result<void>&);  // ok, stale_claim, conflict, ...

class FaultCases : public testing::Test {
 protected:
  void TearDown() override;

  void advance_time(Ms ms) { stage_.world.run_until(stage_.world.now() + ms); }
  std::uint64_t now() { return stage_.world.server_clock().unix_ms(); }
  Store& store() { return stage_.store(); }
  void run_command(const std::vector<std::string>& words) { stage_.world.server().run_command(kContext, words); }

  void submit(Id id, const std::function<void(Job&)>& change = {});
  std::vector<ClaimedJob> claim(std::uint32_t max = 64, const std::vector<std::string>& queues = {"queue:sim"});
  ClaimedJob claim_one();
  std::string report(Report);             // returns get_error_code() of the reply
  std::string finish(const ClaimedJob&);  // reports a successful end
  static JobEnd make_success_end();
  static JobEnd make_failure_end();
  Lease get_lease(Id id);
  bool expire(const Lease& lease) { return store().expire(kContext, lease).value(); }
  TickReply tick(TickRequest request = {}) { return store().tick(kContext, request).value(); }
  JobStoreState get_job_state(Id id) { return stage_.get_job_state(make_job_key(id)); }
  std::string get_claim_state(Id id) { return get_job_state(id).claim.state; }
  std::string field(Id id, std::string_view name);
  std::vector<std::string> list_fact_kinds(Id id);  // the kinds of the job's facts

  // Returns the contents of the store without the list of anomalies.
  std::string dump_store();

  Stage stage_{{}};
  static constexpr std::uint32_t kLeaseMs = 2000;
};

}  // namespace mycojobs::sim
