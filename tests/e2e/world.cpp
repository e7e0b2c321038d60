#include "e2e/world.h"
#include "support/build_paths.h"

#include <csignal>
#include <cstdlib>
#include <regex>

namespace mycojobs::test {

std::string program_path() { return mj::test::program_path("mycojobs"); }

RedisServer::RedisServer(const TempDir& folder, std::vector<std::string> extra_options)
    : folder_(folder), socket_(folder / "redis.sock"), extra_options_(std::move(extra_options)) {
  start();
}

void RedisServer::start() {
  const char* program = std::getenv("MYCOJOBS_TEST_REDIS_SERVER");
  std::vector<std::string> argv{program == nullptr ? "redis-server" : program,
                                "--port",
                                "0",
                                "--unixsocket",
                                socket_,
                                "--dir",
                                folder_.path().string(),
                                "--appendonly",
                                "yes",
                                "--save",
                                "",
                                "--maxmemory-policy",
                                "noeviction",
                                "--databases",
                                "16"};
  argv.insert(argv.end(), extra_options_.begin(), extra_options_.end());
  server_.emplace_back(folder_, argv);
  ASSERT_TRUE(eventually([&] { return cli(0, {"PING"}) == "PONG" || cli(0, {"PING"}).starts_with("NOAUTH"); }))
      << server_.back().out();
}

void RedisServer::kill() {
  server_.back().signal(SIGKILL);
  server_.back().wait();
}

std::string RedisServer::cli(int database, std::vector<std::string> words, std::string input) const {
  std::vector<std::string> argv{"redis-cli", "-s", socket_, "-n", std::to_string(database)};
  argv.insert(argv.end(), words.begin(), words.end());
  std::string out = run(folder_, argv, {}, std::move(input)).out;
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

void submit(const RedisServer& redis, const PlainJob& job) {
  std::vector<std::string> words{"HSET",        job.key(),
                                 "id",          std::to_string(job.id),
                                 "caller_id",   std::to_string(job.caller),
                                 "context_id",  std::to_string(job.context),
                                 "script",      job.script,
                                 "script_type", job.type,
                                 "timeout",     job.timeout,
                                 "status",      "dispatched"};
  words.insert(words.end(), job.extra_fields.begin(), job.extra_fields.end());
  redis.cli(job.context, words);
  redis.cli(job.context, {"LPUSH", "queue:" + job.type, job.key()});
}

std::string read_field(const RedisServer& redis, const PlainJob& job, const std::string& name) {
  return redis.cli(job.context, {"HGET", job.key(), name});
}

bool has_ended(const RedisServer& redis, const PlainJob& job) {
  const std::string status = read_field(redis, job, "status");
  return status == "finished" || status == "error";
}

std::string wait_for_status(const RedisServer& redis, const PlainJob& job, Seconds limit) {
  eventually([&] { return has_ended(redis, job); }, limit);
  return read_field(redis, job, "status");
}

std::string read_job_log(const TempDir& folder, const RedisServer& redis, const PlainJob& job) {
  return run(folder, {program_path(), "job", "logs", job.key(), "--redis", redis.url(), "--context",
                      std::to_string(job.context)})
      .out;
}

std::uint64_t sum_output_gaps(const std::string& text) {
  const std::regex gap(R"((\d+) bytes of output dropped here)");
  std::uint64_t bytes = 0;
  for (auto it = std::sregex_iterator(text.begin(), text.end(), gap); it != std::sregex_iterator(); ++it)
    bytes += std::stoull((*it)[1]);
  return bytes;
}

Process start_agent(const TempDir& folder, const RedisServer& redis, int runner,
                    std::vector<std::string> extra_options) {
  std::vector<std::string> argv{program_path(),         "agent",   "--redis", redis.url(),   "--runner",
                                std::to_string(runner), "--slots", "2",       "--state-dir", folder / "state"};
  argv.insert(argv.end(), extra_options.begin(), extra_options.end());
  return Process(folder, argv);
}

bool wait_until_registered(const RedisServer& redis, int runner, int context) {
  return eventually([&] {
    return redis.cli(context, {"HGET", "runner:" + std::to_string(runner), "detail"}) == "running";
  });
}

}  // namespace mycojobs::test
