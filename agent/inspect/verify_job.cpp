#include "inspect/verify_job.h"

#include <algorithm>
#include <array>

#include "base/counted.h"
#include "base/ids.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kRecoveryMs = 1000;  // within a lease and this, whoever watches has recovered it

std::string number(std::uint64_t value) { return std::to_string(value); }
std::string shown(std::string_view text) { return text.empty() ? "nothing" : std::string(text.substr(0, 80)); }
std::string first_of(const std::vector<std::uint64_t>& revisions) {
  return "revision " + number(revisions.front()) +
         (revisions.size() > 1 ? " and " + number(revisions.size() - 1) + " more" : "");
}

class Judge {
 public:
  explicit Judge(const JobLook& look)
      : look_(look),
        job_(look.places),
        claim_(look.places.claim),
        truth_(are_whole(look.history, look.listing) ? claim_of(look.history.folded, look.queue) : claim_) {}
  std::vector<Finding> run();

 private:
  void add(std::string_view rule, const std::string& text) {
    findings_.push_back(finding(rule, job_.job_key, job_.job_key + ' ' + text));
  }
  bool check_claim();  // false: there is none to judge by
  void check_journal();
  void check_claim_facts();
  void check_places(JobState);
  void check_lease(JobState);
  void check_entries(JobState);
  void check_slot(JobState);
  void check_bare();
  void check_record(JobState);

  const JobLook& look_;
  const JobPlaces& job_;
  const ClaimView& claim_;
  const ClaimView truth_;  // what the job's facts say if they can be trusted, else its claim
  std::vector<Finding> findings_;
};

std::vector<Finding> Judge::run() {
  if (!check_claim()) return std::move(findings_);
  check_journal();
  const auto state = parse_job_state(truth_.state);
  if (!state) {
    add("claim-facts", "has a claim in state " + shown(claim_.state) + ", which nobody knows");
    return std::move(findings_);
  }
  check_places(*state);
  check_lease(*state);
  check_slot(*state);
  if (*state != JobState::none && job_.record_type == "hash" && !job_.in_jobs)
    add("not-listed", "is not in the index of jobs by what happened last");
  check_entries(*state);
  if (*state == JobState::none) {
    check_bare();
  } else {
    check_record(*state);
  }
  return std::move(findings_);
}

bool Judge::check_claim() {
  if (job_.claim_type != "hash" && job_.claim_type != "none") {
    add("claim-type", "has a claim that is a " + shown(job_.claim_type) + ": another client wrote it");
    return false;
  }
  if (claim_.state.empty() && look_.history.told()) {
    add("claim-missing",
        "has no claim, and " + counted(look_.history.folded.revisions.size(), "fact tells", "facts tell") + " of it");
    return false;
  }
  return true;
}

void Judge::check_journal() {
  const JobHistory& history = look_.history;
  if (!look_.listing.missing.empty()) {
    add("fact-missing", "has a claim that lists " + first_of(look_.listing.missing) + ", which the journal of " +
                            shown(look_.queue) + " does not hold");
  } else if (history.problem) {
    const std::string more = history.problems > 1 ? "; " + number(history.problems - 1) + " more do not fit" : "";
    add(history.problem->rule, "in the journal of " + shown(look_.queue) + ", " + history.problem->text + more);
  } else {
    check_claim_facts();
  }
  if (!look_.listing.foreign.empty()) {
    add("claim-facts", "has a claim that lists " + first_of(look_.listing.foreign) + ", no fact of it");
  }
  if (!look_.listing.unlisted.empty()) {
    add("fact-unlisted", "has a claim that does not list " + first_of(look_.listing.unlisted) + " of the journal of " +
                             shown(look_.queue));
  }
  if (history.elsewhere != JobHistory::kNoQueue) {
    add("fact-elsewhere", "has facts in the journal of another queue than " + shown(look_.queue));
  }
}

