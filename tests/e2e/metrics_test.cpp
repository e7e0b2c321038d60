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

// The metrics that one request of /metrics returned, parsed by prometheus_text.py.
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
    parsed_ = nlohmann::json::parse(parsed.out, nullptr, false);
    EXPECT_TRUE(parsed_.is_object());
  }
  // Returns the sum of the series with these labels, or -1 if there is none.
  double get_value(const std::string& name, const Labels& labels = {}) const {
    double sum = -1;
    for (const auto& sample : parsed_["samples"]) {
      if (sample[0] != name) continue;
      const bool has_labels = std::all_of(labels.begin(), labels.end(), [&](const auto& label) {
        return sample[1].value(label.first, "") == label.second;
      });
      if (has_labels) sum = std::max(0.0, sum) + sample[2].get<double>();
    }
    return sum;
  }
  const nlohmann::json& parsed() const { return parsed_; }

  std::string text;

 private:
  nlohmann::json parsed_;
};

class MetricsE2e : public Operator {
 protected:
  // Returns the address at which the server listens, once it is logged.
  static std::string wait_for_url(const Process& server) {
    std::string url;
    EXPECT_TRUE(eventually([&] {
      std::smatch match;
      const std::string log = server.err();
      if (!std::regex_search(log, match, std::regex("health at (http://[0-9.:]+)/healthz and /readyz, metrics at")))
        return false;
      url = match[1];
      return true;
    })) << server.err();
    return url;
  }
  Scrape scrape(const std::string& url) const { return {folder_, url}; }
  // Waits until a series has this value.
  bool wait_for_value(const std::string& url, const std::string& name, const Labels& labels,
                      double expected_value) const {
    return eventually([&] { return scrape(url).get_value(name, labels) == expected_value; });
  }
  // Checks that all families are in the table of metrics with their labels, and that no label contains an identifier.
  static void expect_documented_families(const Scrape& scrape_result, const std::string& process_name) {
    std::map<std::string, const MetricRow*> rows_by_name;
    for (const MetricRow& row : metric_rows()) rows_by_name[std::string(row.name)] = &row;
    for (const auto& [family, type] : scrape_result.parsed()["types"].items()) {
      ASSERT_TRUE(rows_by_name.contains(family)) << family << " is not in the table";
      const MetricRow& row = *rows_by_name[family];
      EXPECT_EQ(type, std::string(to_string(row.kind))) << family;
      EXPECT_EQ(scrape_result.parsed()["helps"][family], std::string(row.help));
      EXPECT_TRUE(row.process_kind == "both" || row.process_kind == process_name)
          << family << " at the " << process_name;
    }
    for (const auto& sample : scrape_result.parsed()["samples"]) {
      std::string family = sample[0];
      for (const char* suffix : {"_bucket", "_sum", "_count"}) {
        if (!rows_by_name.contains(family) && family.ends_with(suffix))
          family.resize(family.size() - std::string(suffix).size());
      }
      ASSERT_TRUE(rows_by_name.contains(family)) << sample[0];
      std::set<std::string> expected_labels, labels;
      std::istringstream words{std::string(rows_by_name[family]->label_names)};
      for (std::string word; words >> word;) expected_labels.insert(word);
      for (const auto& [label, value] : sample[1].items()) {
        if (label != "le") labels.insert(label);
      }
      EXPECT_EQ(labels, expected_labels) << family;
    }
    EXPECT_EQ(scrape_result.text.find("job:"), std::string::npos);
    EXPECT_EQ(scrape_result.text.find("s3cret"), std::string::npos);
  }
  void expect_valid_for_promtool(const Scrape& scrape_result) const {
    if (!has_promtool(folder_)) return;  // MetricsFiles reports that promtool is missing
    const ProcessResult result = run(folder_, {"promtool", "check", "metrics"}, {}, scrape_result.text);
    EXPECT_EQ(result.code, 0) << result.out << result.err;
  }
};

