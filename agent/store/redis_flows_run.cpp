// Runs: reading them, and the one way to change them.
#include <algorithm>
#include <deque>

#include "base/ids.h"
#include "domain/utf8.h"
#include "store/job_fields.h"
#include "store/redis_flow_store.h"

namespace mycojobs {
namespace {

constexpr std::uint32_t kFactsAtOnce = 1000;
constexpr std::size_t kReadAtOnce = 200;
constexpr std::size_t kMaxOfCommit = 2000;
constexpr std::size_t kMaxRemembered = 100000;

// Another client may have written the stream: false if it is no fact.
bool read_fact(const Reply& entry, RunFact& fact) {
  const std::string id(entry.at(0).text());
  const auto dash = id.find('-');
  if (!parse_u64(id.substr(0, dash), fact.revision) || id.substr(std::min(dash, id.size())) != "-0") return false;
  bool has_moment = false, has_node = true;
  for (auto& [name, value] : entry.at(1).fields()) {
    if (name == "f")
      fact.kind = std::move(value);
    else if (name == "at")
      has_moment = parse_u64(value, fact.at_ms);
    else if (name == "m")
      fact.more = std::move(value);
    else if (name == "n") {
      std::uint64_t node = 0;
      has_node = parse_u64(value, node) && node <= UINT32_MAX;
      fact.node = static_cast<std::uint32_t>(node);
    }
  }
  return !fact.kind.empty() && has_moment && has_node;
}

void read_entries(const Reply& entries, std::uint64_t after, RunRead& run) {
  std::uint64_t last = after;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    RunFact fact;
    const bool good = read_fact(entries.at(i), fact);
    if (!good) {
      run.anomalies.push_back("entry " + ascii(entries.at(i).at(0).text(), 80) + " of the run's journal is no fact");
    }
    if (fact.revision > last + 1) {
      run.anomalies.push_back("the run's journal lacks revision " + std::to_string(last + 1) +
                              (fact.revision > last + 2 ? " to " + std::to_string(fact.revision - 1) : ""));
    }
    last = std::max(last, fact.revision);
    if (good) run.facts.push_back(std::move(fact));
  }
}

std::uint64_t last_revision(const Reply& entries) {
  const std::string_view id = entries.at(entries.size() - 1).at(0).text();
  std::uint64_t revision = 0;
  parse_u64(id.substr(0, id.find('-')), revision);
  return revision;
}

// What the flow is, was fixed with its creation: the record repeats it for readers, and anybody may write there.
void set_identity(const Fields& identity, RunRead& run) {
  for (const auto& [name, value] : identity) {
    const auto found = std::find_if(run.record.begin(), run.record.end(),
                                    [&, &key = name](const auto& each) { return each.first == key; });
    if (found == run.record.end()) {
      run.record.emplace_back(name, value);
    } else {
      found->second = value;
    }
  }
}

FlowEventText read_event(std::string_view text) {
  const auto blank = text.find(' ');
  if (blank == std::string_view::npos) return {"", std::string(text)};
  return {std::string(text.substr(0, blank)), std::string(text.substr(blank + 1))};
}

void add_keys(Arguments& arguments, const std::vector<std::string>& keys) {
  arguments.add(std::uint64_t{keys.size()});
  for (const std::string& key : keys) arguments.add(key);
}

Result<void> check_commit(const FlowCommit& commit) {
  const std::size_t size = commit.facts.size() + commit.dispatch.size() + commit.ends.size() + commit.cancel.size() +
                           commit.requeue.size() + commit.replan.size();
  if (size > kMaxOfCommit) {
    return fail(Code::too_large, "a commit of " + std::to_string(size) + " facts and jobs: one step takes " +
                                     std::to_string(kMaxOfCommit) + ", commit them one part after the other");
  }
  const auto bad_end = std::find_if(commit.ends.begin(), commit.ends.end(), [](const FlowEnd& end) {
    return end.fields.empty() || end.fields[0].first != "status";
  });
  if (bad_end != commit.ends.end()) {
    return fail(Code::invalid, bad_end->job_key + ": fields of an end begin with its status");
  }
  return {};
}

}  // namespace

