// mycojobs flow list, show, graph, timeline, watch, verify, logs, and what steers one
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sysexits.h>
#include <unistd.h>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "cli/commands.h"
#include "cli/flow_file.h"
#include "cli/flow_live.h"
#include "cli/flow_opened.h"
#include "cli/moment.h"
#include "cli/serve.h"
#include "cli/terminal.h"
#include "domain/codec.h"
#include "domain/flow_data.h"
#include "domain/nearest.h"
#include "domain/result_values.h"
#include "domain/utf8.h"
#include "inspect/draw_flow.h"
#include "inspect/flow_logs.h"
#include "inspect/flow_words.h"
#include "inspect/runners.h"

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

// mycojobs flow show | inspect | explain | result: one look each; they change nothing.

namespace {

Tone tone_of(NodeStatus status) {
  switch (status) {
    case NodeStatus::completed:
      return Tone::good;
    case NodeStatus::failed:
      return Tone::bad;
    case NodeStatus::running:
      return Tone::strong;
    case NodeStatus::dispatched:
    case NodeStatus::ready:
      return Tone::warn;
    default:
      return Tone::faint;
  }
}

std::string names(const FlowView& view, const std::vector<std::uint32_t>& indexes, std::size_t most) {
  std::string out;
  for (std::size_t i = 0; i < indexes.size(); ++i) {
    if (i == most) return out + fmt::format(" and {} more", indexes.size() - most);
    out += (i == 0 ? "" : ", ") + one_line(to_utf8(view.nodes.at(indexes[i]).name));
  }
  return out;
}

// What comes first stands first.
std::vector<std::uint32_t> in_order(const FlowView& view) {
  std::vector<std::uint32_t> order;
  for (const auto& layer : flow_layers(view)) order.insert(order.end(), layer.begin(), layer.end());
  return order;
}

Result<FlowView> look(const Invocation& call, OpenedFlows& open) {
  MJ_TRY(flow, flow_argument(call));
  return look_at_flow(*open.flows, open.store(), context_of(call), flow);
}

void print_anomalies(const FlowView& view) {
  for (const std::string& line : view.anomalies) say(paint(Tone::bad, "anomaly: ", true) + one_line(line));
}

void print_nodes(const FlowView& view) {
  const bool children =
      std::any_of(view.nodes.begin(), view.nodes.end(), [](const NodeView& node) { return node.child != 0; });
  std::vector<std::vector<std::string>> rows{{"NODE", "KIND", "JOB", "STATE", "RUNNER", "NEEDS", "ERROR"}};
  if (children) rows[0].insert(rows[0].begin() + 3, "CHILD");
  for (std::uint32_t index : in_order(view)) {
    const NodeView& node = view.nodes[index];
    std::vector<std::uint32_t> needs;
    for (std::uint32_t need : node.needs) {
      if (need < view.nodes.size()) needs.push_back(need);
    }
    rows.push_back({shortened(one_line(to_utf8(node.name)), 40), node.kind,
                    node.job_key.empty() ? "-" : node.job_key.substr(4),
                    paint(tone_of(node.status), state_text(node, view.now_ms)),
                    node.runner == 0 ? "" : std::to_string(node.runner), names(view, needs, 3),
                    shortened_talk(one_line(to_utf8(node.error)), 80)});
    if (children)
      rows.back().insert(rows.back().begin() + 3, node.child == 0 ? "" : fmt::format("flow:{}", node.child));
  }
  print_table(rows);
}

// What is asked of people, and what they have said.
void print_words(const FlowView& view) {
  for (std::uint32_t index : in_order(view)) {
    const NodeView& node = view.nodes[index];
    const std::string name = paint(Tone::strong, one_line(to_utf8(node.name)));
    if (!node.asks.empty()) print(name + " asks: " + one_line(to_utf8(node.asks)) + "\n");
    for (const FlowAnswer& answer : node.answers) {
      print(fmt::format("{} {}, {:%Y-%m-%d %H:%M:%S}\n", name, one_line(to_utf8(describe(answer))),
                        fmt::localtime(static_cast<std::time_t>(answer.at_ms / 1000))));
    }
  }
}

Result<int> show_flow(const Invocation& call) {
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_TRY(view, look(call, open));
  if (call.json) {
    nlohmann::json out = to_json(view);
    out["result"] = typed_values(view.record.result, view.record.result_json);
    print(dump_json(out, 2) + "\n");
    return 0;
  }
  print(paint(Tone::strong, headline(view)) + "\n");
  if (!view.record.parent.empty()) print("parent   " + one_line(view.record.parent) + "\n");
  if (const auto inputs = inputs_of(view.record); !inputs.is_null())
    print("inputs   " + shortened(one_line(to_utf8(dump_json(inputs))), 1000) + "\n");
  if (view.said) print("said     " + one_line(to_utf8(describe(*view.said))) + "\n");
  if (!view.record.error.empty()) print("error    " + one_line(view.record.error) + "\n");
  print_nodes(view);
  print_words(view);
  print_anomalies(view);
  return 0;
}

Result<int> inspect(const Invocation& call) {
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_TRY(view, look(call, open));
  if (call.json) {
    print(dump_json(to_json(view), 2) + "\n");
    return 0;
  }
  print(paint(Tone::strong, headline(view)) + "\n");
  const std::pair<const char*, const std::vector<std::uint32_t>*> kLists[] = {
      {"planned", &view.planned},     {"visible", &view.visible}, {"claimed", &view.claimed},
      {"expired", &view.expired},     {"waiting", &view.waiting}, {"manual", &view.manual},
      {"unapplied", &view.unapplied}, {"applied", &view.applied}};
  std::vector<std::vector<std::string>> rows;
  for (const auto& [what, list] : kLists)
    rows.push_back({paint(Tone::strong, what), std::to_string(list->size()), names(view, *list, 8)});
  rows.push_back({paint(Tone::strong, "terminal"), view.status == "finished" || view.status == "error" ? "yes" : "no"});
  rows.push_back({paint(Tone::strong, "revision"), std::to_string(view.revision),
                  fmt::format("checkpoint at {}", view.checkpoint_at)});
  rows.push_back({paint(Tone::strong, "events"), std::to_string(view.events_waiting), "that wait to be applied"});
  rows.push_back({paint(Tone::strong, "definition"), view.has_plan ? "there" : "missing",
                  one_line(to_utf8(view.record.definition_hash))});
  rows.push_back({paint(Tone::strong, "anomalies"), std::to_string(view.anomalies.size())});
  print_table(rows);
  print_anomalies(view);
  return 0;
}

nlohmann::json json_of(const FlowReason& reason) {
  nlohmann::json out{{"cause", reason.cause},
                     {"reason", to_utf8(reason.reason)},
                     {"evidence", nlohmann::json::array()},
                     {"next", to_utf8(reason.next)}};
  for (const std::string& line : reason.evidence) out["evidence"].push_back(to_utf8(line));
  if (!reason.node.empty()) out["node"] = to_utf8(reason.node);
  return out;
}

Tone tone_of(std::string_view cause) {
  for (std::string_view good : {"finished", "running", "queued", "ready", "unapplied", "timer", "compensating"}) {
    if (cause == good) return Tone::good;
  }
  for (std::string_view bad : {"failed", "node_failed", "definition_missing", "job_lost", "anomaly", "timeout"}) {
    if (cause == bad) return Tone::bad;
  }
  return Tone::warn;
}

Result<int> explain_it(const Invocation& call) {
  MJ_TRY(flow, flow_argument(call));
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_TRY(reasons, explain_flow(*open.flows, open.store(), context_of(call), flow));
  if (call.json) {
    nlohmann::json out{{"flow", flow}, {"reasons", nlohmann::json::array()}};
    for (const FlowReason& reason : reasons) out["reasons"].push_back(json_of(reason));
    print(dump_json(out, 2) + "\n");
    return 0;
  }
  for (const FlowReason& reason : reasons) {
    const std::string node = reason.node.empty() ? "" : " " + one_line(to_utf8(reason.node));
    print(fmt::format("flow:{}{}  {}\n", flow, node, paint(tone_of(reason.cause), reason.cause)));
    print(fmt::format("  {}   {}\n", paint(Tone::strong, "reason"), one_line(to_utf8(reason.reason))));
    for (const std::string& line : reason.evidence)
      print(fmt::format("  {} {}\n", paint(Tone::faint, "evidence"), one_line(to_utf8(line))));
    print(fmt::format("  {}     {}\n", paint(Tone::strong, "next"), one_line(to_utf8(reason.next))));
  }
  return 0;
}

Result<int> result(const Invocation& call) {
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_TRY(view, look(call, open));
  if (view.status != "finished" && view.status != "error") {
    return fail(Code::conflict, fmt::format("flow {} has not ended: it is {}; `mycojobs flow watch {}{}` shows its end",
                                            view.record.id, view.detail, view.record.id, context_words(call)));
  }
  if (call.json) {
    print(dump_json({{"flow", view.record.id},
                     {"status", view.status},
                     {"detail", view.detail},
                     {"error", to_utf8(view.record.error)},
                     {"result", typed_values(view.record.result, view.record.result_json)}},
                    2) +
          "\n");
  } else {
    for (const auto& [key, value] : view.record.result)
      print(paint(Tone::strong, one_line(key)) + " = " + printable(value) + "\n");
    if (!view.record.error.empty()) say(paint(Tone::bad, "error: ", true) + one_line(view.record.error));
  }
  return exit_code(view);
}

}  // namespace

