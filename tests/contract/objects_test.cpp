// The object store: storing and finding objects, permissions of writers, and atomicity of writes.
#include <gmock/gmock.h>

#include "store/objects/object_store.h"
#include "store_contract.h"

namespace mycojobs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const ObjectKind kTodo{"default", "todo"};

class Objects : public StoreContract {
 protected:
  void SetUp() override {
    StoreContract::SetUp();
    objects_ = backend_->stores().open_objects().value();
    writer_ = claim_new(1).ref;
  }
  ClaimedJob claim_new(Id id) {
    submit(id);
    return claim_one();
  }
  static ObjectOp put(std::string id, std::string json, std::optional<std::uint64_t> version = {},
                      const ObjectKind& of = kTodo) {
    return {ObjectOp::Verb::put, of, std::move(id), version, std::move(json)};
  }
  static ObjectOp remove(std::string id, std::optional<std::uint64_t> version = {}) {
    return {ObjectOp::Verb::remove, kTodo, std::move(id), version, ""};
  }
  static ObjectOp check(std::string id, std::uint64_t version) {
    return {ObjectOp::Verb::check, kTodo, std::move(id), version, ""};
  }
  Result<WriteReply> write(const std::vector<ObjectOp>& ops) { return write_as(writer_, ops); }
  Result<WriteReply> write_as(const ClaimRef& claim, const std::vector<ObjectOp>& ops) {
    return objects_->write(claim, std::to_string(++calls_), ops);
  }
  void declare(const std::vector<std::string>& index, const std::vector<std::string>& text = {}) {
    const auto done = objects_->declare(writer_, kTodo, index, text);
    ASSERT_TRUE(done.has_value()) << done.error().message;
    while (objects_->index_more(1, kTodo).value()) {
    }
  }
  std::vector<std::string> ids(const Result<ObjectPage>& page) {
    if (!page) return {"<" + page.error().message + ">"};
    std::vector<std::string> out;
    for (const StoredObject& each : page->objects) out.push_back(each.id);
    if (page->indexing) out.emplace_back("<indexing>");
    return out;
  }
  std::vector<std::string> equal(const std::string& field, ObjectValue value) {
    return ids(objects_->find(1, kTodo, {field, std::move(value), {}, {}}, "", 1000));
  }
  std::vector<std::string> range(const std::string& field, std::optional<double> min, std::optional<double> max) {
    return ids(objects_->find(1, kTodo, {field, {}, min, max}, "", 1000));
  }
  std::vector<std::string> search(const std::string& text) { return ids(objects_->search(1, kTodo, text, "", 1000)); }
  void expect_sound() { EXPECT_THAT(objects_->verify(1, 10).value().problems, IsEmpty()); }

  std::unique_ptr<ObjectStore> objects_;
  ClaimRef writer_;
  int calls_ = 0;
};

class ObjectsOfRedis : public Objects {};  // tests with commands that only a real server supports

TEST_P(Objects, StoredObjectHasIdVersionAndTimes) {
  const auto first = write({put("a", R"({"title":"one","n":1.5})")}).value();
  ASSERT_EQ(first.stamps.size(), 1U);
  EXPECT_EQ(first.stamps[0].version, 1U);
  const auto object = objects_->get(1, kTodo, "a").value();
  EXPECT_EQ(object.json, R"({"id":"a","n":1.5,"title":"one"})");
  EXPECT_EQ(object.version, 1U);
  EXPECT_EQ(object.created_ms, first.stamps[0].created_ms);
  ASSERT_TRUE(eventually([&] { return store_->now_ms().value() > object.created_ms; }));
  const auto second = write({put("a", R"({"title":"two"})")}).value();
  EXPECT_EQ(second.stamps[0].version, 2U);
  EXPECT_EQ(second.stamps[0].created_ms, object.created_ms);
  EXPECT_GT(second.stamps[0].updated_ms, object.created_ms);
  EXPECT_EQ(outcome(objects_->get(1, kTodo, "b")), "not_found");
  EXPECT_EQ(outcome(objects_->get(1, {"other", "todo"}, "a")), "not_found");
  EXPECT_EQ(outcome(objects_->get(2, kTodo, "a")), "not_found");
  expect_sound();
}

