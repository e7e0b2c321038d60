#include "cli/commands/flow_commands.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "base/parse.h"
#include "cli/command_output.h"
#include "cli/commands/commands.h"
#include "cli/commands/flow_start_commands.h"
#include "cli/request_arguments.h"
#include "cli/run_service.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "inspect/flow_drawing.h"
#include "inspect/flow_view.h"
#include "inspect/runner_view.h"
#include "model/codec.h"
#include "model/flow_data.h"
#include "model/result_values.h"
#include "store/keys.h"
#include "text/json.h"
#include "text/plural.h"
#include "text/terminal_text.h"
#include "text/timestamp.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

Result<FlowSession> add_flow_store(StoreSession store_session) {
  FlowSession session;
  static_cast<StoreSession&>(session) = std::move(store_session);
  MJ_TRY(flows, session.services.stores->open_flows());
  session.flows = std::move(flows);
  return session;
}

}  // namespace

Result<FlowSession> open_flow_session(const Invocation& call, bool with_agent) {
  MJ_TRY(session, open_store(call, with_agent));
  return add_flow_store(std::move(session));
}

Result<FlowSession> open_flow_session_for_query(const Invocation& call) {
  MJ_TRY(session, open_store_for_query(call));
  return add_flow_store(std::move(session));
}

void reopen_flow_session(const Invocation& call, FlowSession& session, bool with_agent) {
  const Store* previous_store = session.store.get();
  auto flows = std::move(session.flows);
  reopen_store(call, session, with_agent);
  if (session.store.get() != previous_store) {
    if (auto reopened = session.services.stores->open_flows()) flows = std::move(*reopened);
    session.cache = RunCache();
  }
  session.flows = std::move(flows);
}

std::optional<Id> parse_flow_id(std::string_view text) {
  if (text.starts_with("flow:")) text.remove_prefix(5);
  std::uint64_t id = 0;
  if (!parse_u64(text, id) || id == 0 || id > UINT32_MAX) return std::nullopt;
  return static_cast<Id>(id);
}

Result<Id> parse_flow_argument(const Invocation& call) {
  const std::string& text = call.arguments.at(0);
  if (const auto id = parse_flow_id(text)) return *id;
  return fail(Code::invalid,
              excerpt(text) + " is not a flow: give its id, for example 12; `mycojobs flow list` shows them");
}

std::string format_context_flag(const Invocation& call) {
  const Id context = call.context();
  return context == 1 ? "" : fmt::format(" --context {}", context);
}

void warn_if_no_leader(const Invocation& call, FlowSession& session) {
  const auto leader = session.flows->leader(call.context());
  if (!leader || !leader->first.empty()) return;
  print_message(paint(OutputStyle::warn, "no coordinator leads context " + std::to_string(call.context()), true) +
                ": flows go on when one starts (`mycojobs coordinator`, or `mycojobs dev`)");
}

namespace {

constexpr std::uint64_t kMaxFlowUnavailableMs = 30000;  // maximum time for which an unavailable store is retried
constexpr std::uint64_t kRedrawIntervalMs = 1000;       // interval for updating displayed times without a hint
// Minimum interval of queries. The interval is also at least ten times the duration of a query.
constexpr std::uint64_t kMinQueryIntervalMs = 100;
constexpr std::uint64_t kReasonDelayMs = 3000;  // delay before the reason why nothing runs is displayed
constexpr std::uint32_t kSignalPollMs = 100;    // maximum delay of the reaction to Ctrl-C

// Queries a flow repeatedly and displays its state.
class LiveFlowDisplay {
 public:
  LiveFlowDisplay(const Invocation& call, FlowSession& session, Id flow, const FlowDisplayStyle& style)
      : call_(call),
        session_(session),
        flow_(flow),
        style_(style),
        file_(style.to_stdout ? stdout : stderr),
        terminal_(get_terminal(file_)),
        is_redrawn_(terminal_.lines > 0 && !style.json) {}

  Result<FollowResult> follow() {
    quiet_since_ms_ = now();
    for (;;) {
      auto result = refresh();
      if (!result) {
        MJ_CHECK(check_unavailable(result.error()));
      } else {
        unavailable_since_ms_ = 0;
        if (has_ended(view_)) return FollowResult{std::move(view_), 0};
      }
      if (const int signal = wait(); signal != 0) return FollowResult{std::move(view_), signal};
    }
  }

 private:
  std::uint64_t now() const { return call_.dependencies.clock.boot_ms(); }

