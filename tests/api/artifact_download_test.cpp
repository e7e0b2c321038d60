// Downloads of artifacts over HTTP: files on the host of the coordinator and files of a runner, rights, tickets,
// ranges, and clients and runners that misbehave.
#include <gmock/gmock.h>
#include <sys/socket.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "api/artifacts/artifact_downloads.h"
#include "api_fixture.h"
#include "artifacts/artifact_folder.h"
#include "artifacts/job_artifacts.h"
#include "artifacts/transfer/transfer_loop.h"
#include "base/fd.h"
#include "base/loop_thread.h"
#include "base/sha256.h"
#include "raw_http.h"

namespace mycojobs {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

struct HttpReplyText : test::RawReply {
  std::string error(const char* member) const {
    const json reply = json::parse(body, nullptr, false);
    return reply.is_object() ? reply["error"]["data"].value(member, "") : "";
  }
};

class ArtifactDownloadTest : public ApiTest {
 protected:
  static constexpr Id kRunner = 3;
  const std::string coordinator_folder_ = folder_ / "coordinator", holder_folder_ = folder_ / "holder";
  std::unique_ptr<Store> store_ = *redis_.open();
  std::unique_ptr<Store> holder_store_;
  std::unique_ptr<TransferLoop> holder_;
  std::optional<LoopThread<TransferLoop>> holder_thread_;

