// Every server-side script with keys that another client has overwritten with each wrong type. The keys are recorded
// from the commands of the script, so a new key is tested automatically. A new script fails EveryScriptIsTested until a
// scenario of the recorder calls it.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "contract/script_recorder.h"
#include "store/keys.h"
#include "store/scripts/all_scripts.h"

namespace mycojobs {
namespace {

using memory::Database;
using memory::Databases;
using memory::MemoryReply;
using memory::Value;

struct TypeRow {
  std::string_view name;
  Value value;
};
const std::array<TypeRow, 6>& types() {
  static const std::array<TypeRow, 6> rows{{{"string", memory::Text("oops")},
                                            {"hash", memory::Hash{{"oops", "1"}}},
                                            {"list", memory::List{"oops"}},
                                            {"set", memory::Set{"oops"}},
                                            {"zset",
                                             [] {
                                               memory::Zset zset;
                                               zset.put("oops", 1);
                                               return zset;
                                             }()},
                                            {"stream", [] {
                                               memory::Stream stream;
                                               stream.entries[{1, 0}] = {{"oops", "1"}};
                                               stream.last = {1, 0};
                                               stream.added = 1;
                                               return stream;
                                             }()}}};
  return rows;
}

// Returns the type of the key in the product, or nothing if no row of a table has the key.
std::optional<std::string_view> expected_type(std::string_view key) {
  std::optional<std::string_view> found;
  std::size_t longest = 0;
  for (const InternalKey& row : internal_keys()) {
    const auto variable = row.pattern.find('<');
    const bool matches =
        variable == std::string_view::npos ? key == row.pattern : key.starts_with(row.pattern.substr(0, variable));
    const std::size_t length = std::min(variable, row.pattern.size());
    if (matches && length >= longest) longest = length, found = row.type;
  }
  if (found) return found;
  for (std::string_view prefix : {"job:", "flow:", "context:", "runner:", "actor:", "message:"}) {
    if (key.starts_with(prefix)) return "hash";
  }
  if (key.starts_with("queue:") || key.starts_with("msg_")) return "list";
  return std::nullopt;
}

// Keys that all jobs of a context need. If such a key has a wrong type, the scripts return an error that names the key.
constexpr std::array<std::string_view, 14> kSharedKeys{
    "mj:leases",           "mj:ended",   "mj:queues",          "mj:anomalies",      "mj:missing-records",
    "mj:dead-letters",     "mj:delayed", "mj:queue-deadlines", "mj:prerequisites",  "mj:held-concurrency-keys",
    "mj:pending-releases", "mj:paused",  "mj:flows:due",       "mj:journal-horizon"};
bool is_shared(std::string_view key) {
  return std::find(kSharedKeys.begin(), kSharedKeys.end(), key) != kSharedKeys.end();
}

// A key that a script may ignore without a report, and the reason.
struct Tolerance {
  std::string_view script, key, reason;
};
constexpr auto kTolerated = std::to_array<Tolerance>({
    {"*", "runner:", "names the channel of a hint"},
    {"*", "actor:", "is a record of a public key that another record has"},
    {"tick", "queue:", "is searched; whoever claims from it reports it"},
    {"upload_expire", "job:", "counts by its name; the upload is kept"},
    {"cancel", "queue:", "is read for an entry, and holds none"},
    {"delete_actor", "context:", "is read in the database of the context, not in that of the call"},
    {"agree_on_format", "context:", "counts by its name; the steps that read it report it"},
    {"cancel_message", "queue:", "is read for an entry, and holds none"},
    {"delete_job", "queue:", "is read for an entry, and holds none"},
    {"flow_commit", "queue:", "is read for an entry, and holds none"},
    {"flow_put_jobs", "queue:", "is read for an entry, and holds none"},
    {"route_message", "queue:", "is read for an entry, and holds none"},
    {"flow_commit", "mj:claim:", "gives the record the word of a node; a change of the job reports it"},
    {"claim", "job:", "may be a dependency, which then has not ended; an entry becomes a dead letter"},
    {"claim", "mj:claim:", "may be of a dependency, which then has not ended"},
    {"claim", "mj:flow:", "says only whether the record of the flow shows its nodes"},
    {"close_message", "message:", "counts as missing, as the answer says"},
    {"create_record", "mj:claim:", "is asked for its existence"},
    {"reserve_jobs", "mj:claim:", "is asked for its existence"},
    {"reserve_jobs", "job:", "is asked for its existence"},
    {"flow_create", "flow:", "is asked for its existence"},
    {"flow_create", "mj:flow:", "is asked for its existence"},
    {"flow_commit", "mj:flow-events:", "is asked for events, and reported where some are taken"},
    {"object_ids", "mj:osis:object:", "is no object, so that the list of the ids is right without it"},
    {"repair", "mj:log:", "is looked at; verify reports it"},
    {"repair", "mj:dependencies:", "is looked at; verify reports it"},
    {"repair", "mj:claim:", "is looked at; verify reports it"},
    {"repair", "mj:priority:", "is looked at; verify reports it"},
    {"repair", "queue:", "is looked at; verify reports it"},
    {"tick", "job:", "is searched, or asked for its existence"},
    {"tick", "mj:claim:", "is asked for its existence by a search"},
    {"prerequisites_due", "mj:prerequisite-checker", "says that a coordinator looks"},
});

std::string to_text(const MemoryReply& answer) {
  std::string out = answer.text;
  if (answer.kind == MemoryReply::Kind::number) out += std::to_string(answer.number);
  out += '\n';
  for (const MemoryReply& item : answer.items) out += to_text(item);
  return out;
}

std::string texts_of_stream(const Database& data, std::string_view key) {
  const auto found = data.find(key);
  const auto* stream = found == data.end() ? nullptr : std::get_if<memory::Stream>(&found->second);
  std::string out;
  for (const auto& [id, fields] : stream == nullptr ? decltype(memory::Stream::entries)() : stream->entries) {
    for (const auto& [name, value] : fields) out += value + '\n';
  }
  return out;
}
// Returns the reports for operators: anomalies, dead letters, and errors of jobs.
std::string find_reports(const Database& data) {
  std::string out = texts_of_stream(data, "mj:anomalies") + texts_of_stream(data, "mj:dead-letters");
  for (const auto& [key, value] : data) {
    const auto* record = key.starts_with("job:") ? std::get_if<memory::Hash>(&value) : nullptr;
    if (record != nullptr && record->contains("error")) out += record->at("error") + '\n';
  }
  return out;
}

Database without_reports(Database data) {
  data.erase("mj:anomalies");
  return data;
}

// One call of a script with one key of a wrong type.
class Trial {
 public:
  Trial(const ScriptCall& call, const ScriptRecorder::RepeatResult& normal, std::string key)
      : call_(call), normal_(normal), key_(std::move(key)) {}

