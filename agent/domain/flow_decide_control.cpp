// What people ask for: pause, resume, cancel; answers to manual steps and gates are in flow_decide_answer.cpp.
#include <algorithm>

#include "base/sha256.h"
#include "domain/codec.h"
#include "domain/flow_decide_run.h"
#include "domain/transitions.h"
#include "domain/utf8.h"

namespace mycojobs::runs {
namespace {

using Verb = FlowControl::Verb;

constexpr std::size_t kMaxComment = 4096;
constexpr std::size_t kMaxPayload = 64U << 10;
constexpr std::size_t kMaxKey = 256;
constexpr std::size_t kMaxTarget = 256;
constexpr std::size_t kMaxKeys = 10000;

Result<void> check_sizes(const FlowControl& control) {
  const auto at_most = [](std::string_view field, const std::string& text, std::size_t max) -> Result<void> {
    if (text.size() <= max) return {};
    return fail(Code::too_large,
                std::string(field) + ": " + std::to_string(text.size()) + " bytes; at most " + std::to_string(max));
  };
  MJ_CHECK(at_most("comment", control.comment, kMaxComment));
  MJ_CHECK(at_most("payload", control.payload, kMaxPayload));
  MJ_CHECK(at_most("key", control.key, kMaxKey));
  MJ_CHECK(at_most("target", control.target, kMaxTarget));
  const std::pair<std::string_view, const std::string*> texts[] = {
      {"comment", &control.comment}, {"key", &control.key}, {"target", &control.target}};
  for (const auto& [field, text] : texts) {
    if (!is_utf8(*text)) return fail(Code::invalid, std::string(field) + ": is not UTF-8");
  }
  if (control.payload.empty()) return {};
  if (control.verb != Verb::signal) return fail(Code::invalid, "payload: only a signal carries one");
  MJ_TRY(payload, parse_json(control.payload, kMaxPayload));
  (void)payload;
  return {};
}

}  // namespace

std::string digest_of(const FlowControl& control) {
  const nlohmann::json all{word(control.verb), control.target, control.actor, control.comment, control.payload};
  return sha256_hex(dump_json(all)).substr(0, 32);
}

void Deciding::record(const FlowControl& control) {
  Json more{{"verb", word(control.verb)}};
  if (!control.target.empty()) more["target"] = control.target;
  if (control.actor != 0) more["actor"] = control.actor;
  if (!control.comment.empty()) more["comment"] = control.comment;
  if (!control.payload.empty()) more["payload"] = control.payload;
  if (!control.key.empty()) {
    more["key"] = control.key;
    more["digest"] = digest_of(control);
  }
  emit("control", std::nullopt, more);
}

Result<void> Deciding::control(const FlowControl& control) {
  MJ_CHECK(check_sizes(control));
  if (!control.key.empty()) {
    const auto known = run().keys.find(control.key);
    if (known != run().keys.end() && known->second == digest_of(control)) return {};
    if (known != run().keys.end()) {
      return fail(Code::conflict, "key: " + shown(control.key) + " was given with another control; take a new key");
    }
    if (run().keys.size() >= kMaxKeys) {
      return fail(Code::too_large, "key: this flow has kept " + std::to_string(kMaxKeys) +
                                       " keys, and keeps no more; leave the key out");
    }
  }
  if (control.verb == Verb::retry) return retry_run(control);
  if (is_terminal(run().status)) {
    return fail(Code::conflict,
                "the flow has ended (" + run().detail + "): " + std::string(word(control.verb)) + " comes too late");
  }
  if (run().status == FlowStatus::dispatched && control.verb != Verb::cancel) {
    return fail(Code::conflict, "the flow has not started: start it before");
  }
  switch (control.verb) {
    case Verb::signal:
      return signal(control);
    case Verb::approve:
    case Verb::reject:
      return answer(control);
    case Verb::resume:
      return control.target.empty() ? control_flow(control) : answer(control);
    case Verb::pause:
    case Verb::cancel:
    case Verb::retry:
      break;
  }
  return control_flow(control);
}

// Of the flow as a whole. What is so already is no error: whoever asked has what was wanted.
Result<void> Deciding::control_flow(const FlowControl& control) {
  if (!control.target.empty()) {
    return fail(Code::invalid, "target: " + std::string(word(control.verb)) + " is of the whole flow; leave it out");
  }
  if (control.verb == Verb::pause && run().cancelling) {
    return fail(Code::conflict, "the flow is being cancelled (" + run().outcome + "): it cannot be paused");
  }
  const bool so_already = control.verb == Verb::pause    ? run().paused
                          : control.verb == Verb::resume ? !run().paused
                                                         : run().cancelling;
  if (so_already && control.key.empty()) return {};
  record(control);
  if (so_already) return {};
  if (control.verb == Verb::pause) {
    emit("paused", std::nullopt);
  } else if (control.verb == Verb::resume) {
    emit("resumed", std::nullopt);
  } else {
    const std::string by = control.actor == 0 ? "" : " by " + std::to_string(control.actor);
    stop("cancelled", "cancelled" + by + (control.comment.empty() ? "" : ": " + control.comment));
  }
  return {};
}

// A failed node, or all that failed, once more.
Result<void> Deciding::retry_run(const FlowControl& control) {
  const RunState& now = run();
  const auto refuse = [](std::string why) { return fail(Code::conflict, std::move(why)); };
  if (now.compensating) return refuse("its compensations have run: what was done is undone; replay the flow instead");
  if (now.outcome == "cancelled") return refuse("it was cancelled: replay the flow instead");
  if (now.outcome == "result_too_large") return refuse("its results were too large: replay the flow instead");
  if (!now.stopping) return refuse("nothing has failed: there is nothing to retry");
  if (now.cancelling && !is_terminal(now.status)) return refuse("its time is over, and jobs still end: retry it then");
  if (!control.target.empty()) {
    const auto target = plan_.find(control.target);
    if (!target) return fail(Code::not_found, "target: there is no node " + shown(control.target));
    if (!now.failures.contains(*target) || node(*target).detail == "dependency_failed") {
      return refuse("node " + control.target + " has not failed: it is " + std::string(word(node(*target).status)) +
                    ' ' + node(*target).detail);
    }
    for (const std::uint32_t other : now.failures) {
      if (other == *target || node(other).detail == "dependency_failed") continue;
      const bool its_error_node = planned(*target).error_node == other && node(*target).routes;
      if (!its_error_node) {
        return refuse("node " + planned(other).name +
                      " has failed too, and the flow would stop again: name no node to retry both");
      }
    }
  }
  record(control);
  Json more = Json::object();
  if (plan_.timeout_ms != 0) more["deadline"] = now_ + plan_.timeout_ms;
  emit("retried", std::nullopt, more);
  return {};
}

}  // namespace mycojobs::runs
