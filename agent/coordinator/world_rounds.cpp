#include "coordinator/world_rounds.h"

#include <algorithm>
#include <future>
#include <nlohmann/json.hpp>
#include <set>

#include "base/ids.h"
#include "base/log.h"
#include "coordinator/create.h"
#include "coordinator/progress.h"
#include "domain/cbor.h"
#include "domain/codec.h"
#include "domain/result_values.h"
#include "domain/signatures.h"
#include "domain/workflow_system.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::uint32_t kWorldsAtOnce = 16, kMailAtOnce = 200, kStepsAtOnce = 32, kParallelSteps = 4;
constexpr std::uint64_t kWorldsIdleMs = 1000;
constexpr std::uint64_t kSnapshotEvery = 5000;  // facts
constexpr std::uint64_t kLookAgainAtErrorMs = 5000;
constexpr int kPassesAtOnce = 50;  // of one world, before another has its turn
constexpr const char* kTimerCarrier = "timer";
constexpr const char* kApprovalCarrier = "approval";

std::string text_in(const Fields& fields, std::string_view name) { return std::string(field_of(fields, name)); }

// A receipt that is not ok.
ReceiptArrived failed_receipt(const std::string& intent, ReceiptStatus status, const std::string& detail,
                              const std::string& message) {
  ReceiptArrived out;
  out.intent = intent;
  out.status = status;
  out.payload = dump_json({{"detail", detail}, {"message", message}});
  return out;
}

ReceiptStatus status_of_end(const std::string& detail) {
  if (detail == "timeout" || detail == "timeout_cpu") return ReceiptStatus::timeout;
  return detail == "cancelled" ? ReceiptStatus::cancelled : ReceiptStatus::error;
}

const PendingIntent* find_pending(const WorldState& world, const std::string& intent) {
  const auto cell = world.intents.find(intent);
  if (cell == world.intents.end()) return nullptr;
  const CellState* state = world.cell(cell->second);
  if (state == nullptr) return nullptr;
  const auto found = state->pending.find(intent);
  return found == state->pending.end() ? nullptr : &found->second;
}

// The intent that something carries; empty: none that waits.
std::string intent_of(const WorldState& world, const std::string& carrier) {
  for (const auto& [intent, id] : world.intents) {
    const PendingIntent* pending = find_pending(world, intent);
    if (pending != nullptr && pending->carrier == carrier) return intent;
  }
  return "";
}

std::uint64_t fires_at(const PendingIntent& pending) {
  const auto params = decode_cbor(pending.intent.params);
  const auto number = [&](const char* name) -> std::uint64_t {
    const auto found = params && params->is_object() ? params->find(name) : json::const_iterator();
    return params && params->is_object() && found != params->end() && found->is_number_unsigned()
               ? found->get<std::uint64_t>()
               : 0;
  };
  return std::max(number("at_ms"), pending.asked_ms + number("after_ms"));
}

}  // namespace

Result<StepAnswer> take_step(workflow::WorkflowEngine& engine, Id context, const WorkflowManifest& manifest,
                             const WorkflowSpec& spec, const StepRequest& request) {
  const auto code = manifest.code.find(spec.module);
  if (code == manifest.code.end()) return fail(Code::not_found, spec.module + ": is not among the code of the manifest");
  MJ_TRY(program, workflow::Program::make(context, spec.module, spec.entrypoint, code->second));
  const workflow::StepRequest asked{request.state, {request.event.schema, request.event.value, request.event.key},
                                    request.ctx};
  MJ_TRY(answer, engine.step(program, asked));
  if (answer.failure)
    return StepAnswer(StepError{std::string(to_string(answer.failure->kind)), answer.failure->message,
                                answer.failure->line.value_or(0)});
  StepOutput output{std::move(answer.state), {}, {}, std::move(answer.annotations)};
  for (workflow::DomainEvent& event : answer.domain_events)
    output.domain_events.push_back({std::move(event.schema), std::move(event.value), std::nullopt});
  for (workflow::StepEffect& effect : answer.effects)
    output.effects.push_back({std::move(effect.kind), std::move(effect.params), effect.index, ""});
  return StepAnswer(std::move(output));
}

Result<Sample> WorldRounds::sample() {
  MJ_TRY(now_ms, parts_.worlds.now_ms());
  Sample made{now_ms, {}};
  const std::string hex = random_hex(32);
  for (std::size_t i = 0; i < hex.size(); i += 2)
    made.entropy += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return made;
}