int flow_show_command(Invocation& call) { return finish(show_flow(call)); }
int flow_inspect_command(Invocation& call) { return finish(inspect(call)); }
int flow_explain_command(Invocation& call) { return finish(explain_it(call)); }
int flow_result_command(Invocation& call) { return finish(result(call)); }

// mycojobs flow graph | timeline | journal | watch

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

// mycojobs flow logs

namespace {

constexpr int kPauseMs = 250;  // between two looks at a flow that goes on

using Nodes = std::vector<std::string>;  // empty: all

Nodes chosen(const Invocation& call) {
  const auto found = call.flags.find("node");
  return found == call.flags.end() ? Nodes() : found->second;
}

Result<void> check(const FlowView& view, const Nodes& wanted) {
  std::vector<std::string_view> known;
  for (const NodeView& node : view.nodes) known.push_back(node.name);
  for (const std::string& name : wanted) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    return fail(Code::not_found, fmt::format("--node: flow {} has no node {}{}", view.record.id, shown(name),
                                             did_you_mean(name, known)));
  }
  return {};
}

void print_line(const Invocation& call, const FlowLogLine& each, std::size_t width) {
  if (call.json) {
    nlohmann::json line = to_json(each.line);
    line["node"] = to_utf8(each.node);
    line["job"] = each.job_key;
    print(dump_json(line) + "\n");
    return;
  }
  const std::string name = one_line(to_utf8(each.node));
  const std::string gap(width - std::min(width, columns(name)), ' ');
  const bool err = each.line.stream == LogStream::err;
  print(paint(err ? Tone::warn : Tone::faint, name + gap + " | ") + printable(each.line.text) + "\n");
}

