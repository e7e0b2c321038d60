#include "chaos/verdict.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace mycojobs::test {
namespace {

constexpr const char* kTerminal[] = {"completed", "failed", "cancelled", "dead_lettered"};

std::uint64_t number(const std::map<std::string, std::string>& fields, const std::string& name) {
  const auto found = fields.find(name);
  return found == fields.end() ? 0 : std::strtoull(found->second.c_str(), nullptr, 10);
}
std::string text(const std::map<std::string, std::string>& fields, const std::string& name) {
  const auto found = fields.find(name);
  return found == fields.end() ? "" : found->second;
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
std::map<std::string, std::vector<Ledger::Fact>> read_facts(PlainRedis& redis, int context) {
  std::map<std::string, std::vector<Ledger::Fact>> facts;
  const auto entries = redis.command(context, {"XRANGE", "mj:journal:queue:python", "-", "+"});
  for (std::size_t i = 0; entries && i < entries->size(); ++i) {
    const Reply entry = entries->at(i);
    std::map<std::string, std::string> fields;
    for (const auto& [name, value] : entry.at(1).fields()) fields[name] = value;
    facts[fields["j"]].push_back({std::string(entry.at(0).text()), fields["f"], number(fields, "e")});
  }
  return facts;
}

void read_log(PlainRedis& redis, int context, const std::string& key, Ledger& ledger) {
  const auto entries = redis.command(context, {"XRANGE", "mj:log:" + key, "-", "+"});
  for (std::size_t i = 0; entries && i < entries->size(); ++i) {
    for (const auto& [name, value] : entries->at(i).at(1).fields()) {
      if (name == "end") ++ledger.log_ends;
      std::istringstream line(value);
      std::string word;
      std::uint64_t epoch = 0;
      std::int64_t at_us = 0;
      if (name == "text" && line >> word >> epoch >> at_us && word == "begin") ledger.begins.emplace_back(epoch, at_us);
    }
  }
}

class Judge {
 public:
  Judge(const Evidence& evidence, const RedisServer& redis) : evidence_(evidence), redis_(redis, PlainRedis::kLongMs) {}
  Verdict take();

 private:
  void look_at(const PlannedJob&, const Ledger&);
  void check_end(const PlannedJob&, const Ledger&);
  void check_facts(const PlannedJob&, const Ledger&);
  void check_times(const PlannedJob&, const Ledger&);
  void check_overlap(const PlannedJob&, const Ledger&);
  std::string expected_end(const PlannedJob&) const;
  // The job may be one of the runs that were killed before they had a name. Each such run excuses one job.
  bool excused() { return unnamed_hits_++ < evidence_.unnamed_hits; }
  const Ledger* dependency(const PlannedJob&, std::uint32_t id) const;
  void complain(const PlannedJob& job, const std::string& what) {
    verdict_.problems.push_back(job.key() + " of context " + std::to_string(job.name.context) + " (" + job.kind->name +
                                ") " + what + "\n  " + ledgers_.at({job.name.context, job.key()}).to_text());
  }
  const std::vector<Life>& lives(const JobName& name) const {
    static const std::vector<Life> kNone;
    const auto found = evidence_.lives.find(name);
    return found == evidence_.lives.end() ? kNone : found->second;
  }

  const Evidence& evidence_;
  PlainRedis redis_;
  std::map<std::pair<int, std::string>, Ledger> ledgers_;
  Verdict verdict_;
  unsigned unnamed_hits_ = 0;
};

Verdict Judge::take() {
  std::map<int, std::map<std::string, std::vector<Ledger::Fact>>> facts;
  for (const auto& job : evidence_.jobs) {
    const int context = job.name.context;
    if (!facts.contains(context)) facts[context] = read_facts(redis_, context);
    Ledger& ledger = ledgers_[{context, job.key()}];
    ledger.record = read_hash(redis_, context, job.key());
    ledger.claim = read_hash(redis_, context, "mj:claim:" + job.key());
    ledger.facts = facts[context][job.key()];
    read_log(redis_, context, job.key(), ledger);
  }
  for (const auto& job : evidence_.jobs) look_at(job, ledgers_.at({job.name.context, job.key()}));
  for (const auto& [name, of_job] : evidence_.lives) verdict_.runs += static_cast<unsigned>(of_job.size());
  verdict_.jobs = static_cast<unsigned>(evidence_.jobs.size());
  return verdict_;
}

void Judge::look_at(const PlannedJob& job, const Ledger& ledger) {
  check_end(job, ledger);
  check_facts(job, ledger);
  check_times(job, ledger);
  check_overlap(job, ledger);
}

const Ledger* Judge::dependency(const PlannedJob& job, std::uint32_t id) const {
  const auto found = ledgers_.find({job.name.context, "job:" + std::to_string(job.caller) + ":" + std::to_string(id)});
  return found == ledgers_.end() ? nullptr : &found->second;
}

std::string Judge::expected_end(const PlannedJob& job) const {
  for (const std::uint32_t id : job.dependends) {
    const Ledger* before = dependency(job, id);
    if (before == nullptr || text(before->record, "status") != "finished") return "error dependency_failed";
  }
  return job.kind->end;
}

void Judge::check_end(const PlannedJob& job, const Ledger& ledger) {
  const std::string status = text(ledger.record, "status");
  if (text(ledger.claim, "state") != "ended" || (status != "finished" && status != "error")) {
    ++verdict_.lost;
    return complain(job, "was lost: it has no end");
  }
  if (ledger.log_ends > 1) {
    ++verdict_.doubled;
    complain(job, "has more than one end in its log");
  }
  if (evidence_.hits.contains(job.name)) return;
  const std::string expected = expected_end(job);
  if (ledger.end() != expected) {
    if (ledger.end() != "error signal" || !excused())
      complain(job, "ended as " + ledger.end() + " instead of " + expected);
  } else if (expected == job.kind->end && !job.kind->cancelled && text(ledger.record, "attempt") != job.kind->attempt) {
    if (!excused()) complain(job, "ended with another attempt");
  }
}

void Judge::check_facts(const PlannedJob& job, const Ledger& ledger) {
  std::uint64_t epoch = 0;
  unsigned ends = 0;
  for (const auto& fact : ledger.facts) {
    if (ends > 0) complain(job, "has a fact after its end: " + fact.kind);
    if (is_terminal_fact(fact.kind)) ++ends;
    if (fact.kind == "claimed" && fact.epoch <= epoch) complain(job, "has epochs that do not grow");
    if (fact.kind == "claimed") epoch = fact.epoch;
    if ((fact.kind == "completed" || fact.kind == "failed") && fact.epoch != 0 && fact.epoch != epoch)
      complain(job, "has an end by another claim than its latest");
  }
  if (ends > 1) ++verdict_.doubled;
  if (ends != 1) complain(job, "has " + std::to_string(ends) + " terminal facts");
  // The result of a finished job contains the epoch of its run, which must be that of the accepted claim.
  const std::string result = text(ledger.record, "result");
  if (text(ledger.record, "status") == "finished" &&
      result.find("\"" + std::to_string(number(ledger.claim, "epoch")) + "\"") == std::string::npos) {
    ++verdict_.doubled;
    complain(job, "has a result of another claim than its latest");
  }
}

void Judge::check_times(const PlannedJob& job, const Ledger& ledger) {
  if (evidence_.wall_clock_jumped) return;
  const auto ended_ms = static_cast<std::int64_t>(number(ledger.record, "ended_ms"));
  for (const auto& life : lives(job.name)) {
    if (life.last_real_us <= ended_ms * 1000 + 999) continue;
    ++verdict_.outlived;
    complain(job, "had a process alive " + std::to_string(life.last_real_us - ended_ms * 1000) + " us after its end");
  }
  if (job.kind->delayed && !lives(job.name).empty() && number(ledger.record, "started_ms") < job.run_at_ms)
    complain(job, "was started before its time");
  if (evidence_.tail_lost) return;
  for (const std::uint32_t id : job.dependends) {
    const Ledger* before = dependency(job, id);
    if (before == nullptr || lives(job.name).empty()) continue;
    const std::uint64_t since_ms = number(before->record, "ended_ms");
    if (number(ledger.record, "started_ms") < since_ms)
      complain(job, "was started before " + std::to_string(id) + " had ended");
    for (const auto& earlier : lives({job.name.context, id})) {
      for (const auto& life : lives(job.name)) {
        if (life.first_us < earlier.last_us)
          complain(job, "ran beside " + std::to_string(id) + ", which it depends on");
      }
    }
  }
}

void Judge::check_overlap(const PlannedJob& job, const Ledger& ledger) {
  const auto& of_job = lives(job.name);
  for (const auto& overlap : overlaps({{job.name, of_job}})) {
    ++verdict_.overlaps;
    complain(job, "had two attempts alive for at least " + std::to_string(overlap.at_least_us) + " us, epochs ..." +
                      std::to_string(overlap.one.epoch) + " and ..." + std::to_string(overlap.other.epoch));
  }
  // The begin time that an attempt logs is earlier than the witness's first observation of it.
  for (const auto& [epoch, begin_us] : ledger.begins) {
    for (const auto& life : of_job) {
      const bool older = life.epoch < epoch % kEpochRange;
      if (!older || life.last_us <= begin_us) continue;
      ++verdict_.overlaps;
      complain(job, "began while an earlier attempt was alive, " + std::to_string(life.last_us - begin_us) + " us");
    }
  }
}

}  // namespace

std::string Ledger::end() const { return text(record, "status") + " " + text(record, "detail"); }

std::string Ledger::to_text() const {
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
  for (const auto& [epoch, at_us] : begins) text += " " + std::to_string(epoch) + "@" + std::to_string(at_us);
  return text;
}

Verdict judge(const Evidence& evidence, const RedisServer& redis) { return Judge(evidence, redis).take(); }

}  // namespace mycojobs::test
