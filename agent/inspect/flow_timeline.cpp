// What happened in a run, in the order of its journal.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "domain/codec.h"
#include "inspect/flow_reading.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::size_t kLongest = 300;  // bytes of one value

std::string text_of(const json& value) {
  std::string text = value.is_string() ? value.get<std::string>() : dump_json(value);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

// What somebody asked for, as what he did: "approved", beside it whom and what it was about.
std::string done(const std::string& verb) {
  static constexpr std::pair<std::string_view, std::string_view> kDone[] = {
      {"pause", "paused"},     {"resume", "resumed"},   {"approve", "approved"}, {"reject", "rejected"},
      {"signal", "signalled"}, {"cancel", "cancelled"}, {"retry", "retried"}};
  for (const auto& [word, past] : kDone) {
    if (verb == word) return std::string(past);
  }
  return verb;
}

// "approved ok by 12: ship it", "failed timeout: ...". What a signal carries is not shown.
std::string what_of(const RunFact& fact) {
  std::string kind = fact.kind.empty() ? "?" : fact.kind.substr(0, kLongest);
  if (fact.node && kind.starts_with("node_")) kind.erase(0, 5);
  std::replace(kind.begin(), kind.end(), '_', ' ');
  if (fact.more.empty()) return kind;
  const auto more = parse_json(fact.more);
  if (!more || !more->is_object()) return kind + " (what it carries cannot be read)";
  if (fact.kind == "control" && more->contains("verb")) kind = done(text_of((*more)["verb"]));
  static constexpr std::pair<const char*, const char*> kTold[] = {
      {"target", " "},     {"status", " as "},    {"detail", " "}, {"as", ": "},       {"outcome", " as "},
      {"trigger", " by "}, {"gate", " "},         {"gates", " "},  {"flow", " flow "}, {"actor", " by "},
      {"by", " by "},      {"failed", " after "}, {"error", ": "}, {"comment", ": "}};
  for (const auto& [key, before] : kTold) {
    const auto found = more->find(key);
    if (found == more->end() || found->is_null() || *found == "" || *found == 0) continue;
    kind += before + text_of(*found);
  }
  return kind;
}

}  // namespace

Result<std::vector<TimelineRow>> flow_timeline(FlowStore& flows, Id context, Id flow, std::size_t max) {
  MJ_TRY(reading, read_flow(flows, context, flow));
  std::vector<std::string> anomalies;
  MJ_TRY(facts, read_facts(flows, context, flow, max, anomalies));
  std::vector<TimelineRow> rows;
  for (const RunFact& fact : facts) {
    TimelineRow row{fact.at_ms, fact.revision, "", what_of(fact)};
    if (fact.node) {
      const bool known = reading.plan && *fact.node < reading.plan->nodes.size();
      row.node = known ? reading.plan->nodes[*fact.node].name : fmt::format("node {}", *fact.node);
    }
    rows.push_back(std::move(row));
  }
  for (const std::string& line : anomalies) {
    if (rows.size() < max) rows.push_back({0, 0, "", "anomaly: " + line});
  }
  return rows;
}

}  // namespace mycojobs
