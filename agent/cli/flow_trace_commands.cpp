// mycojobs flow graph | timeline | journal | watch
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sysexits.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "cli/commands.h"
#include "cli/flow_file.h"
#include "cli/flow_live.h"
#include "cli/flow_opened.h"
#include "cli/serve.h"
#include "cli/terminal.h"
#include "domain/codec.h"
#include "domain/utf8.h"
#include "inspect/draw_flow.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxNodes = 200;     // drawn as boxes; larger flows are folded
constexpr std::size_t kLongest = 400;      // columns of what a fact carries
constexpr std::uint32_t kJournalMs = 250;  // how often a journal that is followed is read

std::string time_of_day(std::uint64_t unix_ms) {
  return fmt::format("{:%H:%M:%S}.{:03}", fmt::localtime(static_cast<std::time_t>(unix_ms / 1000)), unix_ms % 1000);
}

Result<GraphFormat> format_of(const Invocation& call, const Terminal& terminal) {
  const std::string text = call.get("format", call.json ? "json" : "");
  if (text.empty()) return terminal.ascii ? GraphFormat::ascii : GraphFormat::text;
  for (GraphFormat format :
       {GraphFormat::text, GraphFormat::ascii, GraphFormat::mermaid, GraphFormat::dot, GraphFormat::json}) {
    if (text == word(format)) return format;
  }
  return fail(Code::invalid, "--format: " + shown(text) + " is none of text, ascii, mermaid, dot, json");
}

Result<FlowView> view_to_draw(const Invocation& call) {
  const std::string& argument = call.arguments.at(0);
  const auto flow = flow_id(argument);
  if (!flow || ::access(argument.c_str(), F_OK) == 0) {
    MJ_TRY(plan, flow_file_argument(call));
    return view_of_plan(plan);
  }
  MJ_TRY(open, open_flows_to_answer(call));
  return look_at_flow(*open.flows, open.store(), context_of(call), *flow);
}

Result<int> graph(const Invocation& call) {
  const Terminal terminal = terminal_of(stdout);
  MJ_TRY(format, format_of(call, terminal));
  leave_at_stop_signals();
  MJ_TRY(view, view_to_draw(call));
  print(draw_flow(view, format, terminal.columns, terminal.colour, kMaxNodes));
  return 0;
}

Result<int> timeline(const Invocation& call) {
  MJ_TRY(flow, flow_argument(call));
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_TRY(rows, flow_timeline(*open.flows, open.store(), context_of(call), flow));
  if (call.json) {
    nlohmann::json array = nlohmann::json::array();
    for (const TimelineRow& row : rows)
      array.push_back(
          {{"at_ms", row.at_ms}, {"revision", row.revision}, {"node", to_utf8(row.node)}, {"what", to_utf8(row.what)}});
    print(dump_json(array, 2) + "\n");
    return 0;
  }
  std::vector<std::vector<std::string>> table{{"TIME", "AFTER", "NODE", "WHAT"}};
  const std::uint64_t begin = rows.empty() ? 0 : rows.front().at_ms;
  for (const TimelineRow& row : rows) {
    table.push_back(
        {row.at_ms == 0 ? "-" : time_of_day(row.at_ms), row.at_ms < begin ? "-" : "+" + short_span(row.at_ms - begin),
         shortened(one_line(to_utf8(row.node)), 40), shortened_talk(one_line(to_utf8(row.what)), kLongest)});
  }
  print_table(table);
  return 0;
}

// What a signal carries is its senders' and receivers' business: its size is told.
std::string without_payload(const std::string& more) {
  auto parsed = parse_json(more.empty() ? "{}" : more);
  if (!parsed || !parsed->is_object()) return more;
  if (const auto payload = parsed->find("payload"); payload != parsed->end()) {
    const std::string text = payload->is_string() ? payload->get<std::string>() : dump_json(*payload);
    *payload = fmt::format("({} bytes)", text.size());
  }
  return parsed->empty() ? "" : dump_json(*parsed);
}

void print_fact(const Invocation& call, const RunFact& fact) {
  const std::string more = without_payload(fact.more);
  if (call.json) {
    nlohmann::json line{{"revision", fact.revision}, {"at_ms", fact.at_ms}, {"kind", to_utf8(fact.kind)}};
    if (fact.node) line["node"] = *fact.node;
    auto parsed = parse_json(more.empty() ? "{}" : more);
    line["more"] = parsed ? *parsed : nlohmann::json(to_utf8(more));
    print(dump_json(line) + "\n");
    return;
  }
  print(fmt::format("{:>6}  {}  {}{}{}\n", fact.revision, time_of_day(fact.at_ms), one_line(to_utf8(fact.kind)),
                    fact.node ? fmt::format("  node {}", *fact.node) : "",
                    more.empty() ? "" : "  " + shortened(one_line(to_utf8(more)), kLongest)));
}

Result<int> journal(const Invocation& call) {
  MJ_TRY(flow, flow_argument(call));
  const bool follow = call.has("follow");
  MJ_TRY(open, open_flows(call, false));
  std::uint64_t after = 0;
  for (;;) {
    MJ_TRY(page, open.flows->read(context_of(call), flow, after));
    if (page.record.empty())
      return fail(Code::not_found, fmt::format("flow {}: there is none in context {}", flow, context_of(call)));
    for (const RunFact& fact : page.facts) {
      print_fact(call, fact);
      after = std::max(after, fact.revision);
    }
    for (const std::string& line : page.anomalies) say(paint(Tone::bad, "anomaly: ", true) + one_line(to_utf8(line)));
    if (page.more && !page.facts.empty()) {
      if (const int signal = next_stop_signal(0); signal != 0) return exit_of_signal(signal);
      continue;
    }
    const auto status = parse<FlowStatus>([&] {
      for (const auto& [name, value] : page.record) {
        if (name == "status") return value;
      }
      return std::string();
    }());
    const bool over = status == FlowStatus::finished || status == FlowStatus::error;
    if (!follow || over) return 0;
    if (const int signal = next_stop_signal(static_cast<int>(kJournalMs)); signal != 0) return exit_of_signal(signal);
  }
}

Result<int> watch(const Invocation& call) {
  MJ_TRY(flow, flow_argument(call));
  MJ_TRY(open, open_flows(call, false));
  MJ_TRY(followed, follow_flow(call, open, flow, {.to_stdout = true, .json = call.json}));
  if (followed.signal != 0) return exit_of_signal(followed.signal);
  if (!call.json) print_flow_end(call, followed.view);
  return exit_code(followed.view);
}

}  // namespace

int flow_graph_command(Invocation& call) { return finish(graph(call)); }
int flow_timeline_command(Invocation& call) { return finish(timeline(call)); }
int flow_journal_command(Invocation& call) { return finish(journal(call)); }
int flow_watch_command(Invocation& call) { return finish(watch(call)); }

}  // namespace mycojobs
