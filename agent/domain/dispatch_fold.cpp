#include <algorithm>
#include <cstddef>

#include "base/ids.h"
#include "domain/dispatch_journal.h"
#include "domain/utf8.h"

namespace mycojobs {
namespace {

using Shape = FactField::Shape;

// Why a job is parked, where it is then, and the word beside its status.
struct Parking {
  std::string_view why;
  JobState state;
  std::string_view detail;
};
constexpr auto kParkings = std::to_array<Parking>({{"dependencies", JobState::waiting, "dependencies"},
                                                   {"prerequisite", JobState::prerequisites, "prerequisite"},
                                                   {"held", JobState::held, "held"},
                                                   {"delayed", JobState::delayed, "delayed"}});

std::string_view text(const Fact& fact, std::string_view name) {
  for (const auto& [each, value] : fact.more) {
    if (each == name) return value;
  }
  return {};
}
std::uint64_t number(const Fact& fact, std::string_view name) {
  std::uint64_t value = 0;
  return parse_u64(text(fact, name), value) ? value : 0;
}
std::uint32_t count(const Fact& fact, std::string_view name) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(number(fact, name), UINT32_MAX));
}
// What stands in a journal may come from anybody: one line of a terminal, of bounded length.
class Folding {
 public:
  Folding(FoldedJob& job, const Fact& fact) : job_(job), fact_(fact) {}
  std::optional<FactProblem> run();

 private:
  using Verdict = std::optional<FactProblem>;
  Verdict problem(std::string_view rule, const std::string& what) const {
    return FactProblem{rule, "revision " + std::to_string(fact_.revision) + ": " + ascii(fact_.kind, 60) + ' ' + what};
  }
  Verdict impossible() const {
    const std::string where = job_.state == JobState::none ? "a job of which nothing is told" : "a job that is ";
    return problem(kFactOrder, "of " + where + std::string(word(job_.state)));
  }
  bool by_owner() const { return !text(fact_, "c").empty(); }

  Verdict check_fields() const;
  Verdict check_order() const;
  Verdict check_claim() const;
  Verdict check_counts() const;
  std::optional<JobState> next_state() const;
  void apply(JobState to);
  void apply_claim();
  void apply_end();
  Verdict restore();

  FoldedJob& job_;
  const Fact& fact_;
  FactKind kind_ = FactKind::scheduled;
};

std::optional<FactProblem> Folding::run() {
  if (fact_.revision == 0 || (!job_.revisions.empty() && fact_.revision <= job_.revisions.back())) {
    return problem(kFactRevision,
                   "stands after revision " + std::to_string(job_.revisions.empty() ? 0 : job_.revisions.back()));
  }
  job_.revisions.push_back(fact_.revision);
  const auto kind = parse_fact_kind(fact_.kind);
  if (!kind) return problem(kFactKind, "is no kind of fact");
  kind_ = *kind;
  if (kind_ == FactKind::restored) return restore();
  if (is_terminal(kind_)) ++job_.terminals;
  for (const auto check :
       {&Folding::check_fields, &Folding::check_order, &Folding::check_claim, &Folding::check_counts}) {
    if (auto wrong = (this->*check)()) return wrong;
  }
  const auto to = next_state();
  if (!to) return impossible();
  const auto event = event_of(kind_, job_.state, *to);
  if (event && !advance(job_.status, *event)) return impossible();
  if (event) job_.status = *advance(job_.status, *event);
  apply(*to);
  return std::nullopt;
}

std::optional<FactProblem> Folding::check_fields() const {
  if (fact_.at_ms == 0) return problem(kFactField, "has no moment (at)");
  for (const FactField& field : fact_shapes()[static_cast<std::size_t>(kind_)].fields) {
    if (field.name.empty()) break;
    const std::string_view value = text(fact_, field.name);
    const bool optional = field.shape == Shape::optional_text || field.shape == Shape::optional_number;
    if (value.empty() && !optional) return problem(kFactField, "lacks " + std::string(field.name));
    const bool numeric = field.shape == Shape::number || field.shape == Shape::optional_number;
    std::uint64_t ignored = 0;
    if (numeric && !value.empty() && !parse_u64(value, ignored)) {
      return problem(kFactField, std::string(field.name) + "=" + ascii(value, 60) + " is no whole number");
    }
  }
  if (is_terminal(kind_) && by_owner() && (text(fact_, "e").empty() || text(fact_, "g").empty())) {
    return problem(kFactField, "names a claim and lacks its epoch or the end's digest");
  }
  return std::nullopt;
}