TEST_P(Objects, VersionsAreChecked) {
  ASSERT_TRUE(write({put("a", "{}", 0)}));
  EXPECT_EQ(outcome(write({put("a", "{}", 0)})), "conflict");
  EXPECT_EQ(outcome(write({put("a", "{}", 2)})), "conflict");
  EXPECT_THAT(write({put("a", "{}", 2)}).error().message, HasSubstr("todo \"a\" is in version 1, and 2 was expected"));
  EXPECT_EQ(outcome(write({put("a", "{}", 1)})), "ok");
  EXPECT_EQ(outcome(write({put("b", "{}", 1)})), "conflict");
  EXPECT_EQ(outcome(write({remove("a", 1)})), "conflict");
  EXPECT_EQ(outcome(write({remove("a", 2)})), "ok");
  EXPECT_EQ(outcome(write({remove("a")})), "not_found");
}

TEST_P(Objects, WriteOfSeveralObjectsIsAtomic) {
  declare({"n"});
  ASSERT_TRUE(write({put("a", R"({"n":1})"), put("b", R"({"n":1})"), put("c", R"({"n":1})")}));
  const auto refused = write({put("a", R"({"n":2})"), remove("b"), put("d", R"({"n":2})"), check("c", 7)});
  EXPECT_EQ(outcome(refused), "conflict");
  EXPECT_THAT(refused.error().message, HasSubstr("operations[3]: "));
  EXPECT_THAT(equal("n", 1.0), ElementsAre("a", "b", "c"));
  EXPECT_THAT(equal("n", 2.0), IsEmpty());
  const auto done = write({put("a", R"({"n":2})", 1), remove("b", 1), put("d", R"({"n":2})", 0), check("c", 1)});
  ASSERT_TRUE(done.has_value()) << done.error().message;
  EXPECT_THAT(equal("n", 1.0), ElementsAre("c"));
  EXPECT_THAT(equal("n", 2.0), ElementsAre("a", "d"));
  EXPECT_EQ(done->stamps[0].version, 2U);
  EXPECT_EQ(done->stamps[3].version, 1U);
  expect_sound();
}

TEST_P(Objects, ObjectMayAppearInOneOperationOnly) {
  const auto refused = write({put("a", "{}"), check("b", 0), remove("a")});
  EXPECT_EQ(outcome(refused), "invalid");
  EXPECT_THAT(refused.error().message, HasSubstr("operations[2]: todo \"a\" is that of operations[0]"));
}

TEST_P(Objects, RepeatedWriteIsDoneOnceWithTheSameAnswer) {
  const std::vector<ObjectOp> ops{put("a", "{}")};
  const auto first = objects_->write(writer_, "call-1", ops).value();
  const auto again = objects_->write(writer_, "call-1", ops).value();
  EXPECT_EQ(again.stamps.at(0).version, first.stamps.at(0).version);
  EXPECT_EQ(objects_->get(1, kTodo, "a").value().version, 1U);
  EXPECT_EQ(objects_->write(writer_, "call-2", ops).value().stamps.at(0).version, 2U);
  const std::vector<ObjectOp> gone{remove("a")};
  EXPECT_EQ(outcome(objects_->write(writer_, "call-3", gone)), "ok");
  EXPECT_EQ(outcome(objects_->write(writer_, "call-3", gone)), "ok");
}

