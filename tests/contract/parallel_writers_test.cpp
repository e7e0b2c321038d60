// Concurrent changes of one record by 20 clients, for each service method that changes a record. No change is lost, an
// action that can succeed only once succeeds for one client, and a deleted record stays deleted.
#include <gmock/gmock.h>

#include <algorithm>
#include <barrier>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/ed25519.h"
#include "model/codec.h"
#include "net/networks.h"
#include "service/actor_service.h"
#include "service/flow_service.h"
#include "service/job_service.h"
#include "service/message_service.h"
#include "service/queue_service.h"
#include "service/record_service.h"
#include "service/workflow_service.h"
#include "store_contract.h"

namespace mycojobs::service {
namespace {

using nlohmann::json;
using testing::UnorderedElementsAre;
using testing::UnorderedElementsAreArray;

constexpr int kWriters = 20, kRounds = 5;

// A client with connections of its own.
struct Writer {
  explicit Writer(StoreFactory& stores)
      : store(stores.open().value()),
        flows(stores.open_flows().value()),
        deployments(stores.open_workflows().value()) {}
  FlowStores stores() { return {*store, *flows, runs}; }

  std::unique_ptr<Store> store;
  std::unique_ptr<FlowStore> flows;
  std::unique_ptr<WorkflowStore> deployments;
  RunCache runs;
};

class ParallelWriters : public StoreContract {
 protected:
  void SetUp() override {
    StoreContract::SetUp();
    for (int i = 0; i < kWriters; ++i) {
      writers_.push_back(std::make_unique<Writer>(backend_->stores()));
      ASSERT_TRUE(writers_.back()->store->load_batch(1, {}, {}));
    }
    Context context;
    context.id = 1;
    context.admins = {12, 50};
    ASSERT_TRUE(create_context(request_context_, *store_, context));
  }

  // Runs `change` in all writers concurrently and returns the results. The arguments of `change` are the writer and the
  // index of the writer, from 0.
  template <class Change>
  auto run_concurrently(const Change& change) {
    using ChangeResult = decltype(change(*writers_[0], 0));
    std::vector<std::optional<ChangeResult>> slots(kWriters);
    std::barrier start(kWriters);
    std::vector<std::thread> threads;
    for (int i = 0; i < kWriters; ++i) {
      threads.emplace_back([&, i] {
        start.arrive_and_wait();
        slots[static_cast<std::size_t>(i)] = change(*writers_[static_cast<std::size_t>(i)], i);
      });
    }
    for (std::thread& each : threads) each.join();
    std::vector<ChangeResult> results;
    for (auto& slot : slots) results.push_back(std::move(*slot));
    return results;
  }
  // Counts the results by outcome.
  template <class Change>
  std::map<std::string, int> count_outcomes(const Change& change) {
    std::map<std::string, int> counts;
    for (const auto& answer : run_concurrently(change)) {
      ++counts[mycojobs::outcome(answer)];
    }
    return counts;
  }
  // Returns the expected counts if one writer succeeds and the others fail with the outcome `otherwise`.
  static std::map<std::string, int> one_ok_and_rest(const std::string& otherwise) {
    return {{"ok", 1}, {otherwise, kWriters - 1}};
  }
  static std::map<std::string, int> all_ok() { return {{"ok", kWriters}}; }
  template <class Answers, class IdOf>
  static std::set<std::uint64_t> collect_ids(const Answers& answers, const IdOf& id_of) {
    std::set<std::uint64_t> out;
    for (const auto& each : answers) {
      EXPECT_TRUE(each) << each.error().message;
      if (each) out.insert(id_of(*each));
    }
    return out;
  }
  static Actor make_actor(Id id, const std::string& pubkey = "") {
    Actor out;
    out.id = id;
    out.pubkey = pubkey;
    return out;
  }
  Job submit(Id id) {
    auto result = submit_job(request_context_, *store_, 12, job(id));
    EXPECT_TRUE(result) << result.error().message;
    return result.value_or(Job());
  }
  // Creates a failed job that can be run again.
  std::string create_failed_job(Id id) {
    submit(id);
    JobEnd failure;
    failure.detail = "exception";
    failure.error = "ValueError: no";
    EXPECT_TRUE(end(claim_one().ref, failure));
    return job_key(id);
  }
  static std::string job_key(Id id) { return "job:12:" + std::to_string(id); }
  std::size_t count_facts(const std::string& kind) {
    std::size_t count = 0;
    const std::vector<Fact> all = store_->journal(1, "queue:python", 0, 10000).value();
    for (const Fact& fact : all) count += fact.kind == kind ? 1 : 0;
    return count;
  }
  Id send_hello(Message message = {}) {
    message.message = message.message.empty() ? "hello" : message.message;
    const auto result = send_message(request_context_, *store_, 12, message);
    EXPECT_TRUE(result) << result.error().message;
    return result ? result->id : 0;
  }
  Flow make_flow(const char* definition) {
    auto result = create_flow(request_context_, writers_[0]->stores(), json::parse(definition), nullptr, {});
    EXPECT_TRUE(result) << result.error().message;
    return result.value_or(Flow());
  }

