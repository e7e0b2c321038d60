// mycojobs flow logs
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/flow_live.h"
#include "cli/flow_opened.h"
#include "cli/serve.h"
#include "cli/terminal.h"
#include "domain/codec.h"
#include "domain/nearest.h"
#include "domain/utf8.h"
#include "inspect/flow_logs.h"

namespace mycojobs {
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

}  // namespace mycojobs
