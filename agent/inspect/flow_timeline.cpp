// What happened in a run, in the order of its journal, and between it what its jobs' own journals tell of attempts.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "domain/codec.h"
#include "inspect/flow_reading.h"
#include "inspect/flow_words.h"
#include "inspect/runners.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::size_t kLongest = 300;   // bytes of one value
constexpr std::size_t kJobs = 500;      // whose attempts are told
constexpr std::size_t kJobFacts = 200;  // of one job, the latest
constexpr std::size_t kChunk = 200;     // places asked for in one call

std::string text_of(const json& value) {
  std::string text;
  if (value.is_array()) {
    for (const json& item : value) text += (text.empty() ? "" : ", ") + text_of(item);
  } else {
    text = value.is_string() ? value.get<std::string>() : dump_json(value);
  }
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

// What a node of this kind does once it is under way.
std::string begun(const std::string& as) {
  static constexpr std::pair<std::string_view, std::string_view> kBegun[] = {
      {"queued", "queued"},        {"approval", "waits for approval"}, {"pause", "waits to be resumed"},
      {"wait", "waits"},           {"flow", "starts a flow"},          {"log", "writes its line"},
      {"each", "begins its parts"}};
  for (const auto& [word, text] : kBegun) {
    if (as == word) return std::string(text);
  }
  return "dispatched as " + as;
}

std::string kind_of(const RunFact& fact, const json& more) {
  const auto text = [&](const char* name) {
    const auto found = more.find(name);
    return found == more.end() ? std::string() : text_of(*found);
  };
  if (fact.kind == "control" && more.contains("verb")) return done_word(text("verb"));
  if (fact.kind == "node_dispatched" && more.contains("as")) return begun(text("as"));
  if (fact.kind == "node_gated") return "waits for";
  if (fact.kind == "ended" && more.contains("status")) {
    const auto status = parse<FlowStatus>(text("status"));
    return "ended: " + (status ? flow_word(*status, text("detail")) : text("status"));
  }
  std::string kind = fact.kind.empty() ? "?" : fact.kind.substr(0, kLongest);
  if (fact.node && kind.starts_with("node_")) kind.erase(0, 5);
  std::replace(kind.begin(), kind.end(), '_', ' ');
  return kind;
}

// "approved ok by 12: ship it", "failed timeout: ...". What a signal carries is not shown.
std::string what_of(const RunFact& fact) {
  const auto more = parse_json(fact.more.empty() ? "{}" : fact.more);
  if (!more || !more->is_object()) return kind_of(fact, json::object()) + " (what it carries cannot be read)";
  std::string what = kind_of(fact, *more);
  static constexpr std::pair<const char*, const char*> kTold[] = {
      {"target", " "},       {"detail", " "}, {"outcome", " as "}, {"trigger", " by "}, {"gate", " "},
      {"gates", " "},        {"asks", ": "},  {"flow", " flow "},  {"actor", " by "},   {"by", " by "},
      {"failed", " after "}, {"error", ": "}, {"comment", ": "}};
  for (const auto& [key, before] : kTold) {
    const auto found = more->find(key);
    if (found == more->end() || found->is_null() || *found == "" || *found == 0) continue;
    if (fact.kind == "ended" && std::string_view(key) == "detail") continue;
    what += before + text_of(*found);
  }
  return what;
}

std::string field(const Fact& fact, std::string_view name) {
  for (const auto& [key, value] : fact.more) {
    if (key == name) return value.substr(0, kLongest);
  }
  return "";
}

// Of one job: attempts that did not end it. The end itself is the flow's to tell.
class Attempts {
 public:
  explicit Attempts(std::string node) : node_(std::move(node)) {}

  void take(const Fact& fact, std::vector<TimelineRow>& rows) {
    if (fact.kind == "claimed") {
      attempt_ = field(fact, "a");
      runner_ = field(fact, "r");
      return;
    }
    std::string what;
    if (fact.kind == "retry") {
      std::uint64_t due = 0;
      const bool later = parse_u64(field(fact, "due"), due) && due > fact.at_ms;
      what = fmt::format("attempt {} failed: {}{}; the next one is due {}", attempt_, field(fact, "detail"),
                         on_runner(), later ? "in " + span_text(due - fact.at_ms) : "at once");
    } else if (fact.kind == "expired") {
      what = fmt::format("attempt {} was lost{}: its lease ran out", attempt_, on_runner());
    } else if (fact.kind == "released") {
      const std::string why = field(fact, "why");
      what = fmt::format("attempt {} was given back{}{}{}", attempt_, on_runner(), why.empty() ? "" : ": ", why);
    } else {
      return;
    }
    rows.push_back({fact.at_ms, 0, node_, std::move(what)});
  }

 private:
  std::string on_runner() const { return runner_.empty() ? "" : ", runner " + runner_; }

  std::string node_, attempt_ = "?", runner_;
};

Result<void> read_attempts(Store& store, Id context, const std::string& node, const ClaimView& claim,
                           std::vector<TimelineRow>& rows) {
  Attempts attempts(node);
  const auto& revisions = claim.revisions;
  for (std::size_t i = revisions.size() - std::min(revisions.size(), kJobFacts); i < revisions.size(); ++i) {
    if (revisions[i] == 0) continue;
    MJ_TRY(facts, store.journal(context, claim.queue, revisions[i] - 1, 1));
    if (!facts.empty() && facts[0].revision == revisions[i]) attempts.take(facts[0], rows);
  }
  return {};
}

// In the order of time.
Result<std::vector<TimelineRow>> rows_of_attempts(Store& store, Id context, const FlowReading& reading) {
  std::vector<TimelineRow> rows;
  std::vector<std::string> keys, names;
  const Flow& record = reading.record;
  std::size_t jobs = 0;
  const auto look = [&]() -> Result<void> {
    MJ_TRY(places, store.places(context, keys, false));
    for (std::size_t i = 0; i < std::min(places.size(), names.size()); ++i) {
      const ClaimView& claim = places[i].claim;
      // Taken more than once, or failed and waiting: only then is there an attempt that did not end it.
      const bool again = claim.epoch > 1 || (claim.epoch == 1 && claim.state != "live" && claim.state != "ended");
      if (!again || claim.queue.empty() || jobs++ >= kJobs) continue;
      MJ_CHECK(read_attempts(store, context, names[i], claim, rows));
    }
    keys.clear();
    names.clear();
    return {};
  };
  for (std::uint32_t i = 0; reading.plan && i < reading.plan->nodes.size() && i < record.jobs.size(); ++i) {
    if (reading.plan->nodes[i].kind != NodeKind::job || reading.state.nodes.at(i).runs == 0) continue;
    keys.push_back(job_key(record.caller_id, record.jobs[i]));
    names.push_back(reading.plan->nodes[i].name);
    if (keys.size() == kChunk) MJ_CHECK(look());
  }
  if (!keys.empty()) MJ_CHECK(look());
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.at_ms < b.at_ms; });
  return rows;
}

}  // namespace

Result<std::vector<TimelineRow>> flow_timeline(FlowStore& flows, Store& store, Id context, Id flow, std::size_t max) {
  MJ_TRY(reading, read_flow(flows, context, flow));
  std::vector<std::string> anomalies;
  MJ_TRY(facts, read_facts(flows, context, flow, max, anomalies));
  MJ_TRY(attempts, rows_of_attempts(store, context, reading));
  std::vector<TimelineRow> rows;
  auto next = attempts.begin();
  for (const RunFact& fact : facts) {
    for (; next != attempts.end() && next->at_ms < fact.at_ms; ++next) rows.push_back(std::move(*next));
    TimelineRow row{fact.at_ms, fact.revision, "", what_of(fact)};
    if (fact.node) {
      const bool known = reading.plan && *fact.node < reading.plan->nodes.size();
      row.node = known ? reading.plan->nodes[*fact.node].name : fmt::format("node {}", *fact.node);
    }
    rows.push_back(std::move(row));
  }
  std::move(next, attempts.end(), std::back_inserter(rows));
  for (const std::string& line : anomalies) rows.push_back({0, 0, "", "anomaly: " + line});
  if (rows.size() > max) rows.resize(max);
  return rows;
}

}  // namespace mycojobs