Result<std::uint64_t> WorldRounds::round() {
  MJ_TRY(due, parts_.worlds.due(context_, kWorldsAtOnce));
  for (const std::string& name : due.first) {
    auto done = work(name);
    if (!done && done.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(done).error());
  }
  if (!due.first.empty()) return 0;
  return due.second == 0 ? kWorldsIdleMs : std::min(kWorldsIdleMs, due.second);
}

Result<void> WorldRounds::recover() {
  worlds_.clear();
  MJ_TRY(names, parts_.worlds.worlds(context_));
  for (const std::string& name : names) {
    auto world = world_of(name);
    if (!world && world.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(world).error());
    if (!world) {
      log(LogLevel::error, "workflows", "context {}: {}", context_, world.error().message);
      continue;
    }
    MJ_CHECK(look_for_ends((*world)->loaded));
    MJ_CHECK(work(name));
  }
  return {};
}

Result<WorldRounds::World*> WorldRounds::world_of(const std::string& name) {
  const auto found = worlds_.find(name);
  if (found != worlds_.end()) {
    MJ_CHECK(found->second.loaded.catch_up(parts_.worlds));
    return &found->second;
  }
  MJ_TRY(loaded, LoadedWorld::load(parts_.worlds, context_, name));
  return &worlds_.emplace(name, World{std::move(loaded), ""}).first->second;
}

// A world that cannot be moved on holds no other up: it is looked at again later.
Result<void> WorldRounds::work(const std::string& name) {
  Result<void> done;
  for (int i = 0; i < kPassesAtOnce; ++i) {
    auto world = world_of(name);
    if (!world) {
      done = tl::unexpected<Error>(std::move(world).error());
      break;
    }
    auto more = work_once((*world)->loaded);
    if (more && *more) continue;
    if (more) return {};
    worlds_.erase(name);  // what was decided and not committed goes with it
    if (more.error().code == Code::conflict) continue;
    done = tl::unexpected<Error>(std::move(more).error());
    break;
  }
  if (done || done.error().code == Code::unavailable) return done;
  log(LogLevel::error, "workflows", "context {}: {} waits: {}", context_, name, done.error().message);
  MJ_TRY(now_ms, parts_.worlds.now_ms());
  MJ_TRY(head, parts_.worlds.read(context_, name, UINT32_MAX, 1));
  auto put_off = parts_.worlds.commit({context_, name, head.height, {}, {}, {}, "", now_ms + kLookAgainAtErrorMs});
  return put_off || put_off.error().code == Code::conflict ? Result<void>() : put_off;
}

// True: there is more to do.
Result<bool> WorldRounds::work_once(LoadedWorld& world) {
  MJ_TRY(taken, take_mail(world));
  std::uint64_t next_ms = 0;
  MJ_TRY(fired, fire_timers(world, next_ms));
  MJ_TRY(stepped, take_steps(world));
  const bool moved = taken + fired + stepped > 0;
  if (moved && world.state().height % kSnapshotEvery < world.news()) {
    MJ_TRY(at, sample());
    auto snapshot = world.decide({at, TakeSnapshot{}});
    (void)snapshot;  // conflict: it is not quiet; the journal has it all
  }
  MJ_CHECK(world.commit(parts_.worlds, next_ms));
  MJ_TRY(published, publish(world));
  if (published > 0) {
    // What was published waits for time, too.
    std::uint64_t next = 0;
    MJ_CHECK(fire_timers(world, next));
    MJ_CHECK(world.commit(parts_.worlds, next));
  }
  return moved || published > 0;
}

// ---- what comes in ----

Result<std::size_t> WorldRounds::take_mail(LoadedWorld& world) {
  MJ_TRY(mail, parts_.worlds.mail(context_, world.name(), kMailAtOnce));
  for (const WorldMail& each : mail) {
    MJ_CHECK(take_one(world, each));
    world.done(each.id);
  }
  return mail.size();
}

