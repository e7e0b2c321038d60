#include "store_contract.h"

#include <poll.h>
#include <stdlib.h>

#include <array>
#include <cstdlib>
#include <filesystem>

#include "base/clock.h"
#include "model/enums.h"
#include "store/redis/redis_stores.h"
#include "support/redis/memory_server.h"

namespace mycojobs {
namespace {

class RedisBackend final : public StoreBackend {
 public:
  RedisBackend() {
    RedisStoreConfig config;
    config.default_url = TestRedis::instance().url();
    stores_ = make_redis_stores(config);
    redis().run_command(1, {"FLUSHALL"});
  }
  StoreFactory& stores() override { return *stores_; }
  Reply send_unchecked(Id context, const std::vector<std::string>& words) override {
    return redis().send_unchecked(context, words);
  }

 private:
  static TestRedis& redis() { return TestRedis::instance(); }
  std::unique_ptr<StoreFactory> stores_;
};

class MemoryBackend final : public StoreBackend {
 public:
  StoreFactory& stores() override { return server_; }
  Reply send_unchecked(Id context, const std::vector<std::string>& words) override {
    return server_.run_command(context, words);
  }

 private:
  SystemClock clock_;
  MemoryServer server_{clock_};
};

Reply check_reply(Reply reply, const std::vector<std::string>& words) {
  if (reply.is_error()) {
    ADD_FAILURE() << words.front() << ": " << reply.text();
    std::abort();
  }
  return reply;
}

// Returns error replies unchanged, which RedisConnection::command() would convert.
Result<Reply> send_command(RedisConnection& connection, const std::vector<std::string>& words) {
  Arguments arguments;
  for (const std::string& each : words) arguments.add(each);
  MJ_CHECK(connection.connect());
  MJ_CHECK(connection.send(arguments));
  for (;;) {
    MJ_TRY(reply, connection.next_reply());
    if (reply) return *reply;
    pollfd readable{connection.fd(), POLLIN, 0};
    if (::poll(&readable, 1, 60000) != 1) return fail(Code::unavailable, "no answer in a minute");
    MJ_CHECK(connection.read_some());
  }
}

}  // namespace

TempFolder::TempFolder() {
  std::string name = "/tmp/mj-contract-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) std::abort();
  path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

EmbeddedRedis::Options get_test_server_options() {
  EmbeddedRedis::Options options;
  if (const char* program = std::getenv("MYCOJOBS_TEST_REDIS_SERVER")) options.program = program;
  return options;
}

TestRedis::TestRedis() {
  auto redis = EmbeddedRedis::start(folder_.path(), get_test_server_options());
  if (!redis) {
    ADD_FAILURE() << redis.error().message;
    std::abort();
  }
  redis_ = std::move(*redis);
}

TestRedis& TestRedis::instance() {
  static TestRedis redis;
  return redis;
}

std::string TestRedis::url() const { return EmbeddedRedis::url(folder_.path()); }

Reply TestRedis::send_unchecked(Id context, const std::vector<std::string>& words) {
  std::lock_guard lock(mutex_);
  auto found = connections_.find(context);
  if (found == connections_.end()) {
    RedisConnection::Options options;
    options.endpoint = parse_redis_url(url()).value();
    options.database = context;
    found = connections_.try_emplace(context, std::move(options)).first;
  }
  auto reply = send_command(found->second, words);
  if (!reply) {
    ADD_FAILURE() << words.front() << ": " << reply.error().message;
    std::abort();
  }
  return *reply;
}

Reply TestRedis::run_command(Id context, const std::vector<std::string>& words) {
  return check_reply(send_unchecked(context, words), words);
}
Reply StoreBackend::run_command(Id context, const std::vector<std::string>& words) {
  return check_reply(send_unchecked(context, words), words);
}

std::unique_ptr<StoreBackend> make_redis_backend() { return std::make_unique<RedisBackend>(); }
std::unique_ptr<StoreBackend> make_memory_backend() { return std::make_unique<MemoryBackend>(); }

bool eventually(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

void StoreContract::SetUp() {
  backend_ = std::string(GetParam()) == "redis" ? make_redis_backend() : make_memory_backend();
  store_ = backend_->stores().open().value();
}

Job StoreContract::job(Id id, std::string script) {
  Job out;
  out.id = id;
  out.caller_id = 12;
  out.context_id = 1;
  out.script = std::move(script);
  out.script_type = "python";
  return out;
}

ClaimRequest StoreContract::request(std::uint32_t max_jobs, std::uint32_t lease_ms) {
  ClaimRequest out;
  out.context = 1;
  out.runner = 20;
  out.queues = {"queue:python"};
  out.max_jobs = max_jobs;
  out.lease_ms = lease_ms;
  return out;
}

std::vector<ClaimedJob> StoreContract::claim(std::uint32_t max_jobs, std::uint32_t lease_ms) {
  auto reply = store_->claim(request(max_jobs, lease_ms));
  if (!reply) {
    ADD_FAILURE() << reply.error().message;
    return {};
  }
  return std::move(reply->jobs);
}

ClaimedJob StoreContract::claim_one(std::uint32_t lease_ms) {
  auto jobs = claim(1, lease_ms);
  if (jobs.size() == 1) return std::move(jobs[0]);
  ADD_FAILURE() << "nothing to claim";
  return {};
}

Result<void> StoreContract::report(Report report_value) {
  const std::array<Report, 1> one{std::move(report_value)};
  MJ_TRY(answers, store_->report(1, one));
  return answers.at(0);
}

Result<void> StoreContract::end(const ClaimRef& ref, JobEnd how) { return report(EndReport{ref, std::move(how)}); }

JobEnd StoreContract::finished(TextMap result) {
  JobEnd end;
  end.status = JobStatus::finished;
  end.detail = "ok";
  end.result = std::move(result);
  return end;
}

std::string StoreContract::field(const std::string& key, const std::string& name) {
  auto fields = store_->load(1, key);
  if (!fields) return "<" + fields.error().message + ">";
  for (auto& [each, value] : *fields) {
    if (each == name) return value;
  }
  return "";
}

void StoreContract::wait_for_lease_expiry(const ClaimedJob& job) {
  const auto leases = store_->leases(1).value();
  for (const Lease& lease : leases) {
    if (lease.job_key != job.ref.job_key) continue;
    ASSERT_TRUE(eventually([&] { return store_->now_ms().value() > lease.until_ms + 1; }));
  }
}

bool StoreContract::expire(const std::string& job_key) {
  const auto leases = store_->leases(1).value();
  for (const Lease& lease : leases) {
    if (lease.job_key == job_key) return store_->expire(1, lease).value();
  }
  return false;
}

std::string StoreContract::last_dead_reason() {
  const auto letters = store_->dead_letters(1, 1).value();
  return letters.empty() ? "" : letters.back().reason;
}

std::string StoreContract::last_anomaly() {
  const auto lines = store_->anomalies(1, 1).value();
  return lines.empty() ? "" : lines.back();
}

std::string error_code_name(const Error& error) { return std::string(to_string(error.code)); }

}  // namespace mycojobs
