#include "rows.h"

#include "inspect/invariants.h"

namespace mycojobs::sim {
namespace {

void append_reply(const Reply& reply, std::string& out) {
  if (reply.size() == 0) out += std::string(reply.text()) + ' ';
  for (std::size_t i = 0; i < reply.size(); ++i) append_reply(reply.at(i), out);
}

std::vector<std::string> make_read_command(const std::string& type, const std::string& key) {
  if (type == "hash") return {"HGETALL", key};
  if (type == "list") return {"LRANGE", key, "0", "-1"};
  if (type == "set") return {"SMEMBERS", key};
  if (type == "zset") return {"ZRANGE", key, "0", "-1", "WITHSCORES"};
  if (type == "stream") return {"XRANGE", key, "-", "+"};
  return {"GET", key};
}

}  // namespace

std::string get_error_code(const Result<void>& result) {
  if (result) return "ok";
  switch (result.error().code) {
    case Code::stale_claim:
      return "stale_claim";
    case Code::conflict:
      return "conflict";
    case Code::not_found:
      return "not_found";
    default:
      return result.error().message;
  }
}

void FaultCases::TearDown() {
  EXPECT_EQ(find_violations(store()), std::vector<std::string>{});
  stage_.checker.check_new_facts();
  EXPECT_EQ(stage_.world.violation(), "");
}

void FaultCases::submit(Id id, const std::function<void(Job&)>& change) {
  Job job = Stage::job(id, "ok 1");
  if (change) change(job);
  const auto stored = store().submit(job);
  ASSERT_TRUE(stored.has_value()) << stored.error().message;
}

std::vector<ClaimedJob> FaultCases::claim(std::uint32_t max, const std::vector<std::string>& queues) {
  ClaimRequest request;
  request.context = kContext;
  request.runner = 1;
  request.instance = "one";
  request.queues = queues;
  request.max_jobs = max;
  request.lease_ms = kLeaseMs;
  auto reply = store().claim(request);
  if (reply) return std::move(reply->jobs);
  ADD_FAILURE() << reply.error().message;
  return {};
}

ClaimedJob FaultCases::claim_one() {
  auto jobs = claim(1);
  if (jobs.size() == 1) return std::move(jobs.front());
  ADD_FAILURE() << "nothing to claim";
  return {};
}

std::string FaultCases::report(Report request) {
  const std::vector<Report> requests{std::move(request)};
  const auto replies = store().report(kContext, requests);
  if (!replies) return replies.error().message;
  return get_error_code(replies->front());
}

std::string FaultCases::finish(const ClaimedJob& job) {
  stage_.checker.check_new_facts();
  stage_.checker.on_process_ended(job.ref.job_key, job.epoch, true);
  return report(EndReport{job.ref, make_success_end()});
}

JobEnd FaultCases::make_success_end() {
  JobEnd end;
  end.status = JobStatus::finished;
  end.detail = "ok";
  return end;
}

JobEnd FaultCases::make_failure_end() {
  JobEnd end;
  end.detail = "exit";
  end.error = "exit";
  return end;
}

Lease FaultCases::get_lease(Id id) {
  const auto leases = store().leases(kContext);
  for (const Lease& lease : leases.value_or(std::vector<Lease>{})) {
    if (lease.job_key == make_job_key(id)) return lease;
  }
  ADD_FAILURE() << make_job_key(id) << " has no lease";
  return {};
}

std::string FaultCases::field(Id id, std::string_view name) {
  const auto fields = store().load(kContext, make_job_key(id));
  return fields ? std::string(field_of(*fields, name)) : "<" + fields.error().message + ">";
}

std::vector<std::string> FaultCases::list_fact_kinds(Id id) {
  std::vector<std::string> kinds;
  const auto all = store().journal(kContext, "queue:sim", 0, 10000);
  for (const Fact& fact : all.value_or(std::vector<Fact>{})) {
    if (fact.job_key == make_job_key(id)) kinds.push_back(fact.kind);
  }
  return kinds;
}

std::string FaultCases::dump_store() {
  std::string out;
  const auto keys = store().keys(kContext, "", 10000);
  for (const std::string& key : keys.value_or(std::vector<std::string>{})) {
    if (key == "mj:anomalies") continue;
    MemoryServer& server = stage_.world.server();
    const std::string type(server.run_command(kContext, {"TYPE", key}).text());
    out += key + ": ";
    append_reply(server.run_command(kContext, make_read_command(type, key)), out);
    out += '\n';
  }
  return out;
}

}  // namespace mycojobs::sim