  Result<void> refresh() {
    const std::uint64_t begin_ms = now();
    MJ_TRY(view, inspect_flow(*session_.flows, *session_.store, call_.context(), flow_));
    const bool has_changed = query_count_ == 0 || view.revision != view_.revision || view.detail != view_.detail;
    view_ = std::move(view);
    ++query_count_;
    if (has_changed || view_.detail == "running" || has_ended(view_)) {
      quiet_since_ms_ = now();
      reason_.clear();
    }
    MJ_CHECK(print_reason());
    is_redrawn_ ? redraw() : report_changes();
    next_check_ms_ = now() + std::max(kMinQueryIntervalMs, 10 * (now() - begin_ms));
    return {};
  }

  // Determines the most important reason why nothing runs, after a delay without running nodes.
  Result<void> print_reason() {
    if (now() - quiet_since_ms_ < kReasonDelayMs || has_ended(view_)) return {};
    quiet_since_ms_ = now();
    auto reasons = explain_flow(*session_.flows, *session_.store, call_.context(), flow_);
    if (!reasons && reasons.error().code == Code::unavailable) return tl::unexpected(reasons.error());
    if (!reasons || reasons->empty()) return {};
    const FlowReason& reason = reasons->front();
    reason_ = to_printable_line(reason.reason) +
              (reason.next_action.empty() ? "" : "; next: " + to_printable_line(reason.next_action));
    const std::string cause = reason.cause + " " + reason.node;
    if (!is_redrawn_ && cause != shown_cause_ && !style_.json) print_message("waits: " + reason_);
    shown_cause_ = cause;
    return {};
  }

