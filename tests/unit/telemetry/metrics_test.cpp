// Tests of the metrics of a process: values, names, and their documentation.
#include "telemetry/metrics.h"

#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "store/redis/store_metrics.h"
#include "support/build_paths.h"

namespace mycojobs {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(mj::test::source_folder() + "/" + path).rdbuf();
  EXPECT_FALSE(text.str().empty()) << path;
  return text.str();
}

// Returns the value of a series, or -1 if the text has no such line.
double read_series_value(Metrics& metrics, const std::string& series) {
  const std::string text = '\n' + metrics.render();
  const auto line_start = text.find('\n' + series + ' ');
  return line_start == std::string::npos ? -1 : std::stod(text.substr(line_start + series.size() + 2));
}

TEST(Metrics, EachKindUpdatesTheSeriesOfItsLabels) {
  const auto metrics = Metrics::make();
  metrics->add(Metric::claims, {Id{1}, "python"});
  metrics->add(Metric::claims, {Id{1}, "python"}, 2);
  metrics->add(Metric::claims, {Id{2}, "python"});
  metrics->set(Metric::leadership, {Id{1}}, 1);
  metrics->set(Metric::leadership, {Id{1}}, 0);
  for (const double seconds : {0.001, 0.3, 5000.0}) metrics->observe(Metric::pickup_time, {Id{1}}, seconds);
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_claims_total{context="1",script_type="python"})"), 3);
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_claims_total{context="2",script_type="python"})"), 1);
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_leader{context="1"})"), 0);
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_pickup_seconds_bucket{context="1",le="0.002"})"), 1);
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_pickup_seconds_bucket{context="1",le="3600"})"), 2);
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_pickup_seconds_bucket{context="1",le="+Inf"})"), 3);
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_pickup_seconds_count{context="1"})"), 3);
  EXPECT_THAT(metrics->render(), HasSubstr("# HELP mycojobs_claims_total Total number of claimed jobs\n"
                                           "# TYPE mycojobs_claims_total counter\n"));
}

TEST(Metrics, ObjectsShareNoValues) {
  const auto metrics = Metrics::make(), other_metrics = Metrics::make();
  metrics->add(Metric::rpc_calls, {"job.get", "ok"});
  EXPECT_THAT(metrics->render(), HasSubstr("job.get"));
  EXPECT_THAT(other_metrics->render(), Not(HasSubstr("job.get")));
}

TEST(Metrics, DisabledMetricsDropAllUpdates) {
  const auto disabled_metrics = no_metrics();
  disabled_metrics->add(Metric::metric_values_folded, {});
  EXPECT_EQ(disabled_metrics->render(), "");
  EXPECT_FALSE(disabled_metrics->is_enabled());
  EXPECT_TRUE(Metrics::make()->is_enabled());
}

TEST(Metrics, LabelValuesArePrintableAndShort) {
  const auto metrics = Metrics::make();
  metrics->add(Metric::queue_entries_dropped,
               {"a\"\n} 7\nmycojobs_claims_total 9 \xff\xc3\xa4" + std::string(500, 'x')});
  const std::string text = metrics->render();
  EXPECT_THAT(text, Not(HasSubstr("\nmycojobs_claims_total 9")));
  EXPECT_THAT(text, Not(HasSubstr(std::string(100, 'x'))));
  for (const char c : text) ASSERT_TRUE(c == '\n' || (c >= ' ' && c <= '~'));
}

TEST(Metrics, SeriesOverTheLimitCountAsOther) {
  const auto metrics = Metrics::make();
  for (Id context = 1; context <= Metrics::kMaxSeries + 5; ++context) {
    metrics->add(Metric::renewals, {context});
    metrics->observe(Metric::pickup_time, {context}, 1);
  }
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_lease_renewals_total{context="1"})"), 1);
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_lease_renewals_total{context="other"})"), 5);
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_pickup_seconds_count{context="other"})"), 5);
  EXPECT_EQ(read_series_value(*metrics, "mycojobs_metrics_folded_total"), 10);
}

TEST(Metrics, RemovedSeriesCanBeSetAgain) {
  const auto metrics = Metrics::make();
  metrics->set(Metric::queue_jobs, {Id{1}, "python"}, 4);
  metrics->set(Metric::queue_jobs, {Id{11}, "python"}, 5);
  metrics->remove_series(Metric::queue_jobs, {Id{1}});
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_queue_jobs{context="1",queue="python"})"), -1);
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_queue_jobs{context="11",queue="python"})"), 5);
  metrics->set(Metric::queue_jobs, {Id{1}, "python"}, 6);
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_queue_jobs{context="1",queue="python"})"), 6);
}

