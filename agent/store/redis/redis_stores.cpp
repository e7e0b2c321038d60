#include "store/redis/redis_stores.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "model/codec.h"
#include "store/keys.h"
#include "store/redis/forbidden_commands.h"
#include "store/redis/format_version.h"
#include "store/redis/hint_subscriptions.h"
#include "store/redis/redis_flows.h"
#include "store/redis/redis_waiter.h"
#include "text/plural.h"

namespace mycojobs {
namespace {

// Rewrites the append-only file after a start. If the file was truncated within a step, Redis (7.0) keeps the first
// half of the step in the file, and executes it together with the following step at its next start. A rewritten file
// does not contain it.
void seal_append_only_file(RedisConnection& link) {
  auto info = link.command({"INFO", "persistence"});
  if (!info) return;
  const auto has_line = [&](std::string_view line) { return info->text().find(line) != std::string_view::npos; };
  if (!has_line("aof_enabled:1") || !has_line("aof_rewrites:0\r") || has_line("aof_rewrite_in_progress:1")) return;
  auto start_result = link.command({"BGREWRITEAOF"});
  if (start_result) return;
  const std::string& message = start_result.error().message;
  if (is_forbidden_command(message)) {
    note_forbidden_command(link.options().endpoint.redacted_url(), "BGREWRITEAOF", message);
  } else {
    log(LogLevel::debug, "store", "BGREWRITEAOF: {}", message);
  }
}

// Prepares a database once for each start of its server. A database with a newer format or of another context is
// rejected before any write. After a restart of the server, each live claim gets a lease of full length, and lost facts
// are recorded as an anomaly.
Result<void> prepare_context(Id context, JournalHeads& heads, LogLevel restart_level, RedisConnection& link) {
  if (auto agreed = agree_on_format(context, link, link.options().database); !agreed) {
    Error error = std::move(agreed).error();
    if (error.code == Code::denied)
      error.message +=
          fmt::format(" (database {} of Redis at {})", link.options().database, link.options().endpoint.redacted_url());
    return tl::unexpected<Error>(std::move(error));
  }
  if (link.server_run_id().empty()) return {};  // without INFO, a restart is not noticed
  MJ_TRY(reply, link.run(scripts::grant, Arguments{link.server_run_id()}));
  if (reply.at(0).number() > 0) {
    log(restart_level, "store", "context {}: Redis was restarted; {} received a new lease", context,
        count_with_noun(static_cast<std::uint64_t>(reply.at(0).number()), "live claim"));
  }
  if (reply.at(1).number() == 1) seal_append_only_file(link);
  const std::string lost_queues = heads.find_lost_queues(context, link.server_run_id(), reply.at(2).fields());
  if (lost_queues.empty()) return {};
  const std::string text = "Redis was started without the end of its data: " + lost_queues +
                           "; the latest acknowledged writes are lost, and their jobs may run again: after their ends, "
                           "repair the rest with `mycojobs doctor --rebuild`";
  log(LogLevel::error, "store", "context {}: {}", context, text);
  (void)link.command({"XADD", kAnomaliesKey, "MAXLEN", "~", "10000", "*", "text", text});
  return {};
}

class RedisStores final : public StoreFactory {
 public:
  explicit RedisStores(RedisStoreConfig config) : config_(std::move(config)) {}

