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

struct Looked {
  JobStoreState places;
  JobHistory history;
  FactListDifference listing;
  std::optional<std::uint32_t> in_queue = 0;
  bool other_entries = false;

  JobInspection sight() const {
    return {places,   history,      listing, history.has_facts() ? "queue:python" : places.claim.queue,
            in_queue, other_entries};
  }
  void claim(const std::string& name, const std::string& value) { set(places.claim_fields, name, value); }
  void record(const std::string& name, const std::string& value) { set(places.record, name, value); }
  static void set(Fields& fields, const std::string& name, const std::string& value) {
    std::erase_if(fields, [&](const auto& each) { return each.first == name; });
    if (!value.empty()) fields.emplace_back(name, value);
  }
  void forget_claim() {
    const std::string queue = places.claim.queue;
    places.claim = {};
    places.claim.queue = queue;
    places.claim_fields.clear();
    places.claim_type = "none";
  }
  void forget_record() {
    places.record.clear();
    places.record_type = "none";
  }
};

void write_claim(Looked& of) {
  const ClaimView& claim = of.places.claim;
  const auto number = [&](const char* name, std::uint64_t value) {
    if (value > 0) of.claim(name, std::to_string(value));
  };
  of.claim("state", claim.state), of.claim("queue", claim.queue), of.claim("claim_id", claim.claim_id);
  of.claim("token", claim.token_hash), of.claim("reason", claim.reason), of.claim("status", claim.status);
  of.claim("detail", claim.detail), of.claim("end", claim.end_digest), of.claim("instance", claim.instance);
  of.claim("message", claim.message), of.claim("flow", claim.flow), of.claim("priority", "0");
  number("epoch", claim.epoch), number("attempt", claim.attempt), number("runner", claim.runner);
  number("lease_ms", claim.lease_ms), number("until_ms", claim.until_ms), number("ended_ms", claim.ended_ms);
  if (claim.attempt > 0) of.claim("deliveries", std::to_string(claim.deliveries));
  std::string revisions;
  for (const std::uint64_t each : claim.revisions) revisions += (revisions.empty() ? "" : " ") + std::to_string(each);
  of.claim("revs", revisions);
}

// Returns a consistent job with these facts.
Looked sound(const std::string& facts) {
  Looked out;
  for (const Fact& each : history(facts)) EXPECT_FALSE(fold(out.history.folded, each)) << facts;
  const FoldedJob& folded = out.history.folded;
  out.history.queue = 0;
  JobStoreState& job = out.places;
  job.job_key = "job:12:1";
  job.record_type = job.claim_type = "hash";
  job.now_ms = kNow;
  job.seen = "digest";
  job.in_jobs = job.log_ended = true;
  job.claim = claim_of(folded, "queue:python");
  if (folded.state == JobState::live) job.claim.until_ms = kNow + 30000;
  if (folded.state == JobState::live) job.lease_until_ms = job.claim.until_ms;
  if (folded.state == JobState::delayed) job.due_ms = folded.due_ms;
  if (folded.state == JobState::prerequisites) job.check_ms = kNow;
  if (folded.state == JobState::ended) job.in_ended = true;
  if (folded.state == JobState::queued) out.in_queue = 1;
  out.record("status", std::string(to_string(folded.status)));
  out.record("detail", folded.detail);
  out.record("script_type", "python");
  if (folded.epoch > 0) out.record("epoch", std::to_string(folded.epoch));
  write_claim(out);
  return out;
}
Looked queued() { return sound("scheduled"); }
Looked live() { return sound("scheduled;" + kA); }
Looked ended() { return sound("scheduled;" + kA + ";" + completed('A')); }
Looked delayed() { return sound("scheduled due=4000000"); }
Looked limited(Looked of) {  // limited by the concurrency key db; a running job holds the slot
  of.record("concurrency_key", "db");
  of.places.limited = true;
  if (of.places.claim.state != "live") return of;
  of.claim("ckey", "db");
  of.places.claim.concurrency_key = "db";
  of.places.takes_slot = true;
  of.places.slots = {"db"};
  return of;
}
Looked held() {
  Looked out = limited(sound("parked why=held"));
  out.claim("held", "db");
  out.places.held = true;
  out.places.held_by = {"db"};
  return out;
}
Looked waiting() {  // waits for job:12:2
  Looked out = sound("parked why=dependencies");
  out.places.waits_for = {"job:12:2"};
  out.places.dependencies = {{"job:12:2", true, false, true, true}};
  return out;
}
Looked bare() {  // a job of another client, in its queue
  Looked out;
  out.places.job_key = "job:12:1";
  out.places.record_type = "hash";
  out.places.claim_type = "none";
  out.places.claim.queue = "queue:python";
  out.places.in_jobs = true;
  out.places.seen = "digest";
  out.record("status", "dispatched");
  out.in_queue = 1;
  return out;
}