  void write(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), file_);
    std::fflush(file_);
  }

  void redraw() {
    terminal_ = get_terminal(file_);
    const std::size_t max_rows = std::max<std::size_t>(terminal_.lines, 6) - 2;
    std::string text = draw_text(view_, {std::max<std::size_t>(terminal_.columns, 2) - 1, terminal_.colour,
                                         terminal_.ascii, 2000, has_ended(view_) ? 0 : max_rows - count_reason_rows()});
    // Commands in the reason are not cut, so the line may occupy several rows of the terminal.
    if (!reason_.empty()) text += paint_reason(shorten_message(reason_, terminal_.columns - 1)) + "\n";
    // The cursor cannot move up beyond the terminal, so only the beginning of a taller text is drawn.
    std::string out = drawn_rows_ > 0 ? fmt::format("\r\033[{}A", drawn_rows_) : "";
    drawn_rows_ = 0;
    for (std::size_t line_begin = 0; line_begin < text.size();) {
      const std::size_t end = text.find('\n', line_begin);
      const std::string line = text.substr(line_begin, end - line_begin);
      const std::size_t rows = count_rows(line);
      if (!has_ended(view_) && drawn_rows_ + rows > max_rows) break;
      out += line + "\033[K\n";
      line_begin = end + 1;
      drawn_rows_ += rows;
    }
    write(out + "\033[J");
  }
  std::size_t count_rows(const std::string& line) const {
    const std::size_t width = std::max<std::size_t>(terminal_.columns, 1);
    return std::max<std::size_t>(1, (count_columns(line) + width - 1) / width);
  }
  // Returns the number of rows for the reason, which may include a command.
  std::size_t count_reason_rows() const {
    const std::size_t rows = reason_.empty() ? 1 : count_rows(shorten_message(reason_, terminal_.columns - 1));
    return std::min(rows, std::max<std::size_t>(terminal_.lines, 6) / 2);
  }
  std::string paint_reason(const std::string& text) const {
    return terminal_.colour ? "\033[33m" + text + "\033[0m" : text;
  }

  void report_changes() {
    for (const NodeView& node : view_.nodes) {
      const std::pair<std::string, std::string> state{to_string(node.status), node.detail};
      auto& reported_state = states_[node.name];
      const bool is_new = reported_state.first.empty();
      if (reported_state == state) continue;
      reported_state = state;
      if (is_new && node.status == NodeStatus::pending) continue;
      report_node(node);
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
      write(fmt::format("{}  {}\n", format_clock_time(), to_printable_line(format_headline(view_))));
    }
  }
  void report_node(const NodeView& node) {
    if (style_.json) {
      nlohmann::json line = to_json(node);
      line["ts_ms"] = view_.now_ms;
      line["flow"] = flow_;
      write(dump_json(line) + "\n");
      return;
    }
    const std::string runner =
        node.status == NodeStatus::running && node.runner != 0 ? fmt::format("  runner {}", node.runner) : "";
    const std::string error = node.error.empty() ? "" : "  " + shorten_message(to_printable_line(node.error), 160);
    write(fmt::format("{}  {}  {}{}{}\n", format_clock_time(), to_printable_line(node.name),
                      format_node_state(node, view_.now_ms), runner, error));
  }
  std::string format_clock_time() const {
    return fmt::format("{:%H:%M:%S}", fmt::localtime(static_cast<std::time_t>(view_.now_ms / 1000)));
  }

  // Returns a received stop signal, or 0 when the flow has changed or the next query is due.
  int wait() {
    const std::uint64_t next_redraw_ms = std::max(now() + kRedrawIntervalMs, next_check_ms_);
    bool has_changed = false;
    for (;;) {
      if (const int signal = next_follower_signal(0); signal != 0) return signal;
      if (now() >= next_redraw_ms || (has_changed && now() >= next_check_ms_)) return 0;
      has_changed = poll_hints() || has_changed;
    }
  }
  bool poll_hints() {
    if (!waiter_) {
      auto waiter = session_.services.stores->open_waiter({{call_.context(), queue_key("flow")}}, kFlowChangedChannel);
      if (waiter) waiter_ = std::move(*waiter);
    }
    auto wait_result = waiter_ ? waiter_->wait(kSignalPollMs, false) : fail(Code::unavailable, "no waiter");
    if (!wait_result) {
      waiter_.reset();
      ::poll(nullptr, 0, kSignalPollMs);
      return false;
    }
    const std::string flow_prefix = fmt::format("{} {} ", call_.context(), flow_);
    return std::any_of(wait_result->hints.begin(), wait_result->hints.end(),
                       [&](const std::string& hint) { return (hint + " ").starts_with(flow_prefix); });
  }

  // Returns an error if it is permanent, or if the store was unavailable for too long. Otherwise opens the store again.
  Result<void> check_unavailable(const Error& error) {
    if (error.code != Code::unavailable || query_count_ == 0) return tl::unexpected(error);
    if (unavailable_since_ms_ == 0) unavailable_since_ms_ = now();
    if (now() - unavailable_since_ms_ > kMaxFlowUnavailableMs) {
      return fail(Code::unavailable, fmt::format("{}; flow {} continues: `mycojobs flow watch {}{}` shows it again",
                                                 error.message, flow_, flow_, format_context_flag(call_)));
    }
    waiter_.reset();
    reopen_flow_session(call_, session_, style_.with_agent);
    return {};
  }

  const Invocation& call_;
  FlowSession& session_;
  Id flow_;
  FlowDisplayStyle style_;
  std::FILE* file_;
  Terminal terminal_;
  bool is_redrawn_;
  FlowView view_;
  std::uint64_t query_count_ = 0, quiet_since_ms_ = 0, next_check_ms_ = 0, unavailable_since_ms_ = 0;
  std::size_t drawn_rows_ = 0;
  std::string reason_, shown_cause_, detail_;
  std::map<std::string, std::pair<std::string, std::string>> states_;  // by node name, because nodes may be added
  std::unique_ptr<Waiter> waiter_;
};

}  // namespace

Result<FollowResult> follow_flow(const Invocation& call, FlowSession& session, Id flow, const FlowDisplayStyle& style) {
  return LiveFlowDisplay(call, session, flow, style).follow();
}

namespace {

int print_flow_json(const FlowView& view) {
  nlohmann::json object = to_json(view);
  object["result"] = to_typed_json(view.record.result, view.record.result_json);
  return print_json(object);
}

}  // namespace

void print_flow_end(const Invocation& call, const FlowView& view) {
  if (call.json) {
    print_flow_json(view);
    return;
  }
  print_result_messages(view.record.result);
  if (!view.record.error.empty())
    print_message(paint(OutputStyle::bad, "error: ", true) + to_printable_line(view.record.error));
  const bool is_finished = view.status == kFlowStatusFinished;
  const std::size_t skipped_count = count_skipped(view);
  print_message(
      paint(is_finished ? OutputStyle::good : OutputStyle::bad, fmt::format("flow {}", view.record.id), true) + " " +
      to_printable_line(view.detail) +
      (skipped_count == 0 ? "" : fmt::format(", {} skipped", count_with_noun(skipped_count, "node"))));
}

int exit_code(const FlowView& view) {
  if (view.status == kFlowStatusFinished) return EXIT_SUCCESS;
  return view.detail == "timeout" ? 124 : view.detail == "cancelled" ? 130 : EXIT_FAILURE;
}

// mycojobs flow list

