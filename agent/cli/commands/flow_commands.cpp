#include "cli/commands/flow_commands.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <poll.h>
#include <sysexits.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/parse.h"
#include "cli/commands/command_table.h"
#include "cli/commands/flow_start_commands.h"
#include "cli/run_service.h"
#include "cli/terminal.h"
#include "inspect/draw_flow.h"
#include "inspect/flow_view.h"
#include "inspect/runner_view.h"
#include "model/codec.h"
#include "model/flow_data.h"
#include "model/result_values.h"
#include "store/redis/redis_flows.h"
#include "text/json.h"
#include "text/plural.h"
#include "text/suggestion.h"
#include "text/terminal_text.h"
#include "text/timestamp.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

Result<OpenedFlows> with_flows(OpenedStore opened) {
  OpenedFlows out;
  out.opened = std::move(opened);
  MJ_TRY(flows, out.opened.session.stores->open_flows());
  out.flows = std::move(flows);
  return out;
}

}  // namespace

Result<OpenedFlows> open_flows(const Invocation& call, bool with_agent) {
  MJ_TRY(opened, open_store(call, with_agent));
  return with_flows(std::move(opened));
}

Result<OpenedFlows> open_flows_to_answer(const Invocation& call) {
  MJ_TRY(opened, open_to_answer(call));
  return with_flows(std::move(opened));
}

void reopen_flows(const Invocation& call, OpenedFlows& open, bool with_agent) {
  const Store* before = open.opened.store.get();
  auto flows = std::move(open.flows);
  reopen(call, open.opened, with_agent);
  if (open.opened.store.get() != before) {
    if (auto again = open.opened.session.stores->open_flows()) flows = std::move(*again);
    open.cache = RunCache();
  }
  open.flows = std::move(flows);
}

std::optional<Id> flow_id(std::string_view text) {
  if (text.starts_with("flow:")) text.remove_prefix(5);
  std::uint64_t id = 0;
  if (!parse_u64(text, id) || id == 0 || id > UINT32_MAX) return std::nullopt;
  return static_cast<Id>(id);
}

Result<Id> flow_argument(const Invocation& call) {
  const std::string& text = call.arguments.at(0);
  if (const auto id = flow_id(text)) return *id;
  return fail(Code::invalid,
              excerpt(text) + " is not a flow: give its id, for example 12; `mycojobs flow list` shows them");
}

std::string context_words(const Invocation& call) {
  const Id context = context_of(call);
  return context == 1 ? "" : fmt::format(" --context {}", context);
}

void warn_if_no_leader(const Invocation& call, OpenedFlows& open) {
  const auto leader = open.flows->leader(context_of(call));
  if (!leader || !leader->first.empty()) return;
  print_message(paint(OutputStyle::warn, "no coordinator leads context " + std::to_string(context_of(call)), true) +
                ": flows go on when one starts (`mycojobs coordinator`, or `mycojobs dev`)");
}

namespace {

constexpr std::uint64_t kUnavailableMs = 30000;  // maximum time for which an unavailable store is retried
constexpr std::uint64_t kRedrawMs = 1000;        // interval for updating displayed times without a hint
// Minimum interval of queries. The interval is also at least ten times the duration of a query.
constexpr std::uint64_t kSoonestMs = 100;
constexpr std::uint64_t kTimeoutMs = 3000;  // delay before the reason why nothing runs is displayed
constexpr std::uint32_t kSliceMs = 100;     // maximum delay of the reaction to Ctrl-C
constexpr std::size_t kShownBytes = 1000;   // maximum of displayed bytes of a result value

bool is_over(const FlowView& view) { return view.status == "finished" || view.status == "error"; }

class LiveFlowDisplay {
 public:
  LiveFlowDisplay(const Invocation& call, OpenedFlows& open, Id flow, const LiveStyle& style)
      : call_(call),
        open_(open),
        flow_(flow),
        style_(style),
        to_(style.to_stdout ? stdout : stderr),
        terminal_(terminal_of(to_)),
        redraws_(terminal_.lines > 0 && !style.json) {}