std::string text_of(const JobFix& fix) {
  static const std::vector<std::string> kinds{"delete_claim", "set_claim", "drop_claim", "set_record", "enter",
                                              "leave",        "lease",     "enqueue",    "finish",     "restore"};
  static const std::vector<std::string> places{"",        "jobs",  "leases",   "delayed", "prerequisites", "ended",
                                               "overdue", "queue", "priority", "slots",   "held",          "waits"};
  std::string out = kinds.at(static_cast<std::size_t>(fix.kind));
  if (fix.place != JobFix::JobIndex::none) out += ' ' + places.at(static_cast<std::size_t>(fix.place));
  if (!fix.of.empty()) out += ' ' + fix.of;
  if (fix.score > 0) out += ' ' + std::to_string(fix.score);
  for (const auto& [name, value] : fix.words) out += ' ' + name + (value.empty() ? "" : '=' + value);
  return out;
}
// Formats as "rule: fix, fix; rule; also: fix".
std::string text_of(const JobVerdict& verdict) {
  std::string out;
  const auto tell = [&](const std::string& what, const std::vector<JobFix>& fixes) {
    out += (out.empty() ? "" : "; ") + what;
    for (std::size_t i = 0; i < fixes.size(); ++i) out += (i == 0 ? ": " : ", ") + text_of(fixes[i]);
  };
  for (const JobFinding& each : verdict.findings) tell(each.rule, each.fixes);
  if (!verdict.besides.empty()) tell("also", verdict.besides);
  return out;
}

struct Row {
  const char* name;
  Looked of;
  std::function<void(Looked&)> broken;
  std::string verdict;
};
void as_it_is(Looked&) {}

std::vector<Row> rows_of_claims() {
  return {
      {"a queued job", queued(), as_it_is, ""},
      {"a live one", live(), as_it_is, ""},
      {"an ended one", ended(), as_it_is, ""},
      {"a delayed one", delayed(), as_it_is, ""},
      {"a held one", held(), as_it_is, ""},
      {"one that waits", waiting(), as_it_is, ""},
      {"another client's", bare(), as_it_is, ""},
      {"one of a limited key", limited(live()), as_it_is, ""},
      {"a claim that is none", queued(),
       [](Looked& l) {
         l.forget_claim();
         l.places.claim_type = "string";
       },
       "claim-type: delete_claim, set_claim state=queued queue=queue:python revs=1 priority=0"},
      {"a claim that is none of a bare job", bare(), [](Looked& l) { l.places.claim_type = "list"; },
       "claim-type: delete_claim"},
      {"no claim", delayed(), [](Looked& l) { l.forget_claim(); },
       "claim-missing: set_claim state=delayed queue=queue:python revs=1 priority=0"},
      {"no claim of a live job", live(), [](Looked& l) { l.forget_claim(); },
       "claim-missing: set_claim state=live queue=queue:python claim_id=A token=hashA epoch=5 attempt=1 deliveries=1 "
       "runner=20 instance=inst lease_ms=30000 revs=1 2 priority=0, lease"},
      {"a lower epoch", live(), [](Looked& l) { l.claim("epoch", "4"), l.places.claim.epoch = 4; },
       "claim-facts: set_claim epoch=5, lease"},
      {"a state that nobody knows", ended(), [](Looked& l) { l.claim("state", "lost"), l.places.claim.state = "lost"; },
       "claim-facts: set_claim state=ended"},
      {"a claim of a job that was never claimed", queued(),
       [](Looked& l) { l.claim("claim_id", "forged"), l.claim("runner", "x"), l.claim("attempt", "0"); },
       "claim-facts: drop_claim claim_id runner"},
      {"the same of a bare job", bare(), [](Looked& l) { l.claim("epoch", "7"), l.places.claim.epoch = 7; },
       "claim-facts: drop_claim epoch"},
      {"nobody knows how long the lease is", live(),
       [](Looked& l) { l.claim("lease_ms", ""), l.places.claim.lease_ms = 0; },
       "claim-facts: set_claim lease_ms=30000, lease"},
      {"a detail that its end does not have", sound("scheduled;cancelled detail=cancelled"),
       [](Looked& l) { l.claim("detail", "mine"); }, "claim-facts: set_claim detail=cancelled"},
      {"no priority on the claim", queued(), [](Looked& l) { l.claim("priority", ""); }, "also: set_claim priority=0"},
  };
}