Result<void> WorldRounds::take_one(LoadedWorld& world, const WorldMail& mail) {
  if (mail.kind == "event") {
    MJ_TRY(at, sample());
    const EventArrived event{text_in(mail.fields, "schema"), text_in(mail.fields, "value"), ValueForm::json,
                             text_in(mail.fields, "source")};
    auto done = world.decide({at, event});
    if (!done)
      log(LogLevel::warn, "workflows", "context {}: {}: event {} refused: {}", context_, world.name(), event.schema,
          done.error().message);
    return {};
  }
  if (mail.kind == "answer") {
    ReceiptArrived answer;
    answer.intent = text_in(mail.fields, "intent");
    answer.payload = text_in(mail.fields, "payload");
    return receive(world, std::move(answer));
  }
  const std::string key = text_in(mail.fields, "key");
  auto receipt = mail.kind == "job" ? receipt_of_job(world, key) : receipt_of_flow(world, key);
  if (!receipt && receipt.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(receipt).error());
  if (receipt && *receipt) return receive(world, std::move(**receipt));
  return {};
}

Result<void> WorldRounds::receive(LoadedWorld& world, ReceiptArrived receipt) {
  MJ_TRY(at, sample());
  const std::string intent = receipt.intent;
  auto done = world.decide({at, std::move(receipt)});
  if (!done)
    log(LogLevel::warn, "workflows", "context {}: {}: receipt of {} refused: {}", context_, world.name(),
        intent.substr(0, 16), done.error().message);
  return {};
}

// Whether the runner signed what stands there. Empty: it did, or is known to sign nothing.
Result<std::string> why_receipt_fails(Store& store, Id context, const Job& job) {
  Runner runner;
  runner.id = job.runner_id;
  auto record = store.load(context, redis_key(runner));
  if (!record && record.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(record).error());
  const std::string pubkey = record ? decode<Runner>(*record).record.pubkey : "";
  const auto receipt = parse_json(job.receipt);
  const bool is_signed = receipt && receipt->is_object() && receipt->contains("signature");
  if (!is_signed) return pubkey.empty() ? "" : "runner " + std::to_string(runner.id) + " has a key, and did not sign";
  if (pubkey.empty()) return "no record says which key runner " + std::to_string(runner.id) + " has";
  if (auto holds = check_signature(*receipt, "receipt", pubkey); !holds) return holds.error().message;
  const json said = receipt->value("result_sha256", json());
  if (said != json(result_hash(job.result, job.result_json))) return "the result is not the one that was signed";
  return receipt->value("job", json()) == json(redis_key(job)) ? "" : "it is of another job";
}

Result<std::optional<ReceiptArrived>> WorldRounds::receipt_of_job(LoadedWorld& world, const std::string& job_key) {
  const std::string intent = intent_of(world.state(), job_key);
  if (intent.empty()) return std::optional<ReceiptArrived>();
  MJ_TRY(record, parts_.store.load(context_, job_key));
  const Job job = decode<Job>(record).record;
  if (job.status != JobStatus::finished && job.status != JobStatus::error) return std::optional<ReceiptArrived>();
  ReceiptArrived receipt;
  if (job.status == JobStatus::finished) {
    receipt.intent = intent;
    receipt.payload = typed_text(job.result, job.result_json);
  } else {
    receipt = failed_receipt(intent, status_of_end(job.detail), job.detail, job.error);
  }
  receipt.module = job.script_type;
  if (!job.claim_id.empty()) {
    MJ_TRY(why, why_receipt_fails(parts_.store, context_, job));
    receipt.refused = std::move(why);
  }
  return std::optional(std::move(receipt));
}

Result<std::optional<ReceiptArrived>> WorldRounds::receipt_of_flow(LoadedWorld& world, const std::string& flow_key) {
  const std::string intent = intent_of(world.state(), flow_key);
  if (intent.empty()) return std::optional<ReceiptArrived>();
  MJ_TRY(record, parts_.store.load(context_, flow_key));
  const Flow flow = decode<Flow>(record).record;
  if (flow.status == FlowStatus::finished) {
    ReceiptArrived receipt;
    receipt.intent = intent;
    receipt.payload =
        dump_json({{"flow_id", flow.id}, {"result", typed_values(flow.result, flow.result_json)}});
    return std::optional(std::move(receipt));
  }
  if (flow.status != FlowStatus::error) return std::optional<ReceiptArrived>();
  return std::optional(failed_receipt(intent, status_of_end(flow.detail), flow.detail, flow.error));
}