TEST(Metrics, ConcurrentUpdatesAreNotLost) {
  const auto metrics = Metrics::make();
  constexpr int kThreads = 4, kRounds = 2000;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        metrics->add(Metric::claims, {static_cast<Id>(i % 50), "python"});
        metrics->observe(Metric::store_calls, {"claim"}, 0.001);
        metrics->set(Metric::queue_jobs, {static_cast<Id>(i % 50), "python"}, i);
        if (i % 100 == 0) metrics->remove_series(Metric::queue_jobs, {static_cast<Id>(i % 50)});
        EXPECT_TRUE(i % 500 != 0 || !metrics->render().empty());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  double claims = 0;
  for (Id context = 0; context < 50; ++context)
    claims += read_series_value(
        *metrics, "mycojobs_claims_total{context=\"" + std::to_string(context) + "\",script_type=\"python\"}");
  EXPECT_EQ(claims, kThreads * kRounds);
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_store_call_seconds_count{call="claim"})"), kThreads * kRounds);
}

TEST(Metrics, ReportProcessUsage) {
  const auto metrics = Metrics::make();
  const double cpu_s_before = read_series_value(*metrics, "process_cpu_seconds_total");
  EXPECT_GE(cpu_s_before, 0);
  volatile double work_result = 0;
  while (read_series_value(*metrics, "process_cpu_seconds_total") <= cpu_s_before) {
    for (int i = 0; i < 100000; ++i) work_result = work_result + i;
  }
  const auto now = static_cast<double>(::time(nullptr));
  EXPECT_NEAR(read_series_value(*metrics, "process_start_time_seconds"), now, 3600 * 24);
  EXPECT_LE(read_series_value(*metrics, "process_start_time_seconds"), now + 1);
  EXPECT_GT(read_series_value(*metrics, "process_resident_memory_bytes"), 1e6);
  EXPECT_GE(read_series_value(*metrics, "process_open_fds"), 3);
}

// Tests of counters that are derived from replies of the store.

ClaimedJob make_claimed_job(Fields record, std::uint32_t attempt = 1, std::uint32_t deliveries = 1) {
  ClaimedJob job;
  job.ref = {1, "job:1:1", "id", "token", "python"};
  job.attempt = attempt;
  job.deliveries = deliveries;
  job.record = std::move(record);
  return job;
}

TEST(Counts, PickupCountsFirstClaimsFromTheirDueTime) {
  const auto metrics = Metrics::make();
  ClaimReply reply;
  reply.jobs = {
      make_claimed_job({{"queued_ms", "1000"}, {"started_ms", "1500"}}),
      make_claimed_job({{"queued_ms", "1000"}, {"run_at_ms", "9000"}, {"started_ms", "9250"}}),
      // The second attempt: the pause before a retry is not pickup time.
      make_claimed_job({{"queued_ms", "1000"}, {"started_ms", "99000"}}, 2),
      // The second delivery: the time lost with another agent is not pickup time.
      make_claimed_job({{"queued_ms", "1000"}, {"started_ms", "99000"}}, 1, 2),
      make_claimed_job({{"started_ms", "99000"}}),                          // Clients may omit queued_ms.
      make_claimed_job({{"queued_ms", "99000"}, {"started_ms", "1000"}})};  // The clock of Redis was set back.
  reply.skipped_entries = 3;
  count_claims(*metrics, 1, reply);
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_claims_total{context="1",script_type="python"})"), 6);
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_pickup_seconds_count{context="1"})"), 2);
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_pickup_seconds_sum{context="1"})"), 0.75);
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_queue_entries_dropped_total{context="1"})"), 3);
}

EndReport make_end_report(JobStatus status, const std::string& detail, bool is_retried = false) {
  EndReport report;
  report.claim = {1, "job:1:1", "id", "token", "python"};
  report.end.status = status;
  report.end.detail = detail;
  if (is_retried) report.retry_after_ms = 5;
  return report;
}