  Result<FollowResult> follow() {
    quiet_since_ms_ = now();
    for (;;) {
      auto looked = look();
      if (!looked) {
        MJ_CHECK(outlive(looked.error()));
      } else {
        unavailable_since_ms_ = 0;
        if (is_over(view_)) return FollowResult{std::move(view_), 0};
      }
      if (const int signal = wait(); signal != 0) return FollowResult{std::move(view_), signal};
    }
  }

 private:
  std::uint64_t now() const { return call_.parts.clock.boot_ms(); }

  Result<void> look() {
    const std::uint64_t before = now();
    MJ_TRY(view, inspect_flow(*open_.flows, open_.store(), context_of(call_), flow_));
    const bool moved = seen_ == 0 || view.revision != view_.revision || view.detail != view_.detail;
    view_ = std::move(view);
    ++seen_;
    if (moved || view_.detail == "running" || is_over(view_)) {
      quiet_since_ms_ = now();
      reason_.clear();
    }
    MJ_CHECK(print_reason());
    redraws_ ? redraw() : report_changes();
    next_check_ms_ = now() + std::max(kSoonestMs, 10 * (now() - before));
    return {};
  }

  // After a pause without running nodes, determines the most important reason.
  Result<void> print_reason() {
    if (now() - quiet_since_ms_ < kTimeoutMs || is_over(view_)) return {};
    quiet_since_ms_ = now();
    auto reasons = explain_flow(*open_.flows, open_.store(), context_of(call_), flow_);
    if (!reasons && reasons.error().code == Code::unavailable) return tl::unexpected(reasons.error());
    if (!reasons || reasons->empty()) return {};
    const FlowReason& first = reasons->front();
    reason_ = one_line(first.reason) + (first.next.empty() ? "" : "; next: " + one_line(first.next));
    const std::string cause = first.cause + " " + first.node;
    if (!redraws_ && cause != shown_cause_ && !style_.json) print_message("waits: " + reason_);
    shown_cause_ = cause;
    return {};
  }