std::vector<Row> rows_of_journals() {
  return {
      {"a fact is gone", live(),
       [](Looked& l) {
         l.listing.missing = {3};
         l.claim("revs", "1 2 3"), l.places.claim.revisions = {1, 2, 3};
       },
       "fact-missing: restore 1 2"},
      {"all facts are gone", queued(),
       [](Looked& l) {
         l.history.folded = FoldedJob{};
         l.history.queue = JobHistory::kNoQueue;
         l.listing.missing = {1};
       },
       "fact-missing: restore"},
      {"no fact was ever listed", queued(),
       [](Looked& l) {
         l.history.folded = FoldedJob{};
         l.history.queue = JobHistory::kNoQueue;
         l.claim("revs", ""), l.places.claim.revisions.clear();
       },
       "claim-facts: restore"},
      {"a fact that does not fit", live(),
       [](Looked& l) {
         l.history.problem = FactProblem{kFactKind, "revision 3: exploded is not a known kind of fact"};
       },
       "fact-kind: restore 1 2"},
      {"a fact that is not listed", live(),
       [](Looked& l) {
         l.listing.unlisted = {2};
         l.claim("revs", "1"), l.places.claim.revisions = {1};
       },
       "fact-unlisted: set_claim revs=1 2"},
      {"others' facts are listed", live(),
       [](Looked& l) {
         l.listing.foreign = {9};
         l.claim("revs", "1 2 9"), l.places.claim.revisions = {1, 2, 9};
       },
       "claim-facts: set_claim revs=1 2"},
      {"others' facts are listed, and the claim is another: it may know more", queued(),
       [](Looked& l) {
         l.listing.foreign = {9};
         l.claim("revs", "1 9"), l.places.claim.revisions = {1, 9};
         l.claim("state", "ended"), l.places.claim.state = "ended", l.places.claim.status = "finished";
         l.in_queue = 0, l.places.in_ended = true;
         l.record("status", "finished"), l.record("detail", "");
       },
       "claim-facts: restore 1; claim-facts"},
      {"claim and record know of a later claim than the facts", live(),
       [](Looked& l) {
         l.claim("epoch", "9"), l.places.claim.epoch = 9;
         l.record("epoch", "9");
       },
       "claim-facts: restore 1 2"},
      {"facts in two journals", live(), [](Looked& l) { l.history.elsewhere = 1; }, "fact-elsewhere"},
  };
}