std::optional<FactProblem> Folding::check_order() const {
  if (job_.state != JobState::ended || kind_ == FactKind::requeued || kind_ == FactKind::replanned) return std::nullopt;
  if (is_terminal(kind_)) return problem(kSecondEnd, "of a job that had ended");
  return problem(kAfterEnd, "of a job that had ended");
}

// What an owner says holds only of the latest claim, and only while it is live.
std::optional<FactProblem> Folding::check_claim() const {
  if (kind_ == FactKind::claimed) {
    if (job_.state == JobState::live)
      return problem(kFactOrder, "while claim " + ascii(job_.claim_id, 60) + " is live");
    if (number(fact_, "e") <= job_.epoch) {
      return problem(kFactEpoch,
                     "with epoch " + std::to_string(number(fact_, "e")) + " after epoch " + std::to_string(job_.epoch));
    }
    return std::nullopt;
  }
  if (!by_owner()) return std::nullopt;
  if (job_.state != JobState::live)
    return problem(kFactClaim, "by claim " + ascii(text(fact_, "c"), 60) + ", none is live");
  if (text(fact_, "c") != job_.claim_id) {
    return problem(kFactClaim,
                   "by claim " + ascii(text(fact_, "c"), 60) + ", the latest is " + ascii(job_.claim_id, 60));
  }
  if (!text(fact_, "e").empty() && number(fact_, "e") != job_.epoch) {
    return problem(kFactEpoch, "with epoch " + std::to_string(number(fact_, "e")) + ", that of the claim is " +
                                   std::to_string(job_.epoch));
  }
  return std::nullopt;
}

std::optional<FactProblem> Folding::check_counts() const {
  const auto expect = [&](const char* what, const char* name, std::uint32_t least, std::uint32_t most) -> Verdict {
    const std::uint32_t is = count(fact_, name);
    if (is >= least && is <= most) return std::nullopt;
    return problem(kFactCount,
                   std::string("with ") + what + ' ' + std::to_string(is) + ", " + std::to_string(most) + " is next");
  };
  if (kind_ == FactKind::claimed) {
    const std::uint32_t attempt = std::max(1U, job_.attempt);
    if (auto wrong = expect("attempt", "a", attempt, attempt)) return wrong;
    return expect("delivery", "d", job_.deliveries + 1, job_.deliveries + 1);
  }
  if (kind_ == FactKind::released) return expect("deliveries", "d", job_.deliveries - 1, job_.deliveries);
  const std::uint32_t next = std::max(1U, job_.attempt) + 1;
  if (kind_ == FactKind::requeued && job_.state == JobState::ended) return expect("attempt", "a", next, next);
  if (kind_ == FactKind::replanned && job_.state == JobState::ended) return expect("attempt", "a", next - 1, next);
  return std::nullopt;
}

std::optional<JobState> Folding::next_state() const {
  const JobState from = job_.state;
  const bool takeable = from == JobState::none || from == JobState::queued;
  const auto only = [](bool possible, JobState to) { return possible ? std::optional(to) : std::nullopt; };
  switch (kind_) {
    case FactKind::scheduled:
      return only(from == JobState::none, text(fact_, "due").empty() ? JobState::queued : JobState::delayed);
    case FactKind::parked:
      for (const Parking& each : kParkings) {
        if (each.why == text(fact_, "why")) return only(takeable, each.state);
      }
      return std::nullopt;
    case FactKind::queued: {
      const std::string_view why = text(fact_, "why");
      if (from == JobState::planned) return only(why == "flow", JobState::queued);
      for (const Parking& each : kParkings) {
        if (each.state == from) return only(why == (from == JobState::delayed ? "due" : each.why), JobState::queued);
      }
      return std::nullopt;
    }
    case FactKind::claimed:
      return only(takeable, JobState::live);
    case FactKind::heartbeat:
      return only(from == JobState::live, JobState::live);
    case FactKind::released:
    case FactKind::expired:
      return only(from == JobState::live, JobState::queued);
    case FactKind::retry:
      return only(from == JobState::live, JobState::delayed);
    case FactKind::completed:
      return only(from == (by_owner() ? JobState::live : JobState::planned), JobState::ended);
    case FactKind::failed:
      return only(by_owner() || from != JobState::live, JobState::ended);
    case FactKind::cancelled:
    case FactKind::dead_lettered:
      return JobState::ended;
    case FactKind::requeued:
      return only(from == JobState::ended && !job_.for_good, JobState::queued);
    case FactKind::planned:
      return only(from == JobState::none, JobState::planned);
    case FactKind::replanned:
      return only(from == JobState::ended && job_.status != JobStatus::finished, JobState::planned);
    case FactKind::restored:
      break;
  }
  return std::nullopt;
}

