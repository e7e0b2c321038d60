// `verify` detects damage to the index of public keys, and a rebuild repairs it.
#include <gmock/gmock.h>

#include "contract/store_contract.h"
#include "inspect/verify/actor_verify.h"

namespace mycojobs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class VerifyActors : public StoreContract {
 protected:
  static constexpr const char* kIndex = "mj:actor-keys";
  void SetUp() override {
    StoreContract::SetUp();
    for (const std::string id : {"5", "6"}) {
      backend_->run_command(0, {"HSET", "actor:" + id, "id", id, "pubkey", "key" + id});
      backend_->run_command(0, {"HSET", kIndex, "key" + id, id});
    }
    backend_->run_command(0, {"HSET", "actor:7", "id", "7"});
    ASSERT_THAT(found(), IsEmpty());
  }
  std::vector<std::string> found() {
    std::vector<std::string> texts;
    const auto all = verify_actors(*store_);
    EXPECT_TRUE(all) << all.error().message;
    for (const Finding& each : all.value_or(std::vector<Finding>())) {
      EXPECT_EQ(each.rule, "actor-key");
      texts.push_back(each.text);
    }
    return texts;
  }
  std::vector<std::string> rebuild(bool dry_run = false) { return rebuild_actors(*store_, dry_run).value(); }
};

TEST_P(VerifyActors, FindsAKeyMissingFromTheIndex) {
  backend_->run_command(0, {"HDEL", kIndex, "key5"});
  EXPECT_THAT(found(), ElementsAre(HasSubstr("actor:5 has a public key that")));
  EXPECT_EQ(rebuild(true).size(), 1U);
  EXPECT_EQ(found().size(), 1U) << "a dry run repairs nothing";
  EXPECT_EQ(rebuild().size(), 1U);
  EXPECT_THAT(found(), IsEmpty());
  EXPECT_EQ(store_->owner_of_key("key5")->id, 5U);
}

TEST_P(VerifyActors, FindsAnIndexEntryOfAnotherActor) {
  backend_->run_command(0, {"HSET", kIndex, "key5", "7"});
  EXPECT_THAT(found(), ElementsAre(HasSubstr("actor:5 has a public key that")));
  EXPECT_EQ(rebuild().size(), 1U);
  EXPECT_THAT(found(), IsEmpty());
}

TEST_P(VerifyActors, FindsAKeyWithoutAnActor) {
  backend_->run_command(0, {"HSET", kIndex, "gone", "9"});
  EXPECT_THAT(found(), ElementsAre(HasSubstr("a public key of actor:9 that no actor has")));
  EXPECT_EQ(rebuild().size(), 1U);
  EXPECT_THAT(found(), IsEmpty());
}

TEST_P(VerifyActors, SharedKeyNeedsAManualRepair) {
  backend_->run_command(0, {"HSET", "actor:7", "pubkey", "key6"});
  EXPECT_THAT(found(), ElementsAre(HasSubstr("actor:6 and actor:7 have the same public key")));
  EXPECT_THAT(rebuild(), ElementsAre(HasSubstr("(cannot be repaired)")));
  EXPECT_EQ(found().size(), 1U);
}

TEST_P(VerifyActors, IndexOfAnotherTypeIsNamed) {
  backend_->run_command(0, {"DEL", kIndex});
  backend_->run_command(0, {"SET", kIndex, "x"});
  EXPECT_THAT(found(), ElementsAre(HasSubstr("delete that key")));
}

MJ_BOTH_STORES(VerifyActors);

}  // namespace
}  // namespace mycojobs