  // Returns the problem with the outcome, or "" if there is none.
  std::string check(const Database& planted, const ScriptRecorder::RepeatResult& outcome) const {
    const std::string answer = to_text(outcome.reply);
    const Database after = database(outcome.data_after);
    if (answer.find("WRONGTYPE") != std::string::npos) return "aborts: " + answer;
    const bool changed = without_reports(after) != without_reports(planted);
    const bool refused = outcome.reply.kind == MemoryReply::Kind::error;
    if (refused && !names_key(answer)) return "is refused without the key: " + answer;
    if (refused && changed) return "is refused and has written: " + first_change(planted, after);
    if (refused) return "";
    if (changed && !names_key(answer + find_reports(after)) && after.contains(key_)) return "does not report the key";
    if (const auto now = after.find(key_); now != after.end() && now->second != planted.at(key_))
      return "changes the key";
    return lost_job(planted, after, answer);
  }

 private:
  const Database& database(const Databases& all) const {
    static const Database none;
    const auto found = all.find(call_.context);
    return found == all.end() ? none : found->second;
  }
  // For the state of a job or message, the text may name the job or message instead.
  bool names_key(const std::string& text) const {
    std::string name = key_;
    for (const std::string prefix : {"mj:claim:", "mj:message:"}) {
      if (name.starts_with(prefix)) name.erase(0, prefix.size());
    }
    return text.find(name) != std::string::npos;
  }

  static std::string first_change(const Database& before, const Database& after) {
    for (const auto& [key, value] : after) {
      if (const auto found = before.find(key);
          key != "mj:anomalies" && (found == before.end() || found->second != value)) {
        return key;
      }
    }
    return "a key is gone";
  }

  // Returns a job whose expected change is missing although the reply reports success.
  std::string lost_job(const Database& planted, const Database& after, const std::string& answer) const {
    if (answer != to_text(normal_.reply)) return "";
    const Database& expected = database(normal_.data_after);
    const std::string reports = find_reports(after);
    for (const auto& [key, value] : expected) {
      if (!key.starts_with("job:") || key == key_) continue;
      const auto before = planted.find(key), now = after.find(key);
      if (before != planted.end() && before->second == value) continue;
      if (now != after.end() && now->second == value) continue;
      if (reports.find(key) == std::string::npos) return "acknowledges a change of " + key + " that was not written";
    }
    return "";
  }

  const ScriptCall& call_;
  const ScriptRecorder::RepeatResult& normal_;
  std::string key_;
};

class ScriptTypes : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    recorder_ = new ScriptRecorder;
    recorder_->run_all_scripts();
  }
  static void TearDownTestSuite() { delete recorder_; }

