#include "chaos/client.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "store/redis/redis_connection.h"

namespace mycojobs::test {
namespace {

constexpr const char* kQueue = "queue:python";
// A queue entry waits two seconds for its record. After a longer submission, the client must check that the entry
// exists.
constexpr std::int64_t kMaxSubmitUs = 1'000'000;

std::vector<std::string> encode_record(const PlannedJob& job) {
  std::vector<std::string> words{"HSET",        job.key(),
                                 "id",          std::to_string(job.name.id),
                                 "caller_id",   std::to_string(job.caller),
                                 "context_id",  std::to_string(job.name.context),
                                 "name",        job.kind->name,
                                 "script",      make_script(*job.kind),
                                 "script_type", "python",
                                 "status",      "dispatched",
                                 "timeout",     "60"};
  for (const auto& [field, value] : job.kind->fields) {
    words.push_back(field);
    words.push_back(value);
  }
  if (job.run_at_ms != 0) words.insert(words.end(), {"run_at_ms", std::to_string(job.run_at_ms)});
  if (!job.dependends.empty()) {
    words.insert(words.end(), {"dependends", nlohmann::json(job.dependends).dump()});
  }
  return words;
}

// Quotes the words for the standard input of redis-cli.
std::string quote_words(const std::vector<std::string>& words) {
  std::string line;
  for (const auto& word : words) {
    line += nlohmann::json(word).dump() + " ";
  }
  return line + "\n";
}

}  // namespace

std::optional<Reply> PlainRedis::command(int context, const std::vector<std::string>& words) {
  auto& connection = connections_[context];
  if (!connection) {
    RedisConnection::Options options;
    options.endpoint = *parse_redis_url(url_);
    options.database = static_cast<std::uint32_t>(context);
    options.connect_timeout_ms = options.command_timeout_ms = timeout_ms_;
    connection = std::make_unique<RedisConnection>(options);
  }
  Arguments arguments;
  for (const auto& word : words) arguments.add(word);
  auto reply = connection->command(arguments);
  if (!reply) return std::nullopt;
  return *reply;
}

void Client::submit(PlannedJob& job) {
  const std::int64_t began_us = boot_time_us();
  if (job.kind->delayed && job.run_at_ms == 0) {
    const auto now = plain_redis_.command(job.name.context, {"TIME"});
    if (!now) return;
    job.run_at_ms = now->at(0).number() * 1000 + 1500;
  }
  const bool is_repeated = job.attempted;
  job.attempted = true;
  bool is_stored = false;
  if (job.method == SubmitMethod::job_submit) {
    is_stored = submit_by_program(job);
  } else if (is_repeated) {
    is_stored = complete_submission(job);
  } else if (job.method == SubmitMethod::transaction) {
    is_stored = submit_in_transaction(job);
  } else if (job.method == SubmitMethod::redis_cli) {
    is_stored = submit_by_cli(job);
  } else {
    is_stored = submit_in_steps(job);
  }
  const bool is_slow =
      job.method != SubmitMethod::job_submit && !is_repeated && boot_time_us() - began_us > kMaxSubmitUs;
  job.acknowledged = is_stored && !is_slow;
  if (job.acknowledged) job.acknowledged_us = boot_time_us();
}

bool Client::submit_in_transaction(const PlannedJob& job) {
  const int context = job.name.context;
  const bool queued = plain_redis_.command(context, {"MULTI"}) && plain_redis_.command(context, encode_record(job)) &&
                      plain_redis_.command(context, {"LPUSH", kQueue, job.key()});
  const auto exec = queued ? plain_redis_.command(context, {"EXEC"}) : std::nullopt;
  if (!queued)
    plain_redis_.command(context, {"DISCARD"});  // a command was refused, but the connection is still in MULTI
  return exec && exec->size() == 2;
}

bool Client::submit_in_steps(const PlannedJob& job) {
  const std::vector<std::string> push{"LPUSH", kQueue, job.key()};
  const bool record_first = job.method == SubmitMethod::record_first;
  return plain_redis_.command(job.name.context, record_first ? encode_record(job) : push) &&
         plain_redis_.command(job.name.context, record_first ? push : encode_record(job));
}

bool Client::submit_by_cli(const PlannedJob& job) {
  const std::string socket = redis_.url().substr(std::string("unix://").size());
  Process cli(folder_, {"redis-cli", "-s", socket, "-n", std::to_string(job.name.context)}, {},
              quote_words(encode_record(job)) + quote_words({"LPUSH", kQueue, job.key()}));
  const ProcessResult finished = cli.wait(Seconds(1));
  return finished.code == 0 && finished.out.find_first_not_of("0123456789\n") == std::string::npos &&
         std::count(finished.out.begin(), finished.out.end(), '\n') == 2;
}

bool Client::submit_by_program(PlannedJob& job) {
  // `job submit` is atomic, and with the same idempotency key it returns the first job again.
  std::vector<std::string> argv{program_path(),
                                "job",
                                "submit",
                                "-",
                                "--type",
                                "python",
                                "--json",
                                "--redis",
                                redis_.url(),
                                "--context",
                                std::to_string(job.name.context),
                                "--caller",
                                std::to_string(job.caller),
                                "--name",
                                job.kind->name,
                                "--idempotency-key",
                                job.token};
  Process submit(folder_, argv, {}, make_script(*job.kind));
  const ProcessResult finished = submit.wait(Seconds(2));
  const auto output = nlohmann::json::parse(finished.out, nullptr, false);
  if (finished.code != 0 || !output.is_object() || !output.contains("id")) return false;
  job.name.id = output["id"].get<std::uint32_t>();
  return true;
}

bool Client::complete_submission(const PlannedJob& job) {
  const int context = job.name.context;
  const auto record = plain_redis_.command(context, {"EXISTS", job.key()});
  if (!record) return false;
  if (record->number() == 0 && !plain_redis_.command(context, encode_record(job))) return false;
  const auto listed = plain_redis_.command(context, {"LPOS", kQueue, job.key()});
  const auto claim = plain_redis_.command(context, {"EXISTS", "mj:claim:" + job.key()});
  if (!listed || !claim) return false;
  // The entry may be pushed a second time, which must not run the job twice.
  return !listed->is_nil() || claim->number() == 1 || plain_redis_.command(context, {"LPUSH", kQueue, job.key()});
}

std::optional<bool> Client::has_record(const PlannedJob& job) {
  const auto exists = plain_redis_.command(job.name.context, {"EXISTS", job.key()});
  if (!exists) return std::nullopt;
  return exists->number() == 1;
}

void Client::cancel(const PlannedJob& job) {
  Process(folder_, {program_path(), "job", "cancel", job.key(), "--redis", redis_.url(), "--context",
                    std::to_string(job.name.context)})
      .wait(Seconds(2));
}

}  // namespace mycojobs::test
