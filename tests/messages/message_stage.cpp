#include "messages/message_stage.h"

#include <algorithm>

#include "artifacts/artifact_folder.h"
#include "artifacts/job_artifacts.h"
#include "artifacts/local_artifact_store.h"
#include "inspect/verify/flow_verify.h"
#include "inspect/verify/job_verify.h"
#include "model/codec.h"
#include "security/signatures.h"
#include "worker/intake/job_inputs.h"

namespace mycojobs {
namespace {

// All stages share two servers in turn, so that the scripts are compiled only once.
struct MessageHall {
  test::ManualClock clock;
  MemoryServer here{clock}, there{clock};
};
MessageHall& message_hall() {
  static MessageHall the;
  return the;
}
MemoryServer& emptied(MemoryServer& server) {
  server.set_faults(nullptr);
  server.restore({});
  return server;
}

// Records the files that were released before any store call could have recorded their owner.
class WatchedFiles final : public ArtifactStore {
 public:
  WatchedFiles(std::shared_ptr<ArtifactStore> files, const std::uint64_t& calls, std::vector<std::string>& let_go)
      : files_(std::move(files)), calls_(calls), released_early_(let_go) {}

  Result<std::string> read_file(RecordStore& store, Id context, const std::string& job_key, const FileContent& file,
                                std::uint64_t offset, std::size_t max) override {
    return files_->read_file(store, context, job_key, file, offset, max);
  }
  Result<bool> has_files(RecordStore& store, Id context, const std::string& job_key,
                         const std::vector<FileContent>& files) override {
    return files_->has_files(store, context, job_key, files);
  }
  std::optional<std::uint64_t> received_bytes(Id context, const InboundBundleId& parcel,
                                              const FileContent& file) const override {
    return files_->received_bytes(context, parcel, file);
  }
  Result<void> reserve_files(RecordStore& store, Id context, const InboundBundleId& parcel,
                             const std::vector<FileContent>& files) override {
    return files_->reserve_files(store, context, parcel, files);
  }
  std::uint64_t sender_limit() const override { return files_->sender_limit(); }
  Result<std::uint64_t> add_piece(Id context, const InboundBundleId& parcel, const FileContent& file,
                                  std::uint64_t offset, std::string_view piece) override {
    return files_->add_piece(context, parcel, file, offset, piece);
  }
  Result<std::unique_ptr<RetainedFiles>> retain_files(RecordStore& store, Id context, const InboundBundleId& parcel,
                                                      const std::vector<JobFiles>& to) override {
    MJ_TRY(handed, files_->retain_files(store, context, parcel, to));
    return std::make_unique<WatchedBundle>(std::move(handed), *this, parcel.name);
  }
  void remove_bundle(Id context, const InboundBundleId& parcel) override { files_->remove_bundle(context, parcel); }
  Result<std::uint64_t> clean_up(RecordStore& store, Id context) override { return files_->clean_up(store, context); }

 private:
  class WatchedBundle final : public RetainedFiles {
   public:
    WatchedBundle(std::unique_ptr<RetainedFiles> handed, WatchedFiles& of, std::string parcel)
        : handed_(std::move(handed)), of_(of), parcel_(std::move(parcel)), since_(of.calls_) {}
    ~WatchedBundle() override {
      if (of_.calls_ == since_)
        of_.released_early_.push_back(parcel_ + ": let go before a record says whose its files are");
    }

   private:
    std::unique_ptr<RetainedFiles> handed_;
    WatchedFiles& of_;
    std::string parcel_;
    std::uint64_t since_;
  };