std::size_t widest(const FlowView& view, const Nodes& wanted) {
  constexpr std::size_t kMost = 24;  // a longer name moves its own lines alone
  std::size_t width = 0;
  for (const NodeView& node : view.nodes) {
    const bool writes = node.kind.empty() || node.kind == "job" || node.kind == "log";
    const bool counts = wanted.empty() || std::find(wanted.begin(), wanted.end(), node.name) != wanted.end();
    if (writes && counts) width = std::max(width, std::min(kMost, columns(one_line(to_utf8(node.name)))));
  }
  return width;
}

Result<int> logs(const Invocation& call) {
  MJ_TRY(flow, flow_argument(call));
  const bool follow = call.has("follow");
  MJ_TRY(open, open_flows(call, false));
  FlowLogs reader(open.store(), context_of(call));
  const Nodes wanted = chosen(call);
  for (;;) {
    MJ_TRY(view, look_at_flow(*open.flows, open.store(), context_of(call), flow));
    MJ_CHECK(check(view, wanted));
    const bool over = view.status == "finished" || view.status == "error";
    const std::size_t width = widest(view, wanted);
    for (bool more = true; more;) {
      MJ_TRY(lines, reader.next(view));
      for (const FlowLogLine& line : lines) {
        const bool counts = wanted.empty() || std::find(wanted.begin(), wanted.end(), line.node) != wanted.end();
        if (counts) print_line(call, line, width);
      }
      more = !lines.empty();
      if (const int signal = next_stop_signal(0); signal != 0) return exit_of_signal(signal);
    }
    if (!follow) return 0;
    if (over) return exit_code(view);
    if (const int signal = next_stop_signal(kPauseMs); signal != 0) return exit_of_signal(signal);
  }
}

}  // namespace