  // Error: invalid (a URL).
  Result<std::unique_ptr<Store>> open() override {
    MJ_CHECK(connection_options(config_, 0));
    for (const auto& own_url : config_.context_urls) MJ_CHECK(connection_options(config_, own_url.first));
    return std::make_unique<Store>(config_);
  }
  Result<std::unique_ptr<Store>> open_reader() override {
    MJ_CHECK(open());
    RedisStoreConfig config = config_;
    config.connect_timeout_ms = std::min(config.connect_timeout_ms, config.reader_timeout_ms);
    config.command_timeout_ms = std::min(config.command_timeout_ms, config.reader_timeout_ms);
    return std::make_unique<Store>(config);
  }
  Result<std::unique_ptr<Waiter>> open_waiter(const std::vector<std::pair<Id, std::string>>& queues,
                                              const std::string& topic) override {
    return RedisWaiter::open(config_, queues, topic);
  }
  Result<std::unique_ptr<HintSubscription>> subscribe(Id context, const HintTopics& topics,
                                                      HintListener& listener) override {
    MJ_TRY(options, connection_options(config_, context));
    return subscriptions_.subscribe(std::move(options), topics, listener);
  }
  Result<std::unique_ptr<HintSubscription>> subscribe_transfers(Id context, const std::vector<std::string>& channels,
                                                                HintListener& listener) override {
    MJ_TRY(options, connection_options(config_, context));
    return transfer_subscriptions_.subscribe(std::move(options), {channels, {}}, listener);
  }
  std::string server_name(Id context) const override {
    const auto options = connection_options(config_, context);
    return options ? options->endpoint.redacted_url() : "";
  }
  Result<std::unique_ptr<ObjectStore>> open_objects() override { return std::make_unique<ObjectStore>(open_links()); }
  Result<std::unique_ptr<FlowStore>> open_flows() override {
    return make_redis_flows(link_opener(config_), config_.instrumentation);
  }
  Result<std::unique_ptr<WorkflowStore>> open_workflows() override {
    return std::make_unique<WorkflowStore>(open_links());
  }

 private:
  std::unique_ptr<ContextLinks> open_links() const {
    return std::make_unique<ContextLinks>(link_opener(config_), config_.instrumentation);
  }

  RedisStoreConfig config_;
  HintSubscriptions subscriptions_, transfer_subscriptions_;
};

}  // namespace

Result<RedisConnection::Options> connection_options(const RedisStoreConfig& config, Id context) {
  const bool has_own_url = config.context_urls.contains(context);
  if (!has_own_url) MJ_CHECK(parse_shared_redis_url(config.default_url));
  MJ_TRY(endpoint, find_context_endpoint(config.default_url, config.context_urls, context));
  RedisConnection::Options options;
  options.database = *std::exchange(endpoint.database, std::nullopt);  // contexts on a server have equal endpoints
  options.endpoint = std::move(endpoint);
  const auto own_tls = config.context_tls.find(context);
  options.tls = has_own_url && own_tls != config.context_tls.end() ? own_tls->second : config.tls;
  options.sentinel = config.sentinel;
  options.client_name = config.client_name;
  options.connect_timeout_ms = config.connect_timeout_ms;
  options.command_timeout_ms = config.command_timeout_ms;
  return options;
}

OpenLink link_opener(const RedisStoreConfig& config) {
  return [config](Id context) -> Result<std::unique_ptr<Link>> {
    MJ_TRY(options, connection_options(config, context));
    PrepareContext prepare;
    if (context != 0) {
      const LogLevel restart_level = config.is_intermittent ? LogLevel::info : LogLevel::warn;
      prepare = [context, restart_level, heads = config.journal_heads](RedisConnection& connection) {
        return prepare_context(context, *heads, restart_level, connection);
      };
    }
    auto pool = config.pools->find_or_create(options, config.instrumentation.metrics);
    return make_pooled_link(std::move(pool), context, options, std::move(prepare));
  };
}

void JournalHeads::observe_head(Id context, const std::string& queue, std::uint64_t head) {
  const std::lock_guard lock(mutex_);
  std::uint64_t& latest_head = observed_by_context_[context].heads[queue];
  latest_head = std::max(latest_head, head);
}

std::string JournalHeads::find_lost_queues(Id context, const std::string& server_run_id, const Fields& heads_at_start) {
  const std::lock_guard lock(mutex_);
  ObservedHeads& observed = observed_by_context_[context];
  if (observed.server_run_id == server_run_id) return {};
  observed.server_run_id = server_run_id;
  std::string lost_queues;
  for (const auto& [queue, head] : observed.heads) {
    const std::uint64_t at_start = number_of(heads_at_start, queue);
    if (at_start >= head) continue;
    lost_queues += (lost_queues.empty() ? "" : ", ") + queue + " is at revision " + std::to_string(at_start) +
                   ", and was seen at " + std::to_string(head);
  }
  observed.heads.clear();
  return lost_queues;
}

std::unique_ptr<StoreFactory> make_redis_stores(RedisStoreConfig config) {
  return std::make_unique<RedisStores>(std::move(config));
}

}  // namespace mycojobs