void Folding::apply(JobState to) {
  const JobState from = job_.state;
  job_.state = to;
  if (kind_ == FactKind::heartbeat) return;
  job_.since_ms = fact_.at_ms;
  job_.due_ms = to == JobState::delayed ? number(fact_, "due") : 0;
  if (kind_ == FactKind::claimed) return apply_claim();
  if (to == JobState::ended) return apply_end();
  if (kind_ == FactKind::scheduled) job_.message = text(fact_, "m");
  if (kind_ == FactKind::planned) job_.flow = text(fact_, "fl");
  job_.detail = to == JobState::queued ? "queued" : "delayed";
  if (to == JobState::planned) job_.detail = "planned";
  for (const Parking& each : kParkings) {
    if (each.state == to) job_.detail = each.detail;
  }
  if (from == JobState::live || kind_ == FactKind::requeued) job_.reason = fact_.kind;
  if (kind_ == FactKind::released) job_.deliveries = count(fact_, "d");
  if (kind_ == FactKind::retry) {
    ++job_.attempt;
    job_.deliveries = 0;
    job_.detail = "retry_wait";
  }
  if (kind_ == FactKind::requeued || kind_ == FactKind::replanned) {
    ++job_.lives;
    job_.status = status_of(to, job_.status);  // an operator's or a flow's doing, outside the machine as drawn
    job_.attempt = count(fact_, "a");
    job_.deliveries = 0;
    job_.claim_id.clear();
    job_.token_hash.clear();
    job_.digest.clear();
  }
}

void Folding::apply_claim() {
  job_.claim_id = text(fact_, "c");
  job_.token_hash = text(fact_, "t");
  job_.instance = text(fact_, "i");
  job_.epoch = number(fact_, "e");
  job_.attempt = count(fact_, "a");
  job_.deliveries = count(fact_, "d");
  job_.runner = count(fact_, "r");
  job_.lease_ms = number(fact_, "l");
  job_.detail = "claimed";
  job_.reason.clear();
}

// What came before has gaps: nothing of it counts but that it was there.
std::optional<FactProblem> Folding::restore() {
  if (auto wrong = check_fields()) return wrong;
  const auto state = parse_job_state(text(fact_, "s"));
  const auto ended = parse<JobStatus>(text(fact_, "st"));
  if (!state || *state == JobState::none)
    return problem(kFactField, "s=" + ascii(text(fact_, "s"), 60) + " is no state");
  if (*state == JobState::ended && (!ended || !is_terminal(*ended)))
    return problem(kFactField, "st=" + ascii(text(fact_, "st"), 60) + " is no end");
  FoldedJob job;
  job.revisions = std::move(job_.revisions);
  job.lives = job_.lives + 1;
  job.terminals = *state == JobState::ended ? 1 : 0;
  job_ = std::move(job);
  apply_claim();
  job_.state = *state;
  job_.status = status_of(*state, ended.value_or(JobStatus::error));
  job_.since_ms = *state == JobState::ended && number(fact_, "en") > 0 ? number(fact_, "en") : fact_.at_ms;
  job_.due_ms = *state == JobState::delayed ? number(fact_, "due") : 0;
  job_.digest = text(fact_, "g");
  job_.message = text(fact_, "m");
  job_.flow = text(fact_, "fl");
  job_.detail = text(fact_, "detail");
  job_.for_good = *state == JobState::ended && (job_.status == JobStatus::finished || job_.detail == "cancelled");
  return std::nullopt;
}

void Folding::apply_end() {
  job_.reason.clear();
  job_.message.clear();  // its message has counted this end; another life is none of it
  job_.for_good = kind_ == FactKind::completed || kind_ == FactKind::cancelled;
  job_.digest = text(fact_, "g");
  if (kind_ == FactKind::completed) job_.status = JobStatus::finished;
  if (!by_owner()) {
    job_.claim_id.clear();
    job_.token_hash.clear();
  }
  job_.detail = text(fact_, "detail");
  if (kind_ == FactKind::cancelled) job_.detail = "cancelled";
  if (kind_ == FactKind::dead_lettered) job_.detail = "dead_letter";
}

}  // namespace

std::optional<FactProblem> fold(FoldedJob& job, const Fact& fact) { return Folding(job, fact).run(); }

}  // namespace mycojobs