  void write(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), to_);
    std::fflush(to_);
  }

  void redraw() {
    terminal_ = terminal_of(to_);
    const std::size_t room = std::max<std::size_t>(terminal_.lines, 6) - 2;
    std::string text = draw_text(view_, {std::max<std::size_t>(terminal_.columns, 2) - 1, terminal_.colour,
                                         terminal_.ascii, 2000, is_over(view_) ? 0 : room - reason_rows()});
    // Commands in the reason are not cut; their line may occupy several rows of the terminal.
    if (!reason_.empty()) text += paint_note(shorten_message(reason_, terminal_.columns - 1)) + "\n";
    // The cursor cannot move up beyond the terminal, so only the beginning of a taller text is drawn.
    std::string out = drawn_ > 0 ? fmt::format("\r\033[{}A", drawn_) : "";
    drawn_ = 0;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = text.find('\n', at);
      const std::string line = text.substr(at, end - at);
      const std::size_t rows = rows_of(line);
      if (!is_over(view_) && drawn_ + rows > room) break;
      out += line + "\033[K\n";
      at = end + 1;
      drawn_ += rows;
    }
    write(out + "\033[J");
  }
  std::size_t rows_of(const std::string& line) const {
    const std::size_t width = std::max<std::size_t>(terminal_.columns, 1);
    return std::max<std::size_t>(1, (columns(line) + width - 1) / width);
  }
  // Number of rows for the reason, which may include a command.
  std::size_t reason_rows() const {
    const std::size_t rows = reason_.empty() ? 1 : rows_of(shorten_message(reason_, terminal_.columns - 1));
    return std::min(rows, std::max<std::size_t>(terminal_.lines, 6) / 2);
  }
  std::string paint_note(const std::string& text) const {
    return terminal_.colour ? "\033[33m" + text + "\033[0m" : text;
  }

  void report_changes() {
    for (const NodeView& node : view_.nodes) {
      const std::pair<std::string, std::string> state{to_string(node.status), node.detail};
      auto& before = states_[node.name];
      const bool first = before.first.empty();
      if (before == state) continue;
      before = state;
      if (first && node.status == NodeStatus::pending) continue;
      tell(node);
    }
    const std::string detail = view_.status + " " + view_.detail;
    if (detail == detail_) return;
    detail_ = detail;
    if (style_.json) {
      write(dump_json({{"ts_ms", view_.now_ms},
                       {"flow", flow_},
                       {"status", view_.status},
                       {"detail", view_.detail},
                       {"revision", view_.revision}}) +
            "\n");
    } else {
      write(fmt::format("{}  {}\n", clock(), one_line(headline(view_))));
    }
  }
  void tell(const NodeView& node) {
    if (style_.json) {
      nlohmann::json line = to_json(node);
      line["ts_ms"] = view_.now_ms;
      line["flow"] = flow_;
      write(dump_json(line) + "\n");
      return;
    }
    const std::string runner =
        node.status == NodeStatus::running && node.runner != 0 ? fmt::format("  runner {}", node.runner) : "";
    const std::string error = node.error.empty() ? "" : "  " + shorten_message(one_line(node.error), 160);
    write(fmt::format("{}  {}  {}{}{}\n", clock(), one_line(node.name), state_text(node, view_.now_ms), runner, error));
  }
  std::string clock() const {
    return fmt::format("{:%H:%M:%S}", fmt::localtime(static_cast<std::time_t>(view_.now_ms / 1000)));
  }

  // Returns a received stop signal, or 0 when the flow has changed or the next query is due.
  int wait() {
    const std::uint64_t until = std::max(now() + kRedrawMs, next_check_ms_);
    bool moved = false;
    for (;;) {
      if (const int signal = next_follower_signal(0); signal != 0) return signal;
      if (now() >= until || (moved && now() >= next_check_ms_)) return 0;
      moved = listen() || moved;
    }
  }
  bool listen() {
    if (!waiter_) {
      auto waiter = open_.opened.session.stores->open_waiter({{context_of(call_), queue_key("flow")}}, kFlowMovedTopic);
      if (waiter) waiter_ = std::move(*waiter);
    }
    auto woken = waiter_ ? waiter_->wait(kSliceMs, false) : fail(Code::unavailable, "no waiter");
    if (!woken) {
      waiter_.reset();
      ::poll(nullptr, 0, kSliceMs);
      return false;
    }
    const std::string ours = fmt::format("{} {} ", context_of(call_), flow_);
    return std::any_of(woken->hints.begin(), woken->hints.end(),
                       [&](const std::string& hint) { return (hint + " ").starts_with(ours); });
  }

  Result<void> outlive(const Error& error) {
    if (error.code != Code::unavailable || seen_ == 0) return tl::unexpected(error);
    if (unavailable_since_ms_ == 0) unavailable_since_ms_ = now();
    if (now() - unavailable_since_ms_ > kUnavailableMs) {
      return fail(Code::unavailable, fmt::format("{}; flow {} continues: `mycojobs flow watch {}{}` shows it again",
                                                 error.message, flow_, flow_, context_words(call_)));
    }
    waiter_.reset();
    reopen_flows(call_, open_, style_.with_agent);
    return {};
  }

  const Invocation& call_;
  OpenedFlows& open_;
  Id flow_;
  LiveStyle style_;
  std::FILE* to_;
  Terminal terminal_;
  bool redraws_;
  FlowView view_;
  std::uint64_t seen_ = 0, quiet_since_ms_ = 0, next_check_ms_ = 0, unavailable_since_ms_ = 0;
  std::size_t drawn_ = 0;
  std::string reason_, shown_cause_, detail_;
  std::map<std::string, std::pair<std::string, std::string>> states_;  // by node name, because nodes may be added
  std::unique_ptr<Waiter> waiter_;
};

}  // namespace