Result<RunRead> RedisFlows::read(Id context, Id flow, std::optional<std::uint64_t> after) {
  RunRead run;
  std::optional<std::uint64_t> from = after;
  bool first = true;
  do {
    Arguments arguments;
    arguments.add(std::uint64_t{flow});
    from ? arguments.add(*from) : arguments.add("");
    arguments.add(std::uint64_t{kFactsAtOnce});
    MJ_TRY(reply, this->run(context, scripts::flow_read, arguments));
    run.record = reply.at(0).fields();
    set_identity(reply.at(10).fields(), run);
    run.revision = reply.at(1).number();
    if (first) {
      run.checkpoint = reply.at(2).text();
      run.checkpoint_at = reply.at(3).number();
    }
    const Reply entries = reply.at(4);
    read_entries(entries, from.value_or(run.checkpoint_at), run);
    run.more = reply.at(5).number() == 1;
    run.events.clear();
    const Reply events = reply.at(6);
    for (std::size_t i = 0; i < events.size(); ++i) run.events.push_back(read_event(events.at(i).text()));
    const Reply anomalies = reply.at(7);
    for (std::size_t i = 0; first && i < anomalies.size(); ++i) run.anomalies.emplace_back(anomalies.at(i).text());
    run.now_ms = reply.at(8).number();
    if (taken_.size() > kMaxRemembered) taken_.clear();
    taken_[{context, flow}] = reply.at(9).number();
    if (entries.size() > 0) from = last_revision(entries);
    first = false;
    // Who reads on does so after the last fact: a page without one would end that.
  } while (run.more && run.facts.empty());
  return run;
}

Result<std::uint64_t> RedisFlows::commit(const FlowCommit& commit) {
  MJ_CHECK(check_commit(commit));
  const std::string flow = "flow:" + std::to_string(commit.flow);
  const auto remembered = taken_.find({commit.context, commit.flow});
  const bool checked = commit.events_taken > 0 && remembered != taken_.end();
  Arguments arguments;
  arguments.add(std::uint64_t{commit.context}).add(std::uint64_t{commit.flow}).add(commit.expected_revision);
  arguments.add(std::uint64_t{commit.events_taken});
  checked ? arguments.add(remembered->second) : arguments.add("");
  commit.due_ms ? arguments.add(*commit.due_ms) : arguments.add("");
  arguments.add(commit.checkpoint).add(commit.ended ? "1" : "0").add(std::uint64_t{commit.parent});
  arguments.add(std::uint64_t{commit.facts.size()});
  for (const RunFact& fact : commit.facts) {
    arguments.add(fact.kind);
    fact.node ? arguments.add(std::uint64_t{*fact.node}) : arguments.add("");
    arguments.add(fact.more);
  }
  arguments.add_list(commit.record);
  arguments.add(std::uint64_t{commit.dispatch.size()});
  std::deque<std::pair<std::string, Fields>> planted;  // queue and record: arguments are views
  for (const FlowDispatch& each : commit.dispatch) {
    arguments.add(each.job_key).add_list(each.set);
    auto& [queue, record] = planted.emplace_back();
    if (each.plant) {
      Job own = *each.plant;
      own.context_id = commit.context;
      own.flow_id = commit.flow;
      queue = queue_of_planned(own);
      MJ_TRY(fields, planned_fields(own));
      record = std::move(fields);
    }
    arguments.add(queue).add_list(record);
  }
  arguments.add(std::uint64_t{commit.ends.size()});
  for (const FlowEnd& each : commit.ends) arguments.add(each.job_key).add_list(each.fields);
  add_keys(arguments, commit.cancel);
  add_keys(arguments, commit.requeue);
  add_keys(arguments, commit.replan);
  MJ_TRY(reply, run(commit.context, scripts::flow_commit, arguments));
  const std::string_view word = reply.at(0).text();
  if (word == "missing") {
    return fail(Code::not_found, flow + " does not exist in context " + std::to_string(commit.context) +
                                     " (or was not created as a flow that is run)");
  }
  if (word == "conflict") {
    return fail(Code::conflict, flow + " is at revision " + std::string(reply.at(1).text()) + ", and " +
                                    std::to_string(commit.expected_revision) + " was expected: read it again");
  }
  if (word == "taken") return fail(Code::conflict, flow + ": these events were applied already: read it again");
  if (checked) remembered->second += commit.events_taken;
  if (commit.ended) taken_.erase({commit.context, commit.flow});
  return reply.at(0).number();
}

