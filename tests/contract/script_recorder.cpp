#include "script_recorder.h"

#include <gtest/gtest.h>

#include <utility>

#include "chaos/steps.h"
#include "model/file_holder.h"
#include "model/submitted_files.h"
#include "store/redis/redis_connection.h"
#include "store/redis/redis_flows.h"
#include "store/redis/store_connection.h"

namespace mycojobs {
namespace {

constexpr Id kContext = 1;
constexpr const char* kQueue = "queue:python";
constexpr const char* kInstance = "0123456789abcdef0123456789abcdef";

std::string key(Id id) { return "job:12:" + std::to_string(id); }

JobEnd make_end(JobStatus status, const std::string& detail) {
  JobEnd end;
  end.status = status;
  end.detail = detail;
  return end;
}

template <class T>
void expect_done(const Result<T>& result) {
  EXPECT_TRUE(result) << result.error().message;
}

}  // namespace

class ScriptRecorder::RecordingLink final : public Link {
 public:
  RecordingLink(ScriptRecorder& recorder, Id context) : recorder_(recorder), context_(context) {}

  Result<Reply> command(const Arguments& arguments, std::uint32_t) override {
    return to_result(recorder_.redis_.execute(context_, arguments.list()));
  }
  Result<Reply> run(const Script& script, const Arguments& arguments) override {
    if (recorder_.is_recording_) {
      const auto words = arguments.list();
      recorder_.calls_.push_back(
          {&script, context_, {words.begin(), words.end()}, recorder_.redis_.databases(), recorder_.clock_.now_ms});
    }
    const memory::MemoryReply reply = recorder_.redis_.run(context_, script.sha1, script.text, arguments.list());
    if (std::exchange(recorder_.lose_next_reply_, false)) return fail(Code::unavailable, "the reply is lost");
    return to_result(reply);
  }
  const std::string& server_run_id() const override { return run_id_; }

 private:
  static Result<Reply> to_result(const memory::MemoryReply& reply) {
    if (reply.kind == memory::MemoryReply::Kind::error) return tl::unexpected<Error>(redis_error(reply.text));
    return memory::to_reply(reply);
  }

  ScriptRecorder& recorder_;
  Id context_;
  std::string run_id_{memory::kRunId};
};

ScriptRecorder::ScriptRecorder()
    : redis_(clock_,
             [this](std::string_view channel, std::string_view text) {
               if (channel == "named") used_keys_.emplace(text);
               return 0;
             }),
      store_(std::make_unique<Store>(std::make_unique<StoreConnection>(open_link()))),
      flows_(make_redis_flows(open_link())),
      objects_(std::make_unique<ObjectStore>(std::make_unique<ContextLinks>(open_link()))),
      workflows_(std::make_unique<WorkflowStore>(std::make_unique<ContextLinks>(open_link()))) {}

OpenLink ScriptRecorder::open_link() {
  return
      [this](Id context) -> Result<std::unique_ptr<Link>> { return std::make_unique<RecordingLink>(*this, context); };
}

namespace {

// Lua code that runs before a script and publishes the keys of its commands.
constexpr std::string_view kObserver = R"lua(
local server = redis
local function note(command, first, second, ...)
  command = string.lower(command)
  if command == 'publish' or command == 'time' or command == 'scan' or command == 'select' then return end
  local keys = {first}
  if command == 'exists' or command == 'del' or command == 'unlink' then keys = {first, second, ...} end
  if command == 'xinfo' or command == 'memory' then keys = {second} end
  if command == 'lmove' then keys = {first, second} end
  for _, key in ipairs(keys) do server.call('PUBLISH', 'named', key) end
end
local redis = {
  call = function(...) note(...) return server.call(...) end,
  pcall = function(...) note(...) return server.pcall(...) end,
  error_reply = server.error_reply,
  sha1hex = server.sha1hex,
}
)lua";

}  // namespace

ScriptRecorder::RepeatResult ScriptRecorder::repeat(const ScriptCall& call, memory::Databases data_before) {
  RepeatResult result;
  redis_.databases() = std::move(data_before);
  used_keys_.clear();
  const std::vector<std::string_view> arguments(call.arguments.begin(), call.arguments.end());
  clock_.now_ms = call.now_ms;
  result.reply = redis_.run(call.context, "observed " + std::string(call.script->sha1),
                            std::string(kObserver) + std::string(call.script->text), arguments);
  result.keys = used_keys_;
  result.data_after = redis_.databases();
  return result;
}