Result<FollowResult> follow_flow(const Invocation& call, OpenedFlows& open, Id flow, const LiveStyle& style) {
  return LiveFlowDisplay(call, open, flow, style).follow();
}

void print_flow_end(const Invocation& call, const FlowView& view) {
  if (call.json) {
    nlohmann::json out = to_json(view);
    out["result"] = typed_values(view.record.result, view.record.result_json);
    print(dump_json(out, 2) + "\n");
    return;
  }
  for (const auto& [key, value] : view.record.result) {
    const std::string more =
        value.size() > kShownBytes ? fmt::format("... ({} bytes; --json has all)", value.size()) : "";
    print_message(paint(OutputStyle::strong, one_line(key), true) + " = " +
                  printable(whole_characters(value, kShownBytes)) + more);
  }
  if (!view.record.error.empty()) print_message(paint(OutputStyle::bad, "error: ", true) + one_line(view.record.error));
  const bool good = view.status == "finished";
  const std::size_t skipped = count_skipped(view);
  print_message(paint(good ? OutputStyle::good : OutputStyle::bad, fmt::format("flow {}", view.record.id), true) + " " +
                one_line(view.detail) +
                (skipped == 0 ? "" : fmt::format(", {} skipped", count_with_noun(skipped, "node"))));
}

int exit_code(const FlowView& view) {
  if (view.status == "finished") return EXIT_SUCCESS;
  return view.detail == "timeout" ? 124 : view.detail == "cancelled" ? 130 : EXIT_FAILURE;
}

// mycojobs flow list, show, graph, timeline, watch, verify, logs, and control commands

namespace {

constexpr std::uint32_t kPage = 200;
constexpr std::size_t kCheckedFields = 100000;  // maximum of scanned catalog rows if a filter is set

struct FlowLine {
  Id flow = 0;
  std::uint64_t at_ms = 0;
  std::string name;
  Flow record;
  std::string word;  // a word of flow_words(), or "retired"
};

bool is_retired(const FlowLine& row) { return row.word == "retired"; }

// wanted: a status of the record, or a word of flow_words().
bool is(const FlowLine& row, std::string_view wanted) {
  return !is_retired(row) && (to_string(row.record.status) == wanted || row.word == wanted);
}

Result<FlowLine> line_of(OpenedFlows& open, Id context, const FlowSummary& summary) {
  FlowLine row{summary.flow, summary.at_ms, summary.name, decode<Flow>(summary.record).record, "retired"};
  row.record.id = summary.flow;
  if (summary.record.empty()) return row;
  MJ_TRY(word, flow_state_text(*open.flows, open.store(), context, row.record));
  row.word = std::move(word);
  return row;
}

struct FlowLines {
  std::vector<FlowLine> rows;
  Id after = 0;                        // value of --after for the next page; 0: this is the last page
  std::vector<std::string> malformed;  // ids of catalog entries that name no flow
};

Result<FlowLines> find(OpenedFlows& open, const Invocation& call, std::uint64_t limit, Id after) {
  const std::string status = call.get("status");
  FlowLines found{{}, after, {}};
  for (std::size_t looked = 0; looked < kCheckedFields;) {
    MJ_TRY(page, open.flows->list(context_of(call), call.get("name"), found.after, kPage, &found.malformed));
    for (const FlowSummary& summary : page) {
      if (found.rows.size() == limit) return found;  // at least one more flow exists
      found.after = summary.flow;
      MJ_TRY(row, line_of(open, context_of(call), summary));
      if (status.empty() || is(row, status)) found.rows.push_back(std::move(row));
    }
    looked += page.size();
    if (page.size() < kPage) {
      found.after = 0;
      return found;
    }
  }
  return found;
}

nlohmann::json json_of(const FlowLine& row) {
  nlohmann::json out = to_json(row.record);
  out["flow"] = row.flow;
  out["detail"] = row.word;
  out["name"] = to_utf8(row.name);
  out["at_ms"] = row.at_ms;
  return out;
}

OutputStyle tone_of(const Flow& flow) {
  if (flow.status == FlowStatus::finished) return OutputStyle::good;
  return flow.status == FlowStatus::error ? OutputStyle::bad : OutputStyle::plain;
}

Result<int> list_flows(const Invocation& call) {
  MJ_TRY(limit, count_flag(call, "limit", 50));
  MJ_TRY(after, id_flag(call, "after", 0));
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_TRY(found, find(open, call, limit, after));
  const std::vector<FlowLine>& rows = found.rows;
  if (found.after != 0) print_message(fmt::format("there are more: continue with --after {}", found.after));
  if (!found.malformed.empty()) {
    print_message(fmt::format(
        "mj:catalog: {} no flow (the first is {}): `mycojobs verify` lists all, `mycojobs doctor --rebuild` "
        "removes them",
        count_with_noun(found.malformed.size(), "entry names", "entries name"), printable(found.malformed[0])));
  }
  if (call.json) {
    nlohmann::json array = nlohmann::json::array();
    for (const FlowLine& row : rows) array.push_back(json_of(row));
    print(dump_json(array, 2) + "\n");
    return 0;
  }
  std::vector<std::vector<std::string>> table{{"FLOW", "NAME", "STATE", "CREATED", "ENDED", "ERROR"}};
  for (const FlowLine& row : rows) {
    table.push_back({std::to_string(row.flow), shortened(one_line(to_utf8(row.name)), 40),
                     is_retired(row) ? row.word : paint(tone_of(row.record), row.word), local_time(row.at_ms),
                     local_time(row.record.ended_ms), shorten_message(one_line(to_utf8(row.record.error)), 80)});
  }
  print_list(table);
  return 0;
}

}  // namespace

