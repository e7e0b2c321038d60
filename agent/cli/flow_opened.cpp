#include "cli/flow_opened.h"

#include <fmt/format.h>

#include "base/ids.h"
#include "cli/terminal.h"
#include "domain/utf8.h"

namespace mycojobs {
namespace {

Result<OpenedFlows> with_flows(Opened opened) {
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
  return fail(Code::invalid, shown(text) + " is no flow: give its id, as in 12; `mycojobs flow list` shows them");
}

std::string context_words(const Invocation& call) {
  const Id context = context_of(call);
  return context == 1 ? "" : fmt::format(" --context {}", context);
}

void warn_if_nobody_leads(const Invocation& call, OpenedFlows& open) {
  const auto leader = open.flows->leader(context_of(call));
  if (!leader || !leader->first.empty()) return;
  say(paint(Tone::warn, "no coordinator leads context " + std::to_string(context_of(call)), true) +
      ": flows go on when one starts (`mycojobs coordinator`, or `mycojobs dev`)");
}

}  // namespace mycojobs
