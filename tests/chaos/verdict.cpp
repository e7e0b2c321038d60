#include "chaos/verdict.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace mycojobs::test {
namespace {

constexpr const char* kTerminal[] = {"completed", "failed", "cancelled", "dead_lettered"};

std::uint64_t number(const std::map<std::string, std::string>& fields, const std::string& name) {
  const auto entry = fields.find(name);
  return entry == fields.end() ? 0 : std::strtoull(entry->second.c_str(), nullptr, 10);
}
std::string text(const std::map<std::string, std::string>& fields, const std::string& name) {
  const auto entry = fields.find(name);
  return entry == fields.end() ? "" : entry->second;
}

bool is_terminal_fact(const std::string& kind) {
  return std::find(std::begin(kTerminal), std::end(kTerminal), kind) != std::end(kTerminal);
}

std::map<std::string, std::string> read_hash(PlainRedis& redis, int context, const std::string& key) {
  std::map<std::string, std::string> fields;
  if (const auto reply = redis.command(context, {"HGETALL", key})) {
    for (const auto& [name, value] : reply->fields()) fields[name] = value;
  }
  return fields;
}

// Reads the journal of a queue once and returns the facts of each job.
std::map<std::string, std::vector<StoredJob::Fact>> read_facts(PlainRedis& redis, int context) {
  std::map<std::string, std::vector<StoredJob::Fact>> facts;
  const auto entries = redis.command(context, {"XRANGE", "mj:journal:queue:python", "-", "+"});
  for (std::size_t i = 0; entries && i < entries->size(); ++i) {
    const Reply entry = entries->at(i);
    std::map<std::string, std::string> fields;
    for (const auto& [name, value] : entry.at(1).fields()) fields[name] = value;
    facts[fields["j"]].push_back({std::string(entry.at(0).text()), fields["f"], number(fields, "e")});
  }
  return facts;
}

void read_log(PlainRedis& redis, int context, const std::string& key, StoredJob& stored_job) {
  const auto entries = redis.command(context, {"XRANGE", "mj:log:" + key, "-", "+"});
  for (std::size_t i = 0; entries && i < entries->size(); ++i) {
    for (const auto& [name, value] : entries->at(i).at(1).fields()) {
      if (name == "end") ++stored_job.log_ends;
      std::istringstream line(value);
      std::string word;
      std::uint64_t epoch = 0;
      std::int64_t at_us = 0;
      if (name == "text" && line >> word >> epoch >> at_us && word == "begin")
        stored_job.start_lines.emplace_back(epoch, at_us);
    }
  }
}

class VerdictBuilder {
 public:
  VerdictBuilder(const Evidence& evidence, const RedisServer& redis)
      : evidence_(evidence), redis_(redis, PlainRedis::kLongTimeoutMs) {}
  Verdict build();

 private:
  void check_job(const PlannedJob&, const StoredJob&);
  void check_end(const PlannedJob&, const StoredJob&);
  void check_facts(const PlannedJob&, const StoredJob&);
  void check_times(const PlannedJob&, const StoredJob&);
  void check_overlap(const PlannedJob&, const StoredJob&);
  std::string expected_end(const PlannedJob&) const;
  // The job may be one of the runs that were killed before they had a name. Each such run excuses one job.
  bool is_excused() { return excused_job_count_++ < evidence_.unidentified_kill_count; }
  const StoredJob* find_dependency(const PlannedJob&, std::uint32_t id) const;
  void add_problem(const PlannedJob& job, const std::string& what) {
    verdict_.problems.push_back(job.key() + " of context " + std::to_string(job.name.context) + " (" + job.kind->name +
                                ") " + what + "\n  " + stored_jobs_.at({job.name.context, job.key()}).to_text());
  }
  const std::vector<Lifetime>& lifetimes(const JobName& name) const {
    static const std::vector<Lifetime> kNone;
    const auto entry = evidence_.lifetimes.find(name);
    return entry == evidence_.lifetimes.end() ? kNone : entry->second;
  }