  const RequestContext request_context_{1, 12, EntryPoint::command, true};
  const Networks networks_ = *Networks::parse({"loopback"});
  std::vector<std::unique_ptr<Writer>> writers_;
};

RoleChange make_role_change(const char* name, Id actor) {
  for (const Role& each : roles()) {
    if (each.name == name) return {&each, actor};
  }
  return {};
}

// ---- contexts ----

TEST_P(ParallelWriters, GrantsAreAllStored) {
  for (int round = 0; round < kRounds; ++round) {
    const Id first = static_cast<Id>(100 * (round + 1));
    EXPECT_EQ(count_outcomes([&](Writer& writer, int index) {
                const RoleChange change[] = {make_role_change("reader", first + static_cast<Id>(index))};
                return change_roles(request_context_, *writer.store, true, change);
              }),
              all_ok());
    EXPECT_EQ(read_context(request_context_, *store_)->readers.size(),
              static_cast<std::size_t>(kWriters * (round + 1)));
  }
}

TEST_P(ParallelWriters, GrantsMakeOneContextRecord) {
  const RequestContext second{2, 1, EntryPoint::command, true};
  EXPECT_EQ(count_outcomes([&](Writer& writer, int index) {
              const RoleChange change[] = {make_role_change("admin", static_cast<Id>(index + 1))};
              return change_roles(second, *writer.store, true, change);
            }),
            all_ok());
  EXPECT_EQ(read_context(second, *store_)->admins.size(), static_cast<std::size_t>(kWriters));
}

TEST_P(ParallelWriters, RevokeHoldsDespiteConcurrentGrants) {
  for (int round = 0; round < kRounds; ++round) {
    const RoleChange grant[] = {make_role_change("admin", 50)};
    ASSERT_TRUE(change_roles(request_context_, *store_, true, grant));
    EXPECT_EQ(count_outcomes([&](Writer& writer, int index) {
                const RoleChange change[] = {make_role_change("admin", index == 0 ? 50 : 60 + static_cast<Id>(index))};
                return change_roles(request_context_, *writer.store, index != 0, change);
              }),
              all_ok());
    const auto admins = read_context(request_context_, *store_)->admins;
    EXPECT_EQ(admins.size(), static_cast<std::size_t>(kWriters)) << "actor 12 and the actors of the grants";
    EXPECT_EQ(std::count(admins.begin(), admins.end(), 50U), 0);
  }
}

TEST_P(ParallelWriters, ContextFieldsDoNotOverwriteOthers) {
  const std::vector<std::string> fields[] = {{"readers"}, {"submitters"}, {"executors"}};
  EXPECT_EQ(count_outcomes([&](Writer& writer, int index) {
              if (index % 4 == 3) return set_notify(request_context_, *writer.store, R"(["log"])");
              Context changed_context;
              changed_context.readers = changed_context.submitters = changed_context.executors = {7};
              return update_context(request_context_, *writer.store, changed_context, fields[index % 4]);
            }),
            all_ok());
  const auto after = read_context(request_context_, *store_);
  EXPECT_EQ(after->readers, std::vector<Id>{7});
  EXPECT_EQ(after->submitters, std::vector<Id>{7});
  EXPECT_EQ(after->executors, std::vector<Id>{7});
  EXPECT_EQ(after->notify, R"(["log"])");
  EXPECT_EQ(after->admins, (std::vector<Id>{12, 50}));
}

TEST_P(ParallelWriters, DeletedContextLeavesNoPartOfItsRecord) {
  for (int round = 0; round < kRounds; ++round) {
    run_concurrently([&](Writer& writer, int index) -> Result<void> {
      if (index == 0) return delete_context(request_context_, writer.stores());
      (void)set_notify(request_context_, *writer.store, R"(["log"])");
      return {};
    });
    const auto remaining = store_->load(1, "context:1");
    EXPECT_TRUE(!remaining || field_of(*remaining, "id") == "1") << "the record must be complete or absent";
    (void)delete_context(request_context_, writers_[0]->stores());
    Context context;
    context.id = 1;
    ASSERT_TRUE(create_context(request_context_, *store_, context));
  }
}

TEST_P(ParallelWriters, ContextIsDeletedOnce) {
  EXPECT_EQ(count_outcomes([&](Writer& writer, int) { return delete_context(request_context_, writer.stores()); }),
            one_ok_and_rest("not_found"));
}

TEST_P(ParallelWriters, DeleteWithAnOldRevisionKeepsTheContext) {
  const std::function<void()> changes[] = {
      [&] { submit(1); },
      [&] { EXPECT_TRUE(create_job(request_context_, *store_, 12, job(2))); },
      [&] { claim_one(); },
      [&] { send_hello(); },
      [&] { backend_->push(1, "msg_out", "message:12:1"); },
      [&] { EXPECT_TRUE(set_notify(request_context_, *store_, R"(["log"])")); },
  };
  for (const auto& change : changes) {
    const std::string before = store_->context_revision(1).value();
    EXPECT_EQ(store_->context_revision(1).value(), before);
    change();
    EXPECT_FALSE(store_->delete_context_if(1, before).value());
  }
  EXPECT_TRUE(store_->delete_context_if(1, store_->context_revision(1).value()).value());
}

TEST_P(ParallelWriters, NewContextsGetDistinctIds) {
  const auto answers =
      run_concurrently([&](Writer& writer, int) { return create_context(request_context_, *writer.store, {}); });
  std::multiset<Id> result;
  for (const auto& each : answers) {
    if (each) result.insert(each->id);
  }
  EXPECT_GT(result.size(), 5U);
  EXPECT_EQ(std::set<Id>(result.begin(), result.end()).size(), result.size());
}

// ---- actors and runners ----

TEST_P(ParallelWriters, NewActorsAndRunnersGetDistinctIds) {
  const auto actors = run_concurrently(
      [&](Writer& writer, int) { return create_actor(request_context_, *writer.store, make_actor(0)); });
  EXPECT_EQ(collect_ids(actors, [](const Actor& each) { return each.id; }).size(), static_cast<std::size_t>(kWriters));
  const auto runners = run_concurrently([&](Writer& writer, int) {
    Runner runner;
    runner.topic = "t";
    return create_runner(request_context_, *writer.store, runner, networks_);
  });
  EXPECT_EQ(collect_ids(runners, [](const Runner& each) { return each.id; }).size(),
            static_cast<std::size_t>(kWriters));
}

TEST_P(ParallelWriters, PublicKeyGetsOneOwner) {
  const std::string key = SigningKey::make().public_key(), other_key = SigningKey::make().public_key();
  EXPECT_EQ(count_outcomes(
                [&](Writer& writer, int) { return create_actor(request_context_, *writer.store, make_actor(0, key)); }),
            one_ok_and_rest("conflict"));
  for (int i = 0; i < kWriters; ++i)
    ASSERT_TRUE(create_actor(request_context_, *store_, make_actor(100 + static_cast<Id>(i))));
  const std::vector<std::string> fields{"pubkey"};
  EXPECT_EQ(count_outcomes([&](Writer& writer, int index) {
              return update_actor(request_context_, *writer.store, make_actor(100 + static_cast<Id>(index), other_key),
                                  fields);
            }),
            one_ok_and_rest("conflict"));
}

TEST_P(ParallelWriters, RunnerHasATargetOnlyWithAnAddress) {
  Runner runner;
  runner.id = 20;
  runner.address = "http://127.0.0.1:9";
  ASSERT_TRUE(create_runner(request_context_, *store_, runner, networks_));
  const std::vector<std::string> address{"address"}, target{"target_context"};
  for (int round = 0; round < kRounds; ++round) {
    run_concurrently([&](Writer& writer, int index) {
      Runner changed_runner;
      changed_runner.id = 20;
      if (index % 2 == 0) changed_runner.target_context = round % 2 == 0 ? 3 : 0;
      if (index % 4 == 1) changed_runner.address = "http://127.0.0.1:9";
      return update_runner(request_context_, *writer.store, changed_runner, index % 2 == 0 ? target : address,
                           networks_);
    });
    const auto after = read_runner(request_context_, *store_, 20);
    ASSERT_TRUE(after);
    EXPECT_TRUE(after->target_context == 0 || !after->address.empty());
  }
}

TEST_P(ParallelWriters, ActorsAndRunnersAreDeletedOnce) {
  ASSERT_TRUE(create_actor(request_context_, *store_, make_actor(30)));
  Runner runner;
  runner.id = 20;
  runner.topic = "t";
  ASSERT_TRUE(create_runner(request_context_, *store_, runner, networks_));
  EXPECT_EQ(count_outcomes([&](Writer& writer, int) { return delete_actor(request_context_, *writer.store, 30, {}); }),
            one_ok_and_rest("not_found"));
  EXPECT_EQ(count_outcomes([&](Writer& writer, int) { return delete_runner(request_context_, *writer.store, 20); }),
            one_ok_and_rest("not_found"));
}

// One writer moves the role of the actor back and forth between contexts 1 and 2, so that one of them always has the
// role. The other writers try to delete the actor. A deletion that checks one context after the other could see no
// role.
TEST_P(ParallelWriters, ActorWithARoleIsNeverDeleted) {
  ASSERT_TRUE(create_actor(request_context_, *store_, make_actor(30)));
  const std::vector<Id> contexts{1, 2};
  const auto change_role = [&](Store& store, Id context, bool grant) {
    const RoleChange roles[] = {make_role_change("reader", 30)};
    EXPECT_TRUE(change_roles({context, 12, EntryPoint::command, true}, store, grant, roles));
  };
  change_role(*store_, 1, true);
  EXPECT_EQ(count_outcomes([&](Writer& writer, int index) -> Result<void> {
              if (index > 0) return delete_actor(request_context_, *writer.store, 30, contexts);
              for (int round = 0; round < 50; ++round) {
                for (const Id next : {2U, 1U})
                  change_role(*writer.store, next, true), change_role(*writer.store, 3 - next, false);
              }
              return fail(Code::conflict, "the result of the rejected deletions");
            }),
            (std::map<std::string, int>{{"conflict", kWriters}}));
  EXPECT_TRUE(store_->load(0, "actor:30"));
  change_role(*store_, 1, false);
  EXPECT_TRUE(delete_actor(request_context_, *store_, 30, contexts));
}

// The roles have changed since `expected` was read. A context whose record cannot be read prevents the deletion.
TEST_P(ParallelWriters, ActorIsNotDeletedByStaleRoles) {
  ASSERT_TRUE(create_actor(request_context_, *store_, make_actor(30)));
  const std::vector<ExpectedContext> expected{{1, {{"readers", ""}}}, {2, {{"readers", ""}}}};
  const RequestContext second{2, 1, EntryPoint::command, true};
  const RoleChange reader[] = {make_role_change("reader", 30)};
  ASSERT_TRUE(change_roles(second, *store_, true, reader));
  EXPECT_FALSE(store_->delete_actor_if(30, expected).value());
  ASSERT_TRUE(store_->load(0, "actor:30"));
  backend_->run_command(1, {"DEL", "context:1"});
  backend_->run_command(1, {"SET", "context:1", "oops"});
  EXPECT_EQ(outcome(store_->delete_actor_if(30, expected)), "invalid");
  EXPECT_TRUE(store_->delete_actor_if(30, {}).value());
  EXPECT_EQ(outcome(store_->delete_actor_if(30, {})), "not_found");
}

// ---- jobs and queues ----

TEST_P(ParallelWriters, SubmissionsGetDistinctIds) {
  const auto answers =
      run_concurrently([&](Writer& writer, int) { return submit_job(request_context_, *writer.store, 12, job(0)); });
  EXPECT_EQ(collect_ids(answers, [](const Job& each) { return each.id; }).size(), static_cast<std::size_t>(kWriters));
}

TEST_P(ParallelWriters, IdempotencyKeyMakesOneJob) {
  const auto answers = run_concurrently([&](Writer& writer, int) {
    Job new_job = job(0);
    new_job.idempotency_key = "invoice 7";
    return submit_job(request_context_, *writer.store, 12, new_job);
  });
  EXPECT_EQ(collect_ids(answers, [](const Job& each) { return each.id; }).size(), 1U);
  EXPECT_EQ(store_->queue_length(1, "queue:python").value(), 1U);
}

TEST_P(ParallelWriters, CreatedJobIsQueuedOnce) {
  ASSERT_TRUE(create_job(request_context_, *store_, 12, job(1)));
  EXPECT_EQ(count_outcomes([&](Writer& writer, int) { return start_job(request_context_, *writer.store, job_key(1)); }),
            all_ok());
  EXPECT_EQ(store_->queue_length(1, "queue:python").value(), 1U);
}

TEST_P(ParallelWriters, BatchIsStoredOnce) {
  const std::vector<Job> batch{job(1), job(2), job(3)};
  EXPECT_EQ(count_outcomes(
                [&](Writer& writer, int) { return create_jobs(request_context_, *writer.store, 12, batch, true); }),
            all_ok());
  EXPECT_EQ(store_->queue_length(1, "queue:python").value(), 3U);
  EXPECT_EQ(count_facts("scheduled"), 3U);
  const auto answers = run_concurrently([&](Writer& writer, int) {
    return create_jobs(request_context_, *writer.store, 12, {job(0), job(0)}, false);
  });
  std::set<Id> batch_ids;
  for (const auto& each : answers) {
    ASSERT_TRUE(each) << each.error().message;
    for (const Job& result : *each) batch_ids.insert(result.id);
  }
  EXPECT_EQ(batch_ids.size(), 2U * kWriters);
}

TEST_P(ParallelWriters, QueueIsPausedAndResumedOnce) {
  submit(1);
  for (const bool paused : {true, false}) {
    int changed = 0;
    for (const auto& answer : run_concurrently(
             [&](Writer&writer, int) { return pause_queue(request_context_, *writer.store, "python", paused); })) {
      ASSERT_TRUE(answer) << answer.error().message;
      changed += answer->changed ? 1 : 0;
    }
    EXPECT_EQ(changed, 1) << paused;
  }
}

TEST_P(ParallelWriters, JobIsCancelledOnce) {
  submit(1);
  EXPECT_EQ(
      count_outcomes([&](Writer& writer, int) { return cancel_job(request_context_, *writer.store, job_key(1)); }),
      all_ok());
  EXPECT_EQ(count_facts("cancelled"), 1U);
}

TEST_P(ParallelWriters, FailedJobIsRunAgainOnce) {
  const std::string key = create_failed_job(1);
  EXPECT_EQ(count_outcomes([&](Writer& writer, int) { return retry_job(request_context_, *writer.store, key); }),
            one_ok_and_rest("conflict"));
  EXPECT_EQ(store_->queue_length(1, "queue:python").value(), 1U);
}

TEST_P(ParallelWriters, JobIsDeletedOnce) {
  const std::string key = create_failed_job(1);
  EXPECT_EQ(count_outcomes([&](Writer& writer, int) { return delete_job(request_context_, *writer.store, key); }),
            one_ok_and_rest("not_found"));
}

TEST_P(ParallelWriters, JobIsApprovedOnce) {
  Job new_job = job(1);
  new_job.prerequisites = {"approval:ok"};
  ASSERT_TRUE(submit_job(request_context_, *store_, 12, new_job));
  EXPECT_TRUE(claim().empty());
  int changed = 0;
  for (const auto& answer : run_concurrently([&](Writer&writer, int) {
         return answer_job(request_context_, *writer.store, {job_key(1), "ok", true, ""});
       })) {
    ASSERT_TRUE(answer) << answer.error().message;
    changed += answer->changed ? 1 : 0;
  }
  EXPECT_EQ(changed, 1);
}

TEST_P(ParallelWriters, DeadLetterIsSettledOnce) {
  backend_->push(1, "queue:python", "no key");
  EXPECT_TRUE(claim().empty());
  const std::string letter = store_->dead_letters(1, 1).value().at(0).id;
  EXPECT_EQ(count_outcomes([&](Writer& writer, int) {
              return settle_dead_letter(request_context_, *writer.store, letter, false);
            }),
            one_ok_and_rest("not_found"));
}

// ---- messages ----

TEST_P(ParallelWriters, MessagesGetDistinctIds) {
  const auto answers = run_concurrently([&](Writer& writer, int) {
    Message message;
    message.message = "hello";
    return send_message(request_context_, *writer.store, 12, message);
  });
  EXPECT_EQ(collect_ids(answers, [](const Message& each) { return each.id; }).size(),
            static_cast<std::size_t>(kWriters));
}

TEST_P(ParallelWriters, MessageIsPostedOnce) {
  Message message;
  message.target_context = 2;
  const Id id = send_hello(message);
  EXPECT_EQ(count_outcomes([&](Writer& writer, int index) {
              Message signature;
              signature.signature = "signature " + std::to_string(index);
              signature.signer = "signer " + std::to_string(index);
              signature.algorithm = "ed25519";
              return post_message(request_context_, *writer.store, 12, id, signature);
            }),
            one_ok_and_rest("conflict"));
  EXPECT_EQ(store_->queue_length(1, "msg_out").value(), 1U);
  const std::string key = "message:12:" + std::to_string(id);
  EXPECT_EQ(field(key, "signature").substr(10), field(key, "signer").substr(7))
      << "signature and signer must be from the same client";
}

TEST_P(ParallelWriters, DeletedMessageIsNotPosted) {
  for (int round = 0; round < kRounds; ++round) {
    Message message;
    message.target_context = 2;
    const Id id = send_hello(message);
    const auto answers = run_concurrently([&](Writer& writer, int index) -> Result<void> {
      if (index % 2 == 0) return delete_message(request_context_, *writer.store, 12, id);
      Message signature;
      signature.signature = signature.signer = "s";
      auto posted = post_message(request_context_, *writer.store, 12, id, signature);
      if (!posted) return tl::unexpected<Error>(posted.error());
      return {};
    });
    const std::string key = "message:12:" + std::to_string(id);
    const auto remaining = store_->load(1, key);
    EXPECT_TRUE(!remaining || field_of(*remaining, "id") == std::to_string(id))
        << "the record must be complete or absent";
    EXPECT_EQ(remaining.has_value(), backend_->run_command(1, {"LPOS", "msg_out", key}).is_nil() == false);
  }
}

TEST_P(ParallelWriters, MessageIsCancelledAndDeletedOnce) {
  const Id id = send_hello();
  EXPECT_EQ(
      count_outcomes([&](Writer& writer, int) { return cancel_message(request_context_, *writer.store, 12, id); }),
      all_ok());
  EXPECT_EQ(
      count_outcomes([&](Writer& writer, int) { return delete_message(request_context_, *writer.store, 12, id); }),
      one_ok_and_rest("not_found"));
}

// ---- flows and workflows ----

TEST_P(ParallelWriters, FlowKeyMakesOneFlow) {
  const auto answers = run_concurrently([&](Writer& writer, int) {
    CreateFlow request;
    request.idempotency_key = "nightly";
    return create_flow(request_context_, writer.stores(), json::parse(R"({"name": "f", "jobs": {"a": {"log": "x"}}})"),
                       nullptr, request);
  });
  EXPECT_EQ(collect_ids(answers, [](const Flow& each) { return each.id; }).size(), 1U);
}

TEST_P(ParallelWriters, FlowIsStartedApprovedAndDeletedOnce) {
  const Flow flow = make_flow(R"({"name": "f", "jobs": {"ok": {"approval": {"approvers": [12]}}}})");
  EXPECT_EQ(count_outcomes([&](Writer& writer, int) {
              return start_flow(request_context_, writer.stores(), {flow.id, "manual"});
            }),
            all_ok());
  ControlFlow approval;
  approval.flow = flow.id;
  approval.verb = FlowControl::Verb::approve;
  approval.target = "ok";
  EXPECT_EQ(count_outcomes([&](Writer& writer, int) {
              return control_flow(request_context_, writer.stores(), approval);
            }).count("unavailable"),
            0U);
  std::map<std::string, int> kinds;
  const FlowReadResult read = writers_[0]->flows->read(1, flow.id, 0).value();
  for (const RunFact& fact : read.facts) ++kinds[fact.kind];
  EXPECT_EQ(kinds["started"], 1);
  EXPECT_EQ(field("flow:" + std::to_string(flow.id), "status"), "finished");
  EXPECT_EQ(
      count_outcomes([&](Writer& writer, int) { return delete_flow(request_context_, writer.stores(), flow.id); }),
      one_ok_and_rest("not_found"));
}

// A later writer gets the same flow, or a conflict once the jobs belong to a flow.
TEST_P(ParallelWriters, JobsBecomeNodesOfOneFlow) {
  ASSERT_TRUE(create_jobs(request_context_, *store_, 12, {job(1), job(2)}, false));
  std::set<Id> flows;
  for (const auto& answer : run_concurrently([&](Writer&writer, int) {
         return create_flow_of_jobs(request_context_, writer.stores(), "f", json::array({1U, 2U}), nullptr, {});
       })) {
    if (answer) {
      flows.insert(answer->id);
    } else {
      EXPECT_EQ(answer.error().code, Code::conflict) << answer.error().message;
    }
  }
  EXPECT_EQ(flows.size(), 1U);
  EXPECT_EQ(field("job:12:1", "flow_id"), field("job:12:2", "flow_id"));
}

TEST_P(ParallelWriters, ReplaysAreFlowsOfTheirOwn) {
  const Flow flow = make_flow(R"({"name": "f", "jobs": {"a": {"log": "x"}}})");
  ASSERT_TRUE(start_flow(request_context_, writers_[0]->stores(), {flow.id, "manual"}));
  const auto answers = run_concurrently([&](Writer& writer, int) {
    ReplayFlow request;
    request.flow = flow.id;
    return replay_flow(request_context_, writer.stores(), request);
  });
  auto result = collect_ids(answers, [](const Flow& each) { return each.id; });
  result.insert(flow.id);
  EXPECT_EQ(result.size(), static_cast<std::size_t>(kWriters + 1));
}

TEST_P(ParallelWriters, ScheduleRevisionIsReplacedOnce) {
  Schedule schedule;
  schedule.name = "nightly";
  schedule.caller = 12;
  schedule.cron = "0 3 * * *";
  schedule.zone = "UTC";
  schedule.definition_hash = "abc";
  for (std::uint64_t revision = 0; revision < 3; ++revision) {
    EXPECT_EQ(count_outcomes([&](Writer& writer, int index) {
                Schedule changed_schedule = schedule;
                changed_schedule.skip_reason = "by writer " + std::to_string(index);
                return writer.flows->put_schedule(1, changed_schedule, "{}", revision);
              }),
              one_ok_and_rest("conflict"))
        << revision;
    const auto stored = writers_[0]->flows->schedules(1).value();
    ASSERT_EQ(stored.size(), 1U);
    EXPECT_EQ(stored[0].revision, revision + 1);
  }
}

constexpr const char* kManifest = R"json({
  "name": "acme/count@1", "state": {"type": "integer"}, "key_schema": {"type": "integer"},
  "schemas": {"acme/Hit@1": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}},
    "acme/Event@1": {"oneOf": [{"title": "Hit", "$ref": "acme/Hit@1"},
      {"title": "Receipt", "$ref": "sys/EffectReceiptEnvelope@1"}]}},
  "event": "acme/Event@1", "effects_emitted": [], "impl": {"module": "count.lua", "entrypoint": "step"},
  "effects": [],
  "routing": {"subscriptions": [{"event": "acme/Hit@1", "workflow": "acme/count@1", "key_field": "$value.id"}]}
})json";