TEST_F(MetricsE2e, AgentReportsTheEndsOfItsJobs) {
  Process agent = start_registered_agent(20, {"--metrics-listen", "127.0.0.1:0"});
  const std::string url = wait_for_url(agent);
  ASSERT_TRUE(wait_for_value(url, "mycojobs_ready", {}, 1));
  EXPECT_EQ(scrape(url).get_value("mycojobs_job_ends_total", {{"script_type", "python"}, {"detail", "exception"}}), 0)
      << "no job has ended yet";
  EXPECT_EQ(scrape(url).get_value("mycojobs_attempts_total", {{"script_type", "python"}, {"detail", "setup_error"}}),
            0);
  EXPECT_EQ(scrape(url).get_value("mycojobs_stale_writes_total", {{"context", "1"}, {"operation", "report"}}), 0);

  const std::string ok_job = mycojobs_.submit("print('s3cret')"),
                    failing_job = mycojobs_.submit("raise ValueError('s3cret')");
  const std::string slow_job = mycojobs_.submit("import time\ntime.sleep(60)", {"--timeout", "1s"});
  const std::string retried_job = mycojobs_.submit("raise OSError('x')", {"--retries", "1"});
  ASSERT_TRUE(mycojobs_.wait_for_value(ok_job, "status", "finished"));
  for (const std::string& job : {failing_job, slow_job, retried_job})
    ASSERT_TRUE(mycojobs_.wait_for_value(job, "status", "error"));
  ASSERT_TRUE(wait_for_value(url, "mycojobs_jobs_active", {}, 0));
  const Scrape after = scrape(url);
  const auto get_count = [&](const std::string& name, const std::string& status, const std::string& detail) {
    return after.get_value(name, {{"context", "1"}, {"script_type", "python"}, {"status", status}, {"detail", detail}});
  };
  EXPECT_EQ(get_count("mycojobs_job_ends_total", "finished", "ok"), 1);
  EXPECT_EQ(get_count("mycojobs_job_ends_total", "error", "exception"), 2);
  EXPECT_EQ(get_count("mycojobs_job_ends_total", "error", "timeout"), 1);
  EXPECT_EQ(get_count("mycojobs_attempts_total", "error", "exception"), 3) << "one job had two attempts";
  EXPECT_EQ(after.get_value("mycojobs_claims_total", {{"script_type", "python"}}), 5);
  EXPECT_EQ(after.get_value("mycojobs_pickup_seconds_count", {{"context", "1"}}), 4)
      << "the pickup time of a retry is not counted";
  EXPECT_LT(after.get_value("mycojobs_pickup_seconds_sum"), 60);
  EXPECT_EQ(after.get_value("mycojobs_run_seconds_count", {{"script_type", "python"}}), 5);
  EXPECT_GE(after.get_value("mycojobs_run_seconds_sum"), 1);
  EXPECT_GT(after.get_value("mycojobs_run_cpu_seconds_total"), 0);
  EXPECT_EQ(after.get_value("mycojobs_sandbox_setup_seconds_count"), 5);
  EXPECT_EQ(after.get_value("mycojobs_leases_held", {{"context", "1"}}), 0);
  EXPECT_GT(after.get_value("mycojobs_slots"), 0);
  EXPECT_GT(after.get_value("mycojobs_store_call_seconds_count", {{"call", "claim"}}), 0);
  EXPECT_EQ(after.get_value("mycojobs_job_transitions_total", {{"reason", "due"}}), 1) << "the retry";
  EXPECT_TRUE(eventually([&] { return scrape(url).get_value("mycojobs_zygotes") >= 1; }));
  EXPECT_TRUE(eventually([&] { return scrape(url).get_value("mycojobs_sandboxes", {{"state", "ready"}}) >= 1; }));
  expect_documented_families(after, "agent");
  expect_valid_for_promtool(after);
}

TEST_F(MetricsE2e, AgentCountsErrorsDuringAStoreOutage) {
  Process agent = start_registered_agent(20, {"--metrics-listen", "127.0.0.1:0"});
  const std::string url = wait_for_url(agent);
  ASSERT_TRUE(wait_for_value(url, "mycojobs_ready", {}, 1));
  redis_.kill();
  EXPECT_TRUE(eventually([&] {
    const Scrape scrape_result = scrape(url);
    return scrape_result.get_value("mycojobs_ready") == 0 &&
           scrape_result.get_value("mycojobs_store_errors_total", {{"code", "unavailable"}}) > 0;
  }));
  redis_.start();
  EXPECT_TRUE(wait_for_value(url, "mycojobs_ready", {}, 1));
}