int flow_list_command(Invocation& call) { return finish(list_flows(call)); }

// mycojobs flow show | inspect | explain | result: read-only commands with a single query.

namespace {

OutputStyle tone_of(NodeStatus status) {
  switch (status) {
    case NodeStatus::completed:
      return OutputStyle::good;
    case NodeStatus::failed:
      return OutputStyle::bad;
    case NodeStatus::running:
      return OutputStyle::strong;
    case NodeStatus::dispatched:
    case NodeStatus::ready:
      return OutputStyle::warn;
    default:
      return OutputStyle::faint;
  }
}

std::string names(const FlowView& view, const std::vector<std::uint32_t>& indexes, std::size_t max) {
  std::string out;
  for (std::size_t i = 0; i < indexes.size(); ++i) {
    if (i == max) return out + fmt::format(" and {} more", indexes.size() - max);
    out += (i == 0 ? "" : ", ") + one_line(to_utf8(view.nodes.at(indexes[i]).name));
  }
  return out;
}

// Returns the nodes in topological order.
std::vector<std::uint32_t> in_order(const FlowView& view) {
  std::vector<std::uint32_t> order;
  for (const auto& layer : flow_layers(view)) order.insert(order.end(), layer.begin(), layer.end());
  return order;
}

Result<FlowView> look(const Invocation& call, OpenedFlows& open) {
  MJ_TRY(flow, flow_argument(call));
  return inspect_flow(*open.flows, open.store(), context_of(call), flow);
}

void print_anomalies(const FlowView& view) {
  for (const std::string& line : view.anomalies)
    print_message(paint(OutputStyle::bad, "anomaly: ", true) + one_line(line));
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
                    shorten_message(one_line(to_utf8(node.error)), 80)});
    if (children)
      rows.back().insert(rows.back().begin() + 3, node.child == 0 ? "" : fmt::format("flow:{}", node.child));
  }
  print_table(rows);
}

