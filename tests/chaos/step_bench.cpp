#include "chaos/step_bench.h"

#include "inspect/verify/job_verify.h"
#include "store/redis/redis_stores.h"

namespace mycojobs::test {

std::vector<std::string> make_digest_options(std::vector<std::string> more) {
  more.insert(more.end(), {"--enable-debug-command", "local", "--enable-protected-configs", "local",
                           "--auto-aof-rewrite-percentage", "0"});
  return more;
}

std::string read_digest(PlainRedis& redis) {
  const auto reply = redis.command(0, {"DEBUG", "DIGEST"});
  return reply ? std::string(reply->text()) : "";
}

std::string read_info(PlainRedis& redis, const std::string& section, const std::string& field) {
  const auto reply = redis.command(0, {"INFO", section});
  const std::string text(reply ? reply->text() : "");
  const std::size_t at = text.find("\n" + field + ":");
  if (at == std::string::npos) return {};
  const std::size_t begin = at + field.size() + 2;
  return text.substr(begin, text.find('\r', begin) - begin);
}

std::unique_ptr<Store> open_store(const RedisServer& redis) {
  RedisStoreConfig config;
  config.default_url = redis.url();
  auto store = make_redis_stores(config)->open();
  return store ? std::move(*store) : nullptr;
}

std::unique_ptr<WorkflowStore> open_deployments(const RedisServer& redis) {
  RedisStoreConfig config;
  config.default_url = redis.url();
  auto worlds = make_redis_stores(config)->open_workflows();
  return worlds ? std::move(*worlds) : nullptr;
}

std::string find_violations(Store& store, Id context) {
  const auto report = verify(store, context, [](std::string_view, std::uint64_t, std::uint64_t) {});
  if (!report) return report.error().message;
  std::string text;
  for (const auto& finding : report->findings) {
    // An expired lease is found because no agent runs.
    if (finding.violation && finding.rule != "lease-overdue")
      text += finding.rule + " " + finding.subject + ": " + finding.text + "\n";
  }
  return text;
}

}  // namespace mycojobs::test
