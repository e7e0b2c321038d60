// The findings of doctor for each setting of a Redis server.
#include "inspect/doctor.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace mycojobs {
namespace {

StoreServerInfo make_good_server_info() {
  StoreServerInfo server_info;
  server_info.product = "redis";
  server_info.version = "7.0.15";
  server_info.databases = 16;
  server_info.appendonly = "yes";
  server_info.appendfsync = "always";
  server_info.maxmemory_policy = "noeviction";
  return server_info;
}

Check find_check(const StoreServerInfo& server_info, const std::string& name, Id highest = 1,
                 std::uint32_t wait_replicas = 0) {
  for (const Check& check : diagnose_server(server_info, highest, wait_replicas)) {
    if (check.name == name) return check;
  }
  ADD_FAILURE() << "no check of " << name;
  return {};
}

TEST(Doctor, CertificatesAreWatched) {
  constexpr std::int64_t kNowS = 1'000'000'000, kDayS = 86400;
  const TlsSettings settings;
  const Check good = diagnose_tls({"TLSv1.3", false, kNowS + 90 * kDayS, kNowS + 30 * kDayS}, settings, kNowS);
  EXPECT_EQ(good.status, CheckStatus::ok);
  EXPECT_EQ(
      good.detail,
      "TLSv1.3; the certificate of the server expires in 90 days; the certificate of the client expires in 30 days");
  const Check late = diagnose_tls({"TLSv1.2", false, kNowS + 14 * kDayS - 1, 0}, settings, kNowS);
  EXPECT_EQ(late.status, CheckStatus::warning);
  EXPECT_EQ(late.detail, "TLSv1.2; the certificate of the server expires in 13 days");
  EXPECT_NE(late.remedy.find("renew"), std::string::npos);
  TlsSettings insecure;
  insecure.insecure = true;
  const Check unverified = diagnose_tls({"TLSv1.3", false, kNowS + 90 * kDayS, 0}, insecure, kNowS);
  EXPECT_EQ(unverified.status, CheckStatus::warning);
  EXPECT_NE(unverified.detail.find("not verified"), std::string::npos);
}

TEST(DoctorRedis, GoodServerIsAccepted) {
  for (const Check& check : diagnose_server(make_good_server_info(), 15, 0))
    EXPECT_EQ(check.status, CheckStatus::ok) << check.name;
}

TEST(DoctorRedis, SettingsThatLoseJobsAreReportedWithRemedies) {
  struct Case {
    std::string name;
    void (*spoil)(StoreServerInfo&);
    CheckStatus status;
    std::string says;
  };
  const Case cases[] = {
      {"maxmemory-policy", [](StoreServerInfo& f) { f.maxmemory_policy = "allkeys-lru"; }, CheckStatus::error, "evict"},
      {"maxmemory-policy", [](StoreServerInfo& f) { f.maxmemory_policy.clear(); }, CheckStatus::warning,
       "not readable"},
      {"appendonly", [](StoreServerInfo& f) { f.appendonly = "no"; }, CheckStatus::warning, "last snapshot"},
      {"appendonly", [](StoreServerInfo& f) { f.appendonly.clear(); }, CheckStatus::warning, "not readable"},
      {"appendfsync", [](StoreServerInfo& f) { f.appendfsync = "no"; }, CheckStatus::warning, "half a minute"},
      {"appendfsync", [](StoreServerInfo& f) { f.appendfsync.clear(); }, CheckStatus::warning, "not readable"},
      {"databases", [](StoreServerInfo& f) { f.databases = 1; }, CheckStatus::error, "context 1"},
      {"databases", [](StoreServerInfo& f) { f.databases = 0; }, CheckStatus::warning, "not readable"},
      {"persistence", [](StoreServerInfo& f) { f.persistence_error = true; }, CheckStatus::error, "refuse every write"},
      {"cluster", [](StoreServerInfo& f) { f.cluster = true; }, CheckStatus::error, "do not declare"},
      {"replication", [](StoreServerInfo& f) { f.replica = true; }, CheckStatus::error, "rejects writes"},
  };
  for (const Case& each : cases) {
    StoreServerInfo server_info = make_good_server_info();
    each.spoil(server_info);
    const Check check = find_check(server_info, each.name);
    EXPECT_EQ(check.status, each.status) << each.name;
    EXPECT_NE(check.detail.find(each.says), std::string::npos) << check.detail;
    EXPECT_FALSE(check.remedy.empty()) << each.name;
  }
}

TEST(DoctorRedis, EachAppendfsyncReportsTheCostOfAPowerCut) {
  StoreServerInfo server_info = make_good_server_info();
  EXPECT_NE(find_check(server_info, "appendfsync").detail.find("loses no acknowledged write"), std::string::npos);
  server_info.appendfsync = "everysec";
  EXPECT_EQ(find_check(server_info, "appendfsync").status, CheckStatus::ok);
  EXPECT_NE(find_check(server_info, "appendfsync").detail.find("last second"), std::string::npos);
  server_info.appendonly = "no";
  EXPECT_NE(find_check(server_info, "appendfsync").detail.find("without effect"), std::string::npos);
}

TEST(DoctorRedis, WaitingForReplicasIsExplained) {
  EXPECT_NE(find_check(make_good_server_info(), "replication").detail.find("a failover may lose"), std::string::npos);
  EXPECT_NE(find_check(make_good_server_info(), "replication", 1, 2).detail.find("once 2 replicas have it"),
            std::string::npos);
}

TEST(DoctorRedis, ContextWithAServerNeedsNoDatabaseOfItsNumber) {
  StoreServerInfo server_info = make_good_server_info();
  server_info.databases = 1;
  for (const Check& check : diagnose_server(server_info, 0, 0)) EXPECT_NE(check.name, "databases");
}

// Connections begin in database 0, also those of users that may select only another database.
TEST(DoctorRedis, ContextInDatabase0BesideOthersIsAWarning) {
  StoreServerInfo server_info = make_good_server_info();
  server_info.used_databases = {{0, 0}, {3, 3}, {4, 0}};
  EXPECT_EQ(find_check(server_info, "sharing").status, CheckStatus::ok);
  server_info.used_databases = {{0, 3}, {4, 4}};
  const Check check = find_check(server_info, "sharing");
  EXPECT_EQ(check.status, CheckStatus::warning);
  EXPECT_NE(check.detail.find("contexts 3 (database 0), 4 share this server"), std::string::npos) << check.detail;
  EXPECT_NE(check.remedy.find("a server of its own"), std::string::npos) << check.remedy;
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
