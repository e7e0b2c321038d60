// Violations of the job invariants and their fixes: one row per rule, each derived from a consistent job.
#include "inspect/invariants.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "unit/facts.h"

namespace mycojobs::job_invariants {
namespace {

constexpr std::uint64_t kNow = 1000000;

struct JobFixture {
  JobStoreState stored;
  JobHistory history;
  FactListDifference listing;
  std::optional<std::uint32_t> in_queue = 0;
  bool in_other_list = false;

  JobInspection inspection() const {
    return {stored,   history,      listing, history.has_facts() ? "queue:python" : stored.claim.queue,
            in_queue, in_other_list};
  }
  void claim(const std::string& name, const std::string& value) { set(stored.claim_fields, name, value); }
  void record(const std::string& name, const std::string& value) { set(stored.record, name, value); }
  static void set(Fields& fields, const std::string& name, const std::string& value) {
    std::erase_if(fields, [&](const auto& each) { return each.first == name; });
    if (!value.empty()) fields.emplace_back(name, value);
  }
  void clear_claim() {
    const std::string queue = stored.claim.queue;
    stored.claim = {};
    stored.claim.queue = queue;
    stored.claim_fields.clear();
    stored.claim_type = "none";
  }
  void clear_record() {
    stored.record.clear();
    stored.record_type = "none";
  }
};

void write_claim(JobFixture& fixture) {
  const ClaimView& claim = fixture.stored.claim;
  const auto number = [&](const char* name, std::uint64_t value) {
    if (value > 0) fixture.claim(name, std::to_string(value));
  };
  fixture.claim("state", claim.state), fixture.claim("queue", claim.queue), fixture.claim("claim_id", claim.claim_id);
  fixture.claim("token", claim.token_hash), fixture.claim("reason", claim.reason),
      fixture.claim("status", claim.status);
  fixture.claim("detail", claim.detail), fixture.claim("end", claim.end_digest),
      fixture.claim("instance", claim.instance);
  fixture.claim("message", claim.message), fixture.claim("flow", claim.flow), fixture.claim("priority", "0");
  number("epoch", claim.epoch), number("attempt", claim.attempt), number("runner", claim.runner);
  number("lease_ms", claim.lease_ms), number("until_ms", claim.lease_until_ms), number("ended_ms", claim.ended_ms);
  if (claim.attempt > 0) fixture.claim("deliveries", std::to_string(claim.deliveries));
  std::string revisions;
  for (const std::uint64_t each : claim.revisions) revisions += (revisions.empty() ? "" : " ") + std::to_string(each);
  fixture.claim("revs", revisions);
}

// Returns a consistent job with these facts.
JobFixture make_consistent_job(const std::string& facts) {
  JobFixture out;
  for (const Fact& each : parse_history(facts)) EXPECT_FALSE(fold(out.history.folded, each)) << facts;
  const FoldedJob& folded = out.history.folded;
  out.history.queue = 0;
  JobStoreState& job = out.stored;
  job.job_key = "job:12:1";
  job.record_type = job.claim_type = "hash";
  job.now_ms = kNow;
  job.digest = "digest";
  job.in_job_index = job.log_ended = true;
  job.claim = to_claim_view(folded, "queue:python");
  if (folded.state == JobState::live) job.claim.lease_until_ms = kNow + 30000;
  if (folded.state == JobState::live) job.lease_until_ms = job.claim.lease_until_ms;
  if (folded.state == JobState::delayed) job.due_ms = folded.due_ms;
  if (folded.state == JobState::prerequisites) job.check_ms = kNow;
  if (folded.state == JobState::ended) job.in_ended_index = true;
  if (folded.state == JobState::queued) out.in_queue = 1;
  out.record("status", std::string(to_string(folded.status)));
  out.record("detail", folded.detail);
  out.record("script_type", "python");
  if (folded.epoch > 0) out.record("epoch", std::to_string(folded.epoch));
  write_claim(out);
  return out;
}
JobFixture make_queued() { return make_consistent_job("scheduled"); }
JobFixture make_live() { return make_consistent_job("scheduled;" + kA); }
JobFixture make_ended() { return make_consistent_job("scheduled;" + kA + ";" + format_completion('A')); }
JobFixture make_delayed() { return make_consistent_job("scheduled due=4000000"); }
JobFixture make_limited(JobFixture fixture) {  // limited by the concurrency key db; a running job holds the slot
  fixture.record("concurrency_key", "db");
  fixture.stored.has_limit = true;
  if (fixture.stored.claim.state != "live") return fixture;
  fixture.claim("ckey", "db");
  fixture.stored.claim.concurrency_key = "db";
  fixture.stored.occupies_slot = true;
  fixture.stored.slot_keys = {"db"};
  return fixture;
}
JobFixture make_held() {
  JobFixture out = make_limited(make_consistent_job("parked why=held"));
  out.claim("held", "db");
  out.stored.is_held = true;
  out.stored.held_by_keys = {"db"};
  return out;
}
JobFixture make_waiting() {  // waits for job:12:2
  JobFixture out = make_consistent_job("parked why=dependencies");
  out.stored.awaited_jobs = {"job:12:2"};
  out.stored.dependencies = {{"job:12:2", true, false, true, true}};
  return out;
}
JobFixture make_bare() {  // a job of another client, in its queue
  JobFixture out;
  out.stored.job_key = "job:12:1";
  out.stored.record_type = "hash";
  out.stored.claim_type = "none";
  out.stored.claim.queue = "queue:python";
  out.stored.in_job_index = true;
  out.stored.digest = "digest";
  out.record("status", "dispatched");
  out.in_queue = 1;
  return out;
}

std::string to_text(const JobFix& fix) {
  static const std::vector<std::string> kinds{"delete_claim", "set_claim", "drop_claim", "set_record", "enter",
                                              "leave",        "lease",     "enqueue",    "finish",     "restore"};
  static const std::vector<std::string> stored{"",        "jobs",  "leases",   "delayed", "prerequisites", "ended",
                                               "overdue", "queue", "priority", "slots",   "held",          "waits"};
  std::string out = kinds.at(static_cast<std::size_t>(fix.kind));
  if (fix.index != JobFix::JobIndex::none) out += ' ' + stored.at(static_cast<std::size_t>(fix.index));
  if (!fix.argument.empty()) out += ' ' + fix.argument;
  if (fix.score > 0) out += ' ' + std::to_string(fix.score);
  for (const auto& [name, value] : fix.fields) out += ' ' + name + (value.empty() ? "" : '=' + value);
  return out;
}
// Formats as "rule: fix, fix; rule; also: fix".
std::string to_text(const JobVerdict& verdict) {
  std::string out;
  const auto append = [&](const std::string& what, const std::vector<JobFix>& fixes) {
    out += (out.empty() ? "" : "; ") + what;
    for (std::size_t i = 0; i < fixes.size(); ++i) out += (i == 0 ? ": " : ", ") + to_text(fixes[i]);
  };
  for (const JobFinding& each : verdict.findings) append(each.rule, each.fixes);
  if (!verdict.silent_fixes.empty()) append("also", verdict.silent_fixes);
  return out;
}

struct InvariantCase {
  const char* name;
  JobFixture fixture;
  std::function<void(JobFixture&)> corrupt;
  std::string verdict;
};
void leave_unchanged(JobFixture&) {}

std::vector<InvariantCase> rows_of_claims() {
  return {
      {"a queued job", make_queued(), leave_unchanged, ""},
      {"a live one", make_live(), leave_unchanged, ""},
      {"an ended one", make_ended(), leave_unchanged, ""},
      {"a delayed one", make_delayed(), leave_unchanged, ""},
      {"a held one", make_held(), leave_unchanged, ""},
      {"one that waits", make_waiting(), leave_unchanged, ""},
      {"another client's", make_bare(), leave_unchanged, ""},
      {"one of a limited key", make_limited(make_live()), leave_unchanged, ""},
      {"a claim that is none", make_queued(),
       [](JobFixture& l) {
         l.clear_claim();
         l.stored.claim_type = "string";
       },
       "claim-type: delete_claim, set_claim state=queued queue=queue:python revs=1 priority=0"},
      {"a claim that is none of a bare job", make_bare(), [](JobFixture& l) { l.stored.claim_type = "list"; },
       "claim-type: delete_claim"},
      {"no claim", make_delayed(), [](JobFixture& l) { l.clear_claim(); },
       "claim-missing: set_claim state=delayed queue=queue:python revs=1 priority=0"},
      {"no claim of a live job", make_live(), [](JobFixture& l) { l.clear_claim(); },
       "claim-missing: set_claim state=live queue=queue:python claim_id=A token=hashA epoch=5 attempt=1 deliveries=1 "
       "runner=20 instance=inst lease_ms=30000 revs=1 2 priority=0, lease"},
      {"a lower epoch", make_live(), [](JobFixture& l) { l.claim("epoch", "4"), l.stored.claim.epoch = 4; },
       "claim-facts: set_claim epoch=5, lease"},
      {"a state that nobody knows", make_ended(),
       [](JobFixture& l) { l.claim("state", "lost"), l.stored.claim.state = "lost"; },
       "claim-facts: set_claim state=ended"},
      {"a claim of a job that was never claimed", make_queued(),
       [](JobFixture& l) { l.claim("claim_id", "forged"), l.claim("runner", "x"), l.claim("attempt", "0"); },
       "claim-facts: drop_claim claim_id runner"},
      {"the same of a bare job", make_bare(), [](JobFixture& l) { l.claim("epoch", "7"), l.stored.claim.epoch = 7; },
       "claim-facts: drop_claim epoch"},
      {"nobody knows how long the lease is", make_live(),
       [](JobFixture& l) { l.claim("lease_ms", ""), l.stored.claim.lease_ms = 0; },
       "claim-facts: set_claim lease_ms=30000, lease"},
      {"a detail that its end does not have", make_consistent_job("scheduled;cancelled detail=cancelled"),
       [](JobFixture& l) { l.claim("detail", "mine"); }, "claim-facts: set_claim detail=cancelled"},
      {"no priority on the claim", make_queued(), [](JobFixture& l) { l.claim("priority", ""); },
       "also: set_claim priority=0"},
  };
}

std::vector<InvariantCase> rows_of_journals() {
  return {
      {"a fact is gone", make_live(),
       [](JobFixture& l) {
         l.listing.missing = {3};
         l.claim("revs", "1 2 3"), l.stored.claim.revisions = {1, 2, 3};
       },
       "fact-missing: restore 1 2"},
      {"all facts are gone", make_queued(),
       [](JobFixture& l) {
         l.history.folded = FoldedJob{};
         l.history.queue = JobHistory::kNoQueue;
         l.listing.missing = {1};
       },
       "fact-missing: restore"},
      {"no fact was ever listed", make_queued(),
       [](JobFixture& l) {
         l.history.folded = FoldedJob{};
         l.history.queue = JobHistory::kNoQueue;
         l.claim("revs", ""), l.stored.claim.revisions.clear();
       },
       "claim-facts: restore"},
      {"a fact that does not fit", make_live(),
       [](JobFixture& l) {
         l.history.problem = FactProblem{kFactKind, "revision 3: exploded is not a known kind of fact"};
       },
       "fact-kind: restore 1 2"},
      {"a fact that is not listed", make_live(),
       [](JobFixture& l) {
         l.listing.unlisted = {2};
         l.claim("revs", "1"), l.stored.claim.revisions = {1};
       },
       "fact-unlisted: set_claim revs=1 2"},
      {"others' facts are listed", make_live(),
       [](JobFixture& l) {
         l.listing.foreign = {9};
         l.claim("revs", "1 2 9"), l.stored.claim.revisions = {1, 2, 9};
       },
       "claim-facts: set_claim revs=1 2"},
      {"others' facts are listed, and the claim is another: it may know more", make_queued(),
       [](JobFixture& l) {
         l.listing.foreign = {9};
         l.claim("revs", "1 9"), l.stored.claim.revisions = {1, 9};
         l.claim("state", "ended"), l.stored.claim.state = "ended", l.stored.claim.status = "finished";
         l.in_queue = 0, l.stored.in_ended_index = true;
         l.record("status", "finished"), l.record("detail", "");
       },
       "claim-facts: restore 1; claim-facts"},
      {"claim and record know of a later claim than the facts", make_live(),
       [](JobFixture& l) {
         l.claim("epoch", "9"), l.stored.claim.epoch = 9;
         l.record("epoch", "9");
       },
       "claim-facts: restore 1 2"},
      {"facts in two journals", make_live(), [](JobFixture& l) { l.history.second_queue = 1; },
       "fact-in-other-journal"},
  };
}

std::vector<InvariantCase> rows_of_places() {
  return {
      {"queued, in no queue", make_queued(), [](JobFixture& l) { l.in_queue = 0; },
       "job-not-indexed: enter queue queue:python"},
      {"queued, nobody has looked", make_queued(), [](JobFixture& l) { l.in_queue.reset(); }, ""},
      {"prioritised, in no queue", make_queued(), [](JobFixture& l) { l.in_queue = 0, l.claim("priority", "5"); },
       "job-not-indexed: enter priority queue:python"},
      {"prioritised, in the list", make_queued(), [](JobFixture& l) { l.claim("priority", "5"); },
       "also: enter priority queue:python, leave queue queue:python"},
      {"prioritised without a priority", make_queued(),
       [](JobFixture& l) { l.in_queue = 0, l.stored.in_priority_index = true; },
       "queue-entry-duplicate: enter queue queue:python, leave priority queue:python"},
      {"delayed, and no index says until when", make_delayed(), [](JobFixture& l) { l.stored.due_ms.reset(); },
       "job-not-indexed: enter delayed 4000000"},
      {"nobody asks its prerequisites", make_consistent_job("parked why=prerequisite"),
       [](JobFixture& l) { l.stored.check_ms.reset(); }, "job-not-indexed: enter prerequisites 1000000"},
      {"held by nothing", make_held(), [](JobFixture& l) { l.stored.is_held = false, l.stored.held_by_keys.clear(); },
       "job-not-indexed: set_claim held=db, enter held db"},
      {"held, and its slot is free", make_held(), [](JobFixture& l) { l.stored.has_free_slot = true; },
       "held-with-free-slots: enqueue held"},
      {"ended, and retention forgets it", make_ended(), [](JobFixture& l) { l.stored.in_ended_index = false; },
       "job-not-indexed: enter ended 1003"},
      {"queued and delayed", make_queued(), [](JobFixture& l) { l.stored.due_ms = 5; },
       "job-indexed-twice: leave delayed"},
      {"live and ended", make_live(), [](JobFixture& l) { l.stored.in_ended_index = true; },
       "job-indexed-twice: leave ended"},
      {"live and asked for prerequisites", make_live(), [](JobFixture& l) { l.stored.check_ms = 5; },
       "job-indexed-twice: leave prerequisites"},
      {"queued and waiting", make_queued(),
       [](JobFixture& l) {
         l.stored.awaited_jobs = {"job:12:2", "job:12:3"};
       },
       "job-indexed-twice: leave waits job:12:2, leave waits job:12:3"},
      {"queued and held", make_queued(), [](JobFixture& l) { l.stored.held_by_keys = {"db"}; },
       "job-indexed-twice: leave held db"},
      {"live and prioritised", make_live(), [](JobFixture& l) { l.stored.in_priority_index = true; },
       "job-indexed-twice: leave priority queue:python"},
      {"waits for nothing that anybody knows of", make_waiting(),
       [](JobFixture& l) {
         l.stored.awaited_jobs.clear();
         l.stored.dependencies = {{"job:12:2", true, false, false, false}};
       },
       "job-not-indexed; job-not-indexed: enter waits job:12:2"},
      {"its end would not wake it", make_waiting(), [](JobFixture& l) { l.stored.dependencies[0].wakes_job = false; },
       "job-not-indexed: enter waits job:12:2"},
      {"waits for one that has ended", make_waiting(),
       [](JobFixture& l) {
         l.stored.awaited_jobs.push_back("job:12:3");
         l.stored.dependencies.push_back({"job:12:3", false, true, true, true});
       },
       "waiting-ended: leave waits job:12:3"},
      {"waits, and all has ended", make_waiting(), [](JobFixture& l) { l.stored.dependencies[0].ended = true; },
       "waiting-ended: enqueue dependencies"},
      {"not a whole look", make_waiting(),
       [](JobFixture& l) { l.stored.dependencies.clear(), l.stored.digest.clear(); }, ""},
      {"nobody sees when it has waited too long", make_queued(),
       [](JobFixture& l) { l.record("queue_timeout_ms", "500"), l.record("queued_ms", "1000"); },
       "wait-not-indexed: enter overdue 1500, set_claim overdue=1"},
      {"its wait is limited no more", make_live(), [](JobFixture& l) { l.stored.wait_until_ms = 5; },
       "wait-not-indexed: leave overdue"},
      {"not listed", make_ended(), [](JobFixture& l) { l.stored.in_job_index = false, l.record("ended_ms", "1003"); },
       "job-not-listed: enter jobs 1003000"},
      {"a bare one need not be", make_bare(), [](JobFixture& l) { l.stored.in_job_index = false; },
       "also: enter jobs 1000"},
      {"ended, and pushed once more", make_ended(), [](JobFixture& l) { l.in_queue = 1; },
       "queue-entry-duplicate: leave queue queue:python"},
      {"which its end had left there", make_ended(),
       [](JobFixture& l) { l.in_queue = 1, l.stored.claim.has_stale_entry = true; }, ""},
      {"queued twice", make_queued(), [](JobFixture& l) { l.in_queue = 2; }, "queue-entry-duplicate"},
      {"in another queue too", make_queued(), [](JobFixture& l) { l.in_other_list = true; }, "queue-entry-duplicate"},
  };
}

std::vector<InvariantCase> rows_of_leases_and_records() {
  return {
      {"a lease of nothing", make_bare(),
       [](JobFixture& l) {
         l.clear_record();
         l.stored.lease_until_ms = 5;
         l.in_queue = 0;
       },
       "lease-index: leave leases"},
      {"live without a lease", make_live(), [](JobFixture& l) { l.stored.lease_until_ms.reset(); },
       "lease-index: lease"},
      {"a lease that is indexed wrongly", make_live(), [](JobFixture& l) { l.stored.lease_until_ms = 5; },
       "lease-index: lease"},
      {"a lease that nobody recovers", make_live(), [](JobFixture& l) { l.stored.now_ms += 70000; }, "lease-overdue"},
      {"a slot of a job that is held", make_held(), [](JobFixture& l) { l.stored.slot_keys = {"db"}; },
       "slot-stray: leave slots db"},
      {"a claim that notes a slot", make_queued(), [](JobFixture& l) { l.claim("ckey", "db"); },
       "slot-stray: drop_claim ckey"},
      {"no slot", make_limited(make_live()), [](JobFixture& l) { l.stored.slot_keys.clear(); },
       "slot-missing: enter slots db, set_claim ckey=db"},
      {"a slot that its claim does not note", make_limited(make_live()), [](JobFixture& l) { l.claim("ckey", ""); },
       "also: set_claim ckey=db"},
      {"a slot of another key", make_limited(make_live()),
       [](JobFixture& l) {
         l.claim("ckey", "tape");
         l.stored.slot_keys.push_back("tape");
       },
       "slot-stray: set_claim ckey=db, leave slots tape"},
      {"a slot, and its key limits nothing", make_live(),
       [](JobFixture& l) { l.claim("ckey", "db"), l.stored.slot_keys = {"db"}; },
       "slot-stray: drop_claim ckey, leave slots db"},
      {"a record that says started", make_queued(), [](JobFixture& l) { l.record("status", "started"); },
       "started-unclaimed: set_record status=dispatched"},
      {"a record that says dispatched", make_ended(), [](JobFixture& l) { l.record("status", "dispatched"); },
       "record-overwritten: set_record status=finished detail=ok"},
      {"a record with a lower epoch", make_live(), [](JobFixture& l) { l.record("epoch", "4"); }, "record-overwritten"},
      {"a record with a higher one", make_live(), [](JobFixture& l) { l.record("epoch", "6"); }, "record-epoch"},
      {"no record", make_queued(), [](JobFixture& l) { l.clear_record(); },
       "record-deleted: finish its record was deleted"},
      {"no record of a live job: it is its owner's", make_live(), [](JobFixture& l) { l.clear_record(); },
       "record-deleted: leave jobs"},
      {"no record of an ended job", make_ended(), [](JobFixture& l) { l.clear_record(); },
       "record-deleted: leave jobs"},
      {"nor a list that has it", make_ended(), [](JobFixture& l) { l.clear_record(), l.stored.in_job_index = false; },
       ""},
      {"another client's key", make_ended(), [](JobFixture& l) { l.clear_record(), l.stored.record_type = "string"; },
       "record-type: leave jobs"},
      {"no last line", make_ended(), [](JobFixture& l) { l.stored.log_ended = false; }, "log-incomplete"},
      {"bare, in no queue", make_bare(), [](JobFixture& l) { l.in_queue = 0; },
       "record-not-queued: enter queue queue:python"},
      {"created, to be started", make_bare(), [](JobFixture& l) { l.in_queue = 0, l.record("detail", "created"); }, ""},
      {"bare, in another queue", make_bare(), [](JobFixture& l) { l.in_queue = 0, l.in_other_list = true; }, ""},
      {"bare, and says started", make_bare(), [](JobFixture& l) { l.record("status", "started"); },
       "started-unclaimed: set_record status=dispatched"},
      {"bare, and says nothing", make_bare(), [](JobFixture& l) { l.record("status", ""); },
       "record-overwritten: set_record status=dispatched"},
      {"bare and over, and pushed", make_bare(), [](JobFixture& l) { l.record("status", "finished"); },
       "queue-entry-duplicate"},
      {"an entry without a record", make_bare(), [](JobFixture& l) { l.clear_record(); }, "queue-entry-stray"},
  };
}

void check(const std::vector<InvariantCase>& rows) {
  for (const InvariantCase& row : rows) {
    JobFixture looked = row.fixture;
    row.corrupt(looked);
    const JobVerdict verdict = check_invariants(looked.inspection());
    EXPECT_EQ(to_text(verdict), row.verdict) << row.name;
    for (const JobFinding& each : verdict.findings) {
      EXPECT_TRUE(each.text.starts_with("job:12:1 ")) << each.text;
      EXPECT_EQ(each.subject, "job:12:1") << row.name;
    }
  }
}

TEST(JobInvariants, ClaimsAreChecked) { check(rows_of_claims()); }
TEST(JobInvariants, JournalsAreChecked) { check(rows_of_journals()); }
TEST(JobInvariants, IndexesAreChecked) { check(rows_of_places()); }
TEST(JobInvariants, LeasesSlotsAndRecordsAreChecked) { check(rows_of_leases_and_records()); }

// A fix that moves the job rebuilds its index entries; the claim is fixed first, and a restoring fact is written last.
TEST(JobInvariants, FixesAreOrderedForASingleStep) {
  JobFixture looked = make_held();
  looked.stored.has_free_slot = true;
  looked.stored.due_ms = 5;
  looked.claim("priority", "");
  const JobVerdict going = check_invariants(looked.inspection());
  EXPECT_EQ(going.findings.size(), 2U);
  const JobRepairPlan first = make_repair_plan(going);
  ASSERT_EQ(first.findings.size(), 1U);
  EXPECT_EQ(first.findings[0]->rule, "held-with-free-slots");
  ASSERT_EQ(first.fixes.size(), 2U);
  EXPECT_EQ(to_text(first.fixes[0]), "set_claim priority=0");
  EXPECT_EQ(to_text(first.fixes[1]), "enqueue held");

  looked = make_live();
  looked.history.problem = FactProblem{kFactKind, "revision 3: exploded is not a known kind of fact"};
  looked.stored.lease_until_ms.reset();
  looked.claim("priority", "");
  const JobRepairPlan all = make_repair_plan(check_invariants(looked.inspection()));
  ASSERT_EQ(all.fixes.size(), 3U);
  EXPECT_EQ(to_text(all.fixes[0]), "set_claim priority=0");
  EXPECT_EQ(to_text(all.fixes[1]), "lease");
  EXPECT_EQ(to_text(all.fixes[2]), "restore 1 2");
}

}  // namespace
}  // namespace mycojobs::job_invariants
