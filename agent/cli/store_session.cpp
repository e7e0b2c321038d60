#include "cli/store_session.h"

#include "base/log.h"
#include "cli/request_arguments.h"
#include "cli/run_service.h"
#include "cli/service_setup.h"
#include "model/codec.h"

namespace mycojobs {

namespace {

// Creates the records of contexts in a new store, so that the first scripts may use the objects of their context.
Result<void> create_context_records(const Settings& settings, StoreFactory& stores) {
  MJ_TRY(store, stores.open());
  for (Id id : settings.contexts) {
    Context context;
    context.id = id;
    MJ_TRY(now_ms, store->now_ms());
    context.admins = {kDefaultCaller};
    context.created_at = context.updated_at = static_cast<std::uint32_t>(now_ms / 1000);
    auto result = store->create_record(id, {"context:", "context", id, encode(context)});
    if (!result) return fail(result.error(), redis_key(context));
  }
  return {};
}

}  // namespace

Result<SessionServices> open_services(const ProgramDependencies& dependencies, const Settings& settings,
                                      bool with_agent) {
  SessionServices services;
  if (!settings.redis.empty()) {
    services.stores = dependencies.make_stores(settings, settings.redis);
    services.logs = std::make_unique<JobLogReader>(*services.stores, dependencies.clock, settings.state_dir);
    return services;
  }
  const std::string url = EmbeddedRedis::url(settings.state_dir);
  auto embedded = EmbeddedRedis::start(settings.state_dir, {.restart_on_exit = true});
  if (!embedded && embedded.error().code != Code::conflict) return fail(embedded.error(), "embedded Redis");
  services.stores = dependencies.make_stores(settings, url);
  services.logs = std::make_unique<JobLogReader>(*services.stores, dependencies.clock, settings.state_dir);
  if (!embedded) return services;
  services.embedded = std::move(*embedded);
  if (auto result = create_context_records(settings, *services.stores); !result) {
    log(LogLevel::warn, "worker", "scripts may not use objects: {}", result.error().message);
  }
  if (with_agent) {
    MJ_TRY(agent, start_agent(dependencies, settings, *services.stores));
    services.agent = std::move(agent);
    MJ_TRY(bucket, make_artifact_bucket(settings));
    MJ_TRY(files,
           make_message_attachments(settings, dependencies.clock, *services.stores, dependencies.metrics, bucket));
    services.files = std::move(files);
    MJ_TRY(coordinator, make_coordinator(dependencies, settings, *services.stores, settings.contexts, services.files));
    MJ_CHECK(coordinator->start_threads());
    services.coordinator = std::move(coordinator);
  }
  return services;
}

Result<StoreSession> open_store(const Invocation& call, bool with_agent) {
  StoreSession session;
  MJ_TRY(services, open_services(call.dependencies, call.settings, with_agent));
  session.services = std::move(services);
  MJ_TRY(store, session.services.stores->open());
  session.store = std::move(store);
  return session;
}

Result<StoreSession> open_store_for_query(const Invocation& call) {
  exit_on_stop_signals();
  return open_store(call, false);
}

void reopen_store(const Invocation& call, StoreSession& session, bool with_agent) {
  if (!call.settings.redis.empty() || session.services.embedded) return;
  auto reopened = open_services(call.dependencies, call.settings, with_agent);
  if (!reopened) return;
  auto store = reopened->stores->open();
  if (!store) return;
  session.store = std::move(*store);
  session.services.logs.reset();  // before the stores that it uses
  session.services = std::move(*reopened);
}

}  // namespace mycojobs