// Of the token only that it differs is said.
void Judge::check_claim_facts() {
  const ClaimView says = claim_of(look_.history.folded, look_.queue);
  std::string differences;
  const auto differ = [&](const char* name, const std::string& is, const std::string& should) {
    differences +=
        (differences.empty() ? "" : "; ") + std::string(name) + ' ' + shown(is) + ", its facts say " + shown(should);
  };
  const auto compare = [&](const char* name, const std::string& is, const std::string& should) {
    if (is != should) differ(name, is, should);
  };
  const auto compare_number = [&](const char* name, std::uint64_t is, std::uint64_t should) {
    if (is != should) differ(name, number(is), number(should));
  };
  compare("state", claim_.state, says.state);
  compare_number("epoch", claim_.epoch, says.epoch);
  compare_number("attempt", claim_.attempt, says.attempt);
  compare_number("deliveries", claim_.deliveries, says.deliveries);
  compare("claim_id", claim_.claim_id, says.claim_id);
  if (claim_.token_hash != says.token_hash) differ("token", "another", "one");
  if (look_.history.told()) compare("queue", claim_.queue, says.queue);
  if (!says.message.empty()) compare("message", claim_.message, says.message);
  if (!says.flow.empty()) compare("flow", claim_.flow, says.flow);
  if (says.state == word(JobState::live)) {
    compare_number("runner", claim_.runner, says.runner);
    compare("instance", claim_.instance, says.instance);
  }
  if (says.state == word(JobState::ended)) {
    compare("status", claim_.status, says.status);
    compare("detail", claim_.detail, says.detail);
    if (!says.end_digest.empty()) compare("end", claim_.end_digest, says.end_digest);
  }
  if (!differences.empty()) add("claim-facts", "has a claim with " + differences);
}

// The one place of its state, and no other. What a list of a queue holds: check_entries().
void Judge::check_places(JobState state) {
  struct Place {
    JobState state;
    bool there;
    std::string_view name;
  };
  const auto places = std::to_array<Place>({
      {JobState::delayed, job_.due_ms.has_value(), "the index of delayed jobs"},
      {JobState::waiting, !job_.waits_for.empty(), "the jobs that wait for others"},
      {JobState::prerequisites, job_.check_ms.has_value(), "the index of prerequisites"},
      {JobState::held, job_.held, "those held by its concurrency key"},
      {JobState::ended, job_.in_ended, "the index of ended jobs"},
  });
  for (const Place& place : places) {
    const bool should = place.state == state;
    if (should && !place.there)
      add("no-place", "is " + std::string(word(state)) + " and not in " + std::string(place.name));
    if (!should && place.there) {
      add("two-places", "is " + shown(word(state)) + " and also in " + std::string(place.name));
    }
  }
  if (job_.in_priority && state != JobState::queued) {
    add("two-places", "is " + shown(word(state)) + " and also prioritised in " + shown(look_.queue));
  }
  const bool findable = job_.in_priority || job_.missing || !look_.in_queue || *look_.in_queue > 0;
  if (state == JobState::queued && !findable) add("no-place", "is queued and not in " + shown(look_.queue));
}

void Judge::check_lease(JobState state) {
  if (state != JobState::live) {
    if (job_.lease_until_ms) add("lease-index", "is " + shown(word(state)) + " and stands among the leases");
    return;
  }
  if (!job_.lease_until_ms) return add("lease-index", "is live and its lease is not among the leases");
  if (*job_.lease_until_ms != claim_.until_ms) {
    return add("lease-index",
               "has a lease until " + number(claim_.until_ms) + " that is indexed as " + number(*job_.lease_until_ms));
  }
  if (job_.now_ms > claim_.until_ms + claim_.lease_ms + kRecoveryMs) {
    add("lease-overdue", "has a lease that ran out " + number(job_.now_ms - claim_.until_ms) +
                             " ms ago: no agent of this context recovers it");
  }
}

void Judge::check_slot(JobState state) {
  if (job_.takes_slot && state != JobState::live) {
    add("slot-stray", "is " + shown(word(state)) + " and takes a slot of its concurrency key");
  }
  if (state == JobState::live && !claim_.concurrency_key.empty() && !job_.takes_slot) {
    add("slot-missing", "runs without a slot of its concurrency key " + shown(claim_.concurrency_key));
  }
}

