#include "store/checks/sentinel_overview.h"

#include <utility>

#include "base/parse.h"
#include "model/codec.h"
#include "store/redis/redis_connection.h"

namespace mycojobs {
namespace {

constexpr std::uint32_t kOverviewTimeoutMs = 2000;

class OverviewLoader {
 public:
  OverviewLoader(const RedisEndpoint& endpoint, std::shared_ptr<TlsContext> tls, const SentinelSettings& settings)
      : endpoint_(endpoint), tls_(std::move(tls)), group_(SentinelGroup::find(endpoint, tls_, settings)) {
    settings_ = settings;
    overview_.master_name = endpoint.master_name;
  }

  SentinelOverview load() {
    for (std::size_t i = 0; i < endpoint_.sentinels.size(); ++i) load_sentinel(i);
    load_master();
    for (auto& [replica, address] : replicas_) {
      load_replica(replica, address);
      overview_.replicas.push_back(std::move(replica));
    }
    return std::move(overview_);
  }

 private:
  void load_sentinel(std::size_t index) {
    SentinelOverview::Sentinel& sentinel = overview_.sentinels.emplace_back();
    sentinel.address = endpoint_.sentinels[index].text();
    const auto connection = group_->open_sentinel(index, kOverviewTimeoutMs);
    if (!connection) {
      sentinel.problem = connection.error().message;
      return;
    }
    const auto master = group_->ask_master(**connection);
    if (!master) {
      sentinel.problem = master.error().message;
      return;
    }
    sentinel.master = master->text();
    const auto quorum = (*connection)->command(Arguments{"SENTINEL", "CKQUORUM"}.add(endpoint_.master_name));
    if (!quorum) sentinel.quorum_problem = quorum.error().message;
    if (overview_.quorum == 0) load_group(**connection);
  }

  // Reads the quorum and the replicas that a sentinel knows.
  void load_group(RedisConnection& sentinel) {
    const auto state = sentinel.command(Arguments{"SENTINEL", "MASTER"}.add(endpoint_.master_name));
    if (!state) return;
    (void)parse_u64(field_of(state->fields(), "quorum"), overview_.quorum);
    const auto replicas = sentinel.command(Arguments{"SENTINEL", "REPLICAS"}.add(endpoint_.master_name));
    for (std::size_t i = 0; replicas && i < replicas->size(); ++i) {
      const Fields fields = replicas->at(i).fields();
      auto address = parse_redis_address(field_of(fields, "ip"), field_of(fields, "port"));
      if (!address) continue;
      SentinelOverview::Replica replica{address->text(), "", ""};
      const std::string_view flags = field_of(fields, "flags");
      if (flags.find("s_down") != std::string_view::npos || flags.find("disconnected") != std::string_view::npos) {
        replica.problem = "does not answer";
      } else if (field_of(fields, "master-link-status") != "ok") {
        replica.problem = "has no link to the master";
      }
      replicas_.emplace_back(std::move(replica), *std::move(address));
    }
  }

  RedisConnection::Options options() const {
    RedisConnection::Options out;
    out.endpoint = endpoint_;
    out.tls = tls_;
    out.sentinel = settings_;
    out.connect_timeout_ms = out.command_timeout_ms = kOverviewTimeoutMs;
    return out;
  }

  void load_master() {
    RedisConnection master(options());
    const auto info = master.command({"INFO", "replication"});
    if (!info) return;
    overview_.master = master.server().address().text();
    overview_.replication_id = parse_replication_state(info->text()).replication_id;
    const auto setting = master.command({"CONFIG", "GET", "min-replicas-to-write"});
    if (setting && setting->size() == 2) overview_.min_replicas = setting->at(1).number();
  }

  void load_replica(SentinelOverview::Replica& replica, const RedisAddress& address) const {
    if (!replica.problem.empty()) return;
    RedisConnection::Options replica_options = options();
    replica_options.endpoint = endpoint_.with_address(address);
    RedisConnection connection(std::move(replica_options));
    const auto info = connection.command({"INFO", "replication"});
    if (info) {
      replica.replication_id = parse_replication_state(info->text()).replication_id;
    } else {
      replica.problem = info.error().message;
    }
  }

  const RedisEndpoint endpoint_;
  const std::shared_ptr<TlsContext> tls_;
  SentinelSettings settings_;
  std::shared_ptr<SentinelGroup> group_;
  SentinelOverview overview_;
  std::vector<std::pair<SentinelOverview::Replica, RedisAddress>> replicas_;
};

}  // namespace

Result<std::optional<SentinelOverview>> load_sentinel_overview(const std::string& url,
                                                               const std::shared_ptr<TlsContext>& tls,
                                                               const SentinelSettings& settings) {
  MJ_TRY(endpoint, parse_redis_url(url));
  if (!endpoint.uses_sentinels()) return std::nullopt;
  return OverviewLoader(endpoint, tls, settings).load();
}

}  // namespace mycojobs
