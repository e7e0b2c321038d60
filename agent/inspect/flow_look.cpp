#include "inspect/flow_look.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "domain/codec.h"

namespace mycojobs {
namespace {

constexpr std::size_t kEventsAtOnce = 1000;  // RunRead::events holds no more

class Looking {
 public:
  Looking(FlowStore& flows, Store& store, Id context, Id flow)
      : flows_(flows), store_(store), name_("flow:" + std::to_string(flow)) {
    sight_.context = context;
    sight_.flow = flow;
  }
  Result<FlowLook> run();

 private:
  FlowLook unjudged();
  // What cannot be read is said, and answered with false.
  bool add(std::string_view rule, const std::string& text) {
    out_.findings.push_back(flow_finding(rule, sight_.flow, text));
    return false;
  }
  Result<bool> read_journal();
  Result<bool> read_places();
  Result<bool> read_plan();
  Result<void> read_checkpoint();
  Result<bool> read_jobs();  // false: it has moved
  Result<void> read_record();

  FlowStore& flows_;
  Store& store_;
  const std::string name_;
  FlowLook out_;
  FlowSight sight_;
  Flow record_;  // as its mark and the record have it together
};

Result<FlowLook> Looking::run() {
  MJ_TRY(readable, read_journal());
  if (!readable) return std::move(out_);
  MJ_TRY(marked, read_places());
  if (!marked) return unjudged();
  if (sight_.places.state != "creating") {
    MJ_TRY(planned, read_plan());
    if (!planned) return unjudged();
    MJ_CHECK(read_checkpoint());
    MJ_TRY(still, read_jobs());
    if (!still) {
      out_.moved = true;
      return std::move(out_);
    }
  }
  MJ_CHECK(read_record());
  out_.known = true;
  out_.revision = sight_.revision;
  out_.state = sight_.places.state;
  out_.findings = judge(sight_);
  return std::move(out_);
}

// Its journal comes first, too, when there is no more to say.
FlowLook Looking::unjudged() {
  if (!sight_.anomalies.empty()) {
    add("flow-journal", ": " + sight_.anomalies.front() + and_more(sight_.anomalies.size()));
    std::rotate(out_.findings.begin(), std::prev(out_.findings.end()), out_.findings.end());
  }
  return std::move(out_);
}

Result<bool> Looking::read_journal() {
  std::uint64_t after = 0;
  while (true) {
    auto read = flows_.read(sight_.context, sight_.flow, after);
    if (!read && read.error().code == Code::invalid) {
      return add("flow-journal", "cannot be read: " + read.error().message);
    }
    if (!read) return fail(std::move(read).error(), name_);
    if (after == 0) record_ = decode<Flow>(read->record).record;
    sight_.revision = read->revision;
    for (RunFact& fact : read->facts) sight_.facts.push_back(std::move(fact));
    for (std::string& each : read->anomalies) sight_.anomalies.push_back(std::move(each));
    if (!read->more || read->facts.empty()) return true;
    after = sight_.facts.back().revision;
  }
}

Result<bool> Looking::read_places() {
  auto places = flows_.places(sight_.context, sight_.flow);
  const bool readable = places || places.error().code == Code::invalid;
  if (!readable) return fail(std::move(places).error(), name_);
  if (places) sight_.places = *places;
  if (places && !places->state.empty()) return true;
  if (!places) return add("flow-journal", "cannot be looked at: " + places.error().message);
  return add("flow-mark", "has a journal, and no mark says where it is");
}

Result<bool> Looking::read_plan() {
  const std::string hash = record_.definition_hash;
  auto text = flows_.definition(sight_.context, hash);
  if (!text && text.error().code != Code::not_found && text.error().code != Code::invalid) {
    return fail(std::move(text).error(), name_);
  }
  auto plan = text ? plan_of_text(*text, hash) : Result<FlowPlan>(fail(text.error(), "definition"));
  if (!plan) return add("flow-definition", "cannot go on without its definition: " + plan.error().message);
  if (plan->nodes.size() != record_.jobs.size()) {
    return add("flow-mark", "has " + std::to_string(plan->nodes.size()) + " nodes and " +
                                std::to_string(record_.jobs.size()) + " jobs");
  }
  sight_.plan = std::move(*plan);
  for (const Id id : record_.jobs) out_.jobs.push_back(job_key(record_.caller_id, id));
  return true;
}

Result<void> Looking::read_checkpoint() {
  MJ_TRY(read, flows_.read(sight_.context, sight_.flow, std::nullopt));
  sight_.checkpoint = read.checkpoint;
  sight_.checkpoint_at = read.checkpoint_at;
  sight_.checkpoint_moved = read.revision != sight_.revision;
  return {};
}

Result<bool> Looking::read_jobs() {
  MJ_TRY(jobs, flows_.jobs(sight_.context, out_.jobs));
  sight_.jobs = std::move(jobs);
  // The end of a job and its event are one step: read after the jobs, the events know all of these ends.
  MJ_TRY(read, flows_.read(sight_.context, sight_.flow, sight_.revision));
  for (const FlowEventText& event : read.events) sight_.heard.insert(event.key);
  sight_.all_events = read.events.size() < kEventsAtOnce;
  return read.revision == sight_.revision;
}

Result<void> Looking::read_record() {
  auto record = store_.load(sight_.context, name_);
  if (!record && record.error().code != Code::not_found) return fail(std::move(record).error(), name_);
  if (record) sight_.record = std::move(*record);
  return {};
}

}  // namespace

Result<FlowLook> look_at_run(FlowStore& flows, Store& store, Id context, Id flow) {
  return Looking(flows, store, context, flow).run();
}

}  // namespace mycojobs
