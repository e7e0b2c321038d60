#include "base/ed25519.h"
#include "model/codec.h"
#include "security/signatures.h"
#include "service/actor_service.h"
#include "service/message_service.h"
#include "service/queue_service.h"
#include "service/record_service.h"
#include "service_fixture.h"
#include "support/hand_clock.h"

namespace mycojobs::service {
namespace {

using ::testing::StartsWith;

using RecordService = ServiceTest;
using MessageService = ServiceTest;
using QueueService = ServiceTest;

TEST_F(RecordService, ConflictingRecordIsNotReportedAsCreated) {
  Actor actor;
  actor.id = 15;
  actor.pubkey = SigningKey::make().public_key();
  EXPECT_EQ(error_code_of(create_actor(unrelated_actor_, *store_, actor)), "") << "itself";
  EXPECT_EQ(error_code_of(create_actor(unrelated_actor_, *store_, actor)), "") << "and again";
  actor.pubkey = SigningKey::make().public_key();
  EXPECT_EQ(error_code_of(create_actor(unrelated_actor_, *store_, actor)), "conflict");
  actor.id = 99;
  EXPECT_EQ(error_code_of(create_actor(admin_, *store_, actor)), "denied");
  EXPECT_EQ(error_code_of(create_actor(operator_caller_, *store_, actor)), "");
}

const std::vector<std::string> kPubkey{"pubkey"}, kAddress{"address"};

TEST_F(RecordService, OnlyOperatorsChangeOtherActors) {
  Actor actor;
  actor.id = 15;
  actor.pubkey = SigningKey::make().public_key();
  actor.address = {"unix:/run/a.sock"};
  ASSERT_TRUE(create_actor(operator_caller_, *store_, actor));
  Actor rotated;
  rotated.id = 15;
  rotated.pubkey = SigningKey::make().public_key();
  EXPECT_EQ(error_code_of(update_actor(admin_, *store_, rotated, kPubkey)), "denied");
  const auto after = update_actor(unrelated_actor_, *store_, rotated, kPubkey);
  ASSERT_TRUE(after) << error_message_of(after);
  EXPECT_EQ(after->pubkey, rotated.pubkey);
  EXPECT_EQ(after->address, actor.address) << "what is not named stays";
  rotated.pubkey.clear();
  EXPECT_EQ(update_actor(operator_caller_, *store_, rotated, kPubkey)->pubkey, "") << "revoked";
  EXPECT_EQ(read_actor(unrelated_actor_, *store_, 15)->pubkey, "");
  EXPECT_EQ(error_code_of(update_actor(operator_caller_, *store_, rotated, {})), "invalid") << "nothing is named";
  rotated.id = 99;
  EXPECT_EQ(error_code_of(update_actor(operator_caller_, *store_, rotated, kPubkey)), "not_found");
  EXPECT_EQ(error_code_of(store_->load(0, "actor:99")), "not_found") << "no half of a record is left";
}

TEST_F(RecordService, KeysAndAddressesAreCheckedAtInput) {
  Actor actor;
  actor.id = 15;
  const std::string hex(64, 'a');
  for (const std::string& good :
       {hex, std::string("400::1"), "mycelium://" + hex, std::string("mycelium://400::1"), std::string("5ff:ffff::7"),
        std::string("http://h:1"), std::string("https://h"), std::string("redis://h"), std::string("unix:/s")})
    EXPECT_EQ(error_code_of(check_address(good)), "") << good;
  for (const std::string& bad :
       {std::string(), hex + "a", hex.substr(1), std::string("600::1"), std::string("10.0.0.1"), std::string("http://"),
        std::string("ftp://h"), std::string("http://a b"), std::string("unix:")}) {
    actor.address = {bad};
    EXPECT_EQ(error_code_of(create_actor(unrelated_actor_, *store_, actor)), "invalid") << bad;
    EXPECT_EQ(error_code_of(update_actor(unrelated_actor_, *store_, actor, kAddress)), "invalid") << bad;
  }
  actor.address.clear();
  for (const std::string& bad : {std::string("k"), std::string(64, 'A'), std::string(64, 'f')}) {
    actor.pubkey = bad;
    EXPECT_EQ(error_code_of(create_actor(unrelated_actor_, *store_, actor)), "invalid") << bad;
    EXPECT_EQ(error_code_of(update_actor(unrelated_actor_, *store_, actor, kPubkey)), "invalid") << bad;
  }
  EXPECT_EQ(error_code_of(store_->load(0, "actor:15")), "not_found");
}

TEST_F(RecordService, ActorsAreListedByIdAndKeysAreUnique) {
  Actor first, second;
  first.id = 30;
  first.pubkey = second.pubkey = SigningKey::make().public_key();
  ASSERT_TRUE(create_actor(operator_caller_, *store_, first));
  const auto twice = create_actor(operator_caller_, *store_, second);
  EXPECT_EQ(error_code_of(twice), "conflict");
  EXPECT_EQ(error_message_of(twice).find("30"), std::string::npos)
      << "whose it is, is not said: " << error_message_of(twice);
  second.id = 4;
  second.pubkey.clear();
  ASSERT_TRUE(create_actor(operator_caller_, *store_, second));
  EXPECT_EQ(error_code_of(list_actors(unrelated_actor_, *store_)), "denied");
  EXPECT_EQ(error_code_of(list_actors(submitter_, *store_)), "denied");
  const auto all = list_actors(reader_, *store_);
  ASSERT_TRUE(all) << error_message_of(all);
  ASSERT_EQ(all->size(), 2U);
  EXPECT_EQ((*all)[0].id, 4U);
  EXPECT_EQ((*all)[1].id, 30U);
}

// Regression test: an actor could take over another actor's messages by naming its public key.
TEST_F(RecordService, KeyOfAnotherActorIsRejected) {
  const std::string victims = SigningKey::make().public_key();
  Actor victim, thief;
  victim.id = 30;
  victim.pubkey = victims;
  thief.id = 15;
  ASSERT_TRUE(create_actor(operator_caller_, *store_, victim));
  EXPECT_EQ(error_code_of(create_actor(operator_caller_, *store_, victim)), "") << "the same again";
  thief.pubkey = victims;
  EXPECT_EQ(error_code_of(create_actor(unrelated_actor_, *store_, thief)), "conflict");
  EXPECT_EQ(error_code_of(store_->load(0, "actor:15")), "not_found");
  thief.pubkey = SigningKey::make().public_key();
  ASSERT_TRUE(create_actor(unrelated_actor_, *store_, thief));
  thief.pubkey = victims;
  EXPECT_EQ(error_code_of(update_actor(unrelated_actor_, *store_, thief, kPubkey)), "conflict");
  EXPECT_EQ(error_code_of(update_actor(operator_caller_, *store_, thief, kPubkey)), "conflict");
  EXPECT_NE(read_actor(unrelated_actor_, *store_, 15)->pubkey, victims);
  // A released key can be used again.
  victim.pubkey.clear();
  ASSERT_TRUE(update_actor(operator_caller_, *store_, victim, kPubkey));
  ASSERT_TRUE(update_actor(unrelated_actor_, *store_, thief, kPubkey));
  EXPECT_EQ(store_->owner_of_key(victims)->id, 15U);
  ASSERT_TRUE(delete_actor(operator_caller_, *store_, 15, {}));
  EXPECT_EQ(store_->owner_of_key(victims)->actor_count, 0U);
  victim.pubkey = victims;
  EXPECT_EQ(error_code_of(update_actor(operator_caller_, *store_, victim, kPubkey)), "");
}

TEST_F(RecordService, KeyInAPlainClientsRecordBelongsToItsActor) {
  const std::string victims = SigningKey::make().public_key();
  redis_.run_command(0, {"HSET", "actor:30", "id", "30", "pubkey", victims});
  Actor thief;
  thief.id = 15;
  thief.pubkey = victims;
  EXPECT_EQ(error_code_of(create_actor(unrelated_actor_, *store_, thief)), "conflict");
  redis_.run_command(0, {"HSET", "actor:15", "id", "15"});
  EXPECT_EQ(error_code_of(update_actor(unrelated_actor_, *store_, thief, kPubkey)), "conflict");
}

TEST_F(RecordService, ActorNamedByAContextIsKept) {
  for (const Id id : {13U, 15U}) {
    Actor actor;
    actor.id = id;
    ASSERT_TRUE(create_actor(operator_caller_, *store_, actor));
  }
  const auto contexts = list_known_contexts(*store_, std::vector<Id>{1, 1});
  ASSERT_TRUE(contexts);
  EXPECT_EQ(*contexts, (std::vector<Id>{1}));
  EXPECT_EQ(error_code_of(delete_actor(unrelated_actor_, *store_, 15, *contexts)), "denied");
  const auto named = delete_actor(operator_caller_, *store_, 13, *contexts);
  EXPECT_EQ(error_code_of(named), "conflict");
  EXPECT_NE(error_message_of(named).find("readers of context 1"), std::string::npos) << error_message_of(named);
  EXPECT_EQ(error_code_of(delete_actor(operator_caller_, *store_, 15, *contexts)), "");
  EXPECT_EQ(error_code_of(read_actor(operator_caller_, *store_, 15)), "not_found");
  EXPECT_EQ(error_code_of(delete_actor(operator_caller_, *store_, 15, *contexts)), "not_found");
}

TEST_F(RecordService, ContextsAreListedForTheirMembers) {
  Context other;
  other.id = 2;
  other.admins = {15};
  ASSERT_TRUE(create_context(operator_caller_, *store_, other));
  const std::vector<Id> among{1, 2, 3};
  const auto all = list_contexts(operator_caller_, *store_, among);
  ASSERT_TRUE(all) << error_message_of(all);
  EXPECT_EQ(all->contexts.size(), 2U);
  EXPECT_EQ(all->ids_without_record, (std::vector<Id>{3}));
  const auto mine = list_contexts(unrelated_actor_, *store_, among);
  ASSERT_EQ(mine->contexts.size(), 1U);
  EXPECT_EQ(mine->contexts[0].id, 2U);
  EXPECT_TRUE(mine->ids_without_record.empty());
}

TEST_F(RecordService, AdminChangesTheListsOfItsContext) {
  Context wanted;
  wanted.readers = {20, 21};
  const std::vector<std::string> readers{"readers"};
  EXPECT_EQ(error_code_of(update_context(submitter_, *store_, wanted, readers)), "denied");
  const auto after = update_context(admin_, *store_, wanted, readers);
  ASSERT_TRUE(after) << error_message_of(after);
  EXPECT_EQ(after->readers, wanted.readers);
  EXPECT_EQ(after->admins, (std::vector<Id>{12})) << "what is not named stays";
  EXPECT_EQ(error_code_of(update_context(admin_, *store_, wanted, {})), "invalid");
  wanted.notify = "nonsense";
  EXPECT_EQ(error_code_of(update_context(admin_, *store_, wanted, std::vector<std::string>{"notify"})), "invalid");
  const RequestContext elsewhere{2, 1, EntryPoint::command, true};
  EXPECT_EQ(error_code_of(update_context(elsewhere, *store_, {}, readers)), "not_found");
}

TEST_F(RecordService, CancelledMessageIsNotAnError) {
  Message shown;
  shown.status = MessageStatus::error;
  shown.error = "cancelled before it was delivered";
  EXPECT_EQ(to_display_status(shown), "cancelled");
  shown.error = "timeout: cancelled or not";
  EXPECT_EQ(to_display_status(shown), "error");
  shown.status = MessageStatus::processed;
  shown.error = "cancelled";
  EXPECT_EQ(to_display_status(shown), "processed");
}

TEST_F(RecordService, EmptyContextIsDeleted) {
  EXPECT_EQ(error_code_of(delete_context(admin_, make_flow_stores())), "denied");
  ASSERT_TRUE(submit_job(submitter_, *store_, std::nullopt, new_job(5)));
  Message waiting;
  waiting.message_type = MessageType::job;
  ASSERT_TRUE(send_message(submitter_, *store_, std::nullopt, waiting));
  const auto lives = delete_context(operator_caller_, make_flow_stores());
  EXPECT_EQ(error_code_of(lives), "conflict");
  EXPECT_NE(error_message_of(lives).find("job:16:5, message:16:1"), std::string::npos) << error_message_of(lives);
  EXPECT_EQ(error_code_of(delete_message(submitter_, *store_, 16, 1)), "denied");
  EXPECT_EQ(error_code_of(delete_message(admin_, *store_, 16, 1)), "");
  EXPECT_EQ(error_code_of(delete_message(admin_, *store_, 16, 1)), "not_found");
  EXPECT_EQ(error_code_of(delete_context(operator_caller_, make_flow_stores())), "conflict") << "the job is left";
  ASSERT_TRUE(cancel_job(submitter_, *store_, "job:16:5"));
  EXPECT_EQ(error_code_of(delete_context(operator_caller_, make_flow_stores())), "") << "what has ended lives no more";
  EXPECT_EQ(error_code_of(delete_context(operator_caller_, make_flow_stores())), "not_found");
}

TEST_F(RecordService, RunnerIsChangedAndDeletedByAdmins) {
  const auto networks = *Networks::parse({"loopback"});
  Runner runner;
  runner.id = 20;
  EXPECT_EQ(error_code_of(create_runner(admin_, *store_, runner, networks)), "invalid") << "it says nothing";
  runner.topic = "here";
  runner.pubkey = "short";
  EXPECT_EQ(error_code_of(create_runner(admin_, *store_, runner, networks)), "invalid");
  runner.pubkey.clear();
  ASSERT_TRUE(create_runner(admin_, *store_, runner, networks));
  Runner wanted;
  wanted.id = 20;
  wanted.address = "http://127.0.0.1:3030";
  EXPECT_EQ(error_code_of(update_runner(reader_, *store_, wanted, kAddress, networks)), "denied");
  const auto after = update_runner(admin_, *store_, wanted, kAddress, networks);
  ASSERT_TRUE(after) << error_message_of(after);
  EXPECT_EQ(after->address, wanted.address);
  EXPECT_EQ(after->topic, "here");
  wanted.address = "http://10.0.0.1";
  EXPECT_EQ(error_code_of(update_runner(admin_, *store_, wanted, kAddress, networks)), "denied")
      << "outside of the networks";
  const std::vector<std::string> target{"target_context"};
  Runner elsewhere;
  elsewhere.id = 20;
  elsewhere.target_context = 9;
  ASSERT_TRUE(update_runner(admin_, *store_, elsewhere, target, networks)) << "it has an address";
  EXPECT_EQ(read_runner(admin_, *store_, 20)->target_context, 9U);
  elsewhere.id = 21;
  EXPECT_EQ(error_code_of(create_runner(admin_, *store_, elsewhere, networks)), "invalid") << "it has none";
  elsewhere.address = "http://127.0.0.1:3030";
  EXPECT_TRUE(create_runner(admin_, *store_, elsewhere, networks));
  EXPECT_TRUE(delete_runner(admin_, *store_, 21));
  ASSERT_TRUE(store_->send_to_topic(1, "here", "message:16:1", {{"message_type", "chat"}}));
  EXPECT_EQ(error_code_of(delete_runner(admin_, *store_, 20)), "conflict") << "a message waits for it";
  ASSERT_TRUE(store_->close_message(1, "mj:topic:here", "message:16:1", "no"));
  EXPECT_EQ(error_code_of(delete_runner(reader_, *store_, 20)), "denied");
  RunnerHolder held_by, self{"i", "host-a", "b", 7};
  ASSERT_TRUE(store_->hold_runner(1, *read_runner(admin_, *store_, 20), self, 60000, "", held_by));
  const auto held = delete_runner(admin_, *store_, 20);
  EXPECT_EQ(error_code_of(held), "conflict");
  EXPECT_NE(error_message_of(held).find("host-a"), std::string::npos) << error_message_of(held);
  ASSERT_TRUE(store_->release_runner(1, 20, self));
  EXPECT_EQ(error_code_of(delete_runner(admin_, *store_, 20)), "");
  EXPECT_TRUE(store_->runners(1)->empty());
}

TEST_F(RecordService, InactiveJobIsDeleted) {
  ASSERT_TRUE(create_job(submitter_, *store_, std::nullopt, new_job(4)));
  ASSERT_TRUE(submit_job(submitter_, *store_, std::nullopt, new_job(5)));
  EXPECT_EQ(error_code_of(delete_job(submitter_, *store_, "job:16:5")), "denied") << "its maker may not";
  EXPECT_EQ(error_code_of(delete_job(admin_, *store_, "job:16:5")), "conflict");
  EXPECT_EQ(error_code_of(delete_job(admin_, *store_, "job:16:4")), "") << "never queued";
  ASSERT_TRUE(store_->cancel(1, "job:16:5"));
  store_->tick(1, {});
  // The queue entry of the job remains until a claim removes it.
  EXPECT_EQ(error_code_of(delete_job(admin_, *store_, "job:16:5")), "conflict");
  ClaimRequest claim;
  claim.context = 1;
  claim.runner = 20;
  claim.instance = "i";
  claim.queues = {"queue:python"};
  ASSERT_TRUE(store_->claim(claim));
  EXPECT_EQ(error_code_of(delete_job(admin_, *store_, "job:16:5")), "");
  EXPECT_EQ(error_code_of(delete_job(admin_, *store_, "job:16:5")), "not_found");
  EXPECT_EQ(error_code_of(store_->load(1, "mj:claim:job:16:5")), "not_found");
}

TEST_F(RecordService, RefusalsAreNotedAndCounted) {
  EXPECT_EQ(error_code_of(read_message(other_submitter_, *store_, 16, 3)), "denied");
  EXPECT_EQ(error_code_of(list_jobs(unrelated_actor_, *store_, {}, nullptr)), "denied");
  EXPECT_EQ(error_code_of(list_refusals(reader_, *store_, 10)), "denied");
  const auto notes = list_refusals(admin_, *store_, 10);
  ASSERT_TRUE(notes) << error_message_of(notes);
  ASSERT_EQ(notes->size(), 3U);
  EXPECT_EQ((*notes)[0].number, 3U) << "the newest first";
  EXPECT_EQ((*notes)[2].actor, 17U);
  EXPECT_EQ((*notes)[2].action, "read");
  EXPECT_EQ((*notes)[2].resource, "message 16:3");
  EXPECT_EQ((*notes)[2].access_list, "readers");
  EXPECT_GT((*notes)[2].at_ms, 0U);
  for (int i = 0; i < 1100; ++i) ASSERT_EQ(error_code_of(read_message(other_submitter_, *store_, 16, 3)), "denied");
  EXPECT_EQ(list_refusals(admin_, *store_, 5000)->size(), 1000U) << "they are bounded";
  EXPECT_EQ(list_refusals(admin_, *store_, 1)->front().number, 1103U) << "and counted";
  const RequestContext nowhere{2, 15, EntryPoint::rpc, false};
  EXPECT_EQ(error_code_of(read_context(nowhere, *store_)), "denied");
  EXPECT_TRUE(store_->refusals(2, 10)->empty()) << "a database that nobody uses stays empty";
}

TEST_F(RecordService, RolesAreGrantedAndRevokedByAdmins) {
  const RoleChange change[] = {{&roles()[3], 20}};
  EXPECT_EQ(roles()[3].name, "reader");
  EXPECT_EQ(error_code_of(change_roles(submitter_, *store_, true, change)), "denied");
  EXPECT_EQ(change_roles(admin_, *store_, true, change)->readers, (std::vector<Id>{13, 20}));
  EXPECT_EQ(change_roles(operator_caller_, *store_, false, change)->readers, (std::vector<Id>{13}));
  EXPECT_EQ(read_context(operator_caller_, *store_)->admins, (std::vector<Id>{12})) << "what is not named stays";
  const RequestContext elsewhere{2, 1, EntryPoint::command, true};
  EXPECT_EQ(error_code_of(change_roles(elsewhere, *store_, false, change)), "not_found");
  EXPECT_EQ(error_code_of(set_notify(elsewhere, *store_, "")), "not_found");
  EXPECT_EQ(change_roles(elsewhere, *store_, true, change)->readers, (std::vector<Id>{20}));
  corrupt_admin_list();
  EXPECT_EQ(error_code_of(change_roles(operator_caller_, *store_, true, change)), "invalid")
      << "its lists would be lost";
}

TEST_F(RecordService, OperatorsCreateContextsThatTheServerServes) {
  const std::vector<Id> served{4, 1, 3};
  EXPECT_EQ(error_code_of(create_context(admin_, *store_, {}, served)), "denied");
  const auto made = create_context(operator_caller_, *store_, {}, served);
  ASSERT_TRUE(made) << error_message_of(made);
  EXPECT_EQ(made->id, 3U);
  EXPECT_EQ(made->admins, (std::vector<Id>{1}));
  ASSERT_TRUE(create_context(operator_caller_, *store_, {}, served));
  EXPECT_EQ(error_code_of(create_context(operator_caller_, *store_, {}, served)), "conflict")
      << "all of them have a record";
  EXPECT_EQ(create_context(operator_caller_, *store_, {})->id, 2U);
}

// The users that `context acl` makes for coordinators may not read the server's settings.
TEST_F(RecordService, NewContextDoesNotNeedTheNumberOfDatabases) {
  redis_.set_faults([](const ServerCall& call) { return call.name == "CONFIG" ? Fault::before : Fault::none; });
  const auto made = create_context(operator_caller_, *store_, {});
  ASSERT_TRUE(made) << error_message_of(made);
  EXPECT_EQ(made->id, 2U);
}

// A client that began to search the records of all actors exited before it had read them.
TEST_F(RecordService, UnfinishedActorSearchIsRepeated) {
  test::ManualClock clock;
  MemoryServer server{clock};
  const std::unique_ptr<Store> store = *server.open();
  const std::string key = SigningKey::make().public_key();
  server.run_command(0, {"HSET", "actor:30", "id", "30", "pubkey", key});
  server.set_faults([](const ServerCall& call) { return call.name == "index_actors" ? Fault::before : Fault::none; });
  EXPECT_EQ(error_code_of(store->owner_of_key(key)), "unavailable");
  server.set_faults(nullptr);
  EXPECT_EQ(store->owner_of_key(key)->actor_count, 0U) << "another client may still be searching";
  clock.advance(31000);
  EXPECT_EQ(store->owner_of_key(key)->id, 30U);
}

// The agent refuses such a job, too; the sender gets the error at once.
TEST_F(MessageService, LocalJobsOfAMessageStayWithinTheCeiling) {
  const RequestContext limited = add_128_mib_ceiling(submitter_);
  Message request;
  request.message_type = MessageType::job;
  request.job = {new_job(), new_job()};
  request.job[1].policy = R"({"memory": "129 MiB"})";
  EXPECT_THAT(error_message_of(send_message(limited, *store_, std::nullopt, request)),
              StartsWith("job[1]: " + std::string(kAboveCeilingText)));
  request.target_context = 2;
  EXPECT_EQ(error_message_of(send_message(limited, *store_, std::nullopt, request)), "")
      << "another ceiling applies there";
}

TEST_F(MessageService, SignedMessageIsPostedOnlyByItsCaller) {
  Message sent;
  sent.id = 5;
  sent.caller_id = submitter_.actor;
  sent.context_id = 1;
  sent.message_type = MessageType::chat;
  sent.message = "hello";
  sent.target_context = 1;
  sent.created_at = static_cast<std::uint32_t>(clock_.unix_ms() / 1000);
  ASSERT_TRUE(sign(sent, SigningKey::make()));
  ASSERT_TRUE(store_->save(1, redis_key(sent), encode(sent)));
  for (const RequestContext& by : {reader_, other_submitter_, admin_, unrelated_actor_})
    EXPECT_EQ(error_code_of(post_message(by, *store_, sent.caller_id, sent.id, Message())), "denied") << by.actor;
  EXPECT_EQ(redis_.run_command(1, {"LLEN", "msg_out"}).number(), 0U);
  EXPECT_EQ(error_code_of(post_message(submitter_, *store_, sent.caller_id, sent.id, Message())), "");
  EXPECT_EQ(redis_.run_command(1, {"LLEN", "msg_out"}).number(), 1U);
}

// An agent with the runner's id follows the record, so an explicit "no" differs from an absent value.
TEST_F(MessageService, RunnerWithoutQueuesIsStored) {
  const auto networks = *Networks::parse({"loopback"});
  const auto stored = [&](Id id) { return read_field("runner:" + std::to_string(id), "local"); };
  Runner runner;
  runner.id = 47;
  runner.topic = "work.here";
  const std::vector<std::string> given{"topic", "local"}, local{"local"};
  ASSERT_TRUE(create_runner(admin_, *store_, runner, networks, given));
  EXPECT_EQ(stored(47), "false");
  runner.local = true;
  ASSERT_TRUE(update_runner(admin_, *store_, runner, local, networks));
  EXPECT_EQ(stored(47), "true");
  runner.local = false;
  ASSERT_TRUE(update_runner(admin_, *store_, runner, local, networks));
  EXPECT_EQ(stored(47), "false");
  runner.id = 48;
  ASSERT_TRUE(create_runner(admin_, *store_, runner, networks));
  EXPECT_EQ(stored(48), "");
}

TEST_F(MessageService, TopicIsTheRunnersAndJobsAreTheSenders) {
  const auto networks = *Networks::parse({"loopback"});
  Runner runner;
  runner.id = 20;
  runner.local = true;
  EXPECT_EQ(error_code_of(create_runner(submitter_, *store_, runner, networks)), "denied");
  ASSERT_TRUE(create_runner(admin_, *store_, runner, networks));
  Message request;
  request.message_type = MessageType::job;
  request.topic = "mj:flows:due";
  EXPECT_EQ(error_code_of(send_message(submitter_, *store_, std::nullopt, request)), "not_found");
  request.topic = "runner20";
  request.job = {new_job(9)};
  request.job[0].caller_id = 12;
  EXPECT_THAT(error_message_of(send_message(submitter_, *store_, std::nullopt, request)),
              StartsWith("job[0]: caller_id"));
  EXPECT_EQ(error_code_of(send_message(reader_, *store_, std::nullopt, request)), "denied");
  request.job[0].caller_id = 0;
  RequestContext narrow = submitter_;
  narrow.max_script_bytes = 3;
  EXPECT_EQ(error_message_of(send_message(narrow, *store_, std::nullopt, request)),
            "job[0]: script: is 4 bytes, and job.max_script_bytes allows 3");
  const auto sent = send_message(submitter_, *store_, std::nullopt, request);
  ASSERT_TRUE(sent) << error_message_of(sent);
  EXPECT_EQ(store_->topic_pending(1, "runner20")->size(), 1U);
  EXPECT_EQ(error_code_of(read_message(other_submitter_, *store_, 16, sent->id)), "denied");
  EXPECT_EQ(error_code_of(read_message(reader_, *store_, 16, sent->id)), "");
  EXPECT_EQ(list_messages(submitter_, *store_, 50)->size(), 1U);
  EXPECT_EQ(list_messages(other_submitter_, *store_, 50)->size(), 0U);
}

TEST(QueueNamed, NamesTheSameQueueInEachForm) {
  EXPECT_EQ(resolve_queue_key("python", {}).value(), "queue:python");
  EXPECT_EQ(resolve_queue_key("queue:python", {}).value(), "queue:python");
  std::vector<QueueInfo> known(1);
  known[0].queue = "mj:queue:runner20";
  EXPECT_EQ(resolve_queue_key("mj:queue:runner20", known).value(), "mj:queue:runner20");
}

TEST(QueueNamed, RejectsKeysOfOtherKinds) {
  for (const char* text : {"", "Python", "queue:", "queue:A", "job:1:2", "mj:queue:runner20", "a b"}) {
    const auto queue = resolve_queue_key(text, {});
    ASSERT_FALSE(queue) << text;
    EXPECT_EQ(queue.error().code, Code::invalid);
    EXPECT_NE(queue.error().message.find("queue list"), std::string::npos);
  }
}

TEST_F(QueueService, OnlyAdminsPauseAndSeeWhetherItChanged) {
  EXPECT_EQ(error_code_of(pause_queue(submitter_, *store_, "python", true)), "denied");
  EXPECT_EQ(error_code_of(pause_queue(admin_, *store_, "mj:queue:runner20", true)), "invalid")
      << "a key that nobody uses";
  EXPECT_TRUE(pause_queue(admin_, *store_, "python", true)->changed);
  EXPECT_FALSE(pause_queue(operator_caller_, *store_, "queue:python", true)->changed);
  EXPECT_EQ(error_code_of(list_queues(submitter_, *store_)), "denied");
  EXPECT_TRUE(list_queues(reader_, *store_)->front().paused);
}

}  // namespace
}  // namespace mycojobs::service