namespace {

constexpr std::size_t kMaxScannedFlows = 100000;  // maximum of scanned catalog rows
constexpr std::uint64_t kPageSize = 1000;

// Returns the flows of as many pages as needed. FlowPage::after is 0 if no flow follows.
Result<service::FlowPage> find_flows(FlowSession& session, const service::RequestContext& caller,
                                     service::ListFlows request) {
  const std::uint64_t limit = request.limit;
  service::FlowPage found;
  do {
    request.limit = std::min<std::uint64_t>(limit - found.flows.size() + 1, kPageSize);
    MJ_TRY(page, service::page_flows(caller, session.stores(), request));
    std::move(page.flows.begin(), page.flows.end(), std::back_inserter(found.flows));
    std::move(page.malformed.begin(), page.malformed.end(), std::back_inserter(found.malformed));
    found.rows_read += page.rows_read;
    request.before = found.after = page.after;
  } while (found.after != 0 && found.flows.size() <= limit && found.rows_read < kMaxScannedFlows);
  if (found.flows.size() > limit) {
    found.flows.resize(limit);
    found.after = found.flows.back().flow.id;
  }
  return found;
}

Result<service::ListFlows> read_list_request(const Invocation& call) {
  MJ_TRY(params, read_request(call));
  service::ListFlows request = service::parse_list_flows(params);
  request.before = params.id("before");
  // --status is a status of the record, or a word of flow_display_states().
  request.status = parse<FlowStatus>(call.get("status"));
  if (!request.status) request.display_state = call.get("status");
  return request;
}

std::string get_list_state(const service::FlowRow& row) {
  return row.summary.record.empty() ? "retired" : row.display_state;
}

nlohmann::json to_json(const service::FlowRow& row) {
  nlohmann::json out = to_json(row.flow);
  out["flow"] = row.flow.id;
  out["detail"] = get_list_state(row);
  out["name"] = to_utf8(row.summary.name);
  out["at_ms"] = row.summary.at_ms;
  return out;
}

OutputStyle get_flow_style(const Flow& flow) {
  if (flow.status == FlowStatus::finished) return OutputStyle::good;
  return flow.status == FlowStatus::error ? OutputStyle::bad : OutputStyle::plain;
}

}  // namespace

Result<int> flow_list_command(Invocation& call) {
  MJ_TRY(request, read_list_request(call));
  MJ_TRY(caller, request_context(call));
  MJ_TRY(session, open_flow_session_for_query(call));
  MJ_TRY(page, find_flows(session, caller, request));
  if (page.after != 0) print_message(fmt::format("there are more: continue with --after {}", page.after));
  if (!page.malformed.empty()) {
    print_message(
        fmt::format("{}: {} no flow (the first is {}): `mycojobs verify` lists all, `mycojobs doctor --rebuild` "
                    "removes them",
                    kFlowCatalogKey, count_with_noun(page.malformed.size(), "entry names", "entries name"),
                    to_printable(page.malformed[0])));
  }
  nlohmann::json array = nlohmann::json::array();
  TableRows rows{{"FLOW", "NAME", "STATE", "CREATED", "ENDED", "ERROR"}};
  for (const service::FlowRow& row : page.flows) {
    const std::string state = get_list_state(row);
    array.push_back(to_json(row));
    rows.push_back({std::to_string(row.flow.id), shorten_text(to_printable_line(to_utf8(row.summary.name)), 40),
                    paint(row.summary.record.empty() ? OutputStyle::plain : get_flow_style(row.flow), state),
                    format_local_time(row.summary.at_ms), format_local_time(row.flow.ended_ms),
                    shorten_message(to_printable_line(to_utf8(row.flow.error)), 80)});
  }
  return print_listing(call, array, rows, TableFit::screen);
}

// mycojobs flow show | inspect | explain | result: read-only commands with a single query.