std::unique_ptr<Store> ScriptRecorder::open_store(memory::Databases data) {
  is_recording_ = false;
  redis_.databases() = std::move(data);
  return std::make_unique<Store>(std::make_unique<StoreConnection>(open_link()));
}

void ScriptRecorder::run_command(Id context, const std::vector<std::string>& words) {
  const std::vector<std::string_view> views(words.begin(), words.end());
  const memory::MemoryReply reply = redis_.execute(context, views);
  EXPECT_NE(reply.kind, memory::MemoryReply::Kind::error) << words[0] << ' ' << words[1] << ": " << reply.text;
}

void ScriptRecorder::run_script(Id context, const Script& script, const std::vector<std::string>& arguments) {
  Arguments words;
  for (const std::string& argument : arguments) words.add(argument);
  RecordingLink link(*this, context);
  expect_done(link.run(script, words));
}

Job ScriptRecorder::make_job(Id id) const {
  Job job_record;
  job_record.id = id;
  job_record.caller_id = 12;
  job_record.context_id = kContext;
  job_record.script = "print(1)";
  job_record.script_type = "python";
  return job_record;
}

void ScriptRecorder::submit_job(Id id, const std::function<void(Job&)>& change) {
  Job job_record = make_job(id);
  change(job_record);
  expect_done(store_->submit(job_record));
}

std::vector<ClaimedJob> ScriptRecorder::claim_jobs() {
  ClaimRequest request;
  request.context = kContext;
  request.runner = 7;
  request.instance = kInstance;
  request.queues = {kQueue};
  request.max_jobs = 64;
  auto reply = store_->claim(request);
  expect_done(reply);
  return reply ? std::move(reply->jobs) : std::vector<ClaimedJob>();
}

void ScriptRecorder::end_job(const ClaimRef& claim, bool has_succeeded) {
  const JobEnd end = has_succeeded ? make_end(JobStatus::finished, "ok") : make_end(JobStatus::error, "exception");
  const std::vector<Report> reports{EndReport{claim, end}};
  const auto answers = store_->report(kContext, reports);
  expect_done(answers);
  if (answers) expect_done(answers->at(0));
}

void ScriptRecorder::run_all_scripts() {
  for (const auto scenario :
       {&ScriptRecorder::run_job_scripts, &ScriptRecorder::run_concurrency_scripts,
        &ScriptRecorder::run_job_request_scripts, &ScriptRecorder::run_repair_scripts,
        &ScriptRecorder::run_read_scripts, &ScriptRecorder::run_flow_scripts, &ScriptRecorder::run_flow_request_scripts,
        &ScriptRecorder::run_object_scripts, &ScriptRecorder::run_outgoing_message_scripts,
        &ScriptRecorder::run_incoming_message_scripts, &ScriptRecorder::run_record_scripts,
        &ScriptRecorder::run_remaining_scripts}) {
    redis_.databases().clear();
    (this->*scenario)();
  }
  clock_.advances_on_read = false;
}

// Runs the protocol steps of chaos/steps.h, which the tests of rejected writes also use.
void ScriptRecorder::run_job_scripts() {
  const test::ProtocolSteps steps(*store_, *workflows_);
  for (const test::Step& step : steps.all()) {
    const auto done = step.execute();
    EXPECT_TRUE(done) << step.name << ": " << done.error().message;
  }
}

