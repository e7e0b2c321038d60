// Independent records: changes, deletions and refusals.
#include <algorithm>

#include "model/codec.h"
#include "store_contract.h"

namespace mycojobs {
namespace {

class Records : public StoreContract {};

TEST_P(Records, UpdateAffectsOnlyExistingRecords) {
  ASSERT_TRUE(store_->create_record(0, {"actor:", "actor", 12, {{"pubkey", "k"}, {"address", "[\"unix:/x\"]"}}}));
  const auto after = store_->change_record(0, "actor:12", {{"pubkey", "k2"}, {"address", ""}});
  ASSERT_TRUE(after) << after.error().message;
  const Fields loaded = store_->load(0, "actor:12").value();
  const auto has_field = [&](const std::string& name) {
    return std::any_of(loaded.begin(), loaded.end(), [&](const auto& field) { return field.first == name; });
  };
  EXPECT_TRUE(has_field("created_at"));
  EXPECT_TRUE(has_field("pubkey"));
  EXPECT_FALSE(has_field("address")) << "an empty text removes a field";
  EXPECT_EQ(outcome(store_->change_record(0, "actor:13", {{"pubkey", "k"}})), "not_found");
  EXPECT_EQ(outcome(store_->load(0, "actor:13")), "not_found");
  EXPECT_EQ(outcome(store_->change_record(0, "job:1:1", {{"pubkey", "k"}})), "invalid")
      << "database 0 contains only records of actors";
  EXPECT_EQ(store_->keys(0, "actor:", 10).value(), std::vector<std::string>{"actor:12"});
  EXPECT_EQ(outcome(store_->keys(0, "job:", 10)), "invalid");
}

TEST_P(Records, RecordsAreLoadedInTheOrderOfTheirKeys) {
  std::vector<std::string> keys;
  for (int i = 1; i <= 450; ++i) {
    keys.push_back("message:1:" + std::to_string(i));
    if (i % 3 != 0)
      backend_->run_command(1, {"HSET", keys.back(), "id", std::to_string(i), "topic", "t", "other", "x"});
  }
  backend_->run_command(1, {"SET", "message:1:3", "text"});
  backend_->run_command(1, {"HSET", "message:1:4", "topic", std::string((1U << 20) + 1, 'x')});
  for (int i = 100; i < 110; ++i)
    backend_->run_command(1, {"HSET", keys[static_cast<std::size_t>(i)], "id", std::string(1U << 20, '7')});
  constexpr std::string_view kAsked[] = {"id", "topic"};
  const auto loaded = store_->load_batch(1, keys, kAsked).value();
  ASSERT_EQ(loaded.size(), 450U);
  EXPECT_EQ(loaded[0], (Fields{{"id", "1"}, {"topic", "t"}}));
  EXPECT_TRUE(loaded[2].empty()) << "no record";
  EXPECT_EQ(loaded[3], (Fields{{"id", "4"}})) << "fields that are too long are omitted";
  EXPECT_TRUE(loaded[5].empty()) << "the record does not exist";
  for (std::size_t i = 100; i < 110; ++i) EXPECT_EQ(field_of(loaded[i], "id").size(), 1U << 20);
  EXPECT_EQ(loaded[448], (Fields{{"id", "449"}, {"topic", "t"}})) << "after a call that was cut off";
  EXPECT_TRUE(store_->load_batch(1, {}, kAsked)->empty());
}

TEST_P(Records, DeleteLeavesNothing) {
  ASSERT_TRUE(store_->create_record(0, {"actor:", "actor", 12, {}}));
  EXPECT_EQ(outcome(store_->delete_record(0, "actor:12")), "ok");
  EXPECT_EQ(outcome(store_->delete_record(0, "actor:12")), "not_found");
  ASSERT_TRUE(store_->create_record(1, {"runner:", "runner", 20, {{"topic", "t"}}}));
  backend_->run_command(1, {"LPUSH", "mj:queue:runner20", "job:1:1"});
  EXPECT_EQ(outcome(store_->delete_record(1, "runner:20")), "conflict");
  backend_->run_command(1, {"DEL", "mj:queue:runner20"});
  EXPECT_EQ(outcome(store_->delete_record(1, "runner:20")), "ok");
  EXPECT_TRUE(store_->runners(1)->empty());
  for (const char* list : {"msg_out", "msg_out_coordinator", "mj:topic:t"}) {
    backend_->run_command(1, {"HSET", "message:1:2", "message_type", "chat", "topic", "t"});
    backend_->run_command(1, {"LPUSH", list, "message:1:2"});
    EXPECT_EQ(outcome(store_->delete_record(1, "message:1:2")), "conflict") << list;
    backend_->run_command(1, {"DEL", list});
    EXPECT_EQ(outcome(store_->delete_record(1, "message:1:2")), "ok") << list;
  }
  backend_->run_command(1, {"HSET", "message:1:2", "message_type", "job", "status", "acknowledged"});
  EXPECT_EQ(outcome(store_->delete_record(1, "message:1:2")), "conflict") << "the sender waits for the result";
  backend_->run_command(1, {"SET", "message:1:3", "text"});
  EXPECT_EQ(outcome(store_->delete_record(1, "message:1:3")), "invalid") << "the key was written by another client";
}

TEST_P(Records, DeletedMessageForgetsItsContent) {
  backend_->run_command(1, {"HSET", "message:1:2", "message_type", "chat", "status", "processed"});
  backend_->run_command(1, {"HSET", "mj:message:message:1:2", "state", "taken", "content", "c"});
  backend_->run_command(1, {"HSET", "mj:received", "c", "message:1:2", "d", "message:1:3"});
  EXPECT_EQ(outcome(store_->delete_record(1, "message:1:2")), "ok");
  EXPECT_EQ(backend_->run_command(1, {"HKEYS", "mj:received"}).at(0).text(), "d");
}

TEST_P(Records, UpdateFailsIfAnExpectedValueDiffers) {
  ASSERT_TRUE(store_->create_record(1, {"runner:", "runner", 20, {{"topic", "t"}}}));
  EXPECT_EQ(outcome(store_->change_record_if(1, "runner:20", {{"topic", "u"}}, {{"topic", "s"}})), "conflict");
  EXPECT_EQ(outcome(store_->change_record_if(1, "runner:20", {{"topic", "u"}}, {{"type", "x"}})), "conflict");
  EXPECT_EQ(field("runner:20", "topic"), "t");
  EXPECT_EQ(outcome(store_->change_record_if(1, "runner:20", {{"topic", "u"}}, {{"topic", "t"}, {"type", ""}})), "ok");
  EXPECT_EQ(field("runner:20", "topic"), "u");
  EXPECT_EQ(outcome(store_->change_record_if(1, "runner:21", {{"detail", "lost"}}, {})), "not_found");
}

TEST_P(Records, KeyBelongsToOneActor) {
  ASSERT_TRUE(store_->create_record(0, {"actor:", "actor", 12, {{"pubkey", "k"}}}));
  EXPECT_EQ(outcome(store_->create_record(0, {"actor:", "actor", 13, {{"pubkey", "k"}}})), "conflict");
  EXPECT_EQ(outcome(store_->create_record(0, {"actor:", "actor", 0, {{"pubkey", "k"}}})), "conflict");
  EXPECT_TRUE(store_->create_record(0, {"actor:", "actor", 12, {{"pubkey", "k"}}})->existed);
  ASSERT_TRUE(store_->create_record(0, {"actor:", "actor", 13, {{"pubkey", "l"}}}));
  EXPECT_EQ(outcome(store_->change_record(0, "actor:13", {{"pubkey", "k"}})), "conflict");
  EXPECT_EQ(outcome(store_->change_record(0, "actor:13", {{"pubkey", "l"}, {"address", "[]"}})), "ok");
  const auto owner = store_->owner_of_key("k");
  ASSERT_TRUE(owner) << owner.error().message;
  EXPECT_EQ(owner->actor_count, 1U);
  EXPECT_EQ(owner->id, 12U);
  EXPECT_EQ(field_of(owner->record, "pubkey"), "k");
  // An actor loses its key by a change or by a deletion.
  EXPECT_EQ(outcome(store_->change_record(0, "actor:12", {{"pubkey", "m"}})), "ok");
  EXPECT_EQ(outcome(store_->change_record(0, "actor:13", {{"pubkey", "k"}})), "ok");
  EXPECT_EQ(store_->owner_of_key("k")->id, 13U);
  EXPECT_EQ(outcome(store_->delete_record(0, "actor:12")), "ok");
  EXPECT_EQ(outcome(store_->change_record(0, "actor:13", {{"pubkey", "m"}})), "ok");
  EXPECT_EQ(backend_->run_command(0, {"HLEN", "mj:actor-keys"}).number(), 1U)
      << "keys of deleted actors and former keys are removed from the index";
}

// The index is built from existing records. Records of plain clients do not take a key from its owner.
TEST_P(Records, KeyOfTwoRecordsBelongsToNoActor) {
  backend_->run_command(0, {"HSET", "actor:12", "pubkey", "k"});
  backend_->run_command(0, {"HSET", "actor:7", "pubkey", "k"});
  backend_->run_command(0, {"HSET", "actor:8", "pubkey", "l"});
  backend_->run_command(0, {"SET", "actor:9", "no record"});
  backend_->run_command(0, {"HSET", "actor:x", "pubkey", "l"});
  const auto owner = store_->owner_of_key("k");
  ASSERT_TRUE(owner) << owner.error().message;
  EXPECT_EQ(owner->actor_count, 2U);
  EXPECT_TRUE(owner->checked_now);
  EXPECT_EQ(store_->owner_of_key("l")->id, 8U);
  EXPECT_FALSE(store_->owner_of_key("l")->checked_now) << "the records were scanned a short time ago";
  EXPECT_EQ(outcome(store_->create_record(0, {"actor:", "actor", 20, {{"pubkey", "l"}}})), "conflict");
  backend_->run_command(0, {"HSET", "actor:21", "pubkey", "n"});
  EXPECT_EQ(outcome(store_->create_record(0, {"actor:", "actor", 20, {{"pubkey", "n"}}})), "conflict");
  EXPECT_EQ(outcome(store_->change_record(0, "actor:8", {{"pubkey", "n"}})), "conflict");
  backend_->run_command(0, {"HDEL", "actor:12", "pubkey"});
  EXPECT_EQ(store_->owner_of_key("k")->id, 7U);
}

TEST_P(Records, RefusalsAreBoundedAndCounted) {
  RefusalNote note;
  note.actor = 15;
  note.action = "steer";
  note.resource = "flow 7";
  note.access_list = "admins";
  for (int i = 0; i < 1005; ++i) ASSERT_EQ(outcome(store_->record_refusal(1, note)), "ok");
  const auto notes = store_->refusals(1, 2000);
  ASSERT_TRUE(notes) << notes.error().message;
  ASSERT_EQ(notes->size(), 1000U);
  EXPECT_EQ(notes->front().number, 1005U);
  EXPECT_EQ(notes->back().number, 6U);
  EXPECT_EQ(notes->front().resource, "flow 7");
  backend_->run_command(2, {"SET", "mj:refusals", "x"});
  EXPECT_EQ(outcome(store_->record_refusal(2, note)), "invalid");
}

MJ_BOTH_STORES(Records);

}  // namespace
}  // namespace mycojobs