namespace {

OutputStyle get_node_style(NodeStatus status) {
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

std::string join_node_names(const FlowView& view, const std::vector<std::uint32_t>& indexes, std::size_t max_names) {
  std::string out;
  for (std::size_t i = 0; i < indexes.size(); ++i) {
    if (i == max_names) return out + fmt::format(" and {} more", indexes.size() - max_names);
    out += (i == 0 ? "" : ", ") + to_printable_line(to_utf8(view.nodes.at(indexes[i]).name));
  }
  return out;
}

// Returns the nodes in topological order.
std::vector<std::uint32_t> sort_nodes(const FlowView& view) {
  std::vector<std::uint32_t> order;
  for (const auto& layer : find_layers(view)) order.insert(order.end(), layer.begin(), layer.end());
  return order;
}

Result<FlowView> load_flow_view(const Invocation& call, FlowSession& session) {
  MJ_TRY(flow, parse_flow_argument(call));
  return inspect_flow(*session.flows, *session.store, call.context(), flow);
}

void print_anomalies(const FlowView& view) {
  for (const std::string& line : view.anomalies)
    print_message(paint(OutputStyle::bad, "anomaly: ", true) + to_printable_line(line));
}

void print_nodes(const FlowView& view) {
  const bool has_children =
      std::any_of(view.nodes.begin(), view.nodes.end(), [](const NodeView& node) { return node.child != 0; });
  TableRows rows{{"NODE", "KIND", "JOB", "STATE", "RUNNER", "NEEDS", "ERROR"}};
  if (has_children) rows[0].insert(rows[0].begin() + 3, "CHILD");
  for (std::uint32_t index : sort_nodes(view)) {
    const NodeView& node = view.nodes[index];
    std::vector<std::uint32_t> needs;
    for (std::uint32_t need : node.needs) {
      if (need < view.nodes.size()) needs.push_back(need);
    }
    rows.push_back({shorten_text(to_printable_line(to_utf8(node.name)), 40), node.kind,
                    node.job_key.empty() ? "-" : node.job_key.substr(4),
                    paint(get_node_style(node.status), format_node_state(node, view.now_ms)),
                    node.runner == 0 ? "" : std::to_string(node.runner), join_node_names(view, needs, 3),
                    shorten_message(to_printable_line(to_utf8(node.error)), 80)});
    if (has_children)
      rows.back().insert(rows.back().begin() + 3, node.child == 0 ? "" : fmt::format("flow:{}", node.child));
  }
  print_table(rows);
}

// Prints the questions of nodes to users, and the answers.
void print_answers(const FlowView& view) {
  for (std::uint32_t index : sort_nodes(view)) {
    const NodeView& node = view.nodes[index];
    const std::string name = paint(OutputStyle::strong, to_printable_line(to_utf8(node.name)));
    if (!node.prompt.empty()) print(name + " asks: " + to_printable_line(to_utf8(node.prompt)) + "\n");
    for (const FlowAnswer& answer : node.answers) {
      print(fmt::format("{} {}, {:%Y-%m-%d %H:%M:%S}\n", name, to_printable_line(to_utf8(describe(answer))),
                        fmt::localtime(static_cast<std::time_t>(answer.at_ms / 1000))));
    }
  }
}

OutputStyle get_cause_style(std::string_view cause) {
  for (std::string_view good_cause : {"finished", "running", "queued", "ready", "unapplied", "timer", "compensating"}) {
    if (cause == good_cause) return OutputStyle::good;
  }
  for (std::string_view bad_cause : {"failed", "node_failed", "definition_missing", "job_lost", "anomaly", "timeout"}) {
    if (cause == bad_cause) return OutputStyle::bad;
  }
  return OutputStyle::warn;
}

}  // namespace

Result<int> flow_show_command(Invocation& call) {
  MJ_TRY(session, open_flow_session_for_query(call));
  MJ_TRY(view, load_flow_view(call, session));
  if (call.json) return print_flow_json(view);
  print(paint(OutputStyle::strong, format_headline(view)) + "\n");
  if (!view.record.parent.empty()) print("parent   " + to_printable_line(view.record.parent) + "\n");
  if (const auto inputs = parse_flow_inputs(view.record); !inputs.is_null())
    print("inputs   " + shorten_text(to_printable_line(to_utf8(dump_json(inputs))), 1000) + "\n");
  if (view.hold_request) print("said     " + to_printable_line(to_utf8(describe(*view.hold_request))) + "\n");
  if (!view.record.error.empty()) print("error    " + to_printable_line(view.record.error) + "\n");
  print_nodes(view);
  print_answers(view);
  print_anomalies(view);
  return 0;
}

Result<int> flow_inspect_command(Invocation& call) {
  MJ_TRY(session, open_flow_session_for_query(call));
  MJ_TRY(view, load_flow_view(call, session));
  if (call.json) return print_json(to_json(view));
  print(paint(OutputStyle::strong, format_headline(view)) + "\n");
  const std::pair<const char*, const std::vector<std::uint32_t>*> lists[] = {
      {"planned", &view.planned},     {"visible", &view.visible}, {"claimed", &view.claimed},
      {"expired", &view.expired},     {"waiting", &view.waiting}, {"manual", &view.manual},
      {"unapplied", &view.unapplied}, {"applied", &view.applied}};
  TableRows rows;
  for (const auto& [title, list] : lists)
    rows.push_back({paint(OutputStyle::strong, title), std::to_string(list->size()), join_node_names(view, *list, 8)});
  rows.push_back({paint(OutputStyle::strong, "terminal"), has_ended(view) ? "yes" : "no"});
  rows.push_back({paint(OutputStyle::strong, "revision"), std::to_string(view.revision),
                  fmt::format("checkpoint at {}", view.checkpoint_revision)});
  rows.push_back(
      {paint(OutputStyle::strong, "events"), std::to_string(view.events_waiting), "that wait to be applied"});
  rows.push_back({paint(OutputStyle::strong, "definition"), view.has_plan ? "there" : "missing",
                  to_printable_line(to_utf8(view.record.definition_hash))});
  rows.push_back({paint(OutputStyle::strong, "anomalies"), std::to_string(view.anomalies.size())});
  print_table(rows);
  print_anomalies(view);
  return 0;
}

Result<int> flow_explain_command(Invocation& call) {
  MJ_TRY(flow, parse_flow_argument(call));
  MJ_TRY(session, open_flow_session_for_query(call));
  MJ_TRY(reasons, explain_flow(*session.flows, *session.store, call.context(), flow));
  if (call.json) {
    nlohmann::json out{{"flow", flow}, {"reasons", nlohmann::json::array()}};
    for (const FlowReason& reason : reasons) {
      out["reasons"].push_back(to_json(reason));
      if (reason.node.empty()) out["reasons"].back().erase("node");
    }
    return print_json(out);
  }
  for (const FlowReason& reason : reasons) {
    const std::string node = reason.node.empty() ? "" : " " + to_printable_line(to_utf8(reason.node));
    print(fmt::format("flow:{}{}  {}\n", flow, node, paint(get_cause_style(reason.cause), reason.cause)));
    std::vector<std::string> evidence;
    for (const std::string& line : reason.evidence) evidence.push_back(to_utf8(line));
    print_explanation(to_utf8(reason.reason), evidence, to_utf8(reason.next_action));
  }
  return 0;
}

Result<int> flow_result_command(Invocation& call) {
  MJ_TRY(session, open_flow_session_for_query(call));
  MJ_TRY(view, load_flow_view(call, session));
  if (!has_ended(view)) {
    return fail(Code::conflict, fmt::format("flow {} has not ended: it is {}; `mycojobs flow watch {}{}` shows its end",
                                            view.record.id, view.detail, view.record.id, format_context_flag(call)));
  }
  if (call.json) {
    print_json({{"flow", view.record.id},
                {"status", view.status},
                {"detail", view.detail},
                {"error", to_utf8(view.record.error)},
                {"result", to_typed_json(view.record.result, view.record.result_json)}});
  } else {
    for (const auto& [key, value] : view.record.result)
      print(paint(OutputStyle::strong, to_printable_line(key)) + " = " + to_printable(value) + "\n");
    if (!view.record.error.empty())
      print_message(paint(OutputStyle::bad, "error: ", true) + to_printable_line(view.record.error));
  }
  return exit_code(view);
}

// mycojobs flow graph | timeline | journal | watch

namespace {

constexpr std::size_t kMaxBoxNodes = 200;      // maximum of nodes that are drawn as boxes; larger flows are folded
constexpr std::size_t kMaxFactColumns = 400;   // maximum columns for the data of a fact
constexpr std::uint32_t kJournalPollMs = 250;  // interval of reading a followed journal

Result<GraphFormat> parse_format_flag(const Invocation& call, const Terminal& terminal) {
  const std::string text = call.get("format", call.json ? "json" : "");
  if (text.empty()) return terminal.ascii ? GraphFormat::ascii : GraphFormat::text;
  for (GraphFormat format :
       {GraphFormat::text, GraphFormat::ascii, GraphFormat::mermaid, GraphFormat::dot, GraphFormat::json}) {
    if (text == to_string(format)) return format;
  }
  return fail(Code::invalid, "--format: " + excerpt(text) + " is not one of text, ascii, mermaid, dot, json");
}

Result<FlowView> load_view_to_draw(const Invocation& call) {
  const std::string& argument = call.arguments.at(0);
  const auto flow = parse_flow_id(argument);
  if (!flow || ::access(argument.c_str(), F_OK) == 0) {
    MJ_TRY(plan, read_flow_file_argument(call));
    return make_plan_view(plan);
  }
  MJ_TRY(session, open_flow_session_for_query(call));
  return inspect_flow(*session.flows, *session.store, call.context(), *flow);
}

// Replaces the payload of a signal by its size, because only its sender and receivers may see it.
std::string replace_payload(const std::string& details) {
  auto parsed = parse_json(details.empty() ? "{}" : details);
  if (!parsed || !parsed->is_object()) return details;
  if (const auto payload = parsed->find("payload"); payload != parsed->end()) {
    const std::string text = payload->is_string() ? payload->get<std::string>() : dump_json(*payload);
    *payload = fmt::format("({} bytes)", text.size());
  }
  return parsed->empty() ? "" : dump_json(*parsed);
}

void print_flow_fact(const Invocation& call, const RunFact& fact) {
  const std::string details = replace_payload(fact.data_json);
  if (call.json) {
    nlohmann::json line{{"revision", fact.revision}, {"at_ms", fact.at_ms}, {"kind", to_utf8(fact.kind)}};
    if (fact.node) line["node"] = *fact.node;
    auto parsed = parse_json(details.empty() ? "{}" : details);
    line["more"] = parsed ? *parsed : nlohmann::json(to_utf8(details));
    print_json_line(line);
    return;
  }
  print(fmt::format("{:>6}  {}  {}{}{}\n", fact.revision, time_of_day(fact.at_ms),
                    to_printable_line(to_utf8(fact.kind)), fact.node ? fmt::format("  node {}", *fact.node) : "",
                    details.empty() ? "" : "  " + shorten_text(to_printable_line(to_utf8(details)), kMaxFactColumns)));
}

}  // namespace

Result<int> flow_graph_command(Invocation& call) {
  const Terminal terminal = get_terminal(stdout);
  MJ_TRY(format, parse_format_flag(call, terminal));
  exit_on_stop_signals();
  MJ_TRY(view, load_view_to_draw(call));
  print(draw_flow(view, format, terminal.columns, terminal.colour, kMaxBoxNodes));
  return 0;
}

Result<int> flow_timeline_command(Invocation& call) {
  MJ_TRY(flow, parse_flow_argument(call));
  MJ_TRY(session, open_flow_session_for_query(call));
  MJ_TRY(rows, flow_timeline(*session.flows, *session.store, call.context(), flow));
  nlohmann::json array = nlohmann::json::array();
  TableRows table{{"TIME", "AFTER", "NODE", "WHAT"}};
  const std::uint64_t begin_ms = rows.empty() ? 0 : rows.front().at_ms;
  for (const TimelineRow& row : rows) {
    array.push_back(to_json(row));
    table.push_back({row.at_ms == 0 ? "-" : time_of_day(row.at_ms),
                     row.at_ms < begin_ms ? "-" : "+" + format_short_duration(row.at_ms - begin_ms),
                     shorten_text(to_printable_line(to_utf8(row.node)), 40),
                     shorten_message(to_printable_line(to_utf8(row.text)), kMaxFactColumns)});
  }
  return print_listing(call, array, table);
}

Result<int> flow_journal_command(Invocation& call) {
  MJ_TRY(flow, parse_flow_argument(call));
  const bool follow = call.has("follow");
  MJ_TRY(session, open_flow_session(call, false));
  std::uint64_t last_revision = 0;
  for (;;) {
    MJ_TRY(page, session.flows->read(call.context(), flow, last_revision));
    if (page.record.empty())
      return fail(Code::not_found, fmt::format("flow {} does not exist in context {}", flow, call.context()));
    for (const RunFact& fact : page.facts) {
      print_flow_fact(call, fact);
      last_revision = std::max(last_revision, fact.revision);
    }
    for (const std::string& line : page.anomalies)
      print_message(paint(OutputStyle::bad, "anomaly: ", true) + to_printable_line(to_utf8(line)));
    if (page.has_more && !page.facts.empty()) {
      if (const int signal = next_follower_signal(0); signal != 0) return signal_exit_code(signal);
      continue;
    }
    const auto status = parse<FlowStatus>(field_of(page.record, "status"));
    const bool is_ended = status == FlowStatus::finished || status == FlowStatus::error;
    if (!follow || is_ended) return 0;
    if (const int signal = next_follower_signal(static_cast<int>(kJournalPollMs)); signal != 0)
      return signal_exit_code(signal);
  }
}

Result<int> flow_watch_command(Invocation& call) {
  MJ_TRY(flow, parse_flow_argument(call));
  MJ_TRY(session, open_flow_session(call, false));
  MJ_TRY(follow_result, follow_flow(call, session, flow, {.to_stdout = true, .json = call.json}));
  if (follow_result.signal != 0) return signal_exit_code(follow_result.signal);
  if (!call.json) print_flow_end(call, follow_result.view);
  return exit_code(follow_result.view);
}

// mycojobs flow cancel | pause | resume | approve | reject | retry | signal | replay | delete

namespace {

// detail: a word of flow_display_states().
void print_control_result(const Invocation& call, const FlowProgress& progress, Id flow, std::string_view outcome,
                          const std::string& detail) {
  const std::string_view result = progress.fact_count > 0 ? outcome : "is unchanged: the same request was made before";
  print_answer(call,
               {{"flow", flow},
                {"status", to_string(progress.status)},
                {"detail", detail},
                {"revision", progress.revision},
                {"changed", progress.fact_count > 0},
                {"answer", result}},
               fmt::format("flow {} {} ({})", flow, result, detail));
}

Result<int> control_flow(const Invocation& call, FlowControl::Verb verb, std::string_view outcome) {
  MJ_TRY(flow, parse_flow_argument(call));
  MJ_TRY(caller, request_context(call));
  nlohmann::json arguments{{"id", flow}};
  const bool has_name = service::find_param(*call.command->request, "name") != nullptr;
  if (call.arguments.size() > 1) arguments[has_name ? "name" : "node"] = call.arguments.at(1);
  MJ_TRY(params, read_request(call, std::move(arguments)));
  const service::ControlFlow request = service::parse_control_flow(params, verb);
  MJ_CHECK(to_command_line_error(call, service::check(request)));
  MJ_TRY(session, open_flow_session_for_query(call));
  MJ_TRY(result, to_command_line_error(call, service::control_flow(caller, session.stores(), request)));
  Flow flow_record;
  flow_record.id = flow;
  flow_record.status = result.status;
  flow_record.detail = result.detail;
  // The control has succeeded, so a failed query of the state is not an error of the command.
  print_control_result(call, result, flow, outcome,
                       read_display_state(*session.flows, *session.store, call.context(), flow_record)
                           .value_or(to_display_state(result.status, result.detail)));
  if (result.status == FlowStatus::started) warn_if_no_leader(call, session);
  return 0;
}

}  // namespace

using Verb = FlowControl::Verb;

Result<int> flow_cancel_command(Invocation& call) { return control_flow(call, Verb::cancel, "is being cancelled"); }
Result<int> flow_pause_command(Invocation& call) {
  return control_flow(call, Verb::pause, "is paused; running nodes continue");
}
Result<int> flow_resume_command(Invocation& call) { return control_flow(call, Verb::resume, "is resumed"); }
Result<int> flow_approve_command(Invocation& call) { return control_flow(call, Verb::approve, "has the approval"); }
Result<int> flow_reject_command(Invocation& call) { return control_flow(call, Verb::reject, "has the rejection"); }
Result<int> flow_retry_command(Invocation& call) { return control_flow(call, Verb::retry, "tries again"); }
Result<int> flow_signal_command(Invocation& call) { return control_flow(call, Verb::signal, "has the signal"); }

Result<int> flow_replay_command(Invocation& call) {
  MJ_TRY(source_flow, parse_flow_argument(call));
  MJ_TRY(params, read_request(call, {{"id", source_flow}}));
  MJ_TRY(caller, request_context(call));
  MJ_TRY(session, open_flow_session_for_query(call));
  const service::ReplayFlow request{.flow = source_flow, .allow_irreversible = params.flag("allow_irreversible")};
  MJ_TRY(flow, to_command_line_error(call, service::replay_flow(caller, session.stores(), request)));
  MJ_TRY(progress, service::start_flow(caller, session.stores(), {flow.id, fmt::format("replay:{}", source_flow)}));
  print_answer(call, {{"flow", flow.id}, {"replay_of", source_flow}, {"status", to_string(progress.status)}},
               fmt::format("flow:{}", flow.id));
  warn_if_no_leader(call, session);
  return 0;
}

Result<int> flow_delete_command(Invocation& call) {
  MJ_TRY(flow, parse_flow_argument(call));
  MJ_TRY(caller, request_context(call));
  MJ_TRY(session, open_flow_session_for_query(call));
  MJ_CHECK(to_command_line_error(call, service::delete_flow(caller, session.stores(), flow)));
  return print_answer(call, {{"flow", flow}, {"answer", "is deleted"}}, fmt::format("flow {} is deleted", flow));
}

}  // namespace mycojobs