  // Calls `function` for each recorded call, each of its keys, and each wrong type of the key.
  template <class Function>
  static void for_each_wrong_type(const Function& function) {
    constexpr int kMaxCalls = 3;  // maximum per script and key; more calls take long and find nothing new
    std::map<std::pair<std::string, std::string>, int> tried;
    for (const ScriptCall& call : recorder_->calls()) {
      const ScriptRecorder::RepeatResult normal = recorder_->repeat(call, call.data_before);
      for (const std::string& key : normal.keys) {
        if (++tried[{std::string(call.script->name), key}] > kMaxCalls) continue;
        const auto expected = expected_type(key);
        if (!expected) problems_.insert({std::string(call.script->name) + ' ' + key, "no table names this key"});
        for (const TypeRow& type : types()) {
          if (!expected || type.name == *expected) continue;
          Databases planted = call.data_before;
          planted[call.context].insert_or_assign(key, type.value);
          function(call, normal, key, type, planted);
        }
      }
    }
  }
  static std::string shown_problems() {
    std::string out;
    for (const auto& [where, what] : problems_) out += where + ": " + what + '\n';
    return out;
  }

  static ScriptRecorder* recorder_;
  static std::map<std::string, std::string> problems_;
};
ScriptRecorder* ScriptTypes::recorder_ = nullptr;
std::map<std::string, std::string> ScriptTypes::problems_;

TEST_F(ScriptTypes, EveryScriptIsTested) {
  std::set<std::string_view> played;
  for (const ScriptCall& call : recorder_->calls()) played.insert(call.script->name);
  for (const Script* script : scripts::all) {
    EXPECT_TRUE(played.contains(script->name)) << script->name << ": add a call to tests/contract/script_recorder.cpp";
  }
}

TEST_F(ScriptTypes, WrongTypesAreRejectedOrReported) {
  std::size_t trials = 0;
  problems_.clear();
  for_each_wrong_type([&](const ScriptCall& call, const ScriptRecorder::RepeatResult& normal, const std::string& key,
                          const TypeRow& type, const Databases& planted) {
    ++trials;
    const auto outcome = recorder_->repeat(call, planted);
    const std::string problem = Trial(call, normal, key).check(planted.at(call.context), outcome);
    const std::string name(call.script->name);
    const bool tolerated = std::any_of(kTolerated.begin(), kTolerated.end(), [&](const Tolerance& row) {
      return (row.script == "*" || row.script == name) && key.starts_with(row.key);
    });
    if (!problem.empty() && !tolerated) problems_.insert({name + ' ' + key + " as " + std::string(type.name), problem});
  });
  EXPECT_GT(trials, 1000U);
  EXPECT_EQ(shown_problems(), "");
}

// Submits, claims and ends a job of another queue while the key has a wrong type.
std::string other_job_problem(Store& store, Id context) {
  Job job;
  job.id = 4000;
  job.caller_id = 77;
  job.context_id = context;
  job.script = "print(1)";
  job.script_type = "probe";
  if (auto done = store.submit(job); !done) return "submit: " + done.error().message;
  ClaimRequest request;
  request.context = context;
  request.runner = 9;
  request.instance = "0123456789abcdef0123456789abcdef";
  request.queues = {"queue:python", "queue:probe"};
  request.max_jobs = 64;
  const auto claimed = store.claim(request);
  if (!claimed) return "claim: " + claimed.error().message;
  for (const ClaimedJob& each : claimed->jobs) {
    if (each.queue != "queue:probe") continue;
    JobEnd end;
    end.status = JobStatus::finished;
    end.detail = "ok";
    const std::vector<Report> reports{EndReport{each.ref, end}};
    const auto answers = store.report(context, reports);
    if (!answers) return "report: " + answers.error().message;
    if (!answers->at(0)) return "report: " + answers->at(0).error().message;
    if (auto ticked = store.tick(context, {}); !ticked) return "tick: " + ticked.error().message;
    return "";
  }
  return "claim: the job is not taken";
}

TEST_F(ScriptTypes, WrongTypesStopNoOtherJob) {
  problems_.clear();
  std::set<std::string> tried;
  for_each_wrong_type([&](const ScriptCall& call, const ScriptRecorder::RepeatResult&, const std::string& key,
                          const TypeRow& type, const Databases& planted) {
    const std::string name = key + " as " + std::string(type.name);
    if (call.context == 0 || !tried.insert(name).second) return;
    const auto store = recorder_->open_store(planted);
    const std::string problem = other_job_problem(*store, call.context);
    if (is_shared(key)) {
      if (problem.find(key) == std::string::npos)
        problems_.insert({name, "the error does not name the key: " + problem});
    } else if (!problem.empty()) {
      problems_.insert({name, problem});
    }
    if (std::string elsewhere = other_job_problem(*store, 2); !elsewhere.empty()) problems_.insert({name, elsewhere});
  });
  EXPECT_GT(tried.size(), 200U);
  EXPECT_EQ(shown_problems(), "");
}

}  // namespace
}  // namespace mycojobs
