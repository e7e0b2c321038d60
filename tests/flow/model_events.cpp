// The model's reactions to events.
#include <algorithm>

#include "flow/model.h"

namespace mycojobs {

using At = Model::At;
using Verb = FlowControl::Verb;

void Model::pass_time() {
  if (!started_ || ended_) return;
  if (deadline_ != 0 && now_ >= deadline_ && !cancelling_ && !undoing_) stop("timeout");
  std::vector<std::pair<std::uint64_t, std::uint32_t>> due;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].until != 0 && nodes_[i].until <= now_) due.emplace_back(nodes_[i].until, i);
  }
  std::sort(due.begin(), due.end());
  for (const auto& [until, i] : due) {
    if (nodes_[i].at == At::flying && plan_.nodes[i].kind == NodeKind::wait) {
      good(i, {});
    } else {
      bad(i, "timeout");
    }
  }
}

void Model::start(std::uint64_t now) {
  now_ = now;
  if (started_ || ended_ || stopping_) return;
  started_ = true;
  if (plan_.timeout_ms != 0) deadline_ = now + plan_.timeout_ms;
  follow();
}

void Model::time(std::uint64_t now) {
  now_ = now;
  pass_time();
  follow();
}

void Model::job(std::uint64_t now, std::uint32_t i, const std::string& status, const std::string& detail,
                const TextMap& values) {
  now_ = now;
  pass_time();
  if (!ended_ && i < nodes_.size() && nodes_[i].at == At::flying && plan_.nodes[i].kind == NodeKind::job) {
    if (status == "finished") {
      good(i, values);
    } else if (cancelling_ && !nodes_[i].undoes && detail == "cancelled") {
      nodes_[i].values = {{"$status", "cancelled"}};
      settle(i, At::cancelled, "cancelled");
    } else {
      bad(i, detail);
    }
  }
  follow();
}

void Model::child_started(std::uint64_t now, std::uint32_t i, Id child) {
  now_ = now;
  pass_time();
  const bool fits = i < nodes_.size() && nodes_[i].at == At::flying && plan_.nodes[i].kind == NodeKind::flow;
  if (!ended_ && fits && nodes_[i].child == 0) nodes_[i].child = child;
  follow();
}

void Model::flow_ended(std::uint64_t now, Id flow, bool well) {
  now_ = now;
  pass_time();
  for (std::uint32_t i = 0; !ended_ && i < nodes_.size(); ++i) {
    if (nodes_[i].at == At::flying && nodes_[i].child == flow) {
      if (well) {
        good(i, {});
      } else if (cancelling_ && !nodes_[i].undoes) {
        settle(i, At::cancelled, "cancelled");
      } else {
        bad(i, "flow_failed");
      }
    } else if (nodes_[i].at == At::gated && nodes_[i].open.count("flow:" + std::to_string(flow)) > 0) {
      if (well) {
        nodes_[i].open.erase("flow:" + std::to_string(flow));
        if (nodes_[i].open.empty()) nodes_[i].until = 0;
      } else {
        bad(i, "flow_failed");
      }
    }
  }
  follow();
}

bool Model::control(std::uint64_t now, const FlowControl& control) {
  const Model before = *this;
  now_ = now;
  pass_time();
  if (take(control)) {
    follow();
    return true;
  }
  nodes_ = before.nodes_;
  settled_ = before.settled_;
  paused_ = before.paused_;
  stopping_ = before.stopping_;
  cancelling_ = before.cancelling_;
  outcome_ = before.outcome_;
  return false;
}

bool Model::take(const FlowControl& control) {
  if (control.verb == Verb::retry) return take_retry(control);
  if (ended_ || (!started_ && control.verb != Verb::cancel)) return false;
  if (control.verb == Verb::pause) {
    if (cancelling_) return false;
    paused_ = true;
    return true;
  }
  if (control.verb == Verb::cancel) {
    if (!cancelling_) stop("cancelled");
    return true;
  }
  if (control.verb == Verb::resume && control.target.empty()) {
    paused_ = false;
    return true;
  }
  if (control.verb == Verb::signal) {
    const std::string gate = "signal:" + control.target;
    bool known = false;
    for (const PlanNode& plan : plan_.nodes)
      known = known || std::count(plan.gates.begin(), plan.gates.end(), gate) > 0;
    if (!known) return false;
    signals_[control.target] = control.payload;
    for (Node& node : nodes_) {
      if (node.at == At::gated && node.open.erase(gate) > 0 && node.open.empty()) node.until = 0;
    }
    return true;
  }
  return answer(control);
}

bool Model::answer(const FlowControl& control) {
  const auto may = [&](const Node& node) {
    return node.who.empty() || std::count(node.who.begin(), node.who.end(), control.actor) > 0;
  };
  const auto target = plan_.find(control.target);
  if (target && (plan_.nodes[*target].kind == NodeKind::approval || plan_.nodes[*target].kind == NodeKind::pause)) {
    if (nodes_[*target].at != At::flying || !may(nodes_[*target])) return false;
    if (control.verb == Verb::resume && plan_.nodes[*target].kind == NodeKind::approval) return false;
    if (control.verb == Verb::reject) {
      bad(*target, "rejected");
    } else {
      good(*target, {});
    }
    return true;
  }
  if (control.verb == Verb::resume) return false;
  bool taken = false;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    const std::string gate = "approval:" + control.target;
    if (node.at != At::gated || node.open.count(gate) == 0 || !may(node)) continue;
    taken = true;
    if (control.verb == Verb::reject) {
      bad(i, "rejected");
      node.open.clear();
    } else {
      node.open.erase(gate);
      if (node.open.empty()) node.until = 0;
    }
  }
  return taken;
}

bool Model::take_retry(const FlowControl& control) {
  if (undoing_ || !stopping_ || outcome_ == "cancelled" || (cancelling_ && !ended_)) return false;
  if (!control.target.empty()) {
    const auto target = plan_.find(control.target);
    if (!target || nodes_[*target].at != At::failed) return false;
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      const bool its_taker = routes(*target) && plan_.nodes[*target].error_node == i;
      if (i != *target && nodes_[i].at == At::failed && !its_taker) return false;
    }
  }
  std::vector<bool> again(nodes_.size(), false);
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    const At at = nodes_[i].at;
    const bool went_wrong = at == At::failed || at == At::dependency_failed;
    again[i] = went_wrong || ((at == At::cancelled || at == At::unneeded) && !is_error_node(i));
  }
  for (std::size_t turn = 0; turn < nodes_.size(); ++turn) {
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      if (!again[i] || !routes(i)) continue;
      const std::uint32_t taker = *plan_.nodes[i].error_node;
      const At at = nodes_[taker].at;
      if (settled(at) && at != At::ok && at != At::continued && at != At::handled) again[taker] = true;
    }
  }
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (!again[i]) continue;
    const int runs = nodes_[i].runs;
    nodes_[i] = Node{};
    nodes_[i].runs = runs;
    if (plan_.nodes[i].on_call) nodes_[i].at = At::uncalled;
    for (std::uint32_t place = i + 1; place <= i + plan_.nodes[i].max_elements; ++place) {
      if (nodes_[place].at == At::absent) nodes_[place] = Node{};
    }
  }
  stopping_ = cancelling_ = paused_ = ended_ = false;
  outcome_.clear();
  deadline_ = plan_.timeout_ms == 0 ? 0 : now_ + plan_.timeout_ms;
  return true;
}

}  // namespace mycojobs