void Judge::check_entries(JobState state) {
  const std::uint32_t entries = look_.in_queue.value_or(0);
  const bool bare_end = state == JobState::none && has_ended(job_);
  const bool dropped = (state != JobState::queued && state != JobState::none) || bare_end;
  if (dropped && entries > 0 && !claim_.leftover) {
    add("entry-second", "is " + (bare_end ? std::string("over") : shown(word(state))) + " and stands in " +
                            shown(look_.queue) + ": a client pushed it once more; the entry will be dropped");
  }
  if (!dropped && (entries > 1 || (entries == 1 && job_.in_priority))) {
    add("entry-second", "stands in " + shown(look_.queue) + " more than once: it runs once");
  }
  if (state != JobState::none && look_.other_entries) {
    add("entry-second",
        "belongs to " + shown(look_.queue) + " and stands in another queue too: that entry will be dropped");
  }
}

// Another client's job that nobody has taken yet: its record is all there is.
void Judge::check_bare() {
  const std::string_view status = field_of(job_.record, "status");
  const bool queued = look_.in_queue.value_or(1) > 0 || look_.other_entries || job_.missing || job_.in_priority;
  if (job_.record_type == "none") {
    if (look_.in_queue.value_or(0) > 0 || look_.other_entries) {
      add("entry-stray", "is queued and has no record: a dead letter, unless it is written before it is taken");
    }
  } else if (status == "started") {
    add("started-unclaimed", "has a record that says started, and no claim");
  } else if (job_.record_type == "hash" && !has_ended(job_) && !queued &&
             field_of(job_.record, "detail") != "created") {
    add("bare-unqueued", "has a record that says " + shown(status) +
                             " and stands in no queue: nobody will run it; push it, or doctor --rebuild");
  }
}

void Judge::check_record(JobState state) {
  if (job_.record_type == "none") {
    if (state != JobState::ended) add("record-gone", "is " + std::string(word(state)) + " and its record was deleted");
    return;
  }
  if (job_.record_type != "hash")
    return add("record-type", "is a " + shown(job_.record_type) + ": another client wrote it");
  const std::string_view status = field_of(job_.record, "status");
  const std::string_view detail = field_of(job_.record, "detail");
  const auto ended = parse<JobStatus>(truth_.status);
  const std::string_view should = word(status_of(state, ended.value_or(JobStatus::error)));
  std::uint64_t epoch = 0;
  if (parse_u64(field_of(job_.record, "epoch"), epoch) && epoch > truth_.epoch) {
    add("record-epoch", "was run with epoch " + number(epoch) + ", and its claim has " + number(truth_.epoch) +
                            ": the fence has gone back");
  } else if (epoch != truth_.epoch) {
    add("record-words", "has a record with epoch " + number(epoch) + "; its claim decides: " + number(truth_.epoch));
  }
  if (status == "started" && state != JobState::live) {
    add("started-unclaimed", "has a record that says started, and is " + std::string(word(state)));
  } else if (status != should || (state == JobState::ended && detail != truth_.detail)) {
    add("record-words", "has a record that says " + shown(status) + ' ' + shown(detail) + "; its claim decides: " +
                            std::string(should) + ' ' + shown(state == JobState::ended ? truth_.detail : truth_.state));
  }
  if (state == JobState::ended && !job_.log_ended) {
    add("log-open", "has ended and its log has no last line: another client wrote or deleted it");
  }
}

}  // namespace

Finding finding(std::string_view rule, std::string subject, std::string text) {
  const auto rules = verify_rules();
  const auto row = std::find_if(rules.begin(), rules.end(), [&](const VerifyRule& each) { return each.name == rule; });
  // What stands in a store may come from anybody: one line of a terminal.
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return {row == rules.end() || row->violation, std::string(rule), std::move(subject), std::move(text)};
}

bool are_whole(const JobHistory& history, const Listing& listing) {
  return history.told() && !history.problem && listing.missing.empty();
}

std::vector<Finding> judge(const JobLook& look) { return Judge(look).run(); }

bool has_ended(const JobPlaces& job) {
  if (!job.claim.state.empty()) return job.claim.state == word(JobState::ended);
  const auto status = parse<JobStatus>(field_of(job.record, "status"));
  return status && is_terminal(*status);
}

std::string_view field_of(const Fields& fields, std::string_view name) {
  for (const auto& [each, value] : fields) {
    if (each == name) return value;
  }
  return {};
}

}  // namespace mycojobs