TEST_F(MetricsE2e, CoordinatorReportsQueuesAndFlows) {
  Process coordinator(
      folder_, {program_path(), "coordinator", "--redis", redis_.url(), "--context", "1", "--api-listen", "127.0.0.1:0",
                "--metrics-listen", "127.0.0.1:0", "--api-tokens", folder_ / "tokens"});
  const std::string url = wait_for_url(coordinator);
  ASSERT_TRUE(wait_for_value(url, "mycojobs_leader", {{"context", "1"}}, 1));
  for (int i = 0; i < 3; ++i) mycojobs_.submit("pass");
  EXPECT_TRUE(wait_for_value(url, "mycojobs_queue_jobs", {{"queue", "python"}}, 3))
      << "the jobs must wait, because no agent is running";
  EXPECT_TRUE(eventually([&] {
    return scrape(url).get_value("mycojobs_queue_oldest_seconds", {{"queue", "python"}}) > 0;
  }));
  EXPECT_EQ(mycojobs_({"queue", "pause", "python"}).code, 0);
  EXPECT_TRUE(wait_for_value(url, "mycojobs_queue_paused", {{"queue", "python"}}, 1));
  EXPECT_EQ(mycojobs_({"queue", "resume", "python"}).code, 0);

  std::ofstream(folder_ / "flow.yaml") << "name: metered\njobs:\n"
                                          "  one: {type: python, script: pass}\n"
                                          "  asked: {needs: one, approval: {comment: ship it}}\n"
                                          "  two: {needs: asked, type: python, script: 'import time; time.sleep(1)'}\n";
  const ProcessResult start_result = mycojobs_({"flow", "start", folder_ / "flow.yaml"});
  ASSERT_EQ(start_result.code, 0) << start_result.out << start_result.err;
  Process agent = start_registered_agent(20);
  EXPECT_TRUE(wait_for_value(url, "mycojobs_flow_gates_waiting", {{"context", "1"}}, 1));
  EXPECT_TRUE(wait_for_value(url, "mycojobs_flows_active", {{"context", "1"}}, 1));
  // The last job runs longer than this command, which would store the end of the flow otherwise.
  const ProcessResult approved = mycojobs_({"flow", "approve", "1", "asked"});
  ASSERT_EQ(approved.code, 0) << approved.out << approved.err;
  EXPECT_TRUE(wait_for_value(url, "mycojobs_flow_ends_total", {{"status", "finished"}}, 1));
  EXPECT_TRUE(wait_for_value(url, "mycojobs_flow_gates_waiting", {{"context", "1"}}, 0));
  EXPECT_TRUE(wait_for_value(url, "mycojobs_flows_active", {{"context", "1"}}, 0));
  EXPECT_TRUE(wait_for_value(url, "mycojobs_queue_jobs", {{"queue", "python"}}, 0));
  const Scrape after = scrape(url);
  EXPECT_GT(after.get_value("mycojobs_flow_commits_total", {{"result", "ok"}}), 0);
  EXPECT_GT(after.get_value("mycojobs_flow_facts_total"), 3);
  EXPECT_EQ(after.get_value("mycojobs_dead_letters", {{"context", "1"}}), 0);
  EXPECT_GT(after.get_value("mycojobs_stored_bytes", {{"context", "1"}, {"scope", "all"}}), 3000);
  EXPECT_EQ(after.get_value("mycojobs_stored_quota_bytes", {{"context", "1"}, {"scope", "largest"}}), 512 << 20);
  expect_documented_families(after, "coordinator");
  expect_valid_for_promtool(after);
}

// The coordinator cannot count so many queues in one scan. All entries must be included in the sums.
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
  EXPECT_EQ(scrape(url).get_value("mycojobs_queue_jobs", {{"queue", "v"}}), 1) << "the queue has no journal";
  EXPECT_EQ(scrape(url).get_value("mycojobs_queue_jobs"), 2 * kQueues + 1);
  EXPECT_EQ(scrape(url).get_value("mycojobs_queue_oldest_seconds", {{"queue", "v"}}), -1)
      << "the job has no record with a time";
  EXPECT_EQ(scrape(url).get_value("mycojobs_queue_oldest_seconds", {{"queue", "python"}}), 0);
}