TEST_P(Objects, DeclaredFieldsAreFoundByValue) {
  declare({"city", "address.city", "n", "done"});
  ASSERT_TRUE(write({put("a", R"({"city":"Ghent","address":{"city":"Gent"},"n":1,"done":true})"),
                     put("b", R"({"city":"Ghent","n":-2.5,"done":false})"), put("c", R"({"city":1,"n":"1"})"),
                     put("d", R"({"city":["Ghent"],"address":"x","n":null})")}));
  EXPECT_THAT(equal("city", "Ghent"), ElementsAre("a", "b"));
  EXPECT_THAT(equal("address.city", "Gent"), ElementsAre("a"));
  EXPECT_THAT(equal("city", 1.0), ElementsAre("c"));
  EXPECT_THAT(equal("city", "Ghen"), IsEmpty());
  EXPECT_THAT(equal("n", 1.0), ElementsAre("a"));
  EXPECT_THAT(equal("n", "1"), ElementsAre("c"));
  EXPECT_THAT(equal("done", true), ElementsAre("a"));
  EXPECT_THAT(equal("done", false), ElementsAre("b"));
  ASSERT_TRUE(write({put("a", R"({"city":"Bruges"})"), remove("b")}));
  EXPECT_THAT(equal("city", "Ghent"), IsEmpty());
  EXPECT_THAT(equal("done", true), IsEmpty());
  EXPECT_THAT(equal("city", "Bruges"), ElementsAre("a"));
  const auto undeclared = objects_->find(1, kTodo, {"title", "x", {}, {}}, "", 10);
  EXPECT_EQ(outcome(undeclared), "invalid");
  EXPECT_THAT(undeclared.error().message, HasSubstr("field: no \"title\" of default/todo is declared"));
  expect_sound();
}

TEST_P(Objects, NumbersAreFoundByRangeInOrder) {
  declare({"n"});
  const std::vector<double> numbers{-1e300, -2, -1.5, 0, 0.001, 1, 2, 10, 1e300};
  std::vector<ObjectOp> ops{put("text", R"({"n":"5"})")};
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    char json[64];
    (void)std::snprintf(json, sizeof json, R"({"n":%.17g})", numbers[i]);
    ops.push_back(put(std::to_string(i), json));
  }
  ASSERT_TRUE(write(ops));
  EXPECT_THAT(range("n", {}, {}), ElementsAre("0", "1", "2", "3", "4", "5", "6", "7", "8"));
  EXPECT_THAT(range("n", -2, 1), ElementsAre("1", "2", "3", "4", "5"));
  EXPECT_THAT(range("n", 1.5, {}), ElementsAre("6", "7", "8"));
  EXPECT_THAT(range("n", {}, -1.75), ElementsAre("0", "1"));
  EXPECT_THAT(range("n", -0.0, 0), ElementsAre("3"));
  std::vector<std::string> paged;
  std::string after;
  do {
    const auto page = objects_->find(1, kTodo, {"n", {}, -2, 10}, after, 2).value();
    for (const auto& each : page.objects) paged.push_back(each.id);
    after = page.next_cursor;
  } while (!after.empty());
  EXPECT_THAT(paged, ElementsAre("1", "2", "3", "4", "5", "6", "7"));
  EXPECT_EQ(outcome(objects_->find(1, kTodo, {"n", {}, 1, 2}, "nonsense", 2)), "invalid");
}

TEST_P(Objects, StringsAreFoundExactly) {
  declare({"t"});
  const std::string longer(600, 'x');
  std::vector<std::string> texts{"",      "a",        "a\\u0000b", "a\\u0001",   "%41",       "A",
                                 "a\\nb", "\xc3\xa9", "z\\u0003q", longer + "1", longer + "2"};
  std::vector<ObjectOp> ops;
  for (std::size_t i = 0; i < texts.size(); ++i)
    ops.push_back(put("o" + std::to_string(i), R"({"t":")" + texts[i] + "\"}"));
  ASSERT_TRUE(write(ops));
  EXPECT_THAT(equal("t", ""), ElementsAre("o0"));
  EXPECT_THAT(equal("t", "a"), ElementsAre("o1"));
  EXPECT_THAT(equal("t", std::string("a\0b", 3)), ElementsAre("o2"));
  EXPECT_THAT(equal("t", "a\1"), ElementsAre("o3"));
  EXPECT_THAT(equal("t", "%41"), ElementsAre("o4"));
  EXPECT_THAT(equal("t", "A"), ElementsAre("o5"));
  EXPECT_THAT(equal("t", "\xc3\xa9"), ElementsAre("o7"));
  EXPECT_THAT(equal("t", "z\3q"), ElementsAre("o8"));
  EXPECT_THAT(equal("t", longer + "1"), ElementsAre("o9"));
  EXPECT_THAT(equal("t", longer + "2"), ElementsAre("o10"));
  EXPECT_THAT(equal("t", longer + "3"), IsEmpty());
  expect_sound();
}

