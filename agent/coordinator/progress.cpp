#include "coordinator/progress.h"

#include <algorithm>

#include "base/log.h"
#include "coordinator/progress_parts.h"
#include "domain/transitions.h"

namespace mycojobs {
namespace {

constexpr int kMaxCommits = 20;     // of one call: then other flows have their turn
constexpr int kMaxConflicts = 100;  // each means that somebody else has moved it on
// What this call goes on with at once; whoever finds it then knows that we did not.
constexpr std::uint64_t kOnMs = 1000;

class Driver {
 public:
  Driver(FlowStore& store, RunCache& cache, const ProgressRequest& request)
      : store_(store), cache_(cache), asked_(request), start_(request.start), control_(request.control) {
    due_ = request.due;
    recover_ = request.recover;
  }
  Result<FlowProgress> drive();

 private:
  Result<LoadedRun> take_run(RunRead& read);
  Result<void> decide_all(const RunRead& read, Step& step);
  Result<bool> commit(Step& step, const RunRead& read, bool last);
  Result<void> after(const LoadedRun& run);

  FlowStore& store_;
  RunCache& cache_;
  const ProgressRequest& asked_;
  std::optional<StartRun> start_;
  std::optional<FlowControl> control_;
  bool due_ = false, recover_ = false;
  bool anew_ = false;  // the run was loaded, not remembered: its children and gates are looked after
  Afterwards afterwards_;
  std::vector<ChildStarted> links_;  // children to be entered in the journal
  FlowProgress done_;
  bool more_ = false;
};

Result<LoadedRun> Driver::take_run(RunRead& read) {
  if (auto known = cache_.take(asked_.context, asked_.flow)) {
    MJ_TRY(newer, store_.read(asked_.context, asked_.flow, known->state.revision));
    read = std::move(newer);
    if (!read.record.empty() && read.revision >= known->state.revision) {
      // Somebody else moved it on, and may not have lived to do what has to be done besides.
      anew_ = anew_ || !read.facts.empty();
      MJ_CHECK(fold_facts(store_, asked_.context, asked_.flow, *known, read));
      return std::move(*known);
    }
  }
  anew_ = true;
  return load_run(store_, asked_.context, asked_.flow, cache_, read);
}

Result<void> Driver::decide_all(const RunRead& read, Step& step) {
  // What somebody asks for has a commit of its own: its error is the answer.
  if (start_) {
    if (step.state().status == FlowStatus::dispatched) MJ_CHECK(check_parent(store_, step.run()));
    return step.take(*start_);
  }
  if (control_) return step.take(*control_);
  if (step.state().status == FlowStatus::dispatched) {
    step.events_taken = static_cast<std::uint32_t>(std::min<std::size_t>(read.events.size(), 100));
    recover_ = anew_ = false;
    return {};  // new: nothing moves it but its start
  }
  for (const ChildStarted& link : links_) MJ_CHECK(step.take(link));
  if (recover_ && !is_terminal(step.state().status)) {
    if (auto fits = check_parent(store_, step.run()); !fits) {
      if (fits.error().code != Code::conflict) return fits;
      FlowControl cancel;
      cancel.verb = FlowControl::Verb::cancel;
      cancel.actor = step.run().record.caller_id;
      cancel.admin = true;
      cancel.comment = fits.error().message;
      if (!step.state().cancelling) MJ_CHECK(step.take(std::move(cancel)));
    }
    MJ_TRY(all, take_jobs(store_, step));
    recover_ = !all;
  }
  if (anew_ && !is_terminal(step.state().status)) MJ_CHECK(look_at_children(store_, step, afterwards_));
  anew_ = false;
  if (!step.full()) MJ_CHECK(take_events(store_, read, step));
  const std::uint64_t timer = next_timer_ms(step.state());
  if ((timer != 0 && timer <= step.now_ms()) || more_to_do(*step.run().plan, step.state())) {
    MJ_CHECK(step.take(TimePassed{}));
  }
  return {};
}

// False: somebody else was faster.
Result<bool> Driver::commit(Step& step, const RunRead& read, bool last) {
  MJ_TRY(commit, commit_of(store_, step));
  children_of(step.effects, step.state(), afterwards_);
  LoadedRun& run = step.run();
  const bool over = is_terminal(run.state.status);
  const bool events_left = read.events.size() > step.events_taken;
  more_ = !over && (recover_ || events_left || more_to_do(*run.plan, run.state));
  const bool nothing = commit.facts.empty() && commit.events_taken == 0 && commit.dispatch.empty();
  if (nothing && !recover_) more_ = false;  // another pass would find as little
  if (start_ || control_) more_ = true;
  if (const std::uint64_t timer = next_timer_ms(run.state); timer != 0 && !over) commit.due_ms = timer;
  if (more_ || !afterwards_.empty() || !links_.empty()) {
    const std::uint64_t on = last ? 0 : step.now_ms() + kOnMs;
    commit.due_ms = std::min(commit.due_ms.value_or(on), on);
  }
  if (nothing && !due_) return true;
  auto done = store_.commit(commit);
  if (!done && done.error().code == Code::conflict) return false;
  if (!done) return tl::unexpected<Error>(std::move(done).error());
  run.state.revision = *done;
  if (!commit.checkpoint.empty()) run.checkpoint_at = *done;
  done_.facts += static_cast<std::uint32_t>(commit.facts.size());
  due_ = false;
  return true;
}

// In this order: linked, then begun. So a child's end always finds its parent waiting for it.
Result<void> Driver::after(const LoadedRun& run) {
  for (const ChildStarted& link : links_) {
    const NodeState& node = run.state.nodes.at(link.node);
    if (link.flow == 0) continue;
    if (node.child == link.flow && !is_terminal(node.status) && node.detail != "cancelling") {
      afterwards_.start.emplace_back(link.node, link.flow);
    } else {
      afterwards_.cancel.push_back(link.flow);
    }
  }
  links_.clear();
  const Afterwards now = std::exchange(afterwards_, {});
  const std::string why = "flow " + std::to_string(run.record.id) + " does not wait for it any more";
  for (const Id other : now.await) MJ_CHECK(store_.await_flow(asked_.context, asked_.flow, other));
  for (const Id child : now.cancel) MJ_CHECK(cancel_child(store_, cache_, run, child, why));
  for (const auto& [node, child] : now.start) {
    auto begun = start_child(store_, cache_, asked_.context, asked_.flow, run.record.caller_id, child);
    if (!begun && begun.error().code != Code::conflict) return begun;
  }
  for (const std::uint32_t node : now.create) {
    if (is_terminal(run.state.nodes.at(node).status) || run.state.nodes.at(node).child != 0) continue;
    auto child = create_child(store_, run, node);
    if (child) {
      links_.push_back({node, *child, ""});
    } else if (child.error().code == Code::conflict || child.error().code == Code::invalid) {
      links_.push_back({node, 0, child.error().message});
    } else {
      return tl::unexpected<Error>(std::move(child).error());
    }
  }
  return {};
}

Result<FlowProgress> Driver::drive() {
  int conflicts = 0;
  for (int commits = 1;; ++commits) {
    RunRead read;
    MJ_TRY(run, take_run(read));
    Step step(run, read.now_ms);
    MJ_CHECK(decide_all(read, step));
    const bool last = commits >= kMaxCommits;
    MJ_TRY(ours, commit(step, read, last));
    if (!ours) {
      afterwards_ = {};
      anew_ = true;
      if (++conflicts > kMaxConflicts) {
        return fail(Code::conflict, "flow " + std::to_string(asked_.flow) + " moves on too fast for us: try again");
      }
      --commits;
      continue;
    }
    start_.reset();
    control_.reset();
    done_.status = run.state.status;
    done_.detail = run.state.detail;
    done_.revision = run.state.revision;
    MJ_CHECK(after(run));
    const bool on = more_ || !links_.empty();
    done_.more = on;
    if (!is_terminal(run.state.status)) cache_.keep(asked_.context, asked_.flow, std::move(run));
    if (!on || last) return done_;
  }
}

}  // namespace

Result<FlowProgress> progress(FlowStore& store, RunCache& cache, const ProgressRequest& request) {
  return Driver(store, cache, request).drive();
}

}  // namespace mycojobs