TEST_F(MetricsE2e, CoordinatorWithdrawsMetricsDuringAStoreOutage) {
  Process coordinator(
      folder_, {program_path(), "coordinator", "--redis", redis_.url(), "--context", "1", "--api-listen", "127.0.0.1:0",
                "--metrics-listen", "127.0.0.1:0", "--api-tokens", folder_ / "tokens"});
  const std::string url = wait_for_url(coordinator);
  ASSERT_TRUE(wait_for_value(url, "mycojobs_leader", {{"context", "1"}}, 1));
  ASSERT_TRUE(wait_for_value(url, "mycojobs_queue_jobs", {{"queue", "python"}}, 0));
  redis_.kill();
  EXPECT_TRUE(wait_for_value(url, "mycojobs_leader", {{"context", "1"}}, 0));
  EXPECT_EQ(scrape(url).get_value("mycojobs_queue_jobs"), -1);
  redis_.start();
  EXPECT_TRUE(wait_for_value(url, "mycojobs_leader", {{"context", "1"}}, 1));
}

TEST_F(MetricsE2e, WebPagesAndOtherHostNamesAreRejected) {
  Process agent = start_registered_agent(20, {"--metrics-listen", "127.0.0.1:0"});
  const std::string url = wait_for_url(agent) + "/metrics";
  const auto request_status = [&](const std::vector<std::string>& headers) {
    std::vector<std::string> words{"curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", url};
    for (const std::string& header : headers) words.insert(words.end(), {"-H", header});
    return run(folder_, words).out;
  };
  EXPECT_EQ(request_status({}), "200");
  EXPECT_EQ(request_status({"Host: localhost"}), "200");
  EXPECT_EQ(request_status({"Host: rebound.example"}), "403");
  EXPECT_EQ(scrape(wait_for_url(agent)).get_value("mycojobs_http_requests_rejected_total", {{"reason", "host"}}), 1);
  EXPECT_EQ(request_status({"Origin: http://page.example"}), "403");
}

// A process that listens nowhere does not count metrics. Health and metrics can share one address.
TEST_F(MetricsE2e, HealthAndMetricsMayShareAnAddress) {
  const std::string listen = "127.0.0.1:" + std::to_string(20000 + ::getpid() % 20000);
  Process agent = start_registered_agent(20, {"--metrics-listen", listen, "--health-listen", listen});
  const std::string url = wait_for_url(agent);
  EXPECT_EQ(url, "http://" + listen);
  EXPECT_EQ(run(folder_, {"curl", "-s", "-f", url + "/healthz"}).code, 0);
  EXPECT_GT(scrape(url).get_value("mycojobs_slots"), 0);
}

TEST(MetricsFiles, RulesAreValidForPromtool) {
  const TempDir folder;
  if (!has_promtool(folder))
    GTEST_SKIP() << "there is no promtool: ./dev test fetches it (Debian's package prometheus)";
  const ProcessResult result =
      run(folder, {"promtool", "check", "rules", mj::test::source_path("docs/metrics/alerts.yaml")});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  const ProcessResult rules_test =
      run(folder, {"promtool", "test", "rules", mj::test::source_path("tests/e2e/alerts_test.yaml")});
  EXPECT_EQ(rules_test.code, 0) << rules_test.out << rules_test.err;
}

TEST(MetricsFiles, EachRuleFires) {
  const std::string rules = read_file(mj::test::source_path("docs/metrics/alerts.yaml"));
  const std::string tests = read_file(mj::test::source_path("tests/e2e/alerts_test.yaml"));
  const std::regex name("- alert: (\\w+)");
  int rule_count = 0;
  for (std::sregex_iterator at(rules.begin(), rules.end(), name), end; at != end; ++at, ++rule_count)
    EXPECT_NE(tests.find("alertname: " + (*at)[1].str() + ", exp_alerts"), std::string::npos) << (*at)[1];
  EXPECT_GT(rule_count, 10);
}

}  // namespace
}  // namespace mycojobs