std::vector<Row> rows_of_places() {
  return {
      {"queued, in no queue", queued(), [](Looked& l) { l.in_queue = 0; }, "no-place: enter queue queue:python"},
      {"queued, nobody has looked", queued(), [](Looked& l) { l.in_queue.reset(); }, ""},
      {"prioritised, in no queue", queued(), [](Looked& l) { l.in_queue = 0, l.claim("priority", "5"); },
       "no-place: enter priority queue:python"},
      {"prioritised, in the list", queued(), [](Looked& l) { l.claim("priority", "5"); },
       "also: enter priority queue:python, leave queue queue:python"},
      {"prioritised without a priority", queued(), [](Looked& l) { l.in_queue = 0, l.places.in_priority = true; },
       "entry-second: enter queue queue:python, leave priority queue:python"},
      {"delayed, and no index says until when", delayed(), [](Looked& l) { l.places.due_ms.reset(); },
       "no-place: enter delayed 4000000"},
      {"nobody asks its prerequisites", sound("parked why=prerequisite"), [](Looked& l) { l.places.check_ms.reset(); },
       "no-place: enter prerequisites 1000000"},
      {"held by nothing", held(), [](Looked& l) { l.places.held = false, l.places.held_by.clear(); },
       "no-place: set_claim held=db, enter held db"},
      {"held, and its slot is free", held(), [](Looked& l) { l.places.slot_free = true; }, "held-free: enqueue held"},
      {"ended, and retention forgets it", ended(), [](Looked& l) { l.places.in_ended = false; },
       "no-place: enter ended 1003"},
      {"queued and delayed", queued(), [](Looked& l) { l.places.due_ms = 5; }, "two-places: leave delayed"},
      {"live and ended", live(), [](Looked& l) { l.places.in_ended = true; }, "two-places: leave ended"},
      {"live and asked for prerequisites", live(), [](Looked& l) { l.places.check_ms = 5; },
       "two-places: leave prerequisites"},
      {"queued and waiting", queued(),
       [](Looked& l) {
         l.places.waits_for = {"job:12:2", "job:12:3"};
       },
       "two-places: leave waits job:12:2, leave waits job:12:3"},
      {"queued and held", queued(), [](Looked& l) { l.places.held_by = {"db"}; }, "two-places: leave held db"},
      {"live and prioritised", live(), [](Looked& l) { l.places.in_priority = true; },
       "two-places: leave priority queue:python"},
      {"waits for nothing that anybody knows of", waiting(),
       [](Looked& l) {
         l.places.waits_for.clear();
         l.places.dependencies = {{"job:12:2", true, false, false, false}};
       },
       "no-place; no-place: enter waits job:12:2"},
      {"its end would not wake it", waiting(), [](Looked& l) { l.places.dependencies[0].wakes = false; },
       "no-place: enter waits job:12:2"},
      {"waits for one that has ended", waiting(),
       [](Looked& l) {
         l.places.waits_for.push_back("job:12:3");
         l.places.dependencies.push_back({"job:12:3", false, true, true, true});
       },
       "waiting-ended: leave waits job:12:3"},
      {"waits, and all has ended", waiting(), [](Looked& l) { l.places.dependencies[0].ended = true; },
       "waiting-ended: enqueue dependencies"},
      {"not a whole look", waiting(), [](Looked& l) { l.places.dependencies.clear(), l.places.seen.clear(); }, ""},
      {"nobody sees when it has waited too long", queued(),
       [](Looked& l) { l.record("queue_timeout_ms", "500"), l.record("queued_ms", "1000"); },
       "wait-unwatched: enter overdue 1500, set_claim overdue=1"},
      {"its wait is limited no more", live(), [](Looked& l) { l.places.wait_until_ms = 5; },
       "wait-unwatched: leave overdue"},
      {"not listed", ended(), [](Looked& l) { l.places.in_jobs = false, l.record("ended_ms", "1003"); },
       "not-listed: enter jobs 1003000"},
      {"a bare one need not be", bare(), [](Looked& l) { l.places.in_jobs = false; }, "also: enter jobs 1000"},
      {"ended, and pushed once more", ended(), [](Looked& l) { l.in_queue = 1; },
       "entry-second: leave queue queue:python"},
      {"which its end had left there", ended(), [](Looked& l) { l.in_queue = 1, l.places.claim.leftover = true; }, ""},
      {"queued twice", queued(), [](Looked& l) { l.in_queue = 2; }, "entry-second"},
      {"in another queue too", queued(), [](Looked& l) { l.other_entries = true; }, "entry-second"},
  };
}