  void SetUp() override {
    settings_.contexts = {1};
    settings_.state_dir = coordinator_folder_;
  }
  void TearDown() override {
    server_.reset();
    holder_thread_.reset();
  }
  // Stores files of a job in a state folder, and writes the record of the job with runner 3.
  void store_files(const std::string& state_dir, const std::string& key,
                   const std::vector<std::pair<std::string, std::string>>& files) {
    auto run = make_run_artifacts(state_dir, 1, *artifact_store_name(*store_, 1), key, 64U << 20);
    for (const auto& [name, content] : files) {
      ASSERT_TRUE(run->open(name, false)) << name;
      for (std::size_t from = 0; from < content.size(); from += 65536) run->write(content.substr(from, 65536));
      run->close();
    }
    write_record(key, run->finish());
  }
  void write_record(const std::string& key, const std::string& artifacts, Id runner = kRunner) {
    const std::string ids = key.substr(4);
    ASSERT_TRUE(store_->save(1, key,
                             {{"id", ids.substr(ids.find(':') + 1)},
                              {"caller_id", ids.substr(0, ids.find(':'))},
                              {"context_id", "1"},
                              {"script", "pass"},
                              {"script_type", "python"},
                              {"status", "finished"},
                              {"runner_id", std::to_string(runner)},
                              {"artifacts", artifacts}}));
  }
  void register_runner(std::uint32_t ttl_ms = 3'600'000) {
    Runner runner;
    runner.id = kRunner;
    RunnerHolder self{"instance", "atlas", "boot", 1}, held_by;
    ASSERT_TRUE(store_->hold_runner(1, runner, self, ttl_ms, "", held_by));
  }
  // Starts the server, with a token of actor 12, who may submit jobs.
  void start_as_owner() {
    const std::string owner = make_token(12);
    token_ = make_token(0, true);
    start();
    ok("context.create", {{"id", 1}, {"admins", {1}}, {"submitters", {12}}});
    token_ = owner;
  }
  void start_holder(std::uint64_t rate = 0) {
    register_runner();
    holder_store_ = *redis_.open();
    TransferLoop::Settings settings;
    settings.contexts = {1};
    settings.holder = kRunner;
    settings.state_dir = holder_folder_;
    settings.rate = rate;
    holder_ = std::make_unique<TransferLoop>(*holder_store_, settings, clock_);
    ASSERT_TRUE(holder_->subscribe(redis_));
    holder_thread_.emplace(*holder_, "holder");
  }
  Fd connect() const { return test::connect_to_loopback(server_->port()); }
  static HttpReplyText read_reply(const Fd& socket) { return {test::read_raw_reply(socket)}; }
  std::string format_request(const std::string& path, const std::string& headers, const std::string& method) const {
    return method + ' ' + path + " HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(server_->port()) +
           "\r\nConnection: close\r\n" + headers + "\r\n";
  }
  HttpReplyText get(const std::string& path, const std::string& headers = "", const std::string& method = "GET") const {
    const Fd socket = connect();
    EXPECT_TRUE(write_all(socket.get(), format_request(path, headers, method)));
    return read_reply(socket);
  }
  static std::string bearer(const std::string& token) { return "Authorization: Bearer " + token + "\r\n"; }
  static std::string path_of(const std::string& job, const std::string& name) {
    return "/artifacts?context=1&job=" + job + "&name=" + name;
  }
  std::string link_of(const std::string& job, const std::string& name) {
    return ok("artifact.get", {{"id", job}, {"name", name}}).value("link", "");
  }
};

TEST_F(ArtifactDownloadTest, FileOfThisHostIsListedAndDownloaded) {
  store_files(coordinator_folder_, "job:12:7", {{"dist/report.txt", "hello"}, {"empty", ""}, {"plot.png", "\x89PNG"}});
  start_anonymous();
  const json list = ok("artifact.list", {{"id", "12:7"}});
  ASSERT_EQ(list.size(), 3U);
  EXPECT_EQ(list[0], json({{"name", "dist/report.txt"},
                           {"bytes", 5},
                           {"sha256", sha256_hex("hello")},
                           {"media_type", "text/plain"},
                           {"executable", false},
                           {"runner_id", kRunner},
                           {"readable", true},
                           {"problem", ""}}));
  const auto reply = get(link_of("12:7", "dist/report.txt"));
  EXPECT_EQ(reply.status, 200) << reply.head << reply.body;
  EXPECT_EQ(reply.body, "hello");
  EXPECT_TRUE(reply.has("Content-Length: 5"));
  EXPECT_TRUE(reply.has("Content-Type: text/plain; charset=utf-8"));
  EXPECT_TRUE(reply.has("Content-Disposition: attachment; filename=\"report.txt\"; filename*=UTF-8''report.txt"));
  EXPECT_TRUE(reply.has("X-Content-Type-Options: nosniff"));
  EXPECT_THAT(reply.head, HasSubstr("Content-Security-Policy: sandbox"));
  EXPECT_TRUE(reply.has("ETag: \"" + sha256_hex("hello") + '"'));
  EXPECT_TRUE(reply.has("Cache-Control: no-store"));
  const auto empty = get(link_of("12:7", "empty"));
  EXPECT_EQ(empty.status, 200);
  EXPECT_TRUE(empty.has("Content-Length: 0"));
  const auto head = get(path_of("12:7", "plot.png"), "", "HEAD");
  EXPECT_EQ(head.status, 200);
  EXPECT_TRUE(head.has("Content-Length: 4"));
  EXPECT_TRUE(head.has("Content-Type: image/png"));
  EXPECT_EQ(head.body, "");
}

TEST_F(ArtifactDownloadTest, RangesOfAFile) {
  store_files(coordinator_folder_, "job:12:7", {{"digits", "0123456789"}});
  start_anonymous();
  const std::string path = path_of("12:7", "digits");
  const auto part = get(path, "Range: bytes=2-4\r\n");
  EXPECT_EQ(part.status, 206);
  EXPECT_EQ(part.body, "234");
  EXPECT_TRUE(part.has("Content-Range: bytes 2-4/10"));
  EXPECT_EQ(get(path, "Range: bytes=-2\r\n").body, "89");
  EXPECT_EQ(get(path, "Range: bytes=8-\r\n").body, "89");
  EXPECT_EQ(get(path, "Range: bytes=0-0,5-6\r\n").body, "0123456789");
  EXPECT_EQ(get(path, "Range: bytes=1-1\r\nIf-Range: \"other\"\r\n").status, 200);
  EXPECT_EQ(get(path, "Range: bytes=1-1\r\nIf-Range: \"" + sha256_hex("0123456789") + "\"\r\n").status, 206);
  for (const std::string range : {"bytes=10-", "bytes=4-2", "bytes=x", "bytes=-0", "bytes 0-1"}) {
    const auto refused = get(path, "Range: " + range + "\r\n");
    EXPECT_EQ(refused.status, 416) << range;
    EXPECT_TRUE(refused.has("Content-Range: bytes */10")) << range;
    EXPECT_THAT(refused.body, HasSubstr("job:12:7: artifact \\\"digits\\\"")) << range;
  }
}

TEST_F(ArtifactDownloadTest, FileOfARunnerIsFetchedAndCached) {
  std::string content;
  for (int i = 0; i < 3'000'000; ++i) content += static_cast<char>(i * 31 / 7);
  store_files(holder_folder_, "job:12:7", {{"large", content}, {"empty", ""}, {"one", "x"}});
  start_holder();
  start_anonymous();
  const json list = ok("artifact.list", {{"id", "12:7"}});
  EXPECT_TRUE(list[0].at("readable")) << list;
  EXPECT_EQ(get(path_of("12:7", "large"), "Range: bytes=100000-100003\r\n").body, content.substr(100000, 4));
  const auto whole = get(link_of("12:7", "large"));
  EXPECT_EQ(whole.status, 200);
  EXPECT_TRUE(whole.body == content);
  EXPECT_EQ(get(path_of("12:7", "empty")).status, 200);
  EXPECT_EQ(get(path_of("12:7", "one")).body, "x");
  EXPECT_TRUE(
      fs::exists(ArtifactFolder(coordinator_folder_, 1).cache_folder(*artifact_store_name(*store_, 1), "job:12:7") +
                 '/' + sha256_hex(content)));
  holder_thread_.reset();  // the agent ends
  EXPECT_TRUE(get(path_of("12:7", "large")).body == content) << "the cache has it";
}

TEST_F(ArtifactDownloadTest, TransferContinuesAfterALostConnection) {
  const std::string content(12'000'000, 'x');
  store_files(holder_folder_, "job:12:7", {{"large", content}});
  start_holder(4'000'000);  // the transfer takes some seconds
  start_anonymous();
  {
    const Fd socket = connect();
    ASSERT_TRUE(write_all(socket.get(), format_request(path_of("12:7", "large"), "", "GET")));
    std::vector<char> bytes(100);
    ASSERT_GT(::recv(socket.get(), bytes.data(), bytes.size(), 0), 0);
  }
  const std::string cached =
      ArtifactFolder(coordinator_folder_, 1).cache_folder(*artifact_store_name(*store_, 1), "job:12:7") + '/' +
      sha256_hex(content);
  EXPECT_TRUE(test::eventually([&] { return fs::exists(cached); })) << "no client requests it any more";
  EXPECT_TRUE(get(path_of("12:7", "large")).body == content);
}

TEST_F(ArtifactDownloadTest, ConcurrentClientsShareATransfer) {
  const std::string content(2'000'000, 'x');
  store_files(holder_folder_, "job:12:7", {{"a", content}, {"b", content + "b"}, {"c", content + "c"}, {"d", "d"}});
  start_holder();
  start_anonymous();
  std::vector<std::thread> clients;
  std::atomic<int> complete{0};
  for (int i = 0; i < 12; ++i) {
    clients.emplace_back([this, i, &complete] {
      const auto reply = get(path_of("12:7", std::string(1, static_cast<char>('a' + i % 4))));
      if (reply.status == 200 && !reply.body.empty()) ++complete;
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(complete, 12);
}

TEST_F(ArtifactDownloadTest, ErrorsNameJobFileAndRemedy) {
  store_files(holder_folder_, "job:12:7", {{"app", "bytes"}});
  start_anonymous();
  const auto unknown_job = get(path_of("12:8", "app"));
  EXPECT_EQ(unknown_job.status, 404);
  EXPECT_THAT(unknown_job.body, HasSubstr("job:12:8"));
  const auto unknown_file = get(path_of("12:7", "other"));
  EXPECT_EQ(unknown_file.status, 404);
  EXPECT_THAT(unknown_file.body, HasSubstr("job:12:7: stored no artifact \\\"other\\\": artifact.list"));
  EXPECT_EQ(to_string("artifact.get", {{"id", "12:7"}, {"name", "other"}}), "not_found");

  const auto lost = get(path_of("12:7", "app"));
  EXPECT_EQ(lost.status, 410) << "its runner has no record";
  EXPECT_EQ(lost.error("word"), "artifact_lost");
  EXPECT_THAT(lost.body, HasSubstr("job:12:7: artifact \\\"app\\\": artifact_lost: runner 3"));
  const json missing = ok("artifact.list", {{"id", "12:7"}})[0];
  EXPECT_FALSE(missing.at("readable"));
  EXPECT_THAT(missing.value("problem", ""), HasSubstr("run the job again"));

  register_runner(1);
  ASSERT_TRUE(test::eventually([&] { return store_->runners(1).value().at(0).hold_remaining_ms == 0; }));
  const auto away = get(path_of("12:7", "app"));
  EXPECT_EQ(away.status, 503);
  EXPECT_THAT(away.head, HasSubstr("Retry-After: "));
  EXPECT_THAT(away.body, HasSubstr("start its agent"));
  EXPECT_EQ(to_string("artifact.get", {{"id", "12:7"}, {"name", "app"}}), "unavailable");

  EXPECT_EQ(get("/artifacts?job=12:7").status, 400);
  EXPECT_EQ(get("/artifacts?context=0&job=12:7&name=app").status, 400);
  EXPECT_EQ(get("/artifacts?context=9&job=12:7&name=app").status, 400);
  EXPECT_EQ(get("/artifacts?job=x&name=app").status, 400);
  EXPECT_EQ(get(path_of("12:7", "app"), "", "POST").status, 405);
}

TEST_F(ArtifactDownloadTest, FileThatTheRunnerDoesNotHaveIsLost) {
  store_files(holder_folder_, "job:12:7", {{"app", "bytes"}});
  fs::remove_all(ArtifactFolder(holder_folder_, 1).path() + "/jobs");
  start_holder();
  start_anonymous();
  const auto lost = get(path_of("12:7", "app"));
  EXPECT_EQ(lost.status, 410) << lost.body;
  EXPECT_EQ(lost.error("word"), "artifact_lost");
}

TEST_F(ArtifactDownloadTest, OnlyReadersOfTheJobDownload) {
  store_files(coordinator_folder_, "job:12:7", {{"app", "bytes"}});
  const std::string owner = make_token(12), reader = make_token(13), stranger = make_token(14);
  token_ = make_token(0, true);
  start();
  ok("context.create", {{"id", 1}, {"admins", {1}}, {"readers", {13}}, {"submitters", {12, 14}}});
  const std::string path = path_of("12:7", "app");
  EXPECT_EQ(get(path, bearer(owner)).body, "bytes");
  EXPECT_EQ(get(path, bearer(reader)).body, "bytes");
  EXPECT_EQ(get(path, bearer(token_)).body, "bytes");
  const auto denied = get(path, bearer(stranger));
  EXPECT_EQ(denied.status, 403);
  EXPECT_THAT(denied.body, HasSubstr("may not read job 12:7"));
  EXPECT_EQ(get(path_of("12:9", "app"), bearer(stranger)).status, 403) << "a missing job does not differ";
  EXPECT_EQ(get(path).status, 401);
  EXPECT_EQ(get(path, bearer("mj_wrong")).status, 401);
  EXPECT_EQ(get(path, bearer(owner) + "Sec-Fetch-Site: cross-site\r\n").status, 403);
  token_ = stranger;
  for (const char* method : {"artifact.list", "artifact.get"}) {
    json params{{"id", "12:7"}};
    if (std::string(method) == "artifact.get") params["name"] = "app";
    EXPECT_EQ(to_string(method, params), "denied");
  }
}

TEST_F(ArtifactDownloadTest, TicketOpensOneFileOnly) {
  store_files(coordinator_folder_, "job:12:7", {{"app", "bytes"}, {"secret", "other"}});
  store_files(coordinator_folder_, "job:12:8", {{"app", "of another job"}});
  start_as_owner();
  const std::string link = link_of("12:7", "app");
  EXPECT_EQ(get(link).body, "bytes");
  EXPECT_EQ(get(link).body, "bytes") << "a browser may repeat a request, or continue it with a range";
  EXPECT_EQ(get(link, "Range: bytes=1-\r\n").body, "ytes");
  const auto replace = [&link](const std::string& from, const std::string& to) {
    std::string changed = link;
    return changed.replace(changed.find(from), from.size(), to);
  };
  const std::string ticket = link.substr(link.find("&ticket="));
  for (const std::string& stolen : std::vector<std::string>{
           replace("name=app", "name=secret"), replace("job=12%3A7", "job=12%3A8"), replace("context=1", "context=2"),
           replace(sha256_hex("bytes"), sha256_hex("other")), replace("&sha256=" + sha256_hex("bytes"), ""),
           path_of("12:7", "secret") + "&sha256=" + sha256_hex("other") + ticket, replace("ticket=12", "ticket=13"),
           link.substr(0, link.size() - 1), "/artifacts?ticket=", "/artifacts?ticket=12.o.9.0"}) {
    const auto refused = get(stolen);
    EXPECT_EQ(refused.status, 403) << stolen;
    EXPECT_THAT(refused.body, Not(HasSubstr("other"))) << stolen;
  }
  EXPECT_EQ(get("/rpc" + link.substr(link.find('?'))).status, 405);
  EXPECT_EQ(get("/events" + link.substr(link.find('?'))).status, 401) << "a ticket is no token";
  write_record("job:12:7", "{}");
  EXPECT_EQ(get(link).status, 404) << "the record of the job does not list the file any more";
}

// Two coordinators behind one address: a link works at both, and is checked as carefully.
TEST_F(ArtifactDownloadTest, LinkWorksAtAnotherCoordinator) {
  store_files(coordinator_folder_, "job:12:7", {{"app", "bytes"}, {"secret", "other"}});
  start_as_owner();
  const std::string link = link_of("12:7", "app");
  std::unique_ptr<api::ApiServer> other = std::move(server_);
  start();
  EXPECT_EQ(get(link).body, "bytes");
  EXPECT_EQ(get(link, "Range: bytes=1-\r\n").body, "ytes");
  EXPECT_EQ(get(link.substr(0, link.size() - 1)).status, 403);
  EXPECT_EQ(
      get(path_of("12:7", "secret") + "&sha256=" + sha256_hex("other") + link.substr(link.find("&ticket="))).status,
      403);
  const std::string own_link = link_of("12:7", "app");
  EXPECT_EQ(get(own_link).body, "bytes");
  std::swap(server_, other);
  EXPECT_EQ(get(own_link).body, "bytes");
}

// Only a key that a coordinator has stored in the context is accepted, whatever the ticket says.
TEST_F(ArtifactDownloadTest, TicketOfAnUnknownSignerIsRefused) {
  store_files(coordinator_folder_, "job:12:7", {{"app", "bytes"}});
  start_anonymous();
  const api::TicketObject object{1, "job:12:7", "app", sha256_hex("bytes")};
  api::ArtifactTickets stranger(clock_);
  const std::string link = api::format_artifact_path(object) + "&ticket=" + stranger.create({0, false, true}, object);
  EXPECT_EQ(get(link).status, 403);
  ASSERT_TRUE(stranger.publish_key(*store_, 2)) << "the key of another context";
  EXPECT_EQ(get(link).status, 403);
  api::ArtifactTickets coordinator(clock_);
  ASSERT_TRUE(coordinator.publish_key(*store_, 1));
  EXPECT_EQ(get(api::format_artifact_path(object) + "&ticket=" + coordinator.create({0, false, true}, object)).body,
            "bytes");
}

// The first call to a database writes its format, so a stranger must not choose the database.
TEST_F(ArtifactDownloadTest, ForgedTicketReachesServedContextsOnly) {
  settings_.contexts = {};
  settings_.contexts_with_own_redis = {1};
  store_files(coordinator_folder_, "job:12:7", {{"app", "bytes"}});
  start_anonymous();
  std::atomic<int> lookups{0};
  redis_.set_faults([&lookups](const ServerCall& call) {
    if (call.name == "EXISTS") ++lookups;
    return Fault::none;
  });
  api::ArtifactTickets stranger(clock_);
  const auto send_forged = [&](Id context) {
    const api::TicketObject object{context, "job:12:7", "app", sha256_hex("bytes")};
    return get(api::format_artifact_path(object) + "&ticket=" + stranger.create({0, false, true}, object));
  };
  const auto other = send_forged(7);
  EXPECT_EQ(other.status, 403) << other.body;
  EXPECT_EQ(lookups, 0);
  const auto served = send_forged(1);
  EXPECT_EQ(lookups, 1);
  EXPECT_EQ(served.body, other.body) << "the reply does not tell which contexts are served";
  ASSERT_TRUE(stranger.publish_key(*store_, 1));
  EXPECT_EQ(send_forged(1).body, "bytes") << "a coordinator of the context";
}

TEST_F(ArtifactDownloadTest, ForgedTicketsOfANetworkAreLimited) {
  settings_.limits.max_unknown_peer_requests = 2;
  settings_.limits.exempt_loopback = false;
  store_files(coordinator_folder_, "job:12:7", {{"app", "bytes"}});
  start_anonymous();
  const api::TicketObject object{1, "job:12:7", "app", sha256_hex("bytes")};
  api::ArtifactTickets stranger(clock_);
  const std::string link = api::format_artifact_path(object) + "&ticket=" + stranger.create({0, false, true}, object);
  EXPECT_EQ(get(link).status, 403);
  EXPECT_EQ(get(link).status, 403);
  EXPECT_EQ(get(link).status, 429);
  EXPECT_EQ(get(link_of("12:7", "app")).body, "bytes") << "an own ticket is not limited";
}

TEST_F(ArtifactDownloadTest, TicketEndsWithTheRightsOfItsCaller) {
  store_files(coordinator_folder_, "job:12:7", {{"app", "bytes"}});
  const std::string reader = make_token(13);
  const std::string operator_token = make_token(0, true);
  token_ = operator_token;
  start();
  ok("context.create", {{"id", 1}, {"admins", {1}}, {"readers", {13}}, {"submitters", {12}}});
  token_ = reader;
  const std::string link = link_of("12:7", "app");
  EXPECT_EQ(get(link).body, "bytes");
  token_ = operator_token;
  ok("context.update", {{"id", 1}, {"readers", json::array({15})}});
  EXPECT_EQ(get(link).status, 403);
}

TEST_F(ArtifactDownloadTest, HostileNamesAreRefused) {
  store_files(coordinator_folder_, "job:12:7", {{"app", "bytes"}});
  std::ofstream(folder_ / "coordinator/contexts/secret") << "secret";
  const std::string hash = sha256_hex("bytes");
  write_record("job:12:7", json({{"../../secret", {{"sha256", hash}, {"bytes", 5}}},
                                 {"a\r\nSet-Cookie: x", {{"sha256", hash}, {"bytes", 5}}},
                                 {"path", {{"sha256", "../../../../secret"}, {"bytes", 6}}},
                                 {"quote\".html", {{"sha256", hash}, {"bytes", 5}, {"text", true}}}})
                               .dump());
  start_anonymous();
  const json list = ok("artifact.list", {{"id", "12:7"}});
  ASSERT_EQ(list.size(), 1U) << list;
  for (const std::string name : {"..%2F..%2Fsecret", "%2e%2e/%2e%2e/secret", "/etc/passwd", "path",
                                 "a%0D%0ASet-Cookie%3A%20x", "app%00", "..", "%FF"})
    EXPECT_EQ(get(path_of("12:7", name)).status, 404) << name;
  for (const std::string job : {"..%2F1", "12:7%2F..", "12:7%00", "flow:7", "job:12:7%0A"})
    EXPECT_EQ(get(path_of(job, "app")).status, 400) << job;
  const auto html = get(link_of("12:7", "quote\".html"));
  EXPECT_EQ(html.status, 200);
  EXPECT_TRUE(html.has("Content-Type: application/octet-stream"));
  EXPECT_TRUE(html.has("Content-Disposition: attachment; filename=\"quote_.html\"; filename*=UTF-8''quote_.html"));
}

TEST_F(ArtifactDownloadTest, HashOfAnotherJobGivesNothing) {
  store_files(coordinator_folder_, "job:12:7", {{"app", "bytes"}});
  store_files(holder_folder_, "job:12:7", {{"app", "bytes"}});
  write_record("job:13:1", json({{"stolen", {{"sha256", sha256_hex("bytes")}, {"bytes", 5}}}}).dump());
  start_holder();
  start_anonymous();
  EXPECT_EQ(get(path_of("13:1", "stolen")).status, 410);
}

TEST_F(ArtifactDownloadTest, DamagedFileIsNeverComplete) {
  std::string content(200'000, 'x');
  store_files(coordinator_folder_, "job:12:7", {{"app", content}});
  const std::string path =
      ArtifactFolder(coordinator_folder_, 1).job_folder(*artifact_store_name(*store_, 1), "job:12:7") + '/' +
      sha256_hex(content);
  std::fstream(path, std::ios::in | std::ios::out) << "damage";
  start_anonymous();
  const auto reply = get(path_of("12:7", "app"));
  EXPECT_EQ(reply.status, 200);
  EXPECT_LT(reply.body.size(), content.size()) << "the connection ends before the last block";
}

TEST_F(ArtifactDownloadTest, RunnerThatSendsWrongBytesIsNotBelieved) {
  std::string content(600'000, 'x');
  store_files(holder_folder_, "job:12:7", {{"app", content}});
  const std::string path = ArtifactFolder(holder_folder_, 1).job_folder(*artifact_store_name(*store_, 1), "job:12:7") +
                           '/' + sha256_hex(content);
  std::fstream(path, std::ios::in | std::ios::out) << "damage";
  start_holder();
  start_anonymous();
  EXPECT_LT(get(path_of("12:7", "app")).body.size(), content.size());
  EXPECT_EQ(get(path_of("12:7", "app"), "Range: bytes=0-9\r\n").status, 500) << "a part is sent after the verification";
  EXPECT_FALSE(
      fs::exists(ArtifactFolder(coordinator_folder_, 1).cache_folder(*artifact_store_name(*store_, 1), "job:12:7") +
                 '/' + sha256_hex(content)));
}

TEST_F(ArtifactDownloadTest, ClientThatStopsReadingDelaysNobody) {
  const std::string content(20'000'000, 'x');
  store_files(coordinator_folder_, "job:12:7", {{"large", content}, {"small", "hello"}});
  settings_.limits.write_timeout_ms = 200;
  start_anonymous();
  std::vector<Fd> sockets;
  for (int i = 0; i < 20; ++i) {
    sockets.push_back(connect());
    ASSERT_TRUE(write_all(sockets.back().get(), format_request(path_of("12:7", "large"), "", "GET")));
  }
  EXPECT_EQ(get(path_of("12:7", "small")).body, "hello");
  EXPECT_EQ(ok("artifact.list", {{"id", "12:7"}}).size(), 2U);
  std::this_thread::sleep_for(std::chrono::seconds(2));  // ten times the deadline of a write
  EXPECT_LT(read_reply(sockets.front()).body.size(), content.size());
  sockets.front() = connect();
  ASSERT_TRUE(write_all(sockets.front().get(), format_request(path_of("12:7", "large"), "", "GET")));
  server_.reset();  // ends, although clients do not read
}

TEST_F(ArtifactDownloadTest, CoordinatorWithoutStateFolderExplainsIt) {
  store_files(holder_folder_, "job:12:7", {{"app", "bytes"}});
  settings_.state_dir.clear();
  start_holder();
  start_anonymous();
  const auto reply = get(path_of("12:7", "app"));
  EXPECT_EQ(reply.status, 503);
  EXPECT_THAT(reply.body, HasSubstr("state_dir"));
}

}  // namespace
}  // namespace mycojobs
