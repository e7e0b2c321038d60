#include "inspect/flow_logs.h"

#include <algorithm>

#include "inspect/draw_flow.h"

namespace mycojobs {
namespace {

constexpr std::size_t kLogPage = 256;            // pieces asked for in one call
constexpr std::size_t kLongestLine = 64U << 10;  // a longer one is told in parts

bool has_begun(const NodeView& node) {
  const bool skipped = node.status == NodeStatus::cancelled && node.started_ms == 0 && node.attempt == 0;
  return node.status >= NodeStatus::ready && !skipped;
}

// Ends what stands open there; nothing of an empty one.
void end_line(const NodeView& node, Log& open, std::vector<FlowLogLine>& out) {
  if (!open.text.empty() && open.text.back() == '\r') open.text.pop_back();
  out.push_back({node.name, node.job_key, open});
  open.text.clear();
}

void take(const NodeView& node, const Log& piece, std::map<LogStream, Log>& opens, std::vector<FlowLogLine>& out) {
  Log& open = opens[piece.stream];
  open.stream = piece.stream;
  for (const char c : piece.text) {
    if (open.text.empty()) open.ts_ms = piece.ts_ms;
    open.seq = piece.seq;
    if (c == '\n') {
      end_line(node, open, out);
    } else {
      open.text += c;
      if (open.text.size() >= kLongestLine) end_line(node, open, out);
    }
  }
}

}  // namespace

// True: there may be more of it now.
Result<bool> FlowLogs::read(const FlowView& view, const NodeView& node, Place& place, std::vector<FlowLogLine>& out) {
  const bool settled = node.status >= NodeStatus::completed;
  if (node.kind == "log") {
    place.over = settled;
    if (node.status != NodeStatus::completed) return false;
    const std::uint64_t at_ms = node.ended_ms != 0 ? node.ended_ms : node.since_ms;
    out.push_back({node.name, node.job_key, {at_ms, 1, LogStream::system, node.text}});
    return false;
  }
  MJ_TRY(page, store_.logs(context_, node.job_key, place.after, kLogPage, 0));
  for (const Log& piece : page.lines) {
    take(node, piece, place.open, out);
    place.after = std::max(place.after, piece.seq);
  }
  if (!page.lines.empty() && !page.ended) return true;
  // A job that failed may run again as long as its flow lives, and writes on then.
  const bool over = view.status == "finished" || view.status == "error";
  if (page.ended || settled) {
    for (auto& [stream, open] : place.open) {
      if (!open.text.empty()) end_line(node, open, out);
    }
  }
  place.over = settled && over;
  return false;
}

Result<std::vector<FlowLogLine>> FlowLogs::next(const FlowView& view, std::size_t max) {
  std::vector<FlowLogLine> out;
  for (const auto& layer : flow_layers(view)) {
    for (const std::uint32_t index : layer) {
      const NodeView& node = view.nodes[index];
      const bool writes = node.kind.empty() || node.kind == "job" || node.kind == "log";
      Place& place = places_[node.name];
      if (!writes || node.job_key.empty() || place.over || !has_begun(node)) continue;
      for (bool more = true; more;) {
        auto again = read(view, node, place, out);
        if (!again && again.error().code == Code::not_found) break;  // another client has deleted its record
        MJ_CHECK(again);
        if (out.size() >= max) return out;
        more = *again;
      }
    }
  }
  return out;
}

}  // namespace mycojobs