std::vector<Row> rows_of_leases_and_records() {
  return {
      {"a lease of nothing", bare(),
       [](Looked& l) {
         l.forget_record();
         l.places.lease_until_ms = 5;
         l.in_queue = 0;
       },
       "lease-index: leave leases"},
      {"live without a lease", live(), [](Looked& l) { l.places.lease_until_ms.reset(); }, "lease-index: lease"},
      {"a lease that is indexed wrongly", live(), [](Looked& l) { l.places.lease_until_ms = 5; }, "lease-index: lease"},
      {"a lease that nobody recovers", live(), [](Looked& l) { l.places.now_ms += 70000; }, "lease-overdue"},
      {"a slot of a job that is held", held(), [](Looked& l) { l.places.slots = {"db"}; },
       "slot-stray: leave slots db"},
      {"a claim that notes a slot", queued(), [](Looked& l) { l.claim("ckey", "db"); }, "slot-stray: drop_claim ckey"},
      {"no slot", limited(live()), [](Looked& l) { l.places.slots.clear(); },
       "slot-missing: enter slots db, set_claim ckey=db"},
      {"a slot that its claim does not note", limited(live()), [](Looked& l) { l.claim("ckey", ""); },
       "also: set_claim ckey=db"},
      {"a slot of another key", limited(live()),
       [](Looked& l) {
         l.claim("ckey", "tape");
         l.places.slots.push_back("tape");
       },
       "slot-stray: set_claim ckey=db, leave slots tape"},
      {"a slot, and its key limits nothing", live(), [](Looked& l) { l.claim("ckey", "db"), l.places.slots = {"db"}; },
       "slot-stray: drop_claim ckey, leave slots db"},
      {"a record that says started", queued(), [](Looked& l) { l.record("status", "started"); },
       "started-unclaimed: set_record status=dispatched"},
      {"a record that says dispatched", ended(), [](Looked& l) { l.record("status", "dispatched"); },
       "record-words: set_record status=finished detail=ok"},
      {"a record with a lower epoch", live(), [](Looked& l) { l.record("epoch", "4"); }, "record-words"},
      {"a record with a higher one", live(), [](Looked& l) { l.record("epoch", "6"); }, "record-epoch"},
      {"no record", queued(), [](Looked& l) { l.forget_record(); }, "record-gone: finish its record was deleted"},
      {"no record of a live job: it is its owner's", live(), [](Looked& l) { l.forget_record(); },
       "record-gone: leave jobs"},
      {"no record of an ended job", ended(), [](Looked& l) { l.forget_record(); }, "record-gone: leave jobs"},
      {"nor a list that has it", ended(), [](Looked& l) { l.forget_record(), l.places.in_jobs = false; }, ""},
      {"another client's key", ended(), [](Looked& l) { l.forget_record(), l.places.record_type = "string"; },
       "record-type: leave jobs"},
      {"no last line", ended(), [](Looked& l) { l.places.log_ended = false; }, "log-open"},
      {"bare, in no queue", bare(), [](Looked& l) { l.in_queue = 0; }, "bare-unqueued: enter queue queue:python"},
      {"created, to be started", bare(), [](Looked& l) { l.in_queue = 0, l.record("detail", "created"); }, ""},
      {"bare, in another queue", bare(), [](Looked& l) { l.in_queue = 0, l.other_entries = true; }, ""},
      {"bare, and says started", bare(), [](Looked& l) { l.record("status", "started"); },
       "started-unclaimed: set_record status=dispatched"},
      {"bare, and says nothing", bare(), [](Looked& l) { l.record("status", ""); },
       "record-words: set_record status=dispatched"},
      {"bare and over, and pushed", bare(), [](Looked& l) { l.record("status", "finished"); }, "entry-second"},
      {"an entry without a record", bare(), [](Looked& l) { l.forget_record(); }, "entry-stray"},
  };
}

void check(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    Looked looked = row.of;
    row.broken(looked);
    const JobVerdict verdict = check_invariants(looked.sight());
    EXPECT_EQ(text_of(verdict), row.verdict) << row.name;
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
  Looked looked = held();
  looked.places.slot_free = true;
  looked.places.due_ms = 5;
  looked.claim("priority", "");
  const JobVerdict going = check_invariants(looked.sight());
  EXPECT_EQ(going.findings.size(), 2U);
  const JobRepairPlan first = repair_plan(going);
  ASSERT_EQ(first.of.size(), 1U);
  EXPECT_EQ(first.of[0]->rule, "held-free");
  ASSERT_EQ(first.fixes.size(), 2U);
  EXPECT_EQ(text_of(first.fixes[0]), "set_claim priority=0");
  EXPECT_EQ(text_of(first.fixes[1]), "enqueue held");

  looked = live();
  looked.history.problem = FactProblem{kFactKind, "revision 3: exploded is not a known kind of fact"};
  looked.places.lease_until_ms.reset();
  looked.claim("priority", "");
  const JobRepairPlan all = repair_plan(check_invariants(looked.sight()));
  ASSERT_EQ(all.fixes.size(), 3U);
  EXPECT_EQ(text_of(all.fixes[0]), "set_claim priority=0");
  EXPECT_EQ(text_of(all.fixes[1]), "lease");
  EXPECT_EQ(text_of(all.fixes[2]), "restore 1 2");
}

}  // namespace
}  // namespace mycojobs::job_invariants