int flow_logs_command(Invocation& call) { return finish(logs(call)); }

// mycojobs flow cancel | pause | resume | approve | reject | retry | signal | replay | delete

namespace {

void answer(const Invocation& call, const FlowProgress& now, Id flow, std::string_view what) {
  const std::string_view told = now.facts > 0 ? what : "is as it was: this had been asked for before";
  if (call.json) {
    print(dump_json({{"flow", flow},
                     {"status", word(now.status)},
                     {"detail", now.detail},
                     {"revision", now.revision},
                     {"changed", now.facts > 0},
                     {"answer", told}}) +
          "\n");
  } else {
    print(fmt::format("flow {} {} ({})\n", flow, told, flow_word(now.status, now.detail)));
  }
}

Result<int> control(const Invocation& call, FlowControl::Verb verb, std::string_view what) {
  MJ_TRY(flow, flow_argument(call));
  MJ_TRY(by, who_asks(call));
  service::ControlFlow wish{.flow = flow, .verb = verb, .comment = call.get("comment"), .payload = call.get("payload")};
  if (call.arguments.size() > 1) wish.target = call.arguments.at(1);
  if (call.has("key")) wish.key = call.get("key");
  MJ_CHECK(as_typed(call, service::check(wish)));
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_TRY(done, as_typed(call, service::control_flow(by, open.stores(), wish)));
  answer(call, done, flow, what);
  if (done.status == FlowStatus::started) warn_if_nobody_leads(call, open);
  return 0;
}

Result<int> replay(const Invocation& call) {
  MJ_TRY(of, flow_argument(call));
  MJ_TRY(by, who_asks(call));
  MJ_TRY(open, open_flows_to_answer(call));
  const service::ReplayFlow wish{.flow = of, .allow_irreversible = call.has("allow-irreversible")};
  MJ_TRY(flow, as_typed(call, service::replay_flow(by, open.stores(), wish)));
  MJ_TRY(began, service::start_flow(by, open.stores(), {flow.id, fmt::format("replay:{}", of)}));
  if (call.json) {
    print(dump_json({{"flow", flow.id}, {"replay_of", of}, {"status", word(began.status)}}) + "\n");
  } else {
    print(fmt::format("flow:{}\n", flow.id));
  }
  warn_if_nobody_leads(call, open);
  return 0;
}

Result<int> remove(const Invocation& call) {
  MJ_TRY(flow, flow_argument(call));
  MJ_TRY(by, who_asks(call));
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_CHECK(as_typed(call, service::delete_flow(by, open.stores(), flow)));
  if (call.json) {
    print(dump_json({{"flow", flow}, {"answer", "is deleted"}}) + "\n");
  } else {
    print(fmt::format("flow {} is deleted\n", flow));
  }
  return 0;
}

}  // namespace

using Verb = FlowControl::Verb;

int flow_cancel_command(Invocation& call) { return finish(control(call, Verb::cancel, "is being cancelled")); }
int flow_pause_command(Invocation& call) { return finish(control(call, Verb::pause, "is paused; what runs goes on")); }
int flow_resume_command(Invocation& call) { return finish(control(call, Verb::resume, "goes on")); }
int flow_approve_command(Invocation& call) { return finish(control(call, Verb::approve, "has the approval")); }
int flow_reject_command(Invocation& call) { return finish(control(call, Verb::reject, "has the rejection")); }
int flow_retry_command(Invocation& call) { return finish(control(call, Verb::retry, "tries again")); }
int flow_signal_command(Invocation& call) { return finish(control(call, Verb::signal, "has the signal")); }
int flow_replay_command(Invocation& call) { return finish(replay(call)); }
int flow_delete_command(Invocation& call) { return finish(remove(call)); }

}  // namespace mycojobs