TEST_P(Objects, WordsOfDeclaredTextsAreFound) {
  declare({}, {"title", "note.body"});
  ASSERT_TRUE(write({put("a", R"({"title":"The QUICK brown fox","note":{"body":"jumps; over"}})"),
                     put("b", R"({"title":"the lazy dog","note":{"body":"Straße, naïve ÉTÉ"}})"),
                     put("c", R"({"title":"東京 tower","other":"fox"})")}));
  EXPECT_THAT(search("the"), ElementsAre("a", "b"));
  EXPECT_THAT(search("FOX jumps"), ElementsAre("a"));
  EXPECT_THAT(search("fox dog"), IsEmpty());
  EXPECT_THAT(search("strasse été"), ElementsAre("b"));
  EXPECT_THAT(search("京"), ElementsAre("c"));
  EXPECT_THAT(search("qui"), IsEmpty());
  EXPECT_EQ(outcome(objects_->search(1, kTodo, " ,;", "", 10)), "invalid");
  EXPECT_EQ(outcome(objects_->search(1, {"default", "other"}, "x", "", 10)), "invalid");
  ASSERT_TRUE(write({put("a", R"({"title":"the end"})")}));
  EXPECT_THAT(search("fox"), IsEmpty());
  EXPECT_THAT(search("the"), ElementsAre("a", "b"));
  expect_sound();
}

TEST_P(Objects, SearchForSeveralWordsScansInSteps) {
  declare({}, {"t"});
  for (int block = 0; block < 50; ++block) {
    std::vector<ObjectOp> ops;
    for (int i = 0; i < 50; ++i) {
      char id[16];
      (void)std::snprintf(id, sizeof id, "%05d", block * 50 + i);
      ops.push_back(put(id, block == 49 && i == 49 ? R"({"t":"red blue"})"
                            : i % 2 == 0           ? R"({"t":"red"})"
                                                   : R"({"t":"blue"})"));
    }
    ASSERT_TRUE(write(ops));
  }
  std::vector<std::string> found;
  std::string after;
  int pages = 0;
  do {
    const auto page = objects_->search(1, kTodo, "red blue", after, 10).value();
    for (const auto& each : page.objects) found.push_back(each.id);
    after = page.next_cursor;
    ++pages;
  } while (!after.empty() && pages < 100);
  EXPECT_THAT(found, ElementsAre("02499"));
}

TEST_P(Objects, LaterFieldIndexesExistingObjects) {
  for (int block = 0; block < 3; ++block) {
    std::vector<ObjectOp> ops;
    for (int i = 0; i < 100; ++i) ops.push_back(put(std::to_string(block * 100 + i), R"({"n":7,"t":"Some words"})"));
    ASSERT_TRUE(write(ops));
  }
  const auto declared = objects_->declare(writer_, kTodo, {"n"}, {"t"}).value();
  EXPECT_TRUE(declared.indexing);
  EXPECT_TRUE(objects_->find(1, kTodo, {"n", 7.0, {}, {}}, "", 10).value().indexing);
  ASSERT_TRUE(write({put("5", R"({"n":8})"), remove("6")}));  // while the index is being built
  ASSERT_TRUE(objects_->index_more(1, kTodo).value());
  ASSERT_TRUE(write({put("7", R"({"n":8})"), put("new", R"({"n":8})")}));
  while (objects_->index_more(1, kTodo).value()) {
  }
  EXPECT_EQ(equal("n", 7.0).size(), 297U);
  EXPECT_THAT(equal("n", 8.0), ElementsAre("5", "7", "new"));
  EXPECT_EQ(search("words").size(), 297U);
  EXPECT_FALSE(objects_->declare(writer_, kTodo, {"n"}, {"t"}).value().indexing);
  expect_sound();
}

