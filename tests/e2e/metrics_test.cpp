// The /metrics of a real agent and a real coordinator after real jobs, read by an independent parser, and by promtool
// if it is installed.
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "e2e/client.h"
#include "e2e/world.h"
#include "support/build_paths.h"
#include "telemetry/metric_table.h"

namespace mycojobs {
namespace {

using namespace test;
using Labels = std::map<std::string, std::string>;

bool has_promtool(const TempDir& folder) {
  static const bool has = run(folder, {"sh", "-c", "command -v promtool"}).code == 0;
  return has;
}

// One parsed scrape.
class Scrape {
 public:
  Scrape(const TempDir& folder, const std::string& url) {
    const ProcessResult result = run(folder, {"curl", "-s", "-f", "-i", url + "/metrics"});
    EXPECT_EQ(result.code, 0) << url << result.err;
    const auto head_end = result.out.find("\r\n\r\n");
    if (head_end == std::string::npos) return;
    EXPECT_NE(result.out.substr(0, head_end).find("text/plain; version=0.0.4"), std::string::npos);
    text = result.out.substr(head_end + 4);
    const ProcessResult parsed = run(folder, {mj::test::source_path("tests/e2e/prometheus_text.py")}, {}, text);
    EXPECT_EQ(parsed.code, 0) << parsed.err;
    all_ = nlohmann::json::parse(parsed.out, nullptr, false);
    EXPECT_TRUE(all_.is_object());
  }
  // Returns the sum of the series with these labels, or -1 if there is none.
  double value(const std::string& name, const Labels& labels = {}) const {
    double sum = -1;
    for (const auto& sample : all_["samples"]) {
      if (sample[0] != name) continue;
      const bool alike = std::all_of(labels.begin(), labels.end(),
                                     [&](const auto& each) { return sample[1].value(each.first, "") == each.second; });
      if (alike) sum = std::max(0.0, sum) + sample[2].get<double>();
    }
    return sum;
  }
  const nlohmann::json& parsed() const { return all_; }

  std::string text;

