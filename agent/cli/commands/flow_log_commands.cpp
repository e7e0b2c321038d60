// The command `mycojobs flow logs`: prints the logs of the nodes of a flow, and with --follow continues until the flow
// has ended.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/command_output.h"
#include "cli/commands/commands.h"
#include "cli/commands/flow_commands.h"
#include "cli/log_output.h"
#include "cli/run_service.h"
#include "cli/terminal.h"
#include "inspect/flow_view.h"
#include "inspect/log_lines.h"
#include "model/codec.h"
#include "text/suggestion.h"
#include "text/terminal_text.h"
#include "text/timestamp.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr int kLogPollMs = 250;  // interval at which --follow reads new lines

using NodeNames = std::vector<std::string>;  // values of --node; an empty list selects all nodes

bool is_selected(const NodeNames& selected, const std::string& node) {
  return selected.empty() || std::find(selected.begin(), selected.end(), node) != selected.end();
}

Result<void> check_nodes_exist(const FlowView& view, const NodeNames& selected) {
  std::vector<std::string_view> names;
  for (const NodeView& node : view.nodes) names.push_back(node.name);
  for (const std::string& name : selected) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    return fail(Code::not_found, fmt::format("--node: flow {} has no node {}{}", view.record.id, excerpt(name),
                                             did_you_mean(name, names)));
  }
  return {};
}

// Prints the lines of the selected nodes, each with the name of its node. If the number of lines is limited, first
// collects the last lines of each node.
class FlowLogPrinter {
 public:
  FlowLogPrinter(const LogOptions& options, NodeNames selected)
      : options_(options),
        selected_(std::move(selected)),
        collects_lines_(options.max_lines != LogSelection::kAllLines) {}

  // Sets the names and the order of the nodes. Called before each batch of lines, because a running flow can add nodes.
  void set_nodes(const FlowView&);
  // Prints or collects a line. Lines of other nodes, and lines before LogOptions::since_ms, are ignored.
  void add_line(const FlowLogLine&);
  // Prints the collected lines by node. Afterwards add_line() prints each line at once.
  void print_last_lines();

 private:
  void print_line(const FlowLogLine&) const;

  LogOptions options_;
  NodeNames selected_;
  bool collects_lines_;                  // true until print_last_lines() if the number of lines is limited
  std::vector<std::string> node_names_;  // all nodes, in the order of the flow
  std::size_t name_width_ = 0;           // columns of the longest name, to align the lines
  std::map<std::string, std::deque<FlowLogLine>> last_lines_;  // collected lines, by node
};

void FlowLogPrinter::set_nodes(const FlowView& view) {
  constexpr std::size_t kMaxNameColumns = 24;  // the lines of longer names are not aligned
  node_names_.clear();
  name_width_ = 0;
  for (const NodeView& node : view.nodes) {
    node_names_.push_back(node.name);
    const bool has_output = node.kind.empty() || node.kind == "job" || node.kind == "log";
    if (has_output && is_selected(selected_, node.name))
      name_width_ =
          std::max(name_width_, std::min(kMaxNameColumns, count_columns(to_printable_line(to_utf8(node.name)))));
  }
}

void FlowLogPrinter::add_line(const FlowLogLine& log_line) {
  if (!is_selected(selected_, log_line.node) || log_line.line.ts_ms < options_.since_ms) return;
  if (!collects_lines_) return print_line(log_line);
  std::deque<FlowLogLine>& lines = last_lines_[log_line.node];
  lines.push_back(log_line);
  if (lines.size() > options_.max_lines) lines.pop_front();
}

void FlowLogPrinter::print_last_lines() {
  if (!std::exchange(collects_lines_, false)) return;
  for (const std::string& name : node_names_) {
    for (const FlowLogLine& line : std::exchange(last_lines_[name], {})) print_line(line);
  }
}

void FlowLogPrinter::print_line(const FlowLogLine& log_line) const {
  if (options_.json) {
    nlohmann::json fields = to_json(log_line.line);
    fields["node"] = to_utf8(log_line.node);
    fields["job"] = log_line.job_key;
    print_json_line(fields);
    return;
  }
  const std::string name = to_printable_line(to_utf8(log_line.node));
  const std::string padding(name_width_ - std::min(name_width_, count_columns(name)), ' ');
  const auto index =
      static_cast<std::size_t>(std::find(node_names_.begin(), node_names_.end(), log_line.node) - node_names_.begin());
  const bool is_stdout = log_line.line.stream == LogStream::out;
  const std::string time = options_.timestamps ? format_utc_time_ms(log_line.line.ts_ms) + " " : "";
  print(paint_distinct(index, name) + padding + paint(is_stdout ? OutputStyle::faint : OutputStyle::warn, " | ") +
        paint(OutputStyle::faint, time) + to_printable(log_line.line.text) + "\n");
}

}  // namespace

Result<int> flow_logs_command(Invocation& call) {
  MJ_TRY(flow, parse_flow_argument(call));
  MJ_TRY(options, read_log_options(call));
  const bool follow = call.has("follow");
  MJ_TRY(session, open_flow_session(call, false));
  const NodeNames& selected = call.get_all("node");
  FlowLogReader reader(*session.store, call.context(), *session.services.logs, selected);
  FlowLogPrinter printer(options, selected);
  for (bool is_first_round = true;; is_first_round = false) {
    MJ_TRY(view, inspect_flow(*session.flows, *session.store, call.context(), flow));
    MJ_CHECK(check_nodes_exist(view, selected));
    if (is_first_round && options.max_lines != LogSelection::kAllLines)
      MJ_CHECK(reader.skip_to_last_lines(view, options.max_lines));
    // Read before the lines: if the flow has ended, this round reads all remaining lines.
    const bool flow_has_ended = has_ended(view);
    printer.set_nodes(view);
    for (bool has_lines = true; has_lines;) {
      MJ_TRY(lines, reader.read_next(view));
      for (const FlowLogLine& line : lines) printer.add_line(line);
      has_lines = !lines.empty();
      if (const int signal = next_follower_signal(0); signal != 0) return signal_exit_code(signal);
    }
    printer.print_last_lines();
    if (!follow) return 0;
    if (flow_has_ended) return exit_code(view);
    if (const int signal = next_follower_signal(kLogPollMs); signal != 0) return signal_exit_code(signal);
  }
}

}  // namespace mycojobs