TEST_P(Objects, StaleStoreIndexesByTheNewFields) {
  ASSERT_TRUE(write({put("a", R"({"n":1})")}));
  const auto other = backend_->stores().open_objects().value();
  ASSERT_TRUE(other->declare(writer_, kTodo, {"n"}, {}));
  ASSERT_TRUE(write({put("b", R"({"n":1})")}));
  while (objects_->index_more(1, kTodo).value()) {
  }
  EXPECT_THAT(equal("n", 1.0), ElementsAre("a", "b"));
  expect_sound();
}

TEST_P(Objects, OneJobWritesAtATime) {
  const ClaimedJob second = claim_new(2), third = claim_new(3);
  ASSERT_TRUE(write({put("a", "{}")}));
  EXPECT_EQ(write_as(second.ref, {put("a", "{}")}).value().busy, "job:12:1");
  EXPECT_EQ(write_as(third.ref, {put("a", "{}")}).value().busy, "job:12:1");
  EXPECT_EQ(objects_->declare(second.ref, kTodo, {"n"}, {}).value().busy, "job:12:1");
  EXPECT_EQ(objects_->get(1, kTodo, "a").value().version, 1U) << "a reader does not wait";
  ASSERT_TRUE(objects_->release(writer_));
  EXPECT_EQ(write_as(third.ref, {put("a", "{}")}).value().busy, "job:12:2")
      << "writers are served in the order of arrival";
  EXPECT_EQ(write({put("a", "{}")}).value().busy, "job:12:2");
  EXPECT_EQ(write_as(second.ref, {put("a", "{}")}).value().busy, "");
  ASSERT_TRUE(objects_->release(second.ref));
  EXPECT_EQ(write_as(third.ref, {put("a", "{}")}).value().busy, "");
  EXPECT_EQ(objects_->get(1, kTodo, "a").value().version, 3U);
}

TEST_P(Objects, RejectedWriterBlocksNoOther) {
  const ClaimedJob second = claim_new(2), third = claim_new(3);
  ASSERT_TRUE(write({put("a", "{}")}));
  EXPECT_NE(write_as(second.ref, {put("a", "{}", 7)}).value().busy, "");
  EXPECT_NE(write_as(third.ref, {put("b", "{}")}).value().busy, "");
  ASSERT_TRUE(objects_->release(writer_));
  EXPECT_EQ(outcome(write_as(second.ref, {put("a", "{}", 7)})), "conflict");
  EXPECT_EQ(write_as(third.ref, {put("b", "{}")}).value().busy, "") << "a rejected writer does not block others";
}

TEST_P(Objects, EndedWriterBlocksNoOther) {
  const ClaimedJob second = claim_new(2);
  ASSERT_TRUE(write({put("a", "{}")}));
  EXPECT_NE(write_as(second.ref, {put("a", "{}")}).value().busy, "");
  ASSERT_TRUE(end(writer_, finished()));
  EXPECT_EQ(write_as(second.ref, {put("a", "{}")}).value().busy, "");
  EXPECT_EQ(outcome(write({put("a", "{}")})), "stale_claim");
}

TEST_P(Objects, OutdatedRunWritesNothing) {
  ASSERT_TRUE(write({put("a", "{}")}));
  ASSERT_TRUE(report(Release{writer_, "lost"}));
  EXPECT_EQ(outcome(write({put("a", "{}")})), "stale_claim");
  EXPECT_EQ(outcome(objects_->declare(writer_, kTodo, {"n"}, {})), "stale_claim");
  const ClaimedJob again = claim_one();
  EXPECT_EQ(again.ref.job_key, writer_.job_key);
  EXPECT_EQ(write_as(again.ref, {put("a", "{}")}).value().busy, "");
  EXPECT_EQ(outcome(write({put("a", "{}")})), "stale_claim");
  ClaimRef forged = again.ref;
  forged.token[0] = forged.token[0] == '0' ? '1' : '0';
  EXPECT_EQ(outcome(write_as(forged, {put("a", "{}")})), "stale_claim");
  EXPECT_EQ(objects_->get(1, kTodo, "a").value().version, 2U);
}