// What ended while nobody listened.
Result<void> WorldRounds::look_for_ends(LoadedWorld& world) {
  std::vector<std::string> carriers;
  for (const auto& [intent, cell] : world.state().intents) {
    const PendingIntent* pending = find_pending(world.state(), intent);
    if (pending != nullptr && pending->published) carriers.push_back(pending->carrier);
  }
  for (const std::string& carrier : carriers) {
    const bool is_job = carrier.starts_with("job:");
    if (!is_job && !carrier.starts_with("flow:")) continue;
    auto receipt = is_job ? receipt_of_job(world, carrier) : receipt_of_flow(world, carrier);
    if (!receipt && receipt.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(receipt).error());
    if (!receipt)
      receipt = std::optional(failed_receipt(intent_of(world.state(), carrier), ReceiptStatus::error, "lost",
                                             carrier + " is gone: " + receipt.error().message));
    if (*receipt) MJ_CHECK(receive(world, std::move(**receipt)));
  }
  return {};
}

Result<std::size_t> WorldRounds::fire_timers(LoadedWorld& world, std::uint64_t& next_ms) {
  MJ_TRY(now_ms, parts_.worlds.now_ms());
  std::vector<std::string> due;
  for (const auto& [intent, cell] : world.state().intents) {
    const PendingIntent* pending = find_pending(world.state(), intent);
    if (pending == nullptr || pending->carrier != kTimerCarrier) continue;
    const std::uint64_t at = fires_at(*pending);
    if (at <= now_ms) due.push_back(intent);
    if (at > now_ms) next_ms = next_ms == 0 ? at : std::min(next_ms, at);
  }
  for (const std::string& intent : due) {
    ReceiptArrived fired;
    fired.intent = intent;
    fired.payload = dump_json({{"fired_ms", now_ms}});
    MJ_CHECK(receive(world, std::move(fired)));
  }
  return due.size();
}

// ---- steps ----

Result<std::size_t> WorldRounds::take_steps(LoadedWorld& world) {
  const std::vector<CellId> cells = next_cells(world.state(), kStepsAtOnce);
  struct Taking {
    CellId cell;
    MailId mail;
    const WorkflowManifest* manifest = nullptr;
    const WorkflowSpec* spec = nullptr;
    StepRequest request;
    Result<StepAnswer> answer = tl::unexpected<Error>(Error{});
  };
  std::vector<Taking> all;
  for (const CellId& id : cells) {
    const CellState* cell = world.state().cell(id);
    if (cell == nullptr || cell->mail.empty()) continue;
    MJ_TRY(request, world.request_of(parts_.worlds, id));
    Taking taking;
    taking.cell = id;
    taking.mail = cell->mail.front().id;
    taking.manifest = world.catalog().find(cell->manifest);
    taking.spec = taking.manifest == nullptr ? nullptr : taking.manifest->workflow(id.workflow);
    if (taking.spec == nullptr) return fail(Code::not_found, shown(id) + ": its code is gone");
    taking.request = std::move(request);
    all.push_back(std::move(taking));
  }
  const auto take = [&](std::size_t from) {
    for (std::size_t i = from; i < all.size(); i += kParallelSteps)
      all[i].answer = take_step(parts_.engine, context_, *all[i].manifest, *all[i].spec, all[i].request);
  };
  std::vector<std::future<void>> others;
  for (std::size_t i = 1; i < std::min<std::size_t>(kParallelSteps, all.size()); ++i)
    others.push_back(std::async(std::launch::async, take, i));
  if (!all.empty()) take(0);
  for (std::future<void>& each : others) each.get();
  for (Taking& each : all) {
    if (!each.answer) return tl::unexpected<Error>(std::move(each.answer).error());
    MJ_TRY(at, sample());
    MJ_CHECK(world.decide({at, StepDone{each.cell, each.mail, std::move(*each.answer)}}));
  }
  return all.size();
}

// ---- effects ----

Result<std::size_t> WorldRounds::publish(LoadedWorld& world) {
  const std::vector<EffectToPublish> all = to_publish(world.state());
  for (const EffectToPublish& each : all) {
    MJ_TRY(at, sample());
    auto carrier = carry_out(world, each);
    if (!carrier && carrier.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(carrier).error());
    const std::string& intent = each.pending.intent.hash;
    MJ_CHECK(world.decide({at, EffectCarried{intent, carrier ? *carrier : "none"}}));
    if (!carrier) MJ_CHECK(receive(world, failed_receipt(intent, ReceiptStatus::error, "setup_error", carrier.error().message)));
    if (carrier && carrier->empty()) {
      ReceiptArrived done;
      done.intent = intent;
      done.payload = dump_json({{"delivered", true}});
      MJ_CHECK(receive(world, std::move(done)));
    }
  }
  return all.size();
}

