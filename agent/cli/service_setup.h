// Creates the services of this process, an agent and a coordinator, from the settings, and checks settings that a
// service would reject at its start.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "api/artifacts/file_listener.h"
#include "cli/config/config.h"
#include "cli/invocation.h"
#include "coordinator/coordinator.h"
#include "net/networks.h"
#include "net/tls.h"
#include "security/secrets.h"
#include "service/upload_service.h"
#include "store/redis/redis_sentinel.h"
#include "worker/agent.h"

namespace mycojobs {

// Returns the folder of secrets of the settings and the credentials folder of the service manager, if it exists.
SecretSources get_secret_sources(const Settings&);

// Returns the credentials for the sentinels of an address redis+sentinel://.
SentinelSettings get_sentinel_settings(const Settings&);

// Calls resolve_owners(), too. Unknown owners of contexts that this host does not serve are not included.
std::vector<RejectedSetting> find_rejected_settings(Settings&);
// Warns of each Redis server whose certificate is not verified.
void log_insecure_redis(const Settings&);
// Returns settings in which the own Redis server of a context is the server of the keys without a context, which
// server_info() queries. REQUIRES: settings.context_redis has the context.
Settings select_context_server(const Settings&, Id context);
// Returns the networks in which supervisors may be called. Errors name the setting.
Result<Networks> parse_coordinator_networks(const Settings&);
Result<void> check_trace_endpoint(const std::string& url);
// Reads the certificate of a server, or returns null if the settings have none. Errors: those of TlsContext::load().
Result<std::shared_ptr<TlsContext>> load_server_tls(const TlsSettings&);

ArtifactCache::Limits make_artifact_cache_limits(const Settings&);
service::UploadLimits make_upload_limits(const Settings&);
// Returns the object storage for artifacts, or null if the settings have none. Errors name the setting.
Result<std::shared_ptr<const ArtifactBucket>> make_artifact_bucket(const Settings&);
// Returns the store and the limits of the files of messages. The references must outlive the result.
Result<MessageAttachments> make_message_attachments(const Settings&, const Clock&, StoreFactory&,
                                                    const std::shared_ptr<Metrics>&,
                                                    std::shared_ptr<const ArtifactBucket>);

// The HTTPS listener for artifacts and its links. Both are null without artifacts.listen.
struct FileServer {
  std::shared_ptr<HeldFileLinks> links;
  std::unique_ptr<api::FileListener> listener;
};
// Starts the listener. Creates its certificate if none is configured. Errors name the setting.
Result<FileServer> start_file_server(const ProgramDependencies&, const Settings&);
// Returns the networks in which artifacts are downloaded over HTTPS. Errors name the setting.
Result<std::shared_ptr<const Networks>> parse_artifact_networks(const Settings&);

// Starts an agent with the sandbox, the working executors and the runner of the settings. should_retry: as in
// Agent::Dependencies. file_links: as in WorkerSettings.
Result<std::unique_ptr<Agent>> start_agent(
    const ProgramDependencies&, Settings, StoreFactory&,
    std::function<bool(const Error&)> should_retry = [](const Error&) { return false; },
    std::shared_ptr<HeldFileLinks> file_links = nullptr);

// Creates a coordinator from the settings; the caller must start its threads. Empty contexts: the coordinator serves
// all contexts that it finds. files: from make_message_attachments(), shared with the API of the same process.
Result<std::unique_ptr<Coordinator>> make_coordinator(const ProgramDependencies&, const Settings&, StoreFactory&,
                                                      std::vector<Id> contexts, MessageAttachments files,
                                                      std::shared_ptr<HeldFileLinks> file_links = nullptr);

}  // namespace mycojobs
