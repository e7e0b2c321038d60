// A store at a given time, without agents: for single rows of the table in rows_test.cpp.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "stage.h"

namespace mycojobs::sim {

std::string get_error_code(const Result<void>&);  // ok, stale_claim, conflict, ...

class Rows : public testing::Test {
 protected:
  void TearDown() override;

  void pass(Ms ms) { stage_.world.run_until(stage_.world.now() + ms); }
  std::uint64_t now() { return stage_.world.server_clock().unix_ms(); }
  Store& store() { return stage_.store(); }
  void run_command(const std::vector<std::string>& words) { stage_.world.server().run_command(kContext, words); }

  void submit(Id id, const std::function<void(Job&)>& change = {});
  std::vector<ClaimedJob> claim(std::uint32_t max = 64, const std::vector<std::string>& queues = {"queue:sim"});
  ClaimedJob claim_one();
  std::string report(Report);             // returns get_error_code() of the reply
  std::string finish(const ClaimedJob&);  // reports a successful end
  static JobEnd finished();
  static JobEnd failed();
  Lease get_lease(Id id);
  bool expire(const Lease& lease) { return store().expire(kContext, lease).value(); }
  TickReply tick(TickRequest request = {}) { return store().tick(kContext, request).value(); }
  JobStoreState place(Id id) { return stage_.place(make_job_key(id)); }
  std::string state(Id id) { return place(id).claim.state; }
  std::string field(Id id, std::string_view name);
  std::vector<std::string> facts(Id id);  // the kinds of the job's facts

  // Returns the contents of the store without the list of anomalies.
  std::string picture();

  Stage stage_{{}};
  static constexpr std::uint32_t kLease = 2000;
};

}  // namespace mycojobs::sim