TEST(Counts, RetriedAttemptIsNotAnEnd) {
  const auto metrics = Metrics::make();
  const std::vector<Report> reports{make_end_report(JobStatus::finished, "ok"),
                                    make_end_report(JobStatus::error, "timeout", true),
                                    make_end_report(JobStatus::error, "what somebody's plugin made up"),
                                    make_end_report(JobStatus::finished, "ok"),
                                    Release{{1, "job:1:1", "id", "token", "python"}, "lost", true},
                                    LogAppend{}};
  const std::vector<Result<void>> answers{{}, {}, {}, fail(Code::stale_claim, "x"), {}, {}};
  count_reports(*metrics, 1, reports, answers);
  const auto read_end_count = [&](const std::string& name, const std::string& status, const std::string& detail) {
    return read_series_value(
        *metrics, name + R"({context="1",detail=")" + detail + R"(",script_type="python",status=")" + status + "\"}");
  };
  EXPECT_EQ(read_end_count("mycojobs_job_ends_total", "finished", "ok"), 1) << metrics->render();
  EXPECT_EQ(read_end_count("mycojobs_attempts_total", "error", "timeout"), 1);
  EXPECT_EQ(read_end_count("mycojobs_job_ends_total", "error", "timeout"), -1);
  EXPECT_EQ(read_end_count("mycojobs_job_ends_total", "error", "other"), 1) << "unknown details are counted as other";
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_stale_writes_total{context="1",operation="report"})"), 1);
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_releases_total{context="1",started="true"})"), 1);
}

TEST(Metrics, OneSeriesOfAContextCanBeRemoved) {
  const auto metrics = Metrics::make();
  for (const char* queue : {"python", "python3"}) metrics->set(Metric::queue_oldest, {Id{1}, queue}, 4);
  metrics->remove_series(Metric::queue_oldest, {Id{1}, "python"});
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_queue_oldest_seconds{context="1",queue="python"})"), -1);
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_queue_oldest_seconds{context="1",queue="python3"})"), 4);
}

TEST(Counts, QueueAndTypeLabelsAreAClosedList) {
  const TypeNames served{"ours", "Any \"text\""};
  EXPECT_EQ(queue_label("queue:python", kNoTypeNames), "python");
  EXPECT_EQ(queue_label("queue:ours", served), "ours");
  EXPECT_EQ(queue_label("queue:ours", kNoTypeNames), "other") << "no agent serves the queue";
  EXPECT_EQ(queue_label("mj:queue:runner4711", kNoTypeNames), "runner");
  EXPECT_EQ(queue_label("mj:queue:router", kNoTypeNames), "router");
  EXPECT_EQ(queue_label("mj:queue:router:there.example:9652", kNoTypeNames), "router");
  EXPECT_EQ(queue_label("queue:Any \"text\"", served), "other");
  EXPECT_EQ(job_type_label("queue:python", {{"script_type", "else"}}, kNoTypeNames), "python");
  EXPECT_EQ(job_type_label("mj:queue:runner1", {{"script_type", "v"}}, kNoTypeNames), "v");
  EXPECT_EQ(job_type_label("mj:queue:runner1", {{"script_type", "zz0"}}, served), "other");
  EXPECT_EQ(job_type_label("mj:queue:runner1", {{"script_type", "ours"}}, served), "ours");
  EXPECT_EQ(job_type_label("mj:queue:runner1", {}, served), "other");
}

// Unknown script types share one series for each context.
TEST(Counts, UserInputIsNotALabel) {
  const auto metrics = Metrics::make();
  std::vector<Job> jobs(1200);
  NewJobs new_jobs;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].context_id = 3;
    jobs[i].script_type = "zz" + std::to_string(i);
  }
  jobs[7].script_type = "python";
  jobs[8].script_type = "ours";
  new_jobs.jobs = jobs;
  new_jobs.existed.assign(jobs.size(), false);
  count_submitted(*metrics, jobs, new_jobs, {"ours"});
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_jobs_submitted_total{context="3",script_type="other"})"), 1198);
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_jobs_submitted_total{context="3",script_type="python"})"), 1);
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_jobs_submitted_total{context="3",script_type="ours"})"), 1);
  EXPECT_EQ(read_series_value(*metrics, "mycojobs_metrics_folded_total"), 0);
}