// What carries it: a job, a flow, a timer; empty: it is done.
Result<std::string> WorldRounds::carry_out(LoadedWorld& world, const EffectToPublish& effect) {
  const CellState* cell = world.state().cell(effect.cell);
  const WorkflowManifest* manifest = cell == nullptr ? nullptr : world.catalog().find(cell->manifest);
  const EffectSpec* spec = manifest == nullptr ? nullptr : manifest->effect(effect.pending.intent.effect);
  if (spec == nullptr) return fail(Code::not_found, effect.pending.intent.effect + ": its manifest is gone");
  MJ_TRY(params, decode_cbor(effect.pending.intent.params));
  if (spec->name == "sys/timer@1") return std::string(kTimerCarrier);
  if (spec->name == "sys/approval@1") return std::string(kApprovalCarrier);
  if (spec->name == "sys/flow@1") return start_flow(world, effect, params);
  if (spec->name == "sys/signal@1") return send_signal(world, effect, params);
  return submit_job(world, effect, *spec, dump_json(params));
}

Result<std::string> WorldRounds::submit_job(LoadedWorld& world, const EffectToPublish& effect, const EffectSpec& spec,
                                            const std::string& params) {
  const CellState& cell = *world.state().cell(effect.cell);
  Job job;
  job.caller_id = std::max<Id>(1, world.owner_of(cell.manifest));
  job.context_id = context_;
  job.name = spec.name;
  job.script_type = spec.script_type;
  const auto& code = world.catalog().find(cell.manifest)->code;
  job.script = spec.script.empty() ? code.at(spec.module) : spec.script;
  if (spec.timeout_s > 0) job.timeout = spec.timeout_s;
  job.env_vars["MYCOJOBS_PARAMS"] = params;
  job.env_vars["MYCOJOBS_INTENT"] = effect.pending.intent.hash;
  job.idempotency_key = "intent " + effect.pending.intent.hash;
  job.unknown.emplace_back("effect_of", std::to_string(context_) + ' ' + world.name());
  if (job.script_type.empty())
    return fail(Code::unsupported, spec.name + ": effects for one runner are not carried out: give a script_type");
  MJ_TRY(submitted, parts_.store.submit(job));
  return redis_key(submitted);
}

Result<std::string> WorldRounds::start_flow(LoadedWorld& world, const EffectToPublish& effect, const json& params) {
  const std::string name = params.value("flow", "");
  MJ_TRY(found, parts_.flows.list(context_, name, 0, 1));
  if (found.empty()) return fail(Code::not_found, "flow: no flow of context " + std::to_string(context_) + " is called " + name);
  MJ_TRY(text, parts_.flows.definition(context_, text_in(found.front().record, "definition_hash")));
  MJ_TRY(definition, parse_json(text));
  if (params.contains("inputs")) definition = with_inputs(std::move(definition), params["inputs"]);
  PlanRead read = read_plan(definition);
  if (!read.plan) return fail(Code::invalid, "flow: " + join(read.problems));
  const CellState& cell = *world.state().cell(effect.cell);
  NewFlow wanted{context_, std::max<Id>(1, world.owner_of(cell.manifest)), {}, "intent " + effect.pending.intent.hash, ""};
  wanted.effect_of = std::to_string(context_) + ' ' + world.name();
  MJ_TRY(flow, create_flow(parts_.flows, *read.plan, wanted));
  ProgressRequest start;
  start.context = context_;
  start.flow = flow.id;
  start.start = StartRun{"workflow:" + world.name(), wanted.caller};
  MJ_CHECK(progress(parts_.flows, runs_, start));
  return redis_key(flow);
}

Result<std::string> WorldRounds::send_signal(LoadedWorld& world, const EffectToPublish& effect, const json& params) {
  ProgressRequest request;
  request.context = context_;
  request.flow = params.value("flow_id", Id{0});
  FlowControl control;
  control.verb = FlowControl::Verb::signal;
  control.target = params.value("name", "");
  control.key = "intent " + effect.pending.intent.hash;
  control.actor = std::max<Id>(1, world.owner_of(world.state().cell(effect.cell)->manifest));
  if (params.contains("payload")) control.payload = dump_json(params["payload"]);
  request.control = control;
  MJ_CHECK(progress(parts_.flows, runs_, request));
  return std::string();
}

}  // namespace mycojobs
