#include "inspect/flow_reading.h"

#include <fmt/format.h>

#include "domain/codec.h"

namespace mycojobs {
namespace {

void note(std::vector<std::string>& anomalies, std::string line) {
  if (anomalies.size() < kMaxAnomalies) anomalies.push_back(std::move(line));
}

Result<void> find_plan(FlowStore& flows, Id context, FlowReading& out) {
  const std::string& hash = out.record.definition_hash;
  if (hash.empty()) {
    out.plan_problem = "its record names no definition";
    return {};
  }
  auto text = flows.definition(context, hash);
  if (!text && text.error().code == Code::unavailable) return tl::unexpected(text.error());
  if (!text) {
    out.plan_problem = text.error().message;
    return {};
  }
  auto plan = plan_of_text(*text, hash);
  if (plan) {
    out.plan = std::move(*plan);
  } else {
    out.plan_problem = plan.error().message;
  }
  return {};
}

// The journal may grow while we read: what came by the first look is enough, the rest is for the next one.
Result<void> fold_all(FlowStore& flows, Id context, FlowReading& out, RunRead first) {
  out.state = fresh(*out.plan);
  RunRead page = std::move(first);
  if (!page.checkpoint.empty()) {
    if (auto restored = restore(*out.plan, page.checkpoint)) {
      out.state = std::move(*restored);
    } else {
      MJ_TRY(from_start, flows.read(context, out.record.id, 0));
      page = std::move(from_start);
    }
  }
  for (;;) {
    for (std::string& line : page.anomalies) note(out.anomalies, std::move(line));
    for (const RunFact& fact : page.facts) fold(*out.plan, out.state, fact);
    if (!page.more || page.facts.empty()) break;
    const std::uint64_t after = page.facts.back().revision;
    MJ_TRY(next, flows.read(context, out.record.id, after));
    page = std::move(next);
  }
  for (const std::string& line : out.state.anomalies) note(out.anomalies, line);
  return {};
}

}  // namespace

Result<FlowReading> read_flow(FlowStore& flows, Id context, Id flow) {
  MJ_TRY(first, flows.read(context, flow, std::nullopt));
  if (first.record.empty()) {
    return fail(Code::not_found,
                fmt::format("flow {}: nothing in context {} knows it; `mycojobs flow list` shows those "
                            "that there are",
                            flow, context));
  }
  FlowReading out;
  auto decoded = decode<Flow>(first.record);
  out.record = std::move(decoded.record);
  for (const FieldProblem& problem : decoded.problems) note(out.anomalies, "record: " + problem.message);
  if (out.record.id != flow) {
    note(out.anomalies, fmt::format("record: its id is {}, its key says {}", out.record.id, flow));
    out.record.id = flow;
  }
  out.revision = first.revision;
  out.checkpoint_at = first.checkpoint_at;
  out.now_ms = first.now_ms;
  out.events = first.events;
  MJ_CHECK(find_plan(flows, context, out));
  if (out.plan) {
    MJ_CHECK(fold_all(flows, context, out, std::move(first)));
    return out;
  }
  note(out.anomalies, "definition: " + out.plan_problem);
  for (std::string& line : first.anomalies) note(out.anomalies, std::move(line));
  return out;
}

Result<std::vector<RunFact>> read_facts(FlowStore& flows, Id context, Id flow, std::size_t max,
                                        std::vector<std::string>& anomalies) {
  std::vector<RunFact> facts;
  std::uint64_t after = 0;
  while (facts.size() < max) {
    MJ_TRY(page, flows.read(context, flow, after));
    if (page.record.empty())
      return fail(Code::not_found, fmt::format("flow {}: there is none in context {}", flow, context));
    for (std::string& line : page.anomalies) note(anomalies, std::move(line));
    for (RunFact& fact : page.facts) {
      if (facts.size() < max) facts.push_back(std::move(fact));
    }
    if (!page.more || page.facts.empty()) break;
    // Times and numbers are another client's too: only what rises is gone on from.
    if (facts.empty() || facts.back().revision <= after) break;
    after = facts.back().revision;
  }
  return facts;
}

}  // namespace mycojobs