// Ends that release other jobs: by a slot of a concurrency key, a dependency, a retry with a priority, a waiting flow.
void ScriptRecorder::run_concurrency_scripts() {
  for (const Id id : {1U, 2U}) submit_job(id, [](Job& job) { job.concurrency_key = "db", job.priority = 5; });
  submit_job(3, [](Job& job) { job.dependends = {1}, job.priority = 5; });
  submit_job(4, [](Job& job) { job.dependends = {1, 5}; });
  submit_job(5, [](Job& job) { job.retries = 1, job.priority = -5; });
  submit_job(8, [](Job& job) { expect_done(set_submitted_files(job, {"input", {{"n", "text"}}})); });
  submit_job(6, [](Job& job) { job.idempotency_key = "once", job.notify = R"(["https://example.com/"])"; });
  run_command(1, {"HSET", "context:1", "notify", R"(["https://example.com/"])"});
  std::vector<ClaimedJob> jobs = claim_jobs();
  ASSERT_GE(jobs.size(), 3U);
  for (const ClaimedJob& claimed_job : jobs) {
    if (claimed_job.ref.job_key != key(5)) end_job(claimed_job.ref, true);
  }
  for (const ClaimedJob& claimed_job : jobs) {
    if (claimed_job.ref.job_key != key(5)) continue;
    const std::vector<Report> retry{EndReport{claimed_job.ref, make_end(JobStatus::error, "exception"), 1}};
    expect_done(store_->report(kContext, retry));
  }
  clock_.now_ms += 1000;
  expect_done(store_->tick(kContext, {}));
  jobs = claim_jobs();
  for (const ClaimedJob& claimed_job : jobs) end_job(claimed_job.ref, claimed_job.ref.job_key != key(5));
  TickRequest forget;
  forget.retention = Retention::same_for_all(1);
  clock_.now_ms += 1000;
  expect_done(store_->tick(kContext, forget));
  wait_for_inputs();
  use_uploads();
  submit_job(7, [](Job& job) { job.priority = 3, job.concurrency_key = "db"; });
  lose_next_reply_ = true;
  ClaimRequest request;
  request.context = kContext;
  request.queues = {kQueue};
  EXPECT_FALSE(store_->claim(request));
  jobs = claim_jobs();  // releases the jobs of the lost reply
  expect_done(store_->expire_instance(kContext, 7, kInstance));
}

// A job waits for the artifacts of an ended job, which retention keeps. Then the runner that has them is deleted.
void ScriptRecorder::wait_for_inputs() {
  submit_job(88, [](Job&) {});
  for (const ClaimedJob& claimed_job : claim_jobs()) end_job(claimed_job.ref, true);
  submit_job(89, [](Job& job) { job.dependends = {88}, job.inputs = {"88"}; });
  run_command(1, {"HSET", "runner:7", "id", "7"});
  for (const bool is_deleted : {false, true}) {
    for (const ClaimedJob& claimed_job : claim_jobs()) {
      const std::vector<Report> reports{AwaitInputs{claimed_job.ref, 7, 60000, "away", {key(88)}}};
      expect_done(store_->report(kContext, reports));
    }
    if (is_deleted) run_command(1, {"DEL", "runner:7"});
    if (!is_deleted) run_command(1, {"HSET", "mj:runner-owner:7", "until_ms", std::to_string(clock_.now_ms + 3000)});
    clock_.now_ms += 2000;
    expect_done(store_->tick(kContext, {}));
  }
}

// A job uses an uploaded file of a coordinator, and waits for it; another upload expires.
void ScriptRecorder::use_uploads() {
  const std::string holder = std::string(24, 'a') + "@host";
  for (const char digit : {'1', '2'}) {
    UploadRecord upload;
    upload.caller = 12;
    upload.reference = {make_upload_id(12, std::string(32, digit)), 100000, std::string(64, 'b')};
    upload.holder = holder;
    const auto begun = store_->begin_upload(kContext, upload, 1000, 150000);
    EXPECT_EQ(begun.has_value(), digit == '1') << "the second upload exceeds the quota";
    if (!begun) continue;
    expect_done(store_->complete_upload(kContext, upload.reference.id, 1000));
    submit_job(90, [&](Job& job) {
      SubmittedFiles files;
      files.uploads.emplace("big", upload.reference);
      expect_done(set_submitted_files(job, std::move(files)));
    });
  }
  for (const ClaimedJob& claimed_job : claim_jobs()) {
    const std::vector<Report> reports{AwaitInputs{claimed_job.ref, parse_file_holder(holder), 60000, "away", {}}};
    expect_done(store_->report(kContext, reports));
  }
  expect_done(store_->hold_files(kContext, holder, 60000));
  clock_.now_ms += 2000;
  expect_done(store_->tick(kContext, {}));
  expect_done(store_->expire_uploads(kContext));
  run_command(1, {"DEL", key(90)});
  clock_.now_ms += 4000000;
  expect_done(store_->expire_uploads(kContext));
}

// Runs scripts for jobs that cannot start yet, and for the commands of operators on such jobs.
void ScriptRecorder::run_job_request_scripts() {
  const std::uint64_t later = clock_.now_ms + 1000;
  submit_job(1, [&](Job& job) { job.run_at_ms = later, job.priority = 5; });
  submit_job(2, [](Job& job) { job.dependends = {1}; });
  submit_job(3, [](Job& job) { job.prerequisites = {"approval:boss"}; });
  submit_job(4, [](Job& job) { job.concurrency_key = "db"; });
  submit_job(5, [](Job& job) { job.concurrency_key = "db"; });
  submit_job(6, [](Job& job) { job.queue_timeout_ms = 1, job.priority = 7; });
  run_command(1, {"LPUSH", kQueue, "job:12:99", "nonsense"});
  claim_jobs();
  run_command(
      1, {"HSET", key(99), "id", "99", "caller_id", "12", "context_id", "1", "script_type", "python", "script", "1"});
  clock_.now_ms += 2000;
  expect_done(store_->tick(kContext, {}));
  expect_done(store_->due_prerequisites(kContext, 10, 1000, CheckerRole::coordinator));
  expect_done(store_->answer_prerequisite(kContext, key(3), {"boss", true, 3, "fine"}));
  expect_done(store_->complete_prerequisites(kContext, key(3), ""));
  for (const Id id : {2U, 3U, 4U, 5U}) expect_done(store_->cancel(kContext, key(id)));
  expect_done(store_->create_job(make_job(20)));
  expect_done(store_->start_job(kContext, key(20)));
  submit_job(21, [](Job& job) { job.priority = 5; });
  expect_done(store_->purge_queue(kContext, kQueue, 100));
  submit_job(22, [](Job& job) { job.priority = 5; });
  for (const ClaimedJob& claimed_job : claim_jobs()) end_job(claimed_job.ref, false);
  expect_done(store_->requeue(kContext, key(22)));
  for (const ClaimedJob& claimed_job : claim_jobs()) end_job(claimed_job.ref, true);
  expect_done(store_->delete_record(kContext, key(22)));
  const auto letters = store_->dead_letters(kContext, 10);
  ASSERT_TRUE(letters && !letters->empty());
  expect_done(store_->resolve_dead_letter(kContext, letters->front().id, false));
}

void ScriptRecorder::run_repair_scripts() {
  submit_job(1, [](Job& job) { job.concurrency_key = "db"; });
  submit_job(2, [](Job& job) { job.concurrency_key = "db", job.priority = 5; });
  submit_job(3, [](Job& job) { job.dependends = {1}; });
  claim_jobs();
  using Kind = JobFix::Kind;
  using Place = JobFix::JobIndex;
  const std::vector<std::pair<Id, JobFix>> fixes{
      {1, {Kind::add_to_index, Place::slots, "db"}},     {2, {Kind::add_to_index, Place::held, "db"}},
      {3, {Kind::add_to_index, Place::waits, key(1)}},   {2, {Kind::add_to_index, Place::priority, kQueue}},
      {3, {Kind::enqueue, Place::none, "dependencies"}},
  };
  for (const auto& [id, fix] : fixes) {
    const std::vector<std::string> keys{key(id)};
    const auto states = store_->job_states(kContext, keys, true);
    ASSERT_TRUE(states && states->size() == 1);
    Repair repair;
    repair.inspection_digest = states->at(0).digest;
    repair.queue = kQueue;
    repair.fixes = {fix};
    expect_done(store_->repair(kContext, key(id), repair));
  }
}

void ScriptRecorder::run_read_scripts() {
  submit_job(1, [](Job& job) { job.priority = 5; });
  submit_job(2);
  const std::vector<ClaimedJob> jobs = claim_jobs();
  ASSERT_EQ(jobs.size(), 2U);
  end_job(jobs[0].ref, true);
  const std::vector<std::string> keys{key(1)}, queues{kQueue};
  const std::vector<std::string_view> names{"status"};
  expect_done(store_->known_queues(kContext));
  expect_done(store_->survey(kContext, queues));
  expect_done(store_->tally(kContext, 1000, 10));
  expect_done(store_->jobs(kContext, {}));
  expect_done(store_->leases(kContext));
  expect_done(store_->silent_runners(kContext, "lost"));
  expect_done(store_->find_timed_work(kContext, {kContext}, 800));
  run_script(kContext, scripts::await_log, {key(2)});
  expect_done(store_->load(kContext, key(1)));
  expect_done(store_->load_batch(kContext, keys, names));
  expect_done(store_->ended_job(kContext, key(1)));
  expect_done(store_->journal(kContext, kQueue, 0, 10));
  const std::vector<std::uint64_t> revisions{1};
  expect_done(store_->journal_at(kContext, kQueue, revisions));
}

Id ScriptRecorder::create_flow(std::uint32_t job_count) {
  const auto reservation = flows_->create({kContext, 12, job_count, "key", "print"});
  expect_done(reservation);
  Flow flow;
  flow.id = reservation->flow;
  flow.caller_id = 12;
  flow.context_id = kContext;
  flow.name = "pipeline";
  flow.definition_hash = "abc";
  std::vector<Job> jobs;
  for (std::uint32_t i = 0; i < job_count; ++i) {
    jobs.push_back(make_job(reservation->first_job + i));
    jobs.back().priority = i == 0 ? 5 : 0;
    flow.jobs.push_back(jobs.back().id);
  }
  expect_done(set_submitted_files(jobs.front(), {"input", {}}));
  expect_done(flows_->put_jobs(kContext, flow.id, jobs));
  expect_done(flows_->put_flow(flow, "{}"));
  return flow.id;
}

void ScriptRecorder::run_flow_scripts() {
  const Id flow = create_flow(4);
  FlowCommit commit;
  commit.context = kContext;
  commit.flow = flow;
  commit.facts = {{0, 0, "went_on", 0, ""}};
  commit.dispatches = {{key(1), {}}, {key(2), {}}};
  commit.ends = {{key(3), {{"status", "error"}, {"detail", "not_needed"}}}};
  commit.checkpoint = "state";
  expect_done(flows_->commit(commit));
  const std::vector<ClaimedJob> jobs = claim_jobs();
  ASSERT_EQ(jobs.size(), 2U);
  expect_done(flows_->await_flow(kContext, flow, 77));
  end_job(jobs[0].ref, true);
  end_job(jobs[1].ref, false);
  expect_done(flows_->due_flows(kContext, 10));
  expect_done(flows_->read(kContext, flow, 0));
  const std::vector<std::string> views{key(1), key(2)};
  expect_done(flows_->job_views(kContext, views));
  expect_done(flows_->mark_due(kContext, flow));
  FlowCommit next = commit;
  next.expected_revision = 1;
  next.applied_events = 2;
  next.dispatches = {};
  next.ends = {};
  next.replanned_jobs = {key(3)};
  next.requeued_jobs = {jobs[1].ref.job_key};
  next.cancelled_jobs = {key(4)};
  expect_done(flows_->commit(next));
  expect_done(flows_->read_index_entries(kContext, flow));
  FlowRepair repair;
  repair.revision = 2;
  repair.state = "active";
  repair.fixes = {{FlowFix::Kind::add_to_index, FlowFix::FlowIndex::due},
                  {FlowFix::Kind::set_record, {}, "", {{"detail", "x"}}}};
  expect_done(flows_->repair(kContext, flow, repair));
  FlowCommit last = next;
  last.expected_revision = 2;
  last.requeued_jobs = last.replanned_jobs = last.cancelled_jobs = {};
  last.ended = true;
  last.record_fields = {{"status", "finished"}};
  last.applied_events = 1;
  expect_done(flows_->commit(last));
  expect_done(flows_->list(kContext, "pipeline", 0, 10));
  run_script(kContext, scripts::flow_waits, {std::to_string(flow), "1", "77"});
  run_script(kContext, scripts::flow_catalog, {"mj:flow-catalog", "", "10"});
  run_script(kContext, scripts::flow_catalog_drop, {"mj:flow-catalog", "1-0", std::to_string(flow)});
  expect_done(flows_->remove(kContext, flow));
}

void ScriptRecorder::run_flow_request_scripts() {
  run_command(1, {"HSET", "flow:5", "id", "5", "caller_id", "12", "context_id", "1", "status", "dispatched"});
  expect_done(flows_->adopt(kContext, 5, 12));
  expect_done(flows_->create({kContext, 12, 2, "", ""}));
  clock_.now_ms += 1000;
  expect_done(flows_->retire(kContext, 1, 10));
  expect_done(flows_->acquire_leadership(kContext, kInstance, "here", 1000));
  expect_done(flows_->release_leadership(kContext, kInstance));
  Schedule schedule;
  schedule.name = "nightly";
  schedule.caller = 12;
  schedule.definition_hash = "abc";
  expect_done(flows_->put_schedule(kContext, schedule, "{}", 0));
  run_script(kContext, scripts::flow_schedule_places, {"nightly"});
  run_script(kContext, scripts::flow_schedule_repair, {"nightly"});
  expect_done(flows_->remove_schedule(kContext, "nightly"));
}

void ScriptRecorder::run_object_scripts() {
  submit_job(1);
  const std::vector<ClaimedJob> jobs = claim_jobs();
  ASSERT_EQ(jobs.size(), 1U);
  const ClaimRef& writer = jobs[0].ref;
  const ObjectKind todo{"default", "todo"};
  const auto put = [&](const std::string& id) {
    return ObjectOp{ObjectOp::Verb::put, todo, id, {}, R"({"city":"Oslo","text":"some words"})"};
  };
  expect_done(objects_->write(writer, "1", std::vector<ObjectOp>{put("a"), put("b")}));
  expect_done(objects_->declare(writer, todo, {"city"}, {"text"}));
  while (objects_->index_more(kContext, todo).value_or(false)) {
  }
  expect_done(
      objects_->write(writer, "2", std::vector<ObjectOp>{put("c"), {ObjectOp::Verb::remove, todo, "a", {}, ""}}));
  expect_done(objects_->list(kContext, todo, "", 10));
  expect_done(objects_->find(kContext, todo, {"city", ObjectValue("Oslo"), {}, {}}, "", 10));
  expect_done(objects_->search(kContext, todo, "words", "", 10));
  expect_done(objects_->kinds(kContext));
  expect_done(objects_->reindex(kContext, todo));
  run_script(kContext, scripts::object_ids, {"default:todo", "2", "b", "gone"});
  expect_done(objects_->release(writer));
}

void ScriptRecorder::run_outgoing_message_scripts() {
  const auto write = [&](const std::string& message) {
    run_command(1, {"HSET", message, "id", message.substr(11), "caller_id", "12", "message_type", "job", "status",
                    "dispatched"});
  };
  const auto route = [&](const std::string& message, Id id) {
    write(message);
    expect_done(store_->push_to_msg_out(kContext, message));
    expect_done(store_->msg_out_keys(kContext));
    expect_done(
        store_->route_message(kContext, {message, {"c0ffee", {{"own", "1"}}}, 60000, 60000, {{make_job(id), kQueue}}}));
  };
  write("message:12:9");
  run_script(kContext, scripts::post_message, {"message:12:9", "0"});
  route("message:12:5", 50);
  route("message:12:6", 60);
  route("message:12:7", 70);
  auto due = store_->due_messages(kContext, 10, 1000, true);
  expect_done(due);
  ASSERT_EQ(due->outbox.size(), 3U);
  expect_done(
      store_->complete_delivery(kContext, due->outbox[0], {MailResult::Kind::delivered, 0, "", "", {{"there", "9"}}}));
  expect_done(store_->append_remote_log(kContext, "message:12:5", "c0ffee", key(50), {{1, 1, LogStream::out, "one"}}));
  AnswerMessage answer;
  answer.message_key = "message:12:5";
  answer.content_hash = "c0ffee";
  answer.jobs = {{key(50), {{"name", "x"}}, make_end(JobStatus::finished, "ok")}};
  expect_done(store_->answer_message(kContext, answer));
  expect_done(store_->complete_delivery(kContext, due->outbox[1], {MailResult::Kind::failed, 0, "lost", "no way"}));
  expect_done(store_->complete_delivery(kContext, due->outbox[2], {MailResult::Kind::retry, 1000, "", "busy"}));
  expect_done(store_->cancel_message(kContext, "message:12:7"));
  const std::vector<std::string> messages{"message:12:7"};
  const auto states = store_->message_states(kContext, messages);
  ASSERT_TRUE(states && states->size() == 1);
  expect_done(store_->repair_message(kContext, "message:12:7", states->at(0).digest, {"send", "inbox"}));
  clock_.now_ms += 100000;
  expect_done(store_->retire_messages(kContext, 1, 10));
}

void ScriptRecorder::run_incoming_message_scripts() {
  const Fields record{{"id", "1"}, {"caller_id", "12"}, {"message_type", "job"}};
  const MessageState mark{"c0ffee", {{"origin", "mine"}, {"from", "there"}, {"answer", "wanted"}, {"stream", "1"}}};
  expect_done(store_->receive_message(kContext, "message:12:1", mark, record));
  Job urgent = make_job(40);
  urgent.priority = 5;
  expect_done(store_->accept_message(kContext, {"msg_in", "message:12:1", {{urgent, kQueue}}, 0, {"job:9:1"}}));
  for (const ClaimedJob& claimed_job : claim_jobs()) end_job(claimed_job.ref, true);
  auto due = store_->due_messages(kContext, 10, 1000, false);
  expect_done(due);
  for (const OutboxEntry& entry : due->outbox) {
    expect_done(store_->complete_delivery(kContext, entry, {MailResult::Kind::delivered, 0, "", ""}));
  }
  expect_done(store_->delete_record(kContext, "message:12:1"));
  const Id flow = create_flow(1);
  expect_done(store_->send_to_topic(kContext, "runner7", "message:12:2", record));
  expect_done(store_->topic_pending(kContext, "runner7"));
  expect_done(store_->accept_message(kContext, {"mj:topic:runner7", "message:12:2", {{make_job(41), kQueue}}, flow}));
  expect_done(store_->cancel_message(kContext, "message:12:2"));
  expect_done(store_->send_to_topic(kContext, "runner7", "message:12:3", record));
  expect_done(store_->close_message(kContext, "mj:topic:runner7", "message:12:3", "no such script type"));
  expect_done(store_->reserve_jobs(kContext, 12, 5));
}

void ScriptRecorder::run_record_scripts() {
  expect_done(store_->create_record(0, {"actor:", "mj:next:actor", 0, {{"pubkey", "k1"}}}));
  expect_done(store_->change_record(0, "actor:1", {{"pubkey", "k2"}}));
  expect_done(store_->owner_of_key("k2"));
  clock_.now_ms += 100000;
  expect_done(store_->owner_of_key("k2"));
  expect_done(store_->delete_record(0, "actor:1"));
  run_command(0, {"HSET", "actor:2", "id", "2", "pubkey", "k3"});
  run_script(0, scripts::delete_actor, {"2", "4", "1", "1", "admins", ""});
  expect_done(store_->create_record(kContext, {"runner:", "mj:next:runner", 0, {{"topic", "work"}}}));
  Runner runner;
  runner.id = 1;
  RunnerHolder held_by;
  const RunnerHolder self{kInstance, "here", "boot", 1};
  expect_done(store_->hold_runner(kContext, runner, self, 1000, "", held_by));
  expect_done(store_->release_runner(kContext, 1, self));
  expect_done(store_->delete_record(kContext, "runner:1"));
  run_command(1, {"HSET", "context:1", "id", "1"});
  run_script(kContext, scripts::context_revision, {"1"});
  run_script(kContext, scripts::delete_context, {"1", "another revision"});
  expect_done(store_->record_refusal(kContext, {0, 0, 3, "steer", "flow 7", "admins"}));
}

// Runs the scripts of a new connection, of notices and of workflow deployments.
void ScriptRecorder::run_remaining_scripts() {
  run_script(kContext, scripts::agree_on_format, {"1", "3", "1.0", "1", "1"});
  run_script(kContext, scripts::database_contexts, {"1", "2", "1", "2"});
  submit_job(1);
  run_command(1, {"HSET", key(1), "notify", R"(["https://example.com/"])"});
  const std::vector<ClaimedJob> jobs = claim_jobs();
  run_script(kContext, scripts::grant, {"another run id"});
  for (const ClaimedJob& claimed_job : jobs) end_job(claimed_job.ref, true);
  const auto due = store_->due_notices(kContext, 10, 1000);
  expect_done(due);
  ASSERT_EQ(due->notices.size(), 1U);
  expect_done(store_->complete_notice(kContext, due->notices[0], {NoticeResult::Retry{{}, 1000}, ""}));
  const std::vector<DeploymentPoll> at{{"acme/order@1", {key(1)}}};
  expect_done(workflows_->poll(kContext, at));
  expect_done(workflows_->due_deployments(kContext, 10));
  expect_done(workflows_->read_state(kContext, "acme/order@1"));
  expect_done(workflows_->read_facts(kContext, "acme/order@1", {1, 2}));
  expect_done(workflows_->read_instance_facts(kContext, "acme/order@1", "acme/order@1 01"));
}

}  // namespace mycojobs