 private:
  nlohmann::json all_;
};

class MetricsE2e : public Operator {
 protected:
  // Returns the address at which the server listens, once it is logged.
  static std::string wait_for_url(const Process& server) {
    std::string url;
    EXPECT_TRUE(eventually([&] {
      std::smatch found;
      const std::string log = server.err();
      if (!std::regex_search(log, found, std::regex("health at (http://[0-9.:]+)/healthz and /readyz, metrics at")))
        return false;
      url = found[1];
      return true;
    })) << server.err();
    return url;
  }
  Scrape scrape(const std::string& url) const { return {folder_, url}; }
  // Waits until a series has this value.
  bool wait_for_value(const std::string& url, const std::string& name, const Labels& labels, double value) const {
    return eventually([&] { return scrape(url).value(name, labels) == value; });
  }
  // All families are in the table and in the manual, and no label contains an identifier.
  static void expect_as_promised(const Scrape& scraped, const std::string& where) {
    std::map<std::string, const MetricRow*> rows;
    for (const MetricRow& row : metric_rows()) rows[std::string(row.name)] = &row;
    for (const auto& [family, type] : scraped.parsed()["types"].items()) {
      ASSERT_TRUE(rows.contains(family)) << family << " is not in the table";
      const MetricRow& row = *rows[family];
      EXPECT_EQ(type, std::string(to_string(row.kind))) << family;
      EXPECT_EQ(scraped.parsed()["helps"][family], std::string(row.help));
      EXPECT_TRUE(row.process == "both" || row.process == where) << family << " at the " << where;
    }
    for (const auto& sample : scraped.parsed()["samples"]) {
      std::string family = sample[0];
      for (const char* suffix : {"_bucket", "_sum", "_count"}) {
        if (!rows.contains(family) && family.ends_with(suffix))
          family.resize(family.size() - std::string(suffix).size());
      }
      ASSERT_TRUE(rows.contains(family)) << sample[0];
      std::set<std::string> wanted, is;
      std::istringstream words{std::string(rows[family]->labels)};
      for (std::string word; words >> word;) wanted.insert(word);
      for (const auto& [label, value] : sample[1].items()) {
        if (label != "le") is.insert(label);
      }
      EXPECT_EQ(is, wanted) << family;
    }
    EXPECT_EQ(scraped.text.find("job:"), std::string::npos);
    EXPECT_EQ(scraped.text.find("s3cret"), std::string::npos);
  }
  void expect_promtool_likes(const Scrape& scraped) const {
    if (!has_promtool(folder_)) return;  // MetricsFiles reports that promtool is missing
    const ProcessResult result = run(folder_, {"promtool", "check", "metrics"}, {}, scraped.text);
    EXPECT_EQ(result.code, 0) << result.out << result.err;
  }
};

TEST_F(MetricsE2e, AgentReportsTheEndsOfItsJobs) {
  Process agent = this->agent(20, {"--metrics-listen", "127.0.0.1:0"});
  const std::string url = wait_for_url(agent);
  ASSERT_TRUE(wait_for_value(url, "mycojobs_ready", {}, 1));
  EXPECT_EQ(scrape(url).value("mycojobs_job_ends_total", {{"script_type", "python"}, {"detail", "exception"}}), 0)
      << "nothing has ended";
  EXPECT_EQ(scrape(url).value("mycojobs_attempts_total", {{"script_type", "python"}, {"detail", "setup_error"}}), 0);
  EXPECT_EQ(scrape(url).value("mycojobs_stale_writes_total", {{"context", "1"}, {"what", "report"}}), 0);

  const std::string ok = mycojobs_.submit("print('s3cret')"), bad = mycojobs_.submit("raise ValueError('s3cret')");
  const std::string slow = mycojobs_.submit("import time\ntime.sleep(60)", {"--timeout", "1s"});
  const std::string again = mycojobs_.submit("raise OSError('x')", {"--retries", "1"});
  ASSERT_TRUE(mycojobs_.wait_for_value(ok, "status", "finished"));
  for (const std::string& job : {bad, slow, again}) ASSERT_TRUE(mycojobs_.wait_for_value(job, "status", "error"));
  ASSERT_TRUE(wait_for_value(url, "mycojobs_jobs_held", {}, 0));
  const Scrape after = scrape(url);
  const auto get_count = [&](const std::string& name, const std::string& status, const std::string& detail) {
    return after.value(name, {{"context", "1"}, {"script_type", "python"}, {"status", status}, {"detail", detail}});
  };
  EXPECT_EQ(get_count("mycojobs_job_ends_total", "finished", "ok"), 1);
  EXPECT_EQ(get_count("mycojobs_job_ends_total", "error", "exception"), 2);
  EXPECT_EQ(get_count("mycojobs_job_ends_total", "error", "timeout"), 1);
  EXPECT_EQ(get_count("mycojobs_attempts_total", "error", "exception"), 3) << "one was tried twice";
  EXPECT_EQ(after.value("mycojobs_claims_total", {{"script_type", "python"}}), 5);
  EXPECT_EQ(after.value("mycojobs_pickup_seconds_count", {{"context", "1"}}), 4) << "the retry aside";
  EXPECT_LT(after.value("mycojobs_pickup_seconds_sum"), 60);
  EXPECT_EQ(after.value("mycojobs_run_seconds_count", {{"script_type", "python"}}), 5);
  EXPECT_GE(after.value("mycojobs_run_seconds_sum"), 1);
  EXPECT_GT(after.value("mycojobs_run_cpu_seconds_total"), 0);
  EXPECT_EQ(after.value("mycojobs_sandbox_setup_seconds_count"), 5);
  EXPECT_EQ(after.value("mycojobs_leases_held", {{"context", "1"}}), 0);
  EXPECT_GT(after.value("mycojobs_slots"), 0);
  EXPECT_GT(after.value("mycojobs_store_call_seconds_count", {{"call", "claim"}}), 0);
  EXPECT_EQ(after.value("mycojobs_jobs_moved_total", {{"why", "due"}}), 1) << "the retry";
  EXPECT_TRUE(eventually([&] { return scrape(url).value("mycojobs_zygotes") >= 1; }));
  EXPECT_TRUE(eventually([&] { return scrape(url).value("mycojobs_sandboxes", {{"state", "ready"}}) >= 1; }));
  expect_as_promised(after, "agent");
  expect_promtool_likes(after);
}

TEST_F(MetricsE2e, AgentCountsErrorsDuringAStoreOutage) {
  Process agent = this->agent(20, {"--metrics-listen", "127.0.0.1:0"});
  const std::string url = wait_for_url(agent);
  ASSERT_TRUE(wait_for_value(url, "mycojobs_ready", {}, 1));
  redis_.kill();
  EXPECT_TRUE(eventually([&] {
    const Scrape scraped = scrape(url);
    return scraped.value("mycojobs_ready") == 0 &&
           scraped.value("mycojobs_store_errors_total", {{"code", "unavailable"}}) > 0;
  }));
  redis_.start();
  EXPECT_TRUE(wait_for_value(url, "mycojobs_ready", {}, 1));
}

TEST_F(MetricsE2e, CoordinatorReportsQueuesAndFlows) {
  Process coordinator(
      folder_, {program_path(), "coordinator", "--redis", redis_.url(), "--context", "1", "--api-listen", "127.0.0.1:0",
                "--metrics-listen", "127.0.0.1:0", "--api-tokens", folder_ / "tokens"});
  const std::string url = wait_for_url(coordinator);
  ASSERT_TRUE(wait_for_value(url, "mycojobs_leads", {{"context", "1"}}, 1));
  for (int i = 0; i < 3; ++i) mycojobs_.submit("pass");
  EXPECT_TRUE(wait_for_value(url, "mycojobs_queue_jobs", {{"queue", "python"}}, 3)) << "no agent is there";
  EXPECT_TRUE(eventually([&] {
    return scrape(url).value("mycojobs_queue_oldest_seconds", {{"queue", "python"}}) > 0;
  }));
  EXPECT_EQ(mycojobs_({"queue", "pause", "python"}).code, 0);
  EXPECT_TRUE(wait_for_value(url, "mycojobs_queue_paused", {{"queue", "python"}}, 1));
  EXPECT_EQ(mycojobs_({"queue", "resume", "python"}).code, 0);

  std::ofstream(folder_ / "flow.yaml") << "name: metered\njobs:\n"
                                          "  one: {type: python, script: pass}\n"
                                          "  asked: {needs: one, approval: {comment: ship it}}\n"
                                          "  two: {needs: asked, type: python, script: pass}\n";
  const ProcessResult started = mycojobs_({"flow", "start", folder_ / "flow.yaml"});
  ASSERT_EQ(started.code, 0) << started.out << started.err;
  Process agent = this->agent(20);
  EXPECT_TRUE(wait_for_value(url, "mycojobs_flow_gates_waiting", {{"context", "1"}}, 1));
  EXPECT_TRUE(wait_for_value(url, "mycojobs_flows_active", {{"context", "1"}}, 1));
  const ProcessResult approved = mycojobs_({"flow", "approve", "1", "asked"});
  ASSERT_EQ(approved.code, 0) << approved.out << approved.err;
  EXPECT_TRUE(wait_for_value(url, "mycojobs_flow_ends_total", {{"status", "finished"}}, 1));
  EXPECT_TRUE(wait_for_value(url, "mycojobs_flow_gates_waiting", {{"context", "1"}}, 0));
  EXPECT_TRUE(wait_for_value(url, "mycojobs_flows_active", {{"context", "1"}}, 0));
  EXPECT_TRUE(wait_for_value(url, "mycojobs_queue_jobs", {{"queue", "python"}}, 0));
  const Scrape after = scrape(url);
  EXPECT_GT(after.value("mycojobs_flow_commits_total", {{"result", "ok"}}), 0);
  EXPECT_GT(after.value("mycojobs_flow_facts_total"), 3);
  EXPECT_EQ(after.value("mycojobs_dead_letters", {{"context", "1"}}), 0);
  EXPECT_GT(after.value("mycojobs_kept_bytes", {{"context", "1"}, {"of", "all"}}), 3000);
  EXPECT_EQ(after.value("mycojobs_kept_quota_bytes", {{"context", "1"}, {"of", "largest"}}), 512 << 20);
  expect_as_promised(after, "coordinator");
  expect_promtool_likes(after);
}

// More queues than one scan covers, from a Redis client and from submitters; each entry is in a sum.
TEST_F(MetricsE2e, ManyQueuesAreCountedToTheLastEntry) {
  constexpr int kQueues = 600;
  redis_.cli(1, {"EVAL",
                 "for i = 1, 600 do\n"
                 "  redis.call('LPUSH', 'queue:zz' .. i, 'job:1:1', 'job:1:2')\n"
                 "  redis.call('SADD', 'mj:queues', 'queue:zz' .. i)\n"
                 "end",
                 "0"});
  redis_.cli(1, {"LPUSH", "queue:v", "job:1:3"});
  Process coordinator(
      folder_, {program_path(), "coordinator", "--redis", redis_.url(), "--context", "1", "--api-listen", "127.0.0.1:0",
                "--metrics-listen", "127.0.0.1:0", "--api-tokens", folder_ / "tokens"});
  const std::string url = wait_for_url(coordinator);
  EXPECT_TRUE(wait_for_value(url, "mycojobs_queue_jobs", {{"queue", "other"}}, 2 * kQueues));
  EXPECT_EQ(scrape(url).value("mycojobs_queue_jobs", {{"queue", "v"}}), 1) << "nothing of ours has been in it";
  EXPECT_EQ(scrape(url).value("mycojobs_queue_jobs"), 2 * kQueues + 1);
  EXPECT_EQ(scrape(url).value("mycojobs_queue_oldest_seconds", {{"queue", "v"}}), -1) << "no record says since when";
  EXPECT_EQ(scrape(url).value("mycojobs_queue_oldest_seconds", {{"queue", "python"}}), 0);
}

TEST_F(MetricsE2e, CoordinatorWithdrawsMetricsDuringAStoreOutage) {
  Process coordinator(
      folder_, {program_path(), "coordinator", "--redis", redis_.url(), "--context", "1", "--api-listen", "127.0.0.1:0",
                "--metrics-listen", "127.0.0.1:0", "--api-tokens", folder_ / "tokens"});
  const std::string url = wait_for_url(coordinator);
  ASSERT_TRUE(wait_for_value(url, "mycojobs_leads", {{"context", "1"}}, 1));
  ASSERT_TRUE(wait_for_value(url, "mycojobs_queue_jobs", {{"queue", "python"}}, 0));
  redis_.kill();
  EXPECT_TRUE(wait_for_value(url, "mycojobs_leads", {{"context", "1"}}, 0));
  EXPECT_EQ(scrape(url).value("mycojobs_queue_jobs"), -1);
  redis_.start();
  EXPECT_TRUE(wait_for_value(url, "mycojobs_leads", {{"context", "1"}}, 1));
}

TEST_F(MetricsE2e, WebPagesAndOtherHostNamesAreRejected) {
  Process agent = this->agent(20, {"--metrics-listen", "127.0.0.1:0"});
  const std::string url = wait_for_url(agent) + "/metrics";
  const auto status = [&](const std::vector<std::string>& headers) {
    std::vector<std::string> words{"curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", url};
    for (const std::string& header : headers) words.insert(words.end(), {"-H", header});
    return run(folder_, words).out;
  };
  EXPECT_EQ(status({}), "200");
  EXPECT_EQ(status({"Host: localhost"}), "200");
  EXPECT_EQ(status({"Host: rebound.example"}), "403");
  EXPECT_EQ(scrape(wait_for_url(agent)).value("mycojobs_http_refused_total", {{"why", "host"}}), 1);
  EXPECT_EQ(status({"Origin: http://page.example"}), "403");
}

// A process that listens nowhere does not count metrics. Health and metrics can share one address.
TEST_F(MetricsE2e, HealthAndMetricsMayShareAnAddress) {
  const std::string listen = "127.0.0.1:" + std::to_string(20000 + ::getpid() % 20000);
  Process agent = this->agent(20, {"--metrics-listen", listen, "--health-listen", listen});
  const std::string url = wait_for_url(agent);
  EXPECT_EQ(url, "http://" + listen);
  EXPECT_EQ(run(folder_, {"curl", "-s", "-f", url + "/healthz"}).code, 0);
  EXPECT_GT(scrape(url).value("mycojobs_slots"), 0);
}

TEST(MetricsFiles, RulesAreValidForPromtool) {
  const TempDir folder;
  if (!has_promtool(folder))
    GTEST_SKIP() << "there is no promtool: ./dev test fetches it (Debian's package prometheus)";
  const ProcessResult result =
      run(folder, {"promtool", "check", "rules", mj::test::source_path("docs/metrics/alerts.yaml")});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  const ProcessResult tried =
      run(folder, {"promtool", "test", "rules", mj::test::source_path("tests/e2e/alerts_test.yaml")});
  EXPECT_EQ(tried.code, 0) << tried.out << tried.err;
}

std::string read_text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(MetricsFiles, EachRuleFires) {
  const std::string rules = read_text(mj::test::source_path("docs/metrics/alerts.yaml"));
  const std::string tests = read_text(mj::test::source_path("tests/e2e/alerts_test.yaml"));
  const std::regex name("- alert: (\\w+)");
  int rows = 0;
  for (std::sregex_iterator at(rules.begin(), rules.end(), name), end; at != end; ++at, ++rows)
    EXPECT_NE(tests.find("alertname: " + (*at)[1].str() + ", exp_alerts"), std::string::npos) << (*at)[1];
  EXPECT_GT(rows, 10);
}

}  // namespace
}  // namespace mycojobs