// Prints the questions to users and their answers.
void print_words(const FlowView& view) {
  for (std::uint32_t index : in_order(view)) {
    const NodeView& node = view.nodes[index];
    const std::string name = paint(OutputStyle::strong, one_line(to_utf8(node.name)));
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
  print(paint(OutputStyle::strong, headline(view)) + "\n");
  if (!view.record.parent.empty()) print("parent   " + one_line(view.record.parent) + "\n");
  if (const auto inputs = inputs_of(view.record); !inputs.is_null())
    print("inputs   " + shortened(one_line(to_utf8(dump_json(inputs))), 1000) + "\n");
  if (view.held_by) print("said     " + one_line(to_utf8(describe(*view.held_by))) + "\n");
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
  print(paint(OutputStyle::strong, headline(view)) + "\n");
  const std::pair<const char*, const std::vector<std::uint32_t>*> kLists[] = {
      {"planned", &view.planned},     {"visible", &view.visible}, {"claimed", &view.claimed},
      {"expired", &view.expired},     {"waiting", &view.waiting}, {"manual", &view.manual},
      {"unapplied", &view.unapplied}, {"applied", &view.applied}};
  std::vector<std::vector<std::string>> rows;
  for (const auto& [what, list] : kLists)
    rows.push_back({paint(OutputStyle::strong, what), std::to_string(list->size()), names(view, *list, 8)});
  rows.push_back(
      {paint(OutputStyle::strong, "terminal"), view.status == "finished" || view.status == "error" ? "yes" : "no"});
  rows.push_back({paint(OutputStyle::strong, "revision"), std::to_string(view.revision),
                  fmt::format("checkpoint at {}", view.checkpoint_at)});
  rows.push_back(
      {paint(OutputStyle::strong, "events"), std::to_string(view.events_waiting), "that wait to be applied"});
  rows.push_back({paint(OutputStyle::strong, "definition"), view.has_plan ? "there" : "missing",
                  one_line(to_utf8(view.record.definition_hash))});
  rows.push_back({paint(OutputStyle::strong, "anomalies"), std::to_string(view.anomalies.size())});
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

OutputStyle tone_of(std::string_view cause) {
  for (std::string_view good : {"finished", "running", "queued", "ready", "unapplied", "timer", "compensating"}) {
    if (cause == good) return OutputStyle::good;
  }
  for (std::string_view bad : {"failed", "node_failed", "definition_missing", "job_lost", "anomaly", "timeout"}) {
    if (cause == bad) return OutputStyle::bad;
  }
  return OutputStyle::warn;
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
    print(fmt::format("  {}   {}\n", paint(OutputStyle::strong, "reason"), one_line(to_utf8(reason.reason))));
    for (const std::string& line : reason.evidence)
      print(fmt::format("  {} {}\n", paint(OutputStyle::faint, "evidence"), one_line(to_utf8(line))));
    print(fmt::format("  {}     {}\n", paint(OutputStyle::strong, "next"), one_line(to_utf8(reason.next))));
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
      print(paint(OutputStyle::strong, one_line(key)) + " = " + printable(value) + "\n");
    if (!view.record.error.empty())
      print_message(paint(OutputStyle::bad, "error: ", true) + one_line(view.record.error));
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

constexpr std::size_t kMaxNodes = 200;        // maximum of nodes that are drawn as boxes; larger flows are folded
constexpr std::size_t kMaxDataColumns = 400;  // maximum columns for the data of a fact
constexpr std::uint32_t kJournalMs = 250;     // interval of reading a followed journal

std::string time_of_day(std::uint64_t unix_ms) {
  return fmt::format("{:%H:%M:%S}.{:03}", fmt::localtime(static_cast<std::time_t>(unix_ms / 1000)), unix_ms % 1000);
}

Result<GraphFormat> format_of(const Invocation& call, const Terminal& terminal) {
  const std::string text = call.get("format", call.json ? "json" : "");
  if (text.empty()) return terminal.ascii ? GraphFormat::ascii : GraphFormat::text;
  for (GraphFormat format :
       {GraphFormat::text, GraphFormat::ascii, GraphFormat::mermaid, GraphFormat::dot, GraphFormat::json}) {
    if (text == to_string(format)) return format;
  }
  return fail(Code::invalid, "--format: " + excerpt(text) + " is not one of text, ascii, mermaid, dot, json");
}

Result<FlowView> view_to_draw(const Invocation& call) {
  const std::string& argument = call.arguments.at(0);
  const auto flow = flow_id(argument);
  if (!flow || ::access(argument.c_str(), F_OK) == 0) {
    MJ_TRY(plan, flow_file_argument(call));
    return view_of_plan(plan);
  }
  MJ_TRY(open, open_flows_to_answer(call));
  return inspect_flow(*open.flows, open.store(), context_of(call), *flow);
}

Result<int> graph(const Invocation& call) {
  const Terminal terminal = terminal_of(stdout);
  MJ_TRY(format, format_of(call, terminal));
  exit_on_stop_signals();
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
         shortened(one_line(to_utf8(row.node)), 40), shorten_message(one_line(to_utf8(row.what)), kMaxDataColumns)});
  }
  print_table(table);
  return 0;
}