  const Evidence& evidence_;
  PlainRedis redis_;
  std::map<std::pair<int, std::string>, StoredJob> stored_jobs_;
  Verdict verdict_;
  unsigned excused_job_count_ = 0;
};

Verdict VerdictBuilder::build() {
  std::map<int, std::map<std::string, std::vector<StoredJob::Fact>>> facts;
  for (const auto& job : evidence_.jobs) {
    const int context = job.name.context;
    if (!facts.contains(context)) facts[context] = read_facts(redis_, context);
    StoredJob& stored_job = stored_jobs_[{context, job.key()}];
    stored_job.record = read_hash(redis_, context, job.key());
    stored_job.claim = read_hash(redis_, context, "mj:claim:" + job.key());
    stored_job.facts = facts[context][job.key()];
    read_log(redis_, context, job.key(), stored_job);
  }
  for (const auto& job : evidence_.jobs) check_job(job, stored_jobs_.at({job.name.context, job.key()}));
  for (const auto& [name, job_lifetimes] : evidence_.lifetimes)
    verdict_.runs += static_cast<unsigned>(job_lifetimes.size());
  verdict_.jobs = static_cast<unsigned>(evidence_.jobs.size());
  return verdict_;
}

void VerdictBuilder::check_job(const PlannedJob& job, const StoredJob& stored_job) {
  check_end(job, stored_job);
  check_facts(job, stored_job);
  check_times(job, stored_job);
  check_overlap(job, stored_job);
}

const StoredJob* VerdictBuilder::find_dependency(const PlannedJob& job, std::uint32_t id) const {
  const auto entry =
      stored_jobs_.find({job.name.context, "job:" + std::to_string(job.caller) + ":" + std::to_string(id)});
  return entry == stored_jobs_.end() ? nullptr : &entry->second;
}

std::string VerdictBuilder::expected_end(const PlannedJob& job) const {
  for (const std::uint32_t id : job.dependends) {
    const StoredJob* dependency_job = find_dependency(job, id);
    if (dependency_job == nullptr || text(dependency_job->record, "status") != "finished")
      return "error dependency_failed";
  }
  return job.kind->end;
}

void VerdictBuilder::check_end(const PlannedJob& job, const StoredJob& stored_job) {
  const std::string status = text(stored_job.record, "status");
  if (text(stored_job.claim, "state") != "ended" || (status != "finished" && status != "error")) {
    ++verdict_.lost;
    return add_problem(job, "was lost: it has no end");
  }
  if (stored_job.log_ends > 1) {
    ++verdict_.ended_twice;
    add_problem(job, "has more than one end in its log");
  }
  if (evidence_.jobs_with_killed_process.contains(job.name)) return;
  const std::string expected = expected_end(job);
  if (stored_job.end() != expected) {
    if (stored_job.end() != "error signal" || !is_excused())
      add_problem(job, "ended as " + stored_job.end() + " instead of " + expected);
  } else if (expected == job.kind->end && !job.kind->cancelled &&
             text(stored_job.record, "attempt") != job.kind->attempt) {
    if (!is_excused()) add_problem(job, "ended with another attempt");
  }
}

void VerdictBuilder::check_facts(const PlannedJob& job, const StoredJob& stored_job) {
  std::uint64_t epoch = 0;
  unsigned ends = 0;
  for (const auto& fact : stored_job.facts) {
    if (ends > 0) add_problem(job, "has a fact after its end: " + fact.kind);
    if (is_terminal_fact(fact.kind)) ++ends;
    if (fact.kind == "claimed" && fact.epoch <= epoch) add_problem(job, "has epochs that do not grow");
    if (fact.kind == "claimed") epoch = fact.epoch;
    if ((fact.kind == "completed" || fact.kind == "failed") && fact.epoch != 0 && fact.epoch != epoch)
      add_problem(job, "has an end by another claim than its latest");
  }
  if (ends > 1) ++verdict_.ended_twice;
  if (ends != 1) add_problem(job, "has " + std::to_string(ends) + " terminal facts");
  // The result of a finished job contains the epoch of its run, which must be that of the accepted claim.
  const std::string result = text(stored_job.record, "result");
  if (text(stored_job.record, "status") == "finished" &&
      result.find("\"" + std::to_string(number(stored_job.claim, "epoch")) + "\"") == std::string::npos) {
    ++verdict_.ended_twice;
    add_problem(job, "has a result of another claim than its latest");
  }
}

void VerdictBuilder::check_times(const PlannedJob& job, const StoredJob& stored_job) {
  if (evidence_.wall_clock_jumped) return;
  const auto ended_ms = static_cast<std::int64_t>(number(stored_job.record, "ended_ms"));
  for (const auto& lifetime : lifetimes(job.name)) {
    if (lifetime.last_real_us <= ended_ms * 1000 + 999) continue;
    ++verdict_.outlived_end;
    add_problem(job,
                "had a process alive " + std::to_string(lifetime.last_real_us - ended_ms * 1000) + " us after its end");
  }
  if (job.kind->delayed && !lifetimes(job.name).empty() && number(stored_job.record, "started_ms") < job.run_at_ms)
    add_problem(job, "was started before its time");
  if (evidence_.tail_lost) return;
  for (const std::uint32_t id : job.dependends) {
    const StoredJob* dependency_job = find_dependency(job, id);
    if (dependency_job == nullptr || lifetimes(job.name).empty()) continue;
    const std::uint64_t dependency_ended_ms = number(dependency_job->record, "ended_ms");
    if (number(stored_job.record, "started_ms") < dependency_ended_ms)
      add_problem(job, "was started before " + std::to_string(id) + " had ended");
    for (const auto& dependency_lifetime : lifetimes({job.name.context, id})) {
      for (const auto& lifetime : lifetimes(job.name)) {
        if (lifetime.first_us < dependency_lifetime.last_us)
          add_problem(job, "ran beside " + std::to_string(id) + ", which it depends on");
      }
    }
  }
}

void VerdictBuilder::check_overlap(const PlannedJob& job, const StoredJob& stored_job) {
  const auto& job_lifetimes = lifetimes(job.name);
  for (const auto& overlap : find_overlaps({{job.name, job_lifetimes}})) {
    ++verdict_.overlaps;
    add_problem(job, "had two attempts alive for at least " + std::to_string(overlap.min_overlap_us) +
                         " us, epochs ..." + std::to_string(overlap.first.epoch) + " and ..." +
                         std::to_string(overlap.second.epoch));
  }
  // The begin time that an attempt logs is earlier than the witness's first observation of it.
  for (const auto& [epoch, begin_us] : stored_job.start_lines) {
    for (const auto& lifetime : job_lifetimes) {
      const bool is_older = lifetime.epoch < epoch % kEpochRange;
      if (!is_older || lifetime.last_us <= begin_us) continue;
      ++verdict_.overlaps;
      add_problem(job,
                  "began while an earlier attempt was alive, " + std::to_string(lifetime.last_us - begin_us) + " us");
    }
  }
}

}  // namespace

std::string StoredJob::end() const { return text(record, "status") + " " + text(record, "detail"); }

std::string StoredJob::to_text() const {
  std::string text = "record:";
  for (const auto& [name, value] : record) {
    if (name != "script" && name != "receipt" && name != "error_info") text += " " + name + "=" + value;
  }
  text += "\n  claim:";
  for (const auto& [name, value] : claim) text += " " + name + "=" + value;
  text += "\n  facts:";
  for (const auto& fact : facts)
    text += " " + fact.revision + ":" + fact.kind + (fact.epoch ? "/" + std::to_string(fact.epoch) : "");
  text += "\n  begins:";
  for (const auto& [epoch, at_us] : start_lines) text += " " + std::to_string(epoch) + "@" + std::to_string(at_us);
  return text;
}

Verdict make_verdict(const Evidence& evidence, const RedisServer& redis) {
  return VerdictBuilder(evidence, redis).build();
}

}  // namespace mycojobs::test
