// The findings of doctor for each setting of a Redis server.
#include "inspect/doctor.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace mycojobs {
namespace {

ServerFacts good() {
  ServerFacts facts;
  facts.product = "redis";
  facts.version = "7.0.15";
  facts.databases = 16;
  facts.appendonly = "yes";
  facts.appendfsync = "always";
  facts.maxmemory_policy = "noeviction";
  return facts;
}

Check check_of(const ServerFacts& facts, const std::string& name, Id highest = 1, std::uint32_t wait_replicas = 0) {
  for (const Check& check : diagnose_server(facts, highest, wait_replicas)) {
    if (check.name == name) return check;
  }
  ADD_FAILURE() << "no check of " << name;
  return {};
}

TEST(DoctorRedis, GoodServerIsAccepted) {
  for (const Check& check : diagnose_server(good(), 15, 0)) EXPECT_EQ(check.status, CheckStatus::ok) << check.name;
}

TEST(DoctorRedis, SettingsThatLoseJobsAreReportedWithRemedies) {
  struct Case {
    std::string name;
    void (*spoil)(ServerFacts&);
    CheckStatus status;
    std::string says;
  };
  const Case cases[] = {
      {"maxmemory-policy", [](ServerFacts& f) { f.maxmemory_policy = "allkeys-lru"; }, CheckStatus::error, "evict"},
      {"maxmemory-policy", [](ServerFacts& f) { f.maxmemory_policy.clear(); }, CheckStatus::warning, "not readable"},
      {"appendonly", [](ServerFacts& f) { f.appendonly = "no"; }, CheckStatus::warning, "last snapshot"},
      {"appendonly", [](ServerFacts& f) { f.appendonly.clear(); }, CheckStatus::warning, "not readable"},
      {"appendfsync", [](ServerFacts& f) { f.appendfsync = "no"; }, CheckStatus::warning, "half a minute"},
      {"appendfsync", [](ServerFacts& f) { f.appendfsync.clear(); }, CheckStatus::warning, "not readable"},
      {"databases", [](ServerFacts& f) { f.databases = 1; }, CheckStatus::error, "context 1"},
      {"databases", [](ServerFacts& f) { f.databases = 0; }, CheckStatus::warning, "not readable"},
      {"persistence", [](ServerFacts& f) { f.persistence_error = true; }, CheckStatus::error, "refuse every write"},
      {"cluster", [](ServerFacts& f) { f.cluster = true; }, CheckStatus::error, "do not declare"},
      {"replication", [](ServerFacts& f) { f.replica = true; }, CheckStatus::error, "rejects writes"},
  };
  for (const Case& each : cases) {
    ServerFacts facts = good();
    each.spoil(facts);
    const Check check = check_of(facts, each.name);
    EXPECT_EQ(check.status, each.status) << each.name;
    EXPECT_NE(check.detail.find(each.says), std::string::npos) << check.detail;
    EXPECT_FALSE(check.remedy.empty()) << each.name;
  }
}

TEST(DoctorRedis, EachAppendfsyncReportsTheCostOfAPowerCut) {
  ServerFacts facts = good();
  EXPECT_NE(check_of(facts, "appendfsync").detail.find("loses no acknowledged write"), std::string::npos);
  facts.appendfsync = "everysec";
  EXPECT_EQ(check_of(facts, "appendfsync").status, CheckStatus::ok);
  EXPECT_NE(check_of(facts, "appendfsync").detail.find("last second"), std::string::npos);
  facts.appendonly = "no";
  EXPECT_NE(check_of(facts, "appendfsync").detail.find("without effect"), std::string::npos);
}

TEST(DoctorRedis, WaitingForReplicasIsExplained) {
  EXPECT_NE(check_of(good(), "replication").detail.find("a failover may lose"), std::string::npos);
  EXPECT_NE(check_of(good(), "replication", 1, 2).detail.find("once 2 replicas have it"), std::string::npos);
}

TEST(DoctorRedis, ContextWithAServerNeedsNoDatabaseOfItsNumber) {
  ServerFacts facts = good();
  facts.databases = 1;
  for (const Check& check : diagnose_server(facts, 0, 0)) EXPECT_NE(check.name, "databases");
}

TEST(DoctorQuota, ArtifactsNearTheirQuotaAreAWarning) {
  const Check few = diagnose_artifact_quota("artifacts", 700, 800, "quota.context_artifact_bytes");
  EXPECT_EQ(few.status, CheckStatus::ok);
  EXPECT_EQ(few.detail, "700 bytes of 800 (quota.context_artifact_bytes)");
  const Check many = diagnose_artifact_quota("artifacts", 701, 800, "quota.context_artifact_bytes");
  EXPECT_EQ(many.status, CheckStatus::warning);
  EXPECT_NE(many.remedy.find("raise quota.context_artifact_bytes"), std::string::npos) << many.remedy;
  EXPECT_EQ(diagnose_artifact_quota("artifacts", 701, 0, "quota.context_artifact_bytes").status, CheckStatus::ok);
}

}  // namespace
}  // namespace mycojobs
