// Permissions over JSON-RPC, tested with attacks: using the ids of other callers, and comparing responses.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "api/services.h"
#include "api_fixture.h"
#include "base/ed25519.h"
#include "base/fd.h"

namespace mycojobs {
namespace {

class Rights : public ApiTest {
 protected:
  std::string operator_ = make_token(0, true), admin_ = make_token(12), reader_ = make_token(13),
              executor_ = make_token(14), stranger_ = make_token(15), submitter_ = make_token(16),
              other_ = make_token(17);

  void SetUp() override {
    settings_.contexts = {1, 2};
    start();
    token_ = operator_;
    ok("context.create",
       {{"id", 1}, {"admins", {12}}, {"readers", {13}}, {"executors", {14}}, {"submitters", {16, 17}}});
  }
  json as(const std::string& token, const std::string& method, const json& params) {
    token_ = token;
    return raw(method, params);
  }
  std::string word_as(const std::string& token, const std::string& method, const json& params) {
    const json reply = as(token, method, params);
    return reply.contains("result") ? "ok" : reply["error"]["data"].value("word", "");
  }
};

const json kJob{{"script", "x"}, {"script_type", "python"}};
json with(json object, const json& more) {
  object.update(more);
  return object;
}

// ---- permitted actions of each role ----

TEST_F(Rights, EachRoleHasThePermissionsOfTheTable) {
  const json definition = json::parse(R"({"name":"n","jobs":{"h":{"pause":"?"}}})");
  ASSERT_EQ(word_as(submitter_, "job.create", with(kJob, {{"id", 1}})), "ok");
  ASSERT_EQ(word_as(other_, "job.create", with(kJob, {{"id", 1}})), "ok");
  token_ = submitter_;
  const Id own = ok("flow.create", {{"definition", definition}}).value("id", 0U);
  token_ = other_;
  const Id others = ok("flow.create", {{"definition", definition}}).value("id", 0U);
  ok("message.create", {{"id", 5}, {"message", "m"}, {"message_type", "chat"}});
  struct Row {
    const char* method;
    json params;
    std::string may;  // permitted roles: a admin, s submitter, e executor, r reader, - no role
  };
  const std::vector<Row> rows{
      {"job.create", kJob, "as"},
      {"jobs.create", {{"jobs", {kJob}}}, "as"},
      {"job.start", kJob, "as"},
      {"flow.create", {{"definition", definition}}, "as"},
      {"message.create", {{"message", "m"}, {"message_type", "chat"}}, "as"},
      {"job.get", {{"id", "17:1"}}, "ar"},
      {"job.logs", {{"id", "17:1"}}, "ar"},
      {"job.get", {{"id", "16:1"}}, "asr"},
      {"jobs.wait", {{"jobs", {"16:1"}}, {"wait_ms", 0}}, "asr"},
      {"jobs.wait", {{"jobs", {"16:1", "17:1"}}, {"wait_ms", 0}}, "ar"},
      {"flows.wait", {{"flows", {own}}, {"wait_ms", 0}}, "asr"},
      {"flows.wait", {{"flows", {own, others}}, {"wait_ms", 0}}, "ar"},
      {"job.list", json::object(), "asr"},
      {"jobs.page", json::object(), "asr"},
      {"job.history", {{"id", "17:1"}}, "ar"},
      {"job.history", {{"id", "16:1"}}, "asr"},
      {"context.overview", json::object(), "ar"},
      {"context.verify", json::object(), "a"},
      {"context.doctor", json::object(), "a"},
      {"context.rights", json::object(), "aser-"},
      {"approval.list", json::object(), "aser-"},
      {"flow.get", {{"id", others}}, "ar"},
      {"flow.get", {{"id", own}}, "asr"},
      {"flow.list", json::object(), "asr"},
      {"flows.page", json::object(), "asr"},
      {"flow.dag", {{"id", others}}, "ar"},
      {"message.get", {{"id", 5}, {"caller_id", 17}}, "ar"},
      {"message.list", json::object(), "asr"},
      {"context.get", {{"id", 1}}, "ar"},
      {"queue.list", json::object(), "ar"},
      {"runner.list", json::object(), "ar"},
      {"flow.pause", {{"id", others}}, "a"},
      {"flow.start", {{"id", others}}, "a"},
      {"job.cancel", {{"id", "17:1"}}, "a"},
      {"message.cancel", {{"id", 5}, {"caller_id", 17}}, "a"},
      {"queue.pause", {{"queue", "python"}}, "a"},
      {"queue.dead", json::object(), "ar"},
      {"queue.requeue", {{"letter", "1700000000000-0"}}, "a"},
      {"queue.drop", {{"letter", "1700000000000-0"}}, "a"},
      {"runner.create", {{"local", true}}, "a"},
      {"runner.update", {{"id", 20}, {"topic", "x"}}, "a"},
      {"runner.delete", {{"id", 20}}, "a"},
      {"message.delete", {{"id", 5}, {"caller_id", 17}}, "a"},
      {"job.delete", {{"id", "16:1"}}, "a"},
      {"flow.delete", {{"id", own}}, "a"},
      {"actor.list", json::object(), "ar"},
      {"context.refusals", {{"id", 1}}, "a"},
      {"context.list", json::object(), "aser-"},
      {"context.update", {{"id", 1}, {"notify", json::array()}}, "a"},
      {"context.create", {{"id", 2}}, ""},
      {"context.delete", {{"id", 1}}, ""},
      {"actor.create", {{"id", 99}}, ""},
      {"actor.update", {{"id", 99}, {"address", {"unix:/x"}}}, ""},
      {"actor.delete", {{"id", 99}}, ""},
  };
  const std::pair<char, std::string> roles[] = {
      {'a', admin_}, {'s', submitter_}, {'e', executor_}, {'r', reader_}, {'-', stranger_}};
  for (const Row& row : rows) {
    for (const auto& [letter, token] : roles) {
      const bool denied = word_as(token, row.method, row.params) == "denied";
      EXPECT_EQ(denied, row.may.find(letter) == std::string::npos) << row.method << row.params << " as " << letter;
    }
  }
  token_ = submitter_;
  const json page = ok("jobs.page", {{"limit", 100}});
  for (const json& job : page["jobs"]) EXPECT_EQ(job.value("caller_id", 0), 16);
  EXPECT_TRUE(ok("jobs.page", {{"caller_id", 17}})["jobs"].empty());
  for (const json& job : ok("job.list", {{"limit", 100}})) EXPECT_EQ(job.value("caller_id", 0), 16);
  for (const json& flow : ok("flow.list", {{"limit", 100}})) EXPECT_EQ(flow.value("caller_id", 0), 16);
  for (const json& message : ok("message.list", {{"limit", 100}})) EXPECT_EQ(message.value("caller_id", 0), 16);
}

TEST_F(Rights, EachRoleGetsItsListOfPermissions) {
  const std::pair<std::string, json> roles[] = {
      {operator_, {{"operator", true}, {"create", true}, {"read_all", true}, {"administer", true}}},
      {admin_, {{"operator", false}, {"create", true}, {"read_all", true}, {"steer_all", true}, {"administer", true}}},
      {submitter_,
       {{"create", true},
        {"read_all", false},
        {"read_own", true},
        {"steer_all", false},
        {"steer_own", true},
        {"administer", false}}},
      {reader_, {{"create", false}, {"read_all", true}, {"steer_own", false}, {"administer", false}}},
      {executor_, {{"create", false}, {"read_all", false}, {"steer_all", false}}},
      {stranger_, {{"create", false}, {"read_all", false}, {"steer_own", false}, {"administer", false}}}};
  for (const auto& [token, wanted] : roles) {
    token_ = token;
    const json may = ok("context.rights", json::object());
    for (const auto& [name, value] : wanted.items())
      EXPECT_EQ(may.at(name), value) << name << " of " << may.at("actor");
  }
  EXPECT_TRUE(as(admin_, "context.refusals", {{"id", 1}})["result"].empty()) << "a question is no refusal";
}

TEST_F(Rights, PendingItemsAreShownToReadersAndApprovers) {
  const json definition = json::parse(
      R"({"name":"n","jobs":{"named":{"approval":{"approvers":[15]}},"anybody":{"approval":{"comment":"go on?"}}}})");
  token_ = submitter_;
  const json flow{{"id", ok("flow.create", {{"definition", definition}}).at("id")}};
  ok("flow.start", flow);
  const std::tuple<std::string, std::size_t, std::set<std::string>> wanted[] = {{admin_, 2, {"named", "anybody"}},
                                                                                {submitter_, 2, {"anybody"}},
                                                                                {reader_, 2, {}},
                                                                                {stranger_, 1, {"named"}},
                                                                                {executor_, 0, {}}};
  for (const auto& [token, count, answers] : wanted) {
    token_ = token;
    const json found = ok("approval.list", json::object())["questions"];
    EXPECT_EQ(found.size(), count) << found;
    std::set<std::string> may;
    for (const json& each : found) {
      if (each.at("answers")) may.insert(each.at("name").get<std::string>());
    }
    EXPECT_EQ(may, answers) << found;
  }
  EXPECT_EQ(word_as(stranger_, "flow.approve", with(flow, {{"name", "named"}})), "ok");
  token_ = submitter_;
  const json left = ok("approval.list", json::object())["questions"];
  ASSERT_EQ(left.size(), 1U) << left;
  EXPECT_EQ(left[0].value("asks", ""), "go on?");
}

TEST_F(Rights, ActorRotatesItsKeyAndRefusalsAreListed) {
  const std::string key = SigningKey::make().public_key();
  ASSERT_EQ(word_as(operator_, "actor.create", {{"id", 15}}), "ok");
  EXPECT_EQ(word_as(stranger_, "actor.update", {{"id", 15}, {"pubkey", key}}), "ok");
  EXPECT_EQ(word_as(admin_, "actor.update", {{"id", 15}, {"pubkey", key}}), "denied");
  EXPECT_EQ(word_as(stranger_, "context.list", json::object()), "ok");
  EXPECT_EQ(as(stranger_, "context.list", json::object())["result"], json::array()) << "none names it";
  ASSERT_EQ(word_as(stranger_, "flow.cancel", {{"id", 7}}), "denied");
  const json notes = as(admin_, "context.refusals", {{"id", 1}})["result"];
  ASSERT_EQ(notes.size(), 1U) << notes;
  EXPECT_EQ(notes[0].value("actor", 0), 15);
  EXPECT_EQ(notes[0].value("action", ""), "steer");
  EXPECT_EQ(notes[0].value("thing", ""), "flow 7");
  EXPECT_EQ(notes[0].value("list", ""), "admins");
}

TEST_F(Rights, ExecutorReadsTheJobsOfItsRunner) {
  ASSERT_EQ(word_as(submitter_, "job.create", with(kJob, {{"id", 1}})), "ok");
  auto store = *redis_.open();
  ASSERT_TRUE(store->save(1, "runner:20", {{"id", "20"}, {"actor_id", "14"}}));
  EXPECT_EQ(word_as(executor_, "job.get", {{"id", "16:1"}}), "denied");
  ASSERT_TRUE(store->save(1, "job:16:1", {{"runner_id", "20"}}));
  EXPECT_EQ(word_as(executor_, "job.get", {{"id", "16:1"}}), "ok");
  EXPECT_EQ(word_as(executor_, "job.cancel", {{"id", "16:1"}}), "denied");
}

TEST_F(Rights, ContextWithoutARecordIsClosed) {
  for (const std::string& token : {admin_, stranger_}) {
    EXPECT_EQ(word_as(token, "job.create", with(kJob, {{"context_id", 2}})), "denied");
    EXPECT_EQ(word_as(token, "job.list", {{"context_id", 2}}), "denied");
    EXPECT_EQ(word_as(token, "message.create", {{"context_id", 2}, {"message", "x"}}), "denied");
  }
  EXPECT_EQ(word_as(operator_, "job.create", with(kJob, {{"context_id", 2}})), "ok");
}

TEST_F(Rights, UnservedContextIsRejected) {
  for (const std::string& token : {operator_, admin_}) {
    EXPECT_EQ(word_as(token, "job.create", with(kJob, {{"context_id", 3}})), "invalid");
    EXPECT_EQ(word_as(token, "context.get", {{"id", 3}}), "invalid");
  }
  EXPECT_EQ(word_as(operator_, "context.create", {{"id", 3}}), "invalid");
  EXPECT_EQ(word_as(operator_, "context.create", json::object()), "ok") << "context 2";
  EXPECT_EQ(word_as(operator_, "context.create", json::object()), "conflict") << "no other one is served";
}

// ---- ids in payloads ----

TEST_F(Rights, PayloadIdsAreTheCallersOwn) {
  ASSERT_EQ(word_as(admin_, "job.create", with(kJob, {{"id", 1}})), "ok");
  ASSERT_EQ(word_as(operator_, "runner.create", {{"id", 20}, {"local", true}}), "ok");
  const auto message = [](const json& job) {
    return json{{"message_type", "job"}, {"topic", "runner20"}, {"job", {job}}};
  };
  auto store = *redis_.open();
  for (const json& forged :
       {json{{"caller_id", 12}, {"id", 1}}, json{{"caller_id", 12}, {"id", 9}}, json{{"context_id", 2}, {"id", 9}},
        json{{"flow_id", 1}, {"id", 9}}, json{{"runner_id", 1}, {"id", 9}}, json{{"status", "finished"}, {"id", 9}},
        json{{"supervisor_url", "http://127.0.0.1:1"}, {"id", 9}}}) {
    const json job = with(kJob, forged);
    EXPECT_NE(word_as(submitter_, "message.create", message(job)), "ok") << forged;
    EXPECT_NE(word_as(submitter_, "jobs.create", {{"jobs", {job}}}), "ok") << forged;
    EXPECT_NE(word_as(submitter_, "job.create", job), "ok") << forged;
  }
  EXPECT_TRUE(store->topic_pending(1, "runner20")->empty());
  EXPECT_TRUE(store->keys(1, "job:16:", 10)->empty());
  EXPECT_EQ(word_as(submitter_, "message.create", with(message(with(kJob, {{"id", 9}})), {{"caller_id", 12}})),
            "denied");
  EXPECT_EQ(word_as(submitter_, "flow.create", {{"jobs", {1}}}), "not_found") << "its own job 1, not the admin's";
  EXPECT_EQ(word_as(submitter_, "job.start", {{"id", "12:1"}}), "denied");
  EXPECT_EQ(word_as(submitter_, "message.create", message(with(kJob, {{"id", 9}, {"caller_id", 16}}))), "ok");
  EXPECT_EQ(store->topic_pending(1, "runner20")->size(), 1U);
  EXPECT_EQ(word_as(submitter_, "message.create", {{"message", "x"}, {"topic", "mj:flows:due"}}), "not_found")
      << "a topic is a runner's, not any channel of the server";
}

// ---- existence of records ----

// Calls every method with an existing record of another caller and with a missing record. A caller without rights must
// get the same response.
TEST_F(Rights, MissingAndForbiddenRecordsLookTheSame) {
  token_ = admin_;
  const Id id = 7, ended = 8;  // numbers that occur nowhere else in a response
  for (Id i = 0; i < ended; ++i) {
    ok("flow.create", {{"definition", json::parse(R"({"name":"n","jobs":{"ok":{"approval":{}}}})")}});
    ok("job.create", kJob);
    ok("message.create", {{"message", "m"}, {"message_type", "chat"}});
  }
  ok("flow.start", {{"id", id}});
  ok("flow.cancel", {{"id", ended}});
  ok("runner.create", {{"id", id}, {"local", true}});
  token_ = operator_;
  ok("actor.create", {{"id", id}});
  const auto without = [](std::string text, const std::string& number) {
    const auto is_digit = [&](std::size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
    for (std::size_t at = 0; (at = text.find(number, at)) != std::string::npos; ++at) {
      if (!is_digit(at - 1) && !is_digit(at + number.size())) text.replace(at, number.size(), "N");
    }
    return text;
  };
  api::Services services(redis_, clock_, settings_);
  std::size_t asked = 0;
  for (const api::Method& method : api::make_methods(services, ApiRole::coordinator)) {
    const std::string name(method.name);
    bool by_id = false;
    for (const service::Param& each : method.params) by_id = by_id || each.name == "id";
    if (!by_id || name.starts_with("context.")) continue;
    for (const Id there : {id, ended}) {
      if (there != id && !name.starts_with("flow.")) continue;
      const auto ask = [&](Id number) {
        json params{{"id", number}};
        for (const service::Param& each : method.params) {
          if (each.name == "caller_id" && !name.ends_with(".create")) params["caller_id"] = 12;
          if (each.name == "name" && each.required) params["name"] = "ok";
        }
        return without(as(stranger_, name, params).dump(), std::to_string(number));
      };
      const std::string is = ask(there), is_not = ask(777);
      EXPECT_EQ(is, is_not) << name;
      EXPECT_NE(is.find("\"denied\""), std::string::npos) << name << is;
      ++asked;
    }
  }
  EXPECT_GT(asked, 30U);
  EXPECT_EQ(word_as(stranger_, "context.get", {{"id", 1}}), word_as(stranger_, "context.get", {{"id", 2}}));
  EXPECT_EQ(word_as(stranger_, "flow.create", {{"jobs", {1}}, {"caller_id", 12}}), "denied");
  EXPECT_EQ(word_as(admin_, "flow.approve", {{"id", 777}, {"name", "ok"}}), "not_found") << "who may do all is told";
  EXPECT_EQ(word_as(reader_, "flow.get", {{"id", 777}}), "not_found");
}

TEST_F(Rights, NamedApproverGetsNoOtherPermission) {
  token_ = submitter_;
  const json named =
      ok("flow.create",
         {{"definition",
           json::parse(R"({"name":"n","jobs":{"ok":{"approval":{"approvers":[15]}},"no":{"approval":{}}}})")}});
  const json id{{"id", named.at("id")}};
  ok("flow.start", id);
  EXPECT_EQ(word_as(stranger_, "flow.get", id), "denied");
  EXPECT_EQ(word_as(stranger_, "flow.cancel", id), "denied");
  EXPECT_EQ(word_as(stranger_, "flow.approve", with(id, {{"name", "no"}})), "denied");
  EXPECT_EQ(word_as(other_, "flow.approve", with(id, {{"name", "ok"}})), "denied");
  EXPECT_EQ(word_as(submitter_, "flow.approve", with(id, {{"name", "ok"}})), "denied") << "its maker is not named";
  EXPECT_EQ(word_as(stranger_, "flow.approve", with(id, {{"name", "ok"}})), "ok");
  EXPECT_EQ(word_as(submitter_, "flow.approve", with(id, {{"name", "no"}})), "ok");
}

// ---- addresses that a coordinator may call ----

TEST_F(Rights, AdminCannotUseAddressesOutsideAllowedNetworks) {
  for (const char* inside : {"http://127.0.0.1:3030", "http://localhost:3030/rpc", "http://[::1]:3030"})
    EXPECT_EQ(word_as(admin_, "runner.create", {{"address", inside}}), "ok") << inside;
  for (const char* outside : {"http://10.0.0.1:3030", "http://169.254.169.254/latest", "http://[::ffff:10.0.0.1]:80",
                              "https://192.0.2.7", "http://8.8.8.8"})
    EXPECT_EQ(word_as(admin_, "runner.create", {{"address", outside}}), "denied") << outside;
  for (const char* tricky : {"http://0x7f000001:80", "http://127.1", "http://2130706433", "http://a@127.0.0.1:80",
                             "http://127.0.0.1:80@10.0.0.1", "http://"})
    EXPECT_EQ(word_as(admin_, "runner.create", {{"address", tricky}}), "invalid") << tricky;
}

TEST(Networks, AddressesAreCheckedAtTheCall) {
  HttpClient http;
  const auto loopback = *Networks::parse({"loopback"}), elsewhere = *Networks::parse({"10.0.0.0/8"});
  HttpPost call{"http://localhost:9/rpc", "{}", "", 2000};
  call.networks = &elsewhere;
  auto answer = http.post(call);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::denied) << answer.error().message;
  call.networks = &loopback;
  answer = http.post(call);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::unavailable) << answer.error().message;
}

// Answers each connection on loopback with the same bytes, and counts the connections.
class RawServer {
 public:
  RawServer() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
    EXPECT_EQ(::listen(listener_.get(), 8), 0);
    socklen_t size = sizeof at;
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&at), &size);
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(at.sin_port)) + "/";
  }
  ~RawServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
  }
  const std::string& url() const { return url_; }
  int connections() const { return connections_; }
  void answer(const std::string& text) {
    thread_ = std::thread([this, text] {
      for (;;) {
        const Fd peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!peer) return;
        ++connections_;
        char request[4096];
        (void)!::recv(peer.get(), request, sizeof request, 0);
        (void)!::send(peer.get(), text.data(), text.size(), MSG_NOSIGNAL);
      }
    });
  }

 private:
  Fd listener_;
  std::string url_;
  std::atomic<int> connections_{0};
  std::thread thread_;
};

TEST(Networks, RedirectsAreNotFollowedAndNoProxyIsUsed) {
  RawServer named, other;
  other.answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno");
  named.answer("HTTP/1.1 307 Temporary Redirect\r\nContent-Length: 0\r\nLocation: " + other.url() + "\r\n\r\n");
  for (const char* name : {"http_proxy", "HTTP_PROXY", "ALL_PROXY"}) ::setenv(name, other.url().c_str(), 1);
  HttpClient http;
  const auto answer = http.post({named.url(), "{}", "token", 2000});
  for (const char* name : {"http_proxy", "HTTP_PROXY", "ALL_PROXY"}) ::unsetenv(name);
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->status, 307);
  EXPECT_EQ(named.connections(), 1);
  EXPECT_EQ(other.connections(), 0);
}

}  // namespace
}  // namespace mycojobs
