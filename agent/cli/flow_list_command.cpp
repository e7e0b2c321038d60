// mycojobs flow list
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "cli/commands.h"
#include "cli/flow_opened.h"
#include "cli/moment.h"
#include "cli/terminal.h"
#include "domain/codec.h"
#include "domain/utf8.h"
#include "inspect/flow_words.h"

namespace mycojobs {
namespace {

constexpr std::uint32_t kPage = 200;
constexpr std::size_t kLooked = 100000;  // rows of the catalog, where only some of them match

struct FlowLine {
  Id flow = 0;
  std::uint64_t at_ms = 0;
  std::string name;
  Flow record;
};

// A word of the record's status, or of flow_words().
bool is(const Flow& flow, std::string_view wanted) {
  return word(flow.status) == wanted || flow_word(flow.status, flow.detail) == wanted;
}

Result<std::vector<FlowLine>> find(FlowStore& flows, const Invocation& call, std::uint64_t limit) {
  const std::string status = call.get("status");
  std::vector<FlowLine> rows;
  Id before = 0;
  for (std::size_t looked = 0; looked < kLooked && rows.size() < limit;) {
    MJ_TRY(page, flows.list(context_of(call), call.get("name"), before, kPage));
    if (page.empty()) break;
    for (const FlowSummary& summary : page) {
      FlowLine row{summary.flow, summary.at_ms, summary.name, decode<Flow>(summary.record).record};
      const bool gone = summary.record.empty();
      if (!status.empty() && (gone || !is(row.record, status))) continue;
      if (gone) row.record.detail = "retired";
      if (rows.size() < limit) rows.push_back(std::move(row));
    }
    looked += page.size();
    const Id last = page.back().flow;
    if (page.size() < kPage || last == before) break;
    before = last;
  }
  return rows;
}

Result<void> check_status(const Invocation& call) {
  const std::string wanted = call.get("status");
  if (!call.has("status") || parse<FlowStatus>(wanted)) return {};
  std::string all = "dispatched, started, error, finished";
  for (const FlowWord& row : flow_words()) {
    if (row.word == wanted) return {};
    if (!parse<FlowStatus>(row.word)) all += ", " + std::string(row.word);
  }
  return fail(Code::invalid, "--status: " + shown(wanted) + " is none of " + all);
}

nlohmann::json json_of(const FlowLine& row) {
  nlohmann::json out = to_json(row.record);
  out["flow"] = row.flow;
  out["id"] = row.flow;
  out["name"] = to_utf8(row.name);
  out["at_ms"] = row.at_ms;
  return out;
}

Tone tone_of(const Flow& flow) {
  if (flow.status == FlowStatus::finished) return Tone::good;
  return flow.status == FlowStatus::error ? Tone::bad : Tone::plain;
}

Result<int> list_flows(const Invocation& call) {
  MJ_CHECK(check_status(call));
  std::uint64_t limit = 0;
  if (!parse_u64(call.get("limit", "50"), limit) || limit == 0)
    return fail(Code::invalid, "--limit: a whole number above 0");
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_TRY(rows, find(*open.flows, call, limit));
  if (call.json) {
    nlohmann::json array = nlohmann::json::array();
    for (const FlowLine& row : rows) array.push_back(json_of(row));
    print(dump_json(array, 2) + "\n");
    return 0;
  }
  std::vector<std::vector<std::string>> table{{"FLOW", "NAME", "STATE", "CREATED", "ENDED", "ERROR"}};
  for (const FlowLine& row : rows) {
    table.push_back({std::to_string(row.flow), shortened(one_line(to_utf8(row.name)), 40),
                     row.record.detail == "retired"
                         ? "retired"
                         : paint(tone_of(row.record), flow_word(row.record.status, row.record.detail)),
                     local_time(row.at_ms), local_time(row.record.ended_ms),
                     shortened_talk(one_line(to_utf8(row.record.error)), 80)});
  }
  print_table(table);
  return 0;
}

}  // namespace

int flow_list_command(Invocation& call) { return finish(list_flows(call)); }

}  // namespace mycojobs