TEST_P(ParallelWriters, WorkflowIsAppliedAndAnEventSentOnce) {
  const auto count_first_requests = [](const auto& answers) {
    int first = 0;
    for (const auto& each : answers) {
      EXPECT_TRUE(each) << each.error().message;
      first += each && !each->repeated ? 1 : 0;
    }
    return first;
  };
  EXPECT_EQ(count_first_requests(run_concurrently([&](Writer& writer, int) {
              return apply_workflow(request_context_, {*writer.store, *writer.deployments}, json::parse(kManifest),
                                    {{{"count.lua", ""}}, std::nullopt});
            })),
            1);
  EXPECT_EQ(count_first_requests(run_concurrently([&](Writer& writer, int) {
              SendEvent event{"acme/Hit", R"({"id": 7})"};
              event.idempotency_key = "hit 7";
              return send_event(request_context_, {*writer.store, *writer.deployments}, event);
            })),
            1);
}

// Each writer is a different caller with its own manifest.
TEST_P(ParallelWriters, EventNameGetsOneManifest) {
  std::vector<RoleChange> submitters;
  for (Id id = 100; id < 100 + kWriters; ++id) {
    ASSERT_TRUE(create_actor(request_context_, *store_, make_actor(id)));
    submitters.push_back(make_role_change("submitter", id));
  }
  ASSERT_TRUE(change_roles(request_context_, *store_, true, submitters));
  EXPECT_EQ(count_outcomes([&](Writer& writer, int index) {
              std::string text = kManifest;
              for (std::size_t at = 0; (at = text.find("acme/count@1", at)) != std::string::npos;)
                text.replace(at, 12, "acme/count" + std::to_string(index) + "@1");
              const RequestContext by{1, 100 + static_cast<Id>(index), EntryPoint::command, true};
              return apply_workflow(by, {*writer.store, *writer.deployments}, json::parse(text),
                                    {{{"count.lua", ""}}, std::nullopt});
            }),
            one_ok_and_rest("conflict"));
}

MJ_BOTH_STORES(ParallelWriters);

}  // namespace
}  // namespace mycojobs::service