  std::shared_ptr<ArtifactStore> files_;
  const std::uint64_t& calls_;
  std::vector<std::string>& released_early_;
};

}  // namespace

MessageSide::MessageSide(MemoryServer& of_it, const Clock& clock, Id of, std::string at, const std::string& folder)
    : context(of),
      address(std::move(at)),
      key(std::make_shared<SigningKey>(SigningKey::make())),
      server(emptied(of_it)),
      store(server.open().value()),
      flows(server.open_flows().value()) {
  state_dir = folder;
  files.store = make_artifact_store(state_dir, clock, 1000, 64U << 20);
  files.max_bytes = 4U << 20;
  begin(clock);
  ContextSettings settings;
  settings.context = context;
  settings.instance = "coordinator";
  flow_rounds_ = std::make_unique<ContextLoop>(server.open_flows().value(), server.open().value(), clock, settings);
}

void MessageSide::begin(const Clock& clock) {
  rounds_store_ = server.open().value();
  receiver_store_ = server.open().value();
  rounds_flows_ = server.open_flows().value();
  known_ = std::make_unique<PublicKeyCache>();
  rounds_ = std::make_unique<MessageLoop>(*rounds_store_, *rounds_flows_, clock,
                                          MessageSettings{context, key, true, 24ULL * 3600 * 1000, files});
  receiver_ = std::make_unique<MessageReceiver>(*receiver_store_, *known_, key->public_key(), files);
  is_dead_ = false;
}

std::string MessageSide::store_artifact(const std::string& job_key, const std::string& name, const std::string& bytes) {
  const auto run =
      make_run_artifacts(state_dir, context, artifact_store_name(*store, context).value(), job_key, 64U << 20);
  EXPECT_TRUE(run->open(name, false));
  run->write(bytes);
  run->close();
  return run->finish();
}

std::string MessageSide::read_job_file(const std::string& job_key, const std::string& bytes) {
  const std::string name = artifact_store_name(*store, context).value();
  return test::read_file(ArtifactFolder(state_dir, context).job_folder(name, job_key) + '/' + sha256_hex(bytes));
}

std::vector<std::string> MessageSide::list(const std::vector<std::string>& words) {
  const Reply reply = server.run_command(context, words);
  std::vector<std::string> out;
  for (std::size_t i = 0; i < reply.size(); ++i) out.emplace_back(reply.at(i).text());
  return out;
}

MessageStage::MessageStage()
    : clock(message_hall().clock = {}),
      here(message_hall().here, clock, 1, kHere, folder / "here"),
      there(message_hall().there, clock, 2, kThere, folder / "there") {
  for (MessageSide* side : {&here, &there})
    side->files.store = std::make_shared<WatchedFiles>(side->files.store, calls_, released_early_);
  restart();
  prepare(here);
  prepare(there);
  const auto actor = [&](MessageSide& side, Id id) {
    side.server.run_command(0, {"HSET", "actor:" + std::to_string(id), "id", std::to_string(id), "pubkey",
                                alice.public_key(), "address", std::string("[\"") + kHere + "\"]"});
  };
  actor(here, kAlice);
  actor(there, kAliceThere);
  const auto runner = [](MessageSide& side, const MessageSide& of) {
    EXPECT_TRUE(side.store->save(side.context, "runner:7",
                                 {{"id", "7"}, {"address", of.address}, {"pubkey", of.key->public_key()}}));
  };
  runner(here, there);
  runner(there, here);
  for (MessageSide* side : {&here, &there})
    side->server.set_faults([this, side](const ServerCall& call) { return choose_fault(*side, call); });
}

MessageStage::~MessageStage() {
  for (MessageSide* side : {&here, &there}) side->server.set_faults(nullptr);
}

void MessageStage::prepare(MessageSide& side) {
  const std::string id = std::to_string(side.context);
  EXPECT_TRUE(side.store->save(side.context, "context:" + id, {{"id", id}, {"submitters", "[12,34]"}}));
}

Fault MessageStage::choose_fault(MessageSide& side, const ServerCall& call) {
  if (active_side_ != &side) return Fault::none;
  ++commands_;
  if (side.is_dead_) return Fault::before;
  // Scripts that could write but do not in these tests; a kill at such a call equals a kill between its neighbours.
  static const std::set<std::string_view> kChecks{"retire_messages", "flow_read", "flow_jobs", "load", "load_some"};
  static const std::set<std::string_view> kMail{"mail_due", "pending_messages"};
  if (call.write == 0 || kChecks.contains(call.name) || (side.is_idle_ && kMail.contains(call.name)))
    return Fault::none;
  ++calls_;
  for (MessageDisturbance& each : calls_disturbed_) {
    if (!each.matches(calls_, side.address + ' ' + std::string(call.name))) continue;
    side.is_dead_ = each.fate == MessageFate::killed_before || each.fate == MessageFate::killed_after;
    return each.fate == MessageFate::killed_before || each.fate == MessageFate::request_lost ? Fault::before
                                                                                             : Fault::after;
  }
  return Fault::none;
}

Message MessageStage::message(Id id, std::vector<Job> jobs) {
  Message out;
  out.id = id;
  out.caller_id = kAlice;
  out.context_id = here.context;
  out.job = std::move(jobs);
  out.target_address = kThere;
  out.target_key = there.key->public_key();
  out.target_context = there.context;
  out.created_at = static_cast<std::uint32_t>(clock.unix_ms() / 1000);
  return out;
}

Job MessageStage::job(Id id, const std::string& script) {
  Job out;
  out.id = id;
  out.script = script;
  out.script_type = "python";
  return out;
}

void MessageStage::send(Message outgoing) {
  ASSERT_TRUE(sign(outgoing, alice));
  const std::string key = redis_key(outgoing);
  ASSERT_TRUE(here.store->save(here.context, key, encode(outgoing)));
  ASSERT_TRUE(here.store->push_to_msg_out(here.context, key));
  sent_.insert(key);
}

Result<std::string> MessageStage::carry(const std::string& address, const std::string& request, std::uint64_t number) {
  if (transport_error_) return tl::unexpected<Error>(*transport_error_);
  const auto lost = [] { return fail(Code::unavailable, "nobody answers"); };
  MessageFate fate = MessageFate::fine;
  for (MessageDisturbance& each : requests_disturbed_) {
    if (each.matches(number, address)) fate = each.fate;
  }
  if (is_disconnected_ || fate == MessageFate::parcel_lost) return lost();
  MessageSide& to = address == kThere ? there : here;
  if (fate == MessageFate::late) late_.push_back({clock.unix_ms() + 30000, address, request});
  if (fate == MessageFate::twice) (void)receive(to, request);
  std::string answer = receive(to, request);
  if (to.is_dead_ || fate == MessageFate::answer_lost || address == address_without_answers_) return lost();
  return replacement_ ? replacement_(answer) : answer;
}

std::string MessageStage::receive(MessageSide& side, const std::string& request, const std::string& node) {
  MessageSide* const before = std::exchange(active_side_, &side);
  std::string answer = side.receiver_->handle_request(request, node);
  active_side_ = before;
  return answer;
}

bool MessageStage::has_mail(MessageSide& side) {
  for (const char* index : {"mj:outbox", "mj:inbox"}) {
    const std::string now = std::to_string(clock.unix_ms());
    if (side.server.run_command(side.context, {"ZCOUNT", index, "-inf", now}).number() > 0) return true;
  }
  return side.server.run_command(side.context, {"EXISTS", "msg_out", "msg_out_coordinator"}).number() > 0;
}

void MessageStage::supervise(MessageSide& side) {
  active_side_ = &side;
  for (int i = 0; i < 10; ++i) {
    side.is_idle_ = !has_mail(side);
    auto round = side.rounds_->run_round(16);
    if (!round && round.error().code != Code::unavailable) ADD_FAILURE() << "a round: " << round.error().message;
    if (!round) break;
    for (const OutboundRequest& parcel : round->requests) {
      if (side.is_dead_) break;
      const auto answer = carry(parcel.address.empty() ? side.address : parcel.address, parcel.request, ++requests_);
      const auto settled = side.rounds_->complete(parcel, answer);
      if (!settled && settled.error().code != Code::unavailable)
        ADD_FAILURE() << parcel.entry.entry << ": " << settled.error().message;
    }
    if (side.is_dead_ || round->next_ms > 0) break;
  }
  active_side_ = nullptr;
}

std::string MessageStage::get_artifact_bytes(const std::string& script) {
  return script.find("long") == std::string::npos ? script : script + std::string(1300U << 10, 'a');
}

namespace {

// Lists the files as an agent gives them to a job: "build/out/app=<bytes>".
std::string files_given(MessageSide& side, const ClaimedJob& claimed) {
  JobFacts facts;
  facts.job = decode<Job>(claimed.record).record;
  auto inputs = JobInputs::read(*side.store, side.state_dir, facts.job);
  if (!inputs) return inputs.error().message;
  if (const auto found = inputs->resolve(facts); !found) return found.error().message;
  std::string out;
  for (const auto& [of, file] : facts.files) {
    const std::string bytes = test::read_file(file.path);
    out += of + '/' + file.name + '=' + (bytes.size() > 100 ? sha256_hex(bytes) : bytes) + ' ';
  }
  for (const auto& [of, input] : facts.inputs) out += of + " says " + input.result.at("size");
  return out;
}

}  // namespace

void MessageStage::run_jobs(MessageSide& side) {
  std::vector<ClaimedJob> still;
  for (ClaimedJob& claimed : side.running) {
    const std::vector<ClaimRef> refs{claimed.ref};
    const bool is_cancelled = side.store->renew(side.context, refs, 1U << 30).value().at(0) == Renewal::cancel;
    const std::string script(field_of(claimed.record, "script"));
    if (script.starts_with("hold") && !is_cancelled) {
      still.push_back(std::move(claimed));
      continue;
    }
    JobEnd end;
    end.status = script.starts_with("ok") ? JobStatus::finished : JobStatus::error;
    end.detail = is_cancelled ? "cancelled" : script.starts_with("ok") ? "ok" : "exit";
    if (end.status == JobStatus::error) end.error = "it went wrong";
    end.result = {{"script", script}};
    if (script.ends_with("leave"))
      end.artifacts = side.store_artifact(claimed.ref.job_key, "out/left.txt", get_artifact_bytes(script));
    if (script.ends_with("read")) end.result["read"] = files_given(side, claimed);
    const std::vector<Report> reports{LogAppend{claimed.ref, {{1, 2, LogStream::err, script + " two\n"}}},
                                      EndReport{claimed.ref, std::move(end)}};
    const auto done = side.store->report(side.context, reports).value();
    if (!done.at(1)) ADD_FAILURE() << claimed.ref.job_key << ": " << done.at(1).error().message;
  }
  side.running = std::move(still);
  ClaimRequest request;
  request.context = side.context;
  request.runner = 1;
  request.instance = "runner";
  request.queues = {"queue:python"};
  request.max_jobs = 64;
  request.lease_ms = 1U << 30;
  ClaimReply claimed = side.store->claim(request).value();
  for (ClaimedJob& each : claimed.jobs) {
    const std::string script(field_of(each.record, "script"));
    ++side.claims[script];
    const std::vector<Report> line{LogAppend{each.ref, {{1, 1, LogStream::out, script + " one\n"}}}};
    if (!side.store->report(side.context, line).value().at(0)) ADD_FAILURE() << "the log line was not stored";
    side.running.push_back(std::move(each));
  }
}

void MessageStage::step(std::uint64_t ms) {
  for (auto each = acts_.begin(); each != acts_.end();) {
    if (each->time()) {
      const auto act = std::move(each->act);
      each = acts_.erase(each);
      act();
    } else {
      ++each;
    }
  }
  for (MessageSide* side : {&here, &there}) {
    supervise(*side);
    for (MessageSide* each : {&here, &there}) {
      if (each->is_dead_) each->begin(clock);
    }
    const auto flows = side->flow_rounds_->run_round();
    if (!flows) ADD_FAILURE() << flows.error().message;
    run_jobs(*side);
  }
  for (std::size_t i = 0; i < late_.size(); ++i) {
    if (clock.unix_ms() < late_[i].at_ms) continue;
    const Late now = late_[i];
    late_.erase(late_.begin() + static_cast<std::ptrdiff_t>(i--));
    (void)receive(now.address == kThere ? there : here, now.request);
  }
  clock.advance(ms);
}

bool MessageStage::is_quiet() {
  if (!acts_.empty() || !late_.empty()) return false;
  for (MessageSide* side : {&here, &there}) {
    if (!side->running.empty() || side->server.run_command(side->context, {"LLEN", "queue:python"}).number() > 0)
      return false;
    for (const char* index : {"mj:outbox", "mj:inbox"})
      if (side->server.run_command(side->context, {"ZCARD", index}).number() > 0) return false;
    for (const char* list : {"msg_out", "msg_out_coordinator"})
      if (side->server.run_command(side->context, {"LLEN", list}).number() > 0) return false;
  }
  return std::all_of(sent_.begin(), sent_.end(), [&](const std::string& key) {
    const std::string status = here.field(key, "status");
    return status == "processed" || status == "error";
  });
}

bool MessageStage::play(int rounds) {
  for (int i = 0; i < rounds; ++i) {
    step(step_ms_);
    if (is_quiet()) return true;
  }
  return false;
}

std::string MessageStage::outcome() {
  std::string out;
  for (MessageSide* side : {&here, &there}) {
    out += side == &here ? "here\n" : "there\n";
    const auto messages = side->store->keys(side->context, "message:", 1000).value();
    for (const std::string& key : std::set<std::string>(messages.begin(), messages.end())) {
      const auto in = side->list({"LRANGE", "msg_in", "0", "-1"});
      out += "  " + key + ' ' + side->field(key, "status") + ' ' + side->field(key, "transport_status") + " (" +
             side->field(key, "error") + ") in msg_in " + std::to_string(std::count(in.begin(), in.end(), key)) +
             " answer " + side->field("mj:message:" + key, "answer") + '\n';
    }
    // The jobs are listed by script, since a call without a reply may have consumed ids.
    const auto keys = side->store->keys(side->context, "job:", 1000).value();
    std::set<std::string> jobs;
    for (const std::string& key : keys) {
      const Fields record = side->store->load(side->context, key).value();
      std::string line = "  job " + (side == &here ? key : "") + ' ' + std::string(field_of(record, "script"));
      for (const char* name : {"status", "detail", "error", "result"})
        line += std::string(" | ") + std::string(field_of(record, name));
      for (const ListedArtifact& each : read_artifact_list(std::string(field_of(record, "artifacts"))))
        line += " | file " + each.name + '=' + side->read_job_file(key, std::string(field_of(record, "script")));
      line += " | log:";
      const auto page = side->store->logs(side->context, key, 0, 100, 0).value();
      for (const Log& each : page.lines) line += ' ' + each.text.substr(0, each.text.size() - 1);
      jobs.insert(line + (page.ended ? " end\n" : "\n"));
    }
    for (const std::string& each : jobs) out += each;
    for (const auto& [script, times] : side->claims) out += "  ran " + script + ": " + std::to_string(times) + '\n';
  }
  // Whether an attempt was made before the time-out depends on the fault.
  const std::string last_try = ": nobody answers";
  for (auto at = out.find(last_try); at != std::string::npos; at = out.find(last_try)) out.erase(at, last_try.size());
  return out;
}

void MessageStage::add_violations(MessageSide& side, std::vector<std::string>& all) {
  const std::string where = side.address + ": ";
  const auto anomalies = side.store->anomalies(side.context, 100).value();
  for (const std::string& each : anomalies) all.push_back(where + "anomaly: " + each);
  for (const auto& [script, times] : side.claims) {
    if (times != 1) all.push_back(where + script + " ran " + std::to_string(times) + " times");
  }
  const auto report = verify(*side.store, side.context, {}).value();
  for (const Finding& each : report.findings) all.push_back(where + each.rule + ": " + each.text);
  const auto flows = verify_flows(*side.flows, *side.store, side.context).value();
  for (const Finding& each : flows) all.push_back(where + each.rule + ": " + each.text);
}

std::vector<std::string> MessageStage::find_violations() {
  std::vector<std::string> all = released_early_;
  add_violations(here, all);
  add_violations(there, all);
  return all;
}

}  // namespace mycojobs
