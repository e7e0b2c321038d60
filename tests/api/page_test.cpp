// The files of the web page and its requests: access, headers, pages of jobs, and the state of a context.
#include "api/page.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>

#include "api_fixture.h"
#include "model/job_end.h"

namespace mycojobs {
namespace {

class Page : public ApiTest {
 protected:
  // Returns head and body of a response, as printed by curl.
  std::string get(const std::string& path, std::vector<std::string> headers = {"Accept-Encoding: gzip"}) {
    std::vector<std::string> argv{"curl", "-si", "-o", "-", server_->url() + path};
    for (const std::string& each : headers) {
      argv.emplace_back("-H");
      argv.push_back(each);
    }
    return test::run(folder_, std::move(argv)).out;
  }
  static std::string head(const std::string& answer) { return answer.substr(0, answer.find("\r\n\r\n")); }
  static std::string field(const std::string& answer, const std::string& name) {
    const auto at = answer.find("\r\n" + name + ": ");
    if (at == std::string::npos) return "";
    const auto from = at + name.size() + 4;
    return answer.substr(from, answer.find("\r\n", from) - from);
  }
  std::string asset() const {
    for (const api::PageFile& each : api::page_files()) {
      if (each.path != "/") return std::string(each.path);
    }
    return "";
  }
};

TEST_F(Page, IsServedWithoutATokenAndContainsNoData) {
  start();
  if (api::page_files().empty()) {
    EXPECT_NE(get("/").find("without its page"), std::string::npos);
    GTEST_SKIP() << api::page_unavailable_reason();
  }
  const std::string page = get("/");
  EXPECT_TRUE(page.starts_with("HTTP/1.1 200")) << head(page);
  EXPECT_EQ(field(page, "Content-Encoding"), "gzip");
  EXPECT_EQ(field(page, "Cache-Control"), "no-cache");
  const std::string policy = field(page, "Content-Security-Policy");
  EXPECT_TRUE(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';")) << policy;
  for (const char* never : {"unsafe", "data:", "blob:", "*", "http"})
    EXPECT_EQ(policy.find(never), std::string::npos) << policy;
  EXPECT_NE(policy.find("frame-ancestors 'none'"), std::string::npos);
  EXPECT_EQ(field(page, "X-Frame-Options"), "DENY");
  EXPECT_EQ(field(page, "X-Content-Type-Options"), "nosniff");
  EXPECT_TRUE(get("/", {"Accept-Encoding: gzip", "If-None-Match: " + field(page, "ETag")}).starts_with("HTTP/1.1 304"));
  const std::string script = get(asset());
  EXPECT_TRUE(script.starts_with("HTTP/1.1 200")) << head(script);
  EXPECT_EQ(field(script, "Cache-Control"), "public, max-age=31536000, immutable");
  EXPECT_TRUE(get("/", {}).starts_with("HTTP/1.1 406"));
  EXPECT_TRUE(get("/assets/none.js").starts_with("HTTP/1.1 404"));
}

TEST_F(Page, OpensFromAnyOriginAndCallsOnlyItsOwn) {
  start_anonymous();
  if (api::page_files().empty()) GTEST_SKIP() << api::page_unavailable_reason();
  const std::string gzip = "Accept-Encoding: gzip";
  const auto code = [&](const std::string& path, std::vector<std::string> headers) {
    headers.push_back(gzip);
    return get(path, std::move(headers)).substr(9, 3);
  };
  const std::string own = server_->url(), cross = "Sec-Fetch-Site: cross-site";
  EXPECT_EQ(code("/", {cross, "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}), "200") << "a link leads here";
  EXPECT_EQ(code("/", {cross, "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"}), "403");
  EXPECT_EQ(code(asset(), {cross, "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: script"}), "403");
  EXPECT_EQ(code("/", {"Host: evil.example"}), "403") << "a name that was made to lead here";
  EXPECT_EQ(code("/openrpc.json", {"Origin: " + own, "Sec-Fetch-Site: same-origin"}), "200");
  EXPECT_EQ(code("/openrpc.json", {"Origin: " + own + "0", "Sec-Fetch-Site: same-site"}), "403");
  EXPECT_EQ(code("/openrpc.json", {"Origin: http://evil.example"}), "403");
  EXPECT_EQ(code("/openrpc.json", {"Origin: http://evil.example", "Host: evil.example"}), "403");
  EXPECT_EQ(code("/openrpc.json", {cross, "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}), "403");
}

TEST_F(Page, JobPagesListEachJobOnce) {
  start_anonymous();
  json jobs = json::array();
  for (int i = 0; i < 130; ++i)
    jobs.push_back(
        {{"script", "x"}, {"script_type", i % 10 == 0 ? "sal" : "python"}, {"name", "n" + std::to_string(i)}});
  ok("jobs.create", {{"jobs", jobs}});
  for (int id = 1; id <= 130; ++id) ok("job.start", {{"id", id}});
  std::set<std::string> once;
  std::string after;
  for (int pages = 0; pages < 10; ++pages) {
    json params{{"limit", 40}};
    if (!after.empty()) params["after"] = after;
    const json page = ok("jobs.page", params);
    EXPECT_LE(page["jobs"].size(), 40U);
    for (const json& job : page["jobs"]) EXPECT_TRUE(once.insert(job.at("key")).second) << job;
    after = page.value("after", "");
    if (after.empty()) break;
  }
  EXPECT_EQ(once.size(), 130U);
  EXPECT_EQ(ok("jobs.page", {{"script_type", "sal"}, {"limit", 100}})["jobs"].size(), 13U);
  EXPECT_EQ(ok("jobs.page", {{"name", "n12"}})["jobs"].size(), 11U);
  EXPECT_TRUE(ok("jobs.page", {{"until_ms", 1000}})["jobs"].empty());
  EXPECT_FALSE(ok("jobs.page", {{"until_ms", clock_.unix_ms() + 60000}})["jobs"].empty());
  EXPECT_EQ(to_string("jobs.page", {{"after", "x"}}), "invalid");
  EXPECT_EQ(to_string("jobs.page", {{"status", "x"}}), "invalid");
}

TEST_F(Page, FlowPagesListEachFlowOnce) {
  start_anonymous();
  const auto made = [&](const std::string& name) {
    return ok("flow.create", {{"definition", "name: " + name + "\njobs:\n  a: {type: python, script: pass}\n"}});
  };
  for (int i = 0; i < 11; ++i) made(i % 4 == 0 ? "rare" : "often");
  std::vector<Id> met;
  std::string after;
  do {
    json params{{"limit", 4}};
    if (!after.empty()) params["after"] = after;
    const json page = ok("flows.page", params);
    for (const json& flow : page.at("flows")) met.push_back(flow.at("id"));
    after = page.at("after");
    EXPECT_LE(page.at("flows").size(), 4U);
    ASSERT_LE(met.size(), 11U) << page;
  } while (!after.empty());
  std::set<Id, std::greater<>> once(met.begin(), met.end());
  EXPECT_EQ(once.size(), 11U);
  EXPECT_TRUE(std::equal(met.begin(), met.end(), once.begin())) << "the newest first";
  const json rare = ok("flows.page", {{"name", "rare"}, {"limit", 2}});
  ASSERT_EQ(rare.at("flows").size(), 2U);
  EXPECT_EQ(ok("flows.page", {{"name", "rare"}, {"limit", 2}, {"after", rare.at("after")}}).at("flows").size(), 1U);
  const json none = ok("flows.page", {{"caller_id", 99}});
  EXPECT_TRUE(none.at("flows").empty());
  EXPECT_EQ(none.at("looked_at"), 11);
  EXPECT_EQ(none.at("after"), "");
  EXPECT_EQ(to_string("flows.page", {{"after", "x"}}), "invalid");
}

TEST_F(Page, FlowListSeparatesWaitingFromRunning) {
  start_anonymous();
  const auto started = [&](const char* definition) {
    const Id id = ok("flow.create", {{"definition", json::parse(definition)}}).at("id");
    ok("flow.start", {{"id", id}});
    return id;
  };
  const Id waits = started(R"({"name":"w","jobs":{"a":{"pause":"?"}}})"),
           idles = started(R"({"name":"i","jobs":{"a":{"type":"python","script":"pass"}}})");
  for (const json& rows : {ok("flow.list", json::object()), ok("flows.page", json::object()).at("flows")}) {
    ASSERT_EQ(rows.size(), 2U);
    EXPECT_EQ(rows[0].at("detail"), "idle");
    EXPECT_EQ(rows[1].at("detail"), "waiting");
    EXPECT_EQ(rows[1].at("status"), "started");
  }
  const auto of_state = [&](const char* state) {
    std::vector<Id> ids;
    for (const json& flow : ok("flow.list", {{"state", state}})) ids.push_back(flow.at("id"));
    return ids;
  };
  EXPECT_EQ(of_state("waiting"), std::vector<Id>{waits});
  EXPECT_EQ(of_state("idle"), std::vector<Id>{idles});
  EXPECT_TRUE(of_state("running").empty());
  EXPECT_TRUE(of_state("paused").empty());
  EXPECT_EQ(to_string("flow.list", {{"state", "wating"}}), "invalid");
  EXPECT_EQ(to_string("flows.page", {{"state", "wating"}}), "invalid");
}

// A page reads the jobs of at most 200 flows. The next page continues after them.
TEST_F(Page, FlowListContainsAllActiveFlows) {
  start_anonymous();
  constexpr std::size_t kFlows = 203;
  for (std::size_t i = 0; i < kFlows; ++i) {
    const json flow = ok("flow.create", {{"definition", json::parse(R"({"name":"w","jobs":{"a":{"pause":"?"}}})")}});
    ok("flow.start", {{"id", flow.at("id")}});
  }
  EXPECT_EQ(ok("flow.list", {{"limit", 1000}}).size(), kFlows);
  const json page = ok("flows.page", {{"limit", 1000}});
  EXPECT_EQ(page.at("flows").size(), 200U);
  EXPECT_EQ(ok("flows.page", {{"limit", 1000}, {"after", page.at("after")}}).at("flows").size(), kFlows - 200);
}

TEST_F(Page, OverviewCountsAllObjects) {
  start_anonymous();
  for (int i = 0; i < 3; ++i) ok("job.start", {{"script", "x"}, {"script_type", "python"}});
  ok("queue.pause", {{"queue", "sal"}});
  auto store = *redis_.open();
  ClaimRequest request;
  request.context = 1;
  request.runner = 20;
  request.instance = "i";
  request.queues = {"queue:python"};
  auto claimed = store->claim(request);
  ASSERT_TRUE(claimed && claimed->jobs.size() == 1U);
  JobEnd end;
  end.status = JobStatus::error;
  end.detail = "timeout";
  ASSERT_TRUE(store->report(1, std::vector<Report>{EndReport{claimed->jobs[0].ref, end}}));
  const json view = ok("context.overview", json::object());
  EXPECT_EQ(view.at("jobs"), 3);
  EXPECT_EQ(view.at("ended"), 1);
  EXPECT_EQ(view.at("running"), 0);
  EXPECT_EQ(view.at("failures"), json({{"timeout", 1}}));
  EXPECT_EQ(view.at("waits"), json({{"queued", 2}}));
  std::uint64_t ends = 0;
  for (const json& each : view.at("ends")) ends += each.get<std::uint64_t>();
  EXPECT_EQ(ends, 1U);
  ASSERT_EQ(view.at("queues").size(), 2U) << view;
  EXPECT_EQ(view["queues"][0].at("length"), 2);
  EXPECT_EQ(view["queues"][0].at("next"), "job:1:2");
  EXPECT_GT(view["queues"][0].value("next_since_ms", 0ULL), 0U);
  EXPECT_EQ(view["queues"][1].at("paused"), true);
  const json history = ok("job.history", {{"id", claimed->jobs[0].ref.job_key.substr(4)}});
  ASSERT_EQ(history.size(), 3U) << history;
  EXPECT_EQ(history[1].at("kind"), "claimed");
  EXPECT_EQ(history[1].at("runner_id"), 20);
  EXPECT_EQ(history[2].at("detail"), "timeout");
  EXPECT_EQ(ok("context.verify", json::object()).at("jobs"), 3);
}

// Dead letters are listed, run again, and deleted.
TEST_F(Page, DeadLettersAreRetriedOrDropped) {
  start_anonymous();
  const auto letter = [&](const std::string& id, const std::string& job) {
    redis_.run_command(1, {"XADD", "mj:dead-letters", id, "key", job, "queue", "queue:python", "reason", "no_record"});
  };
  letter("5-0", "job:7:1");
  letter("6-0", "job:7:2");
  letter("7-0", "<b>");
  const json all = ok("queue.dead", json::object());
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(
      all[0],
      json({{"letter", "5-0"}, {"job", "job:7:1"}, {"queue", "queue:python"}, {"reason", "no_record"}, {"at_ms", 5}}));
  EXPECT_EQ(ok("queue.dead", {{"limit", 1}})[0].at("letter"), "7-0") << "the latest";
  EXPECT_EQ(ok("queue.requeue", {{"letter", "5-0"}}), json({{"letter", "5-0"}, {"requeued", true}}));
  EXPECT_EQ(ok("queue.drop", {{"letter", "6-0"}}), json({{"letter", "6-0"}, {"requeued", false}}));
  EXPECT_EQ(to_string("queue.requeue", {{"letter", "7-0"}}), "conflict") << "it can never run";
  EXPECT_EQ(to_string("queue.drop", {{"letter", "5-0"}}), "not_found");
  EXPECT_EQ(to_string("queue.drop", {{"letter", "x"}}), "invalid");
  EXPECT_EQ(ok("queue.dead", json::object()).size(), 1U);
  const json view = ok("context.overview", json::object());
  EXPECT_EQ(view.at("dead"), 1);
  EXPECT_EQ(view["queues"][0].at("length"), 1);
}

TEST_F(Page, VerifyChecksTheSameAsTheCommand) {
  start_anonymous();
  EXPECT_EQ(ok("context.verify", json::object()).at("found"), 0);
  redis_.run_command(0, {"HSET", "mj:actor-keys", "gone", "9"});
  redis_.run_command(1, {"ZADD", "mj:osis:ids:default:todo", "0", "ghost"});
  redis_.run_command(1, {"XADD", "mj:deployment:acme/shop@1", "1-0", "f", "no fact"});
  std::set<std::string> rules;
  const json report = ok("context.verify", json::object());
  for (const json& each : report.at("findings")) rules.insert(each.at("rule"));
  EXPECT_EQ(rules, (std::set<std::string>{"actor-key", "object-index", "deployment-journal"}));
}

TEST_F(Page, DoctorReportsProblemsWithRemedies) {
  settings_.contexts = {1};
  start_anonymous();
  const auto found = [&] {
    std::map<std::string, json> by_name;
    for (const json& each : ok("context.doctor", json::object()))
      by_name[each.value("area", "") + ' ' + each.value("name", "")] = each;
    return by_name;
  };
  auto checks = found();
  for (const char* wrong : {"coordinator leader", "agent queues", "context record"}) {
    EXPECT_NE(checks[wrong].value("state", ""), "ok") << wrong << checks[wrong];
    EXPECT_NE(checks[wrong].value("remedy", "").find("mycojobs "), std::string::npos) << wrong << checks[wrong];
  }
  EXPECT_EQ(checks["coordinator this one"].value("state", ""), "ok");
  EXPECT_EQ(checks["redis server"].value("state", ""), "ok");
  ASSERT_TRUE(checks.contains("redis maxmemory-policy"));
  auto store = *redis_.open();
  auto flows = *redis_.open_flows();
  ASSERT_TRUE(flows->acquire_leadership(1, "i", "host-a pid 7", 60000));
  Runner runner;
  runner.id = 20;
  runner.version = "0.0.1";
  runner.executors = {"python"};
  RunnerHolder held_by;
  ASSERT_TRUE(store->hold_runner(1, runner, {"i", "host-a", "b", 7}, 60000, "", held_by));
  ok("context.create", {{"id", 1}, {"admins", {12}}});
  checks = found();
  for (const char* right : {"coordinator leader", "agent queues", "context record"})
    EXPECT_EQ(checks[right].value("state", ""), "ok") << right << checks[right];
  EXPECT_EQ(checks["coordinator leader"].value("detail", ""), "host-a pid 7 leads the context");
  EXPECT_EQ(checks["agent 20"].value("state", ""), "warning") << "it is of another version";
}

TEST_F(Page, EventsReportHealthChanges) {
  start_anonymous();
  test::Process stream(folder_, {"curl", "-sN", server_->url() + "/events?context=1&overview=1"});
  ASSERT_TRUE(test::eventually([&] { return stream.out().find("event: overview") != std::string::npos; }));
  ok("job.start", {{"script", "x"}, {"script_type", "python"}});
  EXPECT_TRUE(test::eventually([&] { return stream.out().find("\"jobs\":1,") != std::string::npos; })) << stream.out();
  EXPECT_NE(get("/events?context=1&overview=1&flow=1").find("400"), std::string::npos);
}

TEST_F(Page, EventsReportStoreOutageAndRecovery) {
  start_anonymous();
  test::Process stream(folder_, {"curl", "-sN", server_->url() + "/events?context=1&overview=1"});
  const auto shown = [&](std::string_view event) {
    std::size_t count = 0;
    const std::string out = stream.out();
    for (auto at = out.find(event); at != std::string::npos; at = out.find(event, at + 1)) ++count;
    return count;
  };
  ASSERT_TRUE(test::eventually([&] { return shown("event: overview") == 1; }));
  redis_.set_faults([](const ServerCall&) { return Fault::before; });
  EXPECT_TRUE(test::eventually([&] { return shown("event: away\ndata: {\"for_ms\":") == 1; })) << stream.out();
  EXPECT_EQ(shown("event: overview"), 1U);
  redis_.set_faults([](const ServerCall&) { return Fault::none; });
  EXPECT_TRUE(test::eventually([&] { return shown("event: overview") == 2; })) << "though nothing has changed";
  EXPECT_EQ(shown("event: away"), 1U) << "once";
}

// Regression test: each watcher waited for the unresponsive store in turn.
TEST_F(Page, SilentStoreIsDetectedByOneOfAllWatchers) {
  start_anonymous();
  constexpr std::size_t kWatchers = 5;
  std::vector<std::unique_ptr<test::Process>> watchers;
  for (std::size_t i = 0; i < kWatchers; ++i)
    watchers.push_back(std::make_unique<test::Process>(
        folder_, std::vector<std::string>{"curl", "-sN", server_->url() + "/events?context=1&overview=1"}));
  const auto all_heard = [&](const char* event) {
    return std::all_of(watchers.begin(), watchers.end(),
                       [&](const auto& each) { return each->out().find(event) != std::string::npos; });
  };
  ASSERT_TRUE(test::eventually([&] { return all_heard("event: overview"); }));
  std::atomic<std::size_t> checks_done{0};
  redis_.set_faults([&checks_done](const ServerCall& call) {
    if (call.name != "tally") return Fault::before;
    ++checks_done;
    std::this_thread::sleep_for(std::chrono::milliseconds(1200));  // longer than the interval of the watchers
    return Fault::before;
  });
  EXPECT_TRUE(test::eventually([&] { return all_heard("event: away"); }));
  EXPECT_LE(checks_done, 2U) << "one, and one of who came when all had been told";
  redis_.set_faults([](const ServerCall&) { return Fault::none; });
}

TEST_F(Page, SkippedNodeIsNotShownAsFailed) {
  start_anonymous();
  auto store = *redis_.open();
  ClaimRequest request;
  request.context = 1;
  request.runner = 20;
  request.instance = "i";
  request.queues = {"queue:python"};
  for (const char* detail : {"not_needed", "skipped", "cancelled", "exit"}) {
    ok("job.start", {{"script", "x"}, {"script_type", "python"}});
    auto claimed = store->claim(request);
    ASSERT_TRUE(claimed && claimed->jobs.size() == 1U);
    JobEnd end;
    end.status = JobStatus::error;
    end.detail = detail;
    ASSERT_TRUE(store->report(1, std::vector<Report>{EndReport{claimed->jobs[0].ref, end}}));
  }
  EXPECT_EQ(ok("context.overview", json::object()).at("failures"), json({{"exit", 1}}));
}

TEST_F(Page, DefinitionIsCheckedAsText) {
  start_anonymous();
  const json bad = ok("flow.check", {{"definition", "name: x\njobs:\n  a: {type: python, scripd: 1}\n"}});
  EXPECT_EQ(bad.at("ok"), false);
  ASSERT_FALSE(bad.at("problems").empty());
  EXPECT_EQ(bad["problems"][0].at("line"), 3);
  EXPECT_EQ(ok("flow.check", {{"definition", "a: [1"}}).at("ok"), false);
  const std::string good = "name: x\njobs:\n  a: {type: python, script: pass}\n";
  EXPECT_EQ(ok("flow.check", {{"definition", good}}).at("nodes"), 1);
  EXPECT_TRUE(ok("flow.check", {{"definition", good}}).at("warnings").empty());
  const std::string map =
      "name: x\njobs:\n  a: {type: python, script: pass, on_error: m}\n  m: {log: m}\n  j: {needs: a, log: j}\n";
  const json warned = ok("flow.check", {{"definition", map}});
  EXPECT_EQ(warned.at("ok"), true);
  ASSERT_EQ(warned.at("warnings").size(), 1U);
  EXPECT_EQ(warned["warnings"][0].at("path"), "jobs.j.needs");
  EXPECT_EQ(warned["warnings"][0].at("line"), 5);
  const std::string list =
      "name: x\njobs:\n- {name: a, type: python, script: pass, on_error: m}\n- {name: m, log: m}\n- {name: j, log: "
      "j,\n   needs: a}\n";
  const json of_list = ok("flow.check", {{"definition", list}});
  ASSERT_EQ(of_list.at("warnings").size(), 1U);
  EXPECT_EQ(of_list["warnings"][0].at("path"), "jobs[2].needs");
  EXPECT_EQ(of_list["warnings"][0].at("line"), 6);
  EXPECT_EQ(ok("flow.create", {{"definition", good}}).at("name"), "x");
  EXPECT_EQ(to_string("flow.create", {{"definition", "a: [1"}}), "invalid");
  EXPECT_EQ(ok("flow.list", {{"status", "dispatched"}}).size(), 1U);
  EXPECT_TRUE(ok("flow.list", {{"status", "error"}}).empty());
  EXPECT_EQ(to_string("flow.list", {{"status", "x"}}), "invalid");
}

TEST_F(Page, ApprovalOutsideOfFlowsIsListed) {
  start_anonymous();
  ok("job.start",
     {{"script", "x"}, {"script_type", "python"}, {"prerequisites", {"approval:legal"}}, {"name", "ship"}});
  auto store = *redis_.open();
  ClaimRequest request;
  request.context = 1;
  request.runner = 20;
  request.instance = "i";
  request.queues = {"queue:python"};
  ASSERT_TRUE(store->claim(request));  // the claim parks the job
  json found = ok("approval.list", json::object())["questions"];
  ASSERT_EQ(found.size(), 1U) << found;
  EXPECT_EQ(found[0].at("name"), "legal");
  EXPECT_EQ(found[0].at("job"), "job:1:1");
  ok("job.approve", {{"id", 1}, {"name", "legal"}});
  EXPECT_TRUE(ok("approval.list", json::object())["questions"].empty());
}

}  // namespace
}  // namespace mycojobs