TEST(Counts, SeriesUsedByRulesStartAtZero) {
  const auto metrics = Metrics::make();
  const std::vector<std::string> types{"python"};
  initialize_series(*metrics, 1, types);
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_stale_writes_total{context="1",operation="report"})"), 0);
  EXPECT_EQ(read_series_value(*metrics, R"(mycojobs_releases_total{context="1",started="true"})"), 0);
  EXPECT_EQ(
      read_series_value(
          *metrics, R"(mycojobs_attempts_total{context="1",detail="setup_error",script_type="python",status="error"})"),
      0);
  const auto read_end_count = [&](const std::string& status, const std::string& detail) {
    return read_series_value(*metrics, R"(mycojobs_job_ends_total{context="1",detail=")" + detail +
                                           R"(",script_type="python",status=")" + status + "\"}");
  };
  EXPECT_EQ(read_end_count("finished", "ok"), 0)
      << "a series must start at 0, otherwise rate() misses its first increment";
  for (const char* detail : {"exit", "exception", "timeout", "oom", "cancelled", "lost"})
    EXPECT_EQ(read_end_count("error", detail), 0) << detail;
}

// Tests of the table of metrics and its documentation.

std::string get_base_name(std::string name) {
  for (const std::string_view suffix : {"_bucket", "_sum", "_count"}) {
    if (name.ends_with(suffix)) name.resize(name.size() - suffix.size());
  }
  return name;
}
std::set<std::string> find_metric_names(const std::string& text) {
  const std::regex name("(mycojobs|process)_[a-z_]+");
  std::set<std::string> names;
  for (std::sregex_iterator match(text.begin(), text.end(), name), end; match != end; ++match)
    names.insert(get_base_name(match->str()));
  return names;
}
std::set<std::string> list_metric_names() {
  std::set<std::string> names;
  for (const MetricRow& row : metric_rows()) names.emplace(row.name);
  return names;
}

TEST(MetricTable, FollowsTheConventionsOfPrometheus) {
  std::size_t index = 0;
  for (const MetricRow& row : metric_rows()) {
    EXPECT_EQ(static_cast<std::size_t>(row.metric), index++) << row.name << " is not at the position of its enum value";
    EXPECT_EQ(row.name.ends_with("_total"), row.kind == MetricKind::counter) << row.name;
    EXPECT_EQ(row.buckets.empty(), row.kind != MetricKind::histogram) << row.name;
    EXPECT_TRUE(row.kind != MetricKind::histogram || row.name.ends_with("_seconds")) << row.name;
    EXPECT_TRUE(std::is_sorted(row.buckets.begin(), row.buckets.end())) << row.name;
    EXPECT_THAT(std::string(row.process_kind), testing::AnyOf("agent", "coordinator", "both")) << row.name;
    for (const char* id : {"job", "flow", "caller", "actor", "runner", "host", "id", "key", "name"})
      EXPECT_EQ((' ' + std::string(row.label_names) + ' ').find(' ' + std::string(id) + ' '), std::string::npos)
          << row.name;
  }
  EXPECT_EQ(list_metric_names().size(), kMetricCount) << "a name is listed twice";
}

TEST(MetricTable, MatchesTheReadme) {
  const std::string readme = read_file("docs/metrics/README.md");
  for (const MetricRow& row : metric_rows()) {
    const std::string expected_row = "| `" + std::string(row.name) + "` | " + std::string(to_string(row.kind)) + " | " +
                                     std::string(row.label_names) + " | " + std::string(row.help) + " |\n";
    EXPECT_THAT(readme, HasSubstr(expected_row)) << "missing or different";
  }
  for (const std::string& name : find_metric_names(readme)) EXPECT_TRUE(list_metric_names().contains(name)) << name;
}

TEST(MetricTable, ContainsTheMetricsOfDashboardAndRules) {
  const std::string dashboard = read_file("docs/metrics/dashboard.json");
  const auto json = nlohmann::json::parse(dashboard, nullptr, false);
  ASSERT_TRUE(json.is_object());
  std::string expressions = read_file("docs/metrics/alerts.yaml");
  ASSERT_GT(json["panels"].size(), 10U);
  for (const auto& panel : json["panels"]) {
    for (const auto& target : panel["targets"]) expressions += target["expr"].get<std::string>() + '\n';
  }
  const auto names = find_metric_names(expressions);
  EXPECT_GT(names.size(), 25U);
  for (const std::string& name : names)
    EXPECT_TRUE(list_metric_names().contains(name)) << name << " is queried but does not exist";
}

}  // namespace
}  // namespace mycojobs