TEST_P(Objects, ListsAreInPagesByIdAndBytes) {
  std::vector<ObjectOp> ops;
  for (const char* id : {"b", "a", "c", "\xc3\xa9", "B c"}) ops.push_back(put(id, "{}"));
  ASSERT_TRUE(write(ops));
  EXPECT_THAT(ids(objects_->list(1, kTodo, "", 10)), ElementsAre("B c", "a", "b", "c", "\xc3\xa9"));
  const auto first = objects_->list(1, kTodo, "", 2).value();
  EXPECT_EQ(first.next_cursor, "a");
  EXPECT_THAT(ids(objects_->list(1, kTodo, first.next_cursor, 3)), ElementsAre("b", "c", "\xc3\xa9"));
  EXPECT_EQ(objects_->list(1, kTodo, first.next_cursor, 3).value().next_cursor, "");
  EXPECT_EQ(objects_->count(1, kTodo).value(), 5U);
  EXPECT_EQ(outcome(objects_->list(1, kTodo, "", 0)), "invalid");
  EXPECT_EQ(outcome(objects_->list(1, kTodo, "", 1001)), "invalid");
  for (int i = 0; i < 30; ++i) {
    ASSERT_TRUE(write({put("large" + std::to_string(i), R"({"x":")" + std::string(200000, 'x') + "\"}")}));
  }
  const auto bounded = objects_->list(1, kTodo, "kzz", 1000).value();
  EXPECT_LT(bounded.objects.size(), 30U);
  EXPECT_NE(bounded.next_cursor, "");
}

TEST_P(Objects, KindsListTheirDeclarations) {
  ASSERT_TRUE(write({put("a", "{}"), put("b", "{}", {}, {"shop", "order"})}));
  declare({"n", "city"}, {"note"});
  const auto kinds = objects_->kinds(1).value();
  ASSERT_EQ(kinds.size(), 2U);
  EXPECT_EQ(kinds[0].kind, kTodo);
  EXPECT_EQ(kinds[0].count, 1U);
  EXPECT_THAT(kinds[0].index, ElementsAre("city", "n"));
  EXPECT_THAT(kinds[0].text, ElementsAre("note"));
  EXPECT_EQ(kinds[1].kind, (ObjectKind{"shop", "order"}));
  ASSERT_TRUE(
      objects_->write(writer_, "gone", std::vector{ObjectOp{ObjectOp::Verb::remove, {"shop", "order"}, "b", {}, ""}}));
  EXPECT_EQ(objects_->kinds(1).value().size(), 1U) << "a kind without objects and declarations is not listed";
}

TEST_P(Objects, LimitsAreNamed) {
  EXPECT_EQ(outcome(write({put("a", R"({"x":")" + std::string(kMaxObjectBytes, 'x') + "\"}")})), "too_large");
  EXPECT_EQ(outcome(write({put(std::string(129, 'i'), "{}")})), "invalid");
  EXPECT_EQ(outcome(write({put("a\nb", "{}")})), "invalid");
  EXPECT_EQ(outcome(write({put("a", "[]")})), "invalid");
  EXPECT_EQ(outcome(write({put("a", "{}", {}, {"default", "To do"})})), "invalid");
  EXPECT_EQ(outcome(write({})), "invalid");
  EXPECT_EQ(outcome(write(std::vector<ObjectOp>(101, put("a", "{}")))), "invalid");
  std::vector<std::string> many;
  for (int i = 0; i < 60; ++i) many.push_back("f" + std::to_string(i));
  declare(many);
  const auto refused = objects_->declare(writer_, kTodo, {}, {"a", "b", "c", "d", "e"});
  EXPECT_EQ(outcome(refused), "too_large");
  EXPECT_THAT(refused.error().message, HasSubstr("declares 60 fields already, and may declare 64"));
  EXPECT_EQ(outcome(objects_->get(0, kTodo, "a")), "invalid");
  expect_sound();
}