// Replaces the payload of a signal by its size, because only its sender and receivers may see it.
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
                    more.empty() ? "" : "  " + shortened(one_line(to_utf8(more)), kMaxDataColumns)));
}

Result<int> journal(const Invocation& call) {
  MJ_TRY(flow, flow_argument(call));
  const bool follow = call.has("follow");
  MJ_TRY(open, open_flows(call, false));
  std::uint64_t after = 0;
  for (;;) {
    MJ_TRY(page, open.flows->read(context_of(call), flow, after));
    if (page.record.empty())
      return fail(Code::not_found, fmt::format("flow {} does not exist in context {}", flow, context_of(call)));
    for (const RunFact& fact : page.facts) {
      print_fact(call, fact);
      after = std::max(after, fact.revision);
    }
    for (const std::string& line : page.anomalies)
      print_message(paint(OutputStyle::bad, "anomaly: ", true) + one_line(to_utf8(line)));
    if (page.more && !page.facts.empty()) {
      if (const int signal = next_follower_signal(0); signal != 0) return exit_of_signal(signal);
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
    if (const int signal = next_follower_signal(static_cast<int>(kJournalMs)); signal != 0)
      return exit_of_signal(signal);
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

constexpr int kPauseMs = 250;  // interval of queries for a running flow

using Nodes = std::vector<std::string>;  // empty: all nodes

Nodes chosen(const Invocation& call) {
  const auto found = call.flags.find("node");
  return found == call.flags.end() ? Nodes() : found->second;
}

Result<void> check(const FlowView& view, const Nodes& wanted) {
  std::vector<std::string_view> known;
  for (const NodeView& node : view.nodes) known.push_back(node.name);
  for (const std::string& name : wanted) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    return fail(Code::not_found, fmt::format("--node: flow {} has no node {}{}", view.record.id, excerpt(name),
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
  print(paint(err ? OutputStyle::warn : OutputStyle::faint, name + gap + " | ") + printable(each.line.text) + "\n");
}

std::size_t widest(const FlowView& view, const Nodes& wanted) {
  constexpr std::size_t kMaxColumns = 24;  // longer names are not aligned
  std::size_t width = 0;
  for (const NodeView& node : view.nodes) {
    const bool writes = node.kind.empty() || node.kind == "job" || node.kind == "log";
    const bool counts = wanted.empty() || std::find(wanted.begin(), wanted.end(), node.name) != wanted.end();
    if (writes && counts) width = std::max(width, std::min(kMaxColumns, columns(one_line(to_utf8(node.name)))));
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
    MJ_TRY(view, inspect_flow(*open.flows, open.store(), context_of(call), flow));
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
      if (const int signal = next_follower_signal(0); signal != 0) return exit_of_signal(signal);
    }
    if (!follow) return 0;
    if (over) return exit_code(view);
    if (const int signal = next_follower_signal(kPauseMs); signal != 0) return exit_of_signal(signal);
  }
}

}  // namespace

int flow_logs_command(Invocation& call) { return finish(logs(call)); }

// mycojobs flow cancel | pause | resume | approve | reject | retry | signal | replay | delete

namespace {

// detail: a word of flow_words().
void answer(const Invocation& call, const FlowProgress& now, Id flow, std::string_view what,
            const std::string& detail) {
  const std::string_view done = now.facts > 0 ? what : "is unchanged: the same request was made before";
  if (call.json) {
    print(dump_json({{"flow", flow},
                     {"status", to_string(now.status)},
                     {"detail", detail},
                     {"revision", now.revision},
                     {"changed", now.facts > 0},
                     {"answer", done}}) +
          "\n");
  } else {
    print(fmt::format("flow {} {} ({})\n", flow, done, detail));
  }
}

Result<int> control(const Invocation& call, FlowControl::Verb verb, std::string_view what) {
  MJ_TRY(flow, flow_argument(call));
  MJ_TRY(by, request_context(call));
  service::ControlFlow request{
      .flow = flow, .verb = verb, .comment = call.get("comment"), .payload = call.get("payload")};
  if (call.arguments.size() > 1) request.target = call.arguments.at(1);
  if (call.has("key")) request.key = call.get("key");
  request.allow_irreversible = call.has("allow-irreversible");
  MJ_CHECK(with_original_arguments(call, service::check(request)));
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_TRY(done, with_original_arguments(call, service::control_flow(by, open.stores(), request)));
  Flow after;
  after.id = flow;
  after.status = done.status;
  after.detail = done.detail;
  // The control has succeeded, so a failed query of the state is not an error of the command.
  answer(call, done, flow, what,
         flow_state_text(*open.flows, open.store(), context_of(call), after)
             .value_or(flow_word(done.status, done.detail)));
  if (done.status == FlowStatus::started) warn_if_no_leader(call, open);
  return 0;
}

Result<int> replay(const Invocation& call) {
  MJ_TRY(of, flow_argument(call));
  MJ_TRY(by, request_context(call));
  MJ_TRY(open, open_flows_to_answer(call));
  const service::ReplayFlow request{.flow = of, .allow_irreversible = call.has("allow-irreversible")};
  MJ_TRY(flow, with_original_arguments(call, service::replay_flow(by, open.stores(), request)));
  MJ_TRY(began, service::start_flow(by, open.stores(), {flow.id, fmt::format("replay:{}", of)}));
  if (call.json) {
    print(dump_json({{"flow", flow.id}, {"replay_of", of}, {"status", to_string(began.status)}}) + "\n");
  } else {
    print(fmt::format("flow:{}\n", flow.id));
  }
  warn_if_no_leader(call, open);
  return 0;
}

Result<int> remove(const Invocation& call) {
  MJ_TRY(flow, flow_argument(call));
  MJ_TRY(by, request_context(call));
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_CHECK(with_original_arguments(call, service::delete_flow(by, open.stores(), flow)));
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
int flow_pause_command(Invocation& call) {
  return finish(control(call, Verb::pause, "is paused; running nodes continue"));
}
int flow_resume_command(Invocation& call) { return finish(control(call, Verb::resume, "is resumed")); }
int flow_approve_command(Invocation& call) { return finish(control(call, Verb::approve, "has the approval")); }
int flow_reject_command(Invocation& call) { return finish(control(call, Verb::reject, "has the rejection")); }
int flow_retry_command(Invocation& call) { return finish(control(call, Verb::retry, "tries again")); }
int flow_signal_command(Invocation& call) { return finish(control(call, Verb::signal, "has the signal")); }
int flow_replay_command(Invocation& call) { return finish(replay(call)); }
int flow_delete_command(Invocation& call) { return finish(remove(call)); }

}  // namespace mycojobs
