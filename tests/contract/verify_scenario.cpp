#include "verify_scenario.h"

namespace mycojobs {
namespace {

std::string to_text(const Reply& reply) {
  if (reply.size() == 0) return std::string(reply.text());
  std::string out = "[";
  for (std::size_t i = 0; i < reply.size(); ++i) out += to_text(reply.at(i)) + ' ';
  return out + ']';
}

}  // namespace

JobEnd VerifyContract::failed() {
  JobEnd end;
  end.detail = "exception";
  end.error = "ValueError: no";
  return end;
}

void VerifyContract::submit_with(Id id, const std::function<void(Job&)>& change) {
  Job request = job(id);
  change(request);
  const auto stored = store_->submit(request);
  ASSERT_TRUE(stored.has_value()) << stored.error().message;
}

void VerifyContract::claim_all() {
  for (const ClaimedJob& each : claim(64)) {
    claimed_[static_cast<Id>(std::stoul(each.ref.job_key.substr(7)))] = each;
  }
}

void VerifyContract::create_scenario() {
  const auto submit_job = [this](Id id, const std::function<void(Job&)>& change) { submit_with(id, change); };
  for (const Id id : {2U, 3U, 14U, 18U, 20U}) submit(id);
  submit_job(4, [](Job& j) { j.run_at_ms = 4102444800000; });
  submit_job(5, [](Job& j) { j.dependends = {4}; });
  submit_job(6, [](Job& j) { j.prerequisites = {"approval:legal"}; });
  submit_job(7, [](Job& j) { j.concurrency_key = "db"; });
  submit_job(8, [](Job& j) { j.concurrency_key = "db"; });
  submit_job(9, [](Job& j) { j.retries = 1; });
  submit_job(15, [](Job& j) { j.dependends = {14}; });
  claim_all();
  ASSERT_EQ(outcome(end(claimed_[3].ref, finished())), "ok");
  ASSERT_EQ(outcome(end(claimed_[14].ref, failed())), "ok");
  ASSERT_EQ(outcome(end(claimed_[18].ref, failed())), "ok");
  ASSERT_EQ(outcome(report(EndReport{claimed_[9].ref, failed(), 3600000})), "ok");
  ASSERT_TRUE(store_->requeue(1, key(18)).has_value());
  claim_all();  // job 18 in its second run is the only queued job
  ASSERT_EQ(outcome(end(claimed_[18].ref, finished())), "ok");
  // A long run: a heartbeat more than a minute after the start is recorded as a fact.
  set_claim(20, "began", "1");
  ASSERT_EQ(store_->renew(1, std::vector{claimed_[20].ref}, 60000).value().at(0), Renewal::renewed);

  submit(12);
  for (int i = 0; i < 3; ++i) {
    const ClaimedJob claimed = claim_one(1);
    wait_for_lease_expiry(claimed);
    ASSERT_TRUE(expire(key(12)));
  }
  ASSERT_TRUE(claim().empty());
  submit(10);
  const ClaimedJob expired = claim_one(1);
  wait_for_lease_expiry(expired);
  ASSERT_TRUE(expire(key(10)));
  submit(11);
  const auto released = claim(2);
  ASSERT_EQ(released.size(), 2U);
  for (const ClaimedJob& each : released) ASSERT_EQ(outcome(report(Release{each.ref, "drain"})), "ok");

  submit(13);
  ASSERT_TRUE(store_->cancel(1, key(13)).has_value());
  submit(1);
  submit_job(16, [](Job& j) { j.priority = 5; });
  ASSERT_TRUE(store_
                  ->save(1, key(17),
                         {{"id", "17"},
                          {"caller_id", "12"},
                          {"context_id", "1"},
                          {"script", "pass"},
                          {"script_type", "python"},
                          {"status", "dispatched"}})
                  .has_value());
  backend_->push(1, "queue:python", key(17));
  ASSERT_TRUE(store_->save(1, "message:9:1", {{"id", "1"}, {"caller_id", "9"}}).has_value());
  ASSERT_TRUE(store_->accept_message(1, {"mj:topic:runner20", "message:9:1", {{job(19), "queue:python"}}}).has_value());
}

std::uint64_t VerifyContract::last_revision(Id id) {
  const std::vector<std::string> keys{key(id)};
  return store_->job_states(1, keys, false).value().at(0).claim.revisions.back();
}

void VerifyContract::add_fact(Id id, const std::vector<std::string>& words, bool listed) {
  const auto facts = store_->journal(1, "queue:python", 0, 100000).value();
  const std::string revision = std::to_string(facts.back().revision + 1);
  std::vector<std::string> command{
      "XADD", "mj:journal:queue:python", revision + "-0", "f", words.at(0), "j", key(id), "at", "5"};
  command.insert(command.end(), words.begin() + 1, words.end());
  run_command(command);
  if (listed) set_claim(id, "revs", std::string(run_command({"HGET", claim_key(id), "revs"}).text()) + ' ' + revision);
}

VerifyReport VerifyContract::run_verify() {
  auto report = verify(*store_, 1, {});
  EXPECT_TRUE(report.has_value()) << report.error().message;
  return report.value_or(VerifyReport{});
}

std::set<std::string> VerifyContract::violated_rules() {
  std::set<std::string> found;
  const auto report = run_verify();
  for (const Finding& each : report.findings) {
    found.insert(each.rule);
    EXPECT_FALSE(each.text.empty());
  }
  return found;
}

std::vector<std::string> VerifyContract::run_rebuild(bool dry_run) {
  auto report = rebuild(*store_, 1, dry_run, {});
  EXPECT_TRUE(report.has_value()) << report.error().message;
  return report.value_or(RebuildReport{}).differences;
}

std::map<std::string, std::string> VerifyContract::snapshot() {
  std::map<std::string, std::string> all;
  const auto keys = store_->keys(1, "", 100000);
  if (!keys) throw std::runtime_error(keys.error().message);
  for (const std::string& each : *keys) {
    const std::string type(run_command({"TYPE", each}).text());
    std::string content;
    if (type == "hash") content = to_text(run_command({"HGETALL", each}));
    if (type == "list") content = to_text(run_command({"LRANGE", each, "0", "-1"}));
    if (type == "string") content = to_text(run_command({"GET", each}));
    if (type == "stream") content = to_text(run_command({"XRANGE", each, "-", "+"}));
    if (type == "zset") content = to_text(run_command({"ZRANGE", each, "0", "-1", "WITHSCORES"}));
    if (type == "set") {
      const Reply members = run_command({"SMEMBERS", each});
      std::set<std::string> sorted;
      for (std::size_t i = 0; i < members.size(); ++i) sorted.emplace(members.at(i).text());
      for (const std::string& member : sorted) content += member + ' ';
    }
    all[each] = type + ' ' + content;
  }
  return all;
}

void VerifyContract::expect_found(const std::string& rule, bool repaired) {
  std::set<std::string> before = violated_rules();
  if (rule.starts_with("claim-")) before.erase("kept-bytes");  // the claim contained the bytes counted for the job
  EXPECT_EQ(before, std::set<std::string>{rule});
  const auto unchanged = snapshot();
  const auto planned_repairs = run_rebuild(true);
  EXPECT_EQ(snapshot(), unchanged) << "a dry run changes nothing";
  const auto repairs = run_rebuild();
  const auto remaining = run_verify();
  std::set<std::string> after;
  for (const Finding& each : remaining.findings) {
    after.insert(each.rule);
    if (repaired) ADD_FAILURE() << each.rule << ": " << each.text;
  }
  EXPECT_EQ(after, repaired ? std::set<std::string>{} : before);
  const auto once = snapshot();
  const auto again = run_rebuild();
  if (repaired) {
    EXPECT_THAT(again, testing::IsEmpty()) << "a second rebuild finds nothing to do";
  }
  EXPECT_EQ(snapshot(), once) << "a second rebuild changes nothing";
  EXPECT_EQ(planned_repairs.empty(), repairs.empty()) << "a dry run reports the same repairs as the rebuild";
}

}  // namespace mycojobs