TEST_P(ObjectsOfRedis, ForeignKeysAreErrorsAndNothingIsHalfWritten) {
  declare({"n"}, {"t"});
  ASSERT_TRUE(write({put("a", R"({"n":1,"t":"word"})")}));
  for (const std::string key : {"mj:osis:object:default:todo:a", "mj:osis:ids:default:todo",
                                "mj:osis:index:default:todo:n", "mj:osis:words:default:todo",
                                "mj:osis:kind:default:todo", "mj:osis:kinds", "mj:osis:writer", "mj:osis:waiting"}) {
    const bool was = backend_->run_command(1, {"EXISTS", key}).number() == 1;
    if (was) backend_->run_command(1, {"RENAME", key, "kept"});
    backend_->run_command(1, {"SET", key, "planted"});
    EXPECT_EQ(outcome(write({put("b", R"({"n":2,"t":"other"})"), put("a", R"({"n":3,"t":"third"})")})), "invalid")
        << key;
    backend_->run_command(1, {"DEL", key});
    if (was) backend_->run_command(1, {"RENAME", "kept", key});
    EXPECT_EQ(outcome(objects_->get(1, kTodo, "b")), "not_found") << key;
    expect_sound();
  }
}

TEST_P(Objects, InvalidObjectIsAnErrorAndCanBeReplaced) {
  ASSERT_TRUE(write({put("a", "{}"), put("b", "{}")}));
  backend_->run_command(
      1, {"HSET", "mj:osis:object:default:todo:a", "json", "{\"x\":", "entries", "\2\3\3\2", "version", "-4"});
  EXPECT_EQ(outcome(objects_->get(1, kTodo, "a")), "invalid");
  EXPECT_EQ(outcome(objects_->list(1, kTodo, "", 10)), "invalid");
  EXPECT_FALSE(objects_->verify(1, 10).value().problems.empty());
  EXPECT_EQ(outcome(write({put("a", "{}")})), "ok");
  EXPECT_EQ(outcome(objects_->get(1, kTodo, "a")), "ok");
  expect_sound();
}

TEST_P(Objects, VerifyReportsAndReindexRepairs) {
  declare({"n"}, {"t"});
  for (int i = 0; i < 150; ++i) ASSERT_TRUE(write({put(std::to_string(i), R"({"n":1,"t":"one two"})")}));
  expect_sound();
  backend_->run_command(
      1, {"ZREM", "mj:osis:index:default:todo:n",
          std::string(backend_->run_command(1, {"ZRANGE", "mj:osis:index:default:todo:n", "0", "0"}).at(0).text())});
  backend_->run_command(1, {"ZADD", "mj:osis:words:default:todo", "0",
                            "three\1"
                            "7"});
  backend_->run_command(1, {"ZREM", "mj:osis:ids:default:todo", "9"});
  backend_->run_command(1, {"ZADD", "mj:osis:ids:default:todo", "0", "ghost"});
  EXPECT_EQ(objects_->verify(1, 100).value().problems.size(), 4U);
  EXPECT_EQ(objects_->verify(1, 2).value().problems.size(), 2U);
  ASSERT_TRUE(objects_->reindex(1, kTodo));
  ASSERT_TRUE(write({put("140", R"({"n":1,"t":"one two"})")}));  // while the index is being built
  while (objects_->index_more(1, kTodo).value()) {
  }
  expect_sound();
  EXPECT_EQ(equal("n", 1.0).size(), 150U);
  backend_->run_command(1, {"DEL", "mj:osis:kind:default:todo"});  // loses the declarations
  EXPECT_FALSE(objects_->verify(1, 10).value().problems.empty());
  ASSERT_TRUE(objects_->reindex(1, kTodo));
  while (objects_->index_more(1, kTodo).value()) {
  }
  expect_sound();
}

MJ_BOTH_STORES(Objects);
INSTANTIATE_TEST_SUITE_P(Stores, ObjectsOfRedis, testing::Values("redis"), [](const auto& i) { return i.param; });

}  // namespace
}  // namespace mycojobs