Result<std::vector<FlowJobView>> RedisFlows::jobs(Id context, std::span<const std::string> job_keys) {
  std::vector<FlowJobView> out;
  while (out.size() < job_keys.size()) {
    const auto some = job_keys.subspan(out.size(), std::min(kReadAtOnce, job_keys.size() - out.size()));
    Arguments arguments;
    arguments.add(std::uint64_t{some.size()});
    for (const std::string& key : some) arguments.add(key);
    MJ_TRY(reply, run(context, scripts::flow_jobs, arguments));
    if (reply.size() == 0) return fail(Code::internal, "redis: asked for jobs, and answered none");
    for (std::size_t i = 0; i < std::min(reply.size(), some.size()); ++i) {
      const Reply row = reply.at(i);
      FlowJobView job;
      job.job_key = some[i];
      job.state = row.at(0).text();
      job.attempt = static_cast<std::uint32_t>(std::min<std::uint64_t>(row.at(1).number(), UINT32_MAX));
      job.status = row.at(2).text();
      job.detail = row.at(3).text();
      job.error = row.at(4).text();
      job.result = row.at(5).text();
      job.started_ms = row.at(6).number();
      job.ended_ms = row.at(7).number();
      job.runner = static_cast<Id>(std::min<std::uint64_t>(row.at(8).number(), UINT32_MAX));
      job.result_json = row.at(9).text();
      out.push_back(std::move(job));
    }
  }
  return out;
}

Result<FlowPlaces> RedisFlows::places(Id context, Id flow) {
  MJ_TRY(reply, run(context, scripts::flow_places, Arguments{}.add(std::uint64_t{flow})));
  FlowPlaces out;
  out.state = reply.at(0).text();
  out.active = reply.at(1).number() == 1;
  if (!reply.at(2).text().empty()) out.due_ms = reply.at(2).number();
  out.ended = reply.at(3).number() == 1;
  out.listed = reply.at(4).number() == 1;
  out.revision = reply.at(5).number();
  out.events = reply.at(6).number();
  out.now_ms = reply.at(7).number();
  out.checkpoint = reply.at(8).number() == 1;
  out.deaf = reply.at(9).number() == 1;
  out.identity = reply.at(10).fields();
  return out;
}

Result<void> RedisFlows::repair(Id context, Id flow, const FlowRepair& repair) {
  // The words of scripts/flow_repair.lua, in the order of the enums.
  static constexpr std::string_view kKinds[] = {"set_mark", "set_record", "enter", "leave", "dispatch"};
  static constexpr std::string_view kPlaces[] = {"", "active", "ended", "due", "catalog", "events", "checkpoint"};
  Arguments arguments;
  arguments.add(std::uint64_t{flow}).add(repair.revision).add(repair.state).add(std::uint64_t{repair.fixes.size()});
  for (const FlowFix& fix : repair.fixes) {
    arguments.add(kKinds[static_cast<std::size_t>(fix.kind)]).add(kPlaces[static_cast<std::size_t>(fix.place)]);
    arguments.add_list(fix.words);
  }
  MJ_TRY(reply, run(context, scripts::flow_repair, arguments));
  if (reply.text() == "moved") {
    return fail(Code::conflict, "flow:" + std::to_string(flow) + " has moved on meanwhile: read it again");
  }
  return {};
}

Result<void> RedisFlows::await_flow(Id context, Id flow, Id other) {
  Arguments arguments;
  arguments.add(std::uint64_t{context}).add(std::uint64_t{flow}).add(std::uint64_t{other});
  MJ_CHECK(run(context, scripts::flow_await, arguments));
  return {};
}

}  // namespace mycojobs
