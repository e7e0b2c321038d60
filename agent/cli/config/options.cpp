#include "cli/config/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <limits>

#include "base/parse.h"
#include "text/units.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::string_view kWorkerCommands = "agent dev run";
constexpr std::string_view kCoordinatorCommands = "coordinator dev run flow";
constexpr std::string_view kBucketCommands = "agent coordinator dev run doctor";
constexpr std::string_view kArtifactCacheCommands = "agent coordinator dev run";
constexpr std::string_view kFileListenerCommands = "agent coordinator doctor";
constexpr std::string_view kUploadCommands = "coordinator dev run job";
constexpr std::string_view kRetentionCommands = "agent coordinator dev run flow";
constexpr std::string_view kSandboxOptionCommands = "agent dev run doctor";
constexpr std::uint32_t kMaxSlots = 4096;
constexpr std::uint64_t kHourMs = 3'600'000;
constexpr std::uint64_t kWeekMs = kHourMs * 24 * 7;
constexpr std::uint64_t kYearMs = kHourMs * 24 * 365;

std::string default_slots(const HostFacts& host) {
  return std::to_string(std::clamp(host.cpus, 1U, kMaxSlots / 2) * 2);
}
std::string default_libexec(const HostFacts& host) {
  return host.installed_helpers.empty() ? host.program_dir : host.installed_helpers;
}
// Returns the default state folder. A relative XDG_STATE_HOME is ignored, as the XDG specification requires. The result
// is empty if HOME is not set; load_config() then reports the remedy.
std::string default_state(const HostFacts& host) {
  if (host.root) return "/var/lib/mycojobs";
  if (const auto xdg = host.variable("XDG_STATE_HOME"); xdg.starts_with('/')) return xdg + "/mycojobs";
  const auto home = host.variable("HOME");
  return home.empty() ? "" : home + "/.local/state/mycojobs";
}

// Clients of a coordinator use COORDINATOR_URL, so it is the default of the server too.
std::string default_api(const HostFacts& host) {
  auto url = host.variable("COORDINATOR_URL");
  if (!url.starts_with("http://")) return "127.0.0.1:9652";
  url = url.substr(7, url.find('/', 7) - 7);
  return url.find(':') == std::string::npos ? url + ":80" : url;
}

// Clients of Mycelium use this variable for the address of the node.
std::string default_mycelium(const HostFacts& host) { return host.variable("MYCELIUM_URL"); }

// Returns the path of a file or folder of the configuration. Empty if there is no HOME.
std::string configuration_path(const HostFacts& host, const std::string& name) {
  if (host.root) return "/etc/mycojobs/" + name;
  if (const auto xdg = host.variable("XDG_CONFIG_HOME"); xdg.starts_with('/')) return xdg + "/mycojobs/" + name;
  const auto home = host.variable("HOME");
  return home.empty() ? "" : home + "/.config/mycojobs/" + name;
}

std::string default_tokens(const HostFacts& host) { return configuration_path(host, "tokens"); }
std::string default_secrets(const HostFacts& host) { return configuration_path(host, "secrets"); }
std::string default_keys(const HostFacts& host) { return configuration_path(host, "keys"); }

using enum OptionType;
using S = Settings;
const auto kOptions = std::to_array<Option>({
    {"redis", text, &S::redis, "",
     "Redis to use: redis://[:password@]host[:port], rediss://... with TLS, unix:/path, or "
     "redis+sentinel://[:password@]host,.../MASTER; empty: a private one",
     ""},
    {"redis_tls.ca", text, &S::redis_tls_ca, "",
     "File or folder with the certificates (PEM) of the CAs that issue certificates of Redis servers; empty: the CAs "
     "of the system",
     ""},
    {"redis_tls.cert", text, &S::redis_tls_cert, "",
     "File with the certificate (PEM) that identifies this process to Redis; empty: none", ""},
    {"redis_tls.key", text, &S::redis_tls_key, "",
     "File with the private key (PEM) of redis_tls.cert, readable by the user of the process alone", ""},
    {"redis_tls.server_name", text, &S::redis_tls_server_name, "",
     "Name that the certificate of the Redis server must have; empty: the host of its address", ""},
    {"redis_tls.insecure", flag, &S::redis_tls_insecure, "false",
     "Accept any certificate of the Redis server, so that an attacker in the network can read and change all data", ""},
    {"redis_sentinel.user", text, &S::redis_sentinel_user, "",
     "User for the sentinels of redis+sentinel://; empty: their default user", ""},
    {"redis_sentinel.password_file", text, &S::redis_sentinel_password_file, "",
     "File with the password for the sentinels in its first line; empty: none", ""},
    {"redis_wait_replicas", count, &S::redis_wait_replicas, "0",
     "Replicas of Redis that must have a submission or an end before it counts", "", "", 0, 100},
    {"context", list, &S::contexts, "1", "Contexts to serve; commands about one job use the first", "", "", 1},
    {"runner", count, &S::runner, "1", "Id of this runner, unique among the agents of a Redis", "agent dev", "", 1},
    {"runner_actor", count, &S::runner_actor, "0",
     "Actor of this agent. If a context lists executors, it must be one of them or an admin; 0: no actor", "agent"},
    {"slots", count, &S::slots, "2 x CPUs", "Jobs that run at the same time", kWorkerCommands, "", 1, kMaxSlots,
     default_slots},
    {"local", flag, &S::local, "true",
     "Claim jobs from queues, not only from the runner's topic, unless the runner's record has another value",
     "agent dev"},
    {"topic", text, &S::topic, "",
     "Topic of messages for this runner, unless its record has another topic; empty: runner and its id", "agent dev"},
    {"script_types", list, &S::script_types, "", "Script types whose queues are served; empty: all", "agent dev"},
    {"state_dir", text, &S::state_dir, "/var/lib/mycojobs or ~/.local/state/mycojobs",
     "Folder for the embedded Redis, work folders, sockets and locks of runners", "", "", 0, 0, default_state},
    {"libexec_dir", text, &S::libexec_dir, "../libexec/mycojobs from the program, or its own folder",
     "Folder of the helper programs", kSandboxOptionCommands, "", 0, 0, default_libexec},
    {"secrets_dir", text, &S::secrets_dir, "/etc/mycojobs/secrets or ~/.config/mycojobs/secrets",
     "Folder of the secrets that jobs may ask for: CONTEXT/NAME", "agent dev run sandbox secret", "", 0, 0,
     default_secrets},
    {"secrets_redacted", texts, &S::secrets_redacted, "",
     "Secrets, CONTEXT/NAME each, that are redacted in every job of the context, also without a grant. Each job of the "
     "context can then discover their values",
     "agent dev run secret"},
    {"keys_dir", text, &S::keys_dir, "/etc/mycojobs/keys or ~/.config/mycojobs/keys",
     "Folder of the keys that sign, NAME.key each", "agent coordinator dev run key actor context message", "", 0, 0,
     default_keys},
    {"runner_key", text, &S::runner_key, "",
     "The key that signs the receipts of this agent's jobs: its name, or a file; empty: they are not signed",
     "agent dev run"},
    {"api.listen", text, &S::api_listen, "the address in COORDINATOR_URL, or 127.0.0.1:9652",
     "ADDRESS:PORT of a coordinator's JSON-RPC; empty: none", "coordinator dev rpc", "", 0, 0, default_api},
    {"api.tokens", text, &S::api_tokens, "/etc/mycojobs/tokens or ~/.config/mycojobs/tokens",
     "File of the hashes of the bearer tokens that may call", "coordinator dev agent key", "", 0, 0, default_tokens},
    {"api.tls.cert", text, &S::api_tls_cert, "",
     "File with the certificate (PEM) of api.listen and supervisor.listen, followed by those of its CAs; empty: plain "
     "HTTP",
     "coordinator dev agent rpc doctor"},
    {"api.tls.key", text, &S::api_tls_key, "",
     "File with the private key (PEM) of api.tls.cert, readable by the user of the process alone",
     "coordinator dev agent doctor"},
    {"api.insecure", flag, &S::api_insecure, "false",
     "Allow plain HTTP at an address that other hosts can reach, for example behind a proxy that ends TLS",
     "coordinator dev agent"},
    {"https.ca", text, &S::https_ca, "",
     "File with the CA certificates (PEM) that are trusted for https:// addresses; empty: the CAs of the system",
     "coordinator dev agent rpc health"},
    {"api.names", texts, &S::api_names, "",
     "Origins (https://jobs.example.org, http://10.0.0.7:9652) by which clients call a coordinator's JSON-RPC: for "
     "logins by key. Empty: those of loopback with its port",
     "coordinator dev"},
    {"supervisor.listen", text, &S::supervisor_listen, "",
     "ADDRESS:PORT at which an agent accepts jobs from coordinators of other hosts, such as 0.0.0.0:3030; empty: none",
     "agent"},
    {"mycelium.url", text, &S::mycelium_url, "the address in MYCELIUM_URL",
     "API of the Mycelium node that transports messages to supervisors on other hosts, such as http://127.0.0.1:8989; "
     "empty: none",
     "agent coordinator dev", "", 0, 0, default_mycelium},
    {"mycelium.ip", text, &S::mycelium_ip, "127.0.0.1",
     "Where mycelium.url is not set, and this or mycelium.port is: the address of the node's API",
     "agent coordinator dev"},
    {"mycelium.port", count, &S::mycelium_port, "8990", "Port for mycelium.ip", "agent coordinator dev", "", 1, 65535},
    {"health.listen", text, &S::health_listen, "",
     "ADDRESS:PORT of /healthz and /readyz, such as 127.0.0.1:9653; api.listen of a coordinator serves them, too; "
     "empty: none",
     "agent coordinator dev health"},
    {"metrics.listen", text, &S::metrics_listen, "",
     "ADDRESS:PORT of /metrics for Prometheus, such as 127.0.0.1:9654, and of /healthz and /readyz; may be the same as "
     "health.listen; empty: no metrics",
     "agent coordinator dev"},
    {"metrics.tls.cert", text, &S::metrics_tls_cert, "", "As api.tls.cert, for metrics.listen",
     "agent coordinator dev doctor"},
    {"metrics.tls.key", text, &S::metrics_tls_key, "", "As api.tls.key, for metrics.listen",
     "agent coordinator dev doctor"},
    {"trace.endpoint", text, &S::trace_endpoint, "",
     "URL to which spans are sent as OTLP in JSON, such as http://127.0.0.1:4318/v1/traces; empty: none",
     "agent coordinator dev run job flow"},
    {"plugins.dir", text, &S::plugins_dir, "",
     "Folder of the plugins, which add executors; empty: plugins in libexec_dir", "agent dev run doctor plugin"},
    {"lease", duration, &S::lease_ms, "30s", "Duration of a claim without a heartbeat", kWorkerCommands, "", 1000,
     kHourMs},
    {"grace", duration, &S::grace_ms, "10s", "Time between TERM and KILL when a job is cancelled", kWorkerCommands, "",
     0, kHourMs},
    {"coordinator.lease", duration, &S::coordinator_lease_ms, "10s",
     "How long a coordinator that falls silent is waited for before another leads", kCoordinatorCommands, "", 1000,
     kHourMs},
    {"coordinator.deliveries", count, &S::coordinator_deliveries, "16",
     "Maximum number of hosts, including this host, to which the coordinator of a context sends messages at the same "
     "time; and maximum number of jobs of flows at supervisors on other hosts, of which no supervisor has more than "
     "the number of free places",
     kCoordinatorCommands, "", 2, 256},
    {"coordinator.cell_cache", count, &S::coordinator_cell_cache, "4096",
     "Idle instances of a workflow in memory", kCoordinatorCommands, "", 1,
     100'000'000},
    {"coordinator.cell_cache_bytes", bytes, &S::coordinator_cell_cache_bytes, "64MiB",
     "Approximate size of these instances", kCoordinatorCommands, "",
     0, 1ULL << 40},
    {"coordinator.key", text, &S::coordinator_key, "",
     "Key that identifies this coordinator to supervisors on other hosts: its name, or a file; empty: no messages are "
     "exchanged with other hosts",
     kCoordinatorCommands},
    {"coordinator.networks", texts, &S::coordinator_networks, "loopback",
     "Networks in which supervisors may be called (runner.address): loopback, any, addresses, ranges such as "
     "10.1.0.0/16; empty: none",
     "coordinator dev"},
    {"coordinator.webhooks", texts, &S::coordinator_webhooks, "",
     "Prefixes of the addresses that `notify` may call, such as https://hooks.example.com/jobs/; empty: none",
     kCoordinatorCommands},
    {"coordinator.webhook_secrets", text, &S::coordinator_webhook_secrets, "",
     "File with the secrets that sign requests to webhooks, one per line, the current secret first; empty: not signed",
     kCoordinatorCommands},
    {"on_lease_lost", text, &S::on_lease_lost, "kill",
     "Action for a run when Redis is unavailable for the duration of a lease: kill it and deliver the job again, or "
     "continue it",
     kWorkerCommands, "kill continue"},
    {"retry.min", duration, &S::retry_min_ms, "1s",
     "Pause after the first failure of a job with retries; doubles with each, the upper half by chance",
     kWorkerCommands, "", 1, kYearMs},
    {"retry.max", duration, &S::retry_max_ms, "5m", "Longest pause between two attempts", kWorkerCommands, "", 1,
     kYearMs},
    {"retention", duration, &S::retention_ms, "24h",
     "Time for which successful jobs and messages are stored after their end, with result and log; 0s: permanently",
     kRetentionCommands},
    {"retention_failed", duration, &S::retention_failed_ms, "7d", "The same for jobs that did not succeed",
     kWorkerCommands},
    {"retention_flows", duration, &S::retention_flows_ms, "7d",
     "The same for flows and their jobs, also those of schedules", kRetentionCommands},
    {"retention_count", count, &S::retention_count, "0", "Ended jobs of a context that are kept at most; 0: any number",
     kWorkerCommands},
    {"prerequisites.allow", texts, &S::prerequisites_allow, "",
     "Allowed prerequisites of jobs in addition to wait, at, redis, approval, flow: prefixes such as file:/data/ or "
     "tcp:db:5432",
     kRetentionCommands},
    {"prerequisites.timeout", duration, &S::prerequisites_timeout_ms, "24h",
     "Time for which a job waits for its prerequisites before it fails, without wait and at; 0s: unlimited",
     kRetentionCommands},
    {"job.default_timeout", duration, &S::job_default_timeout_ms, "10m", "Default time limit of a job", kWorkerCommands,
     "", 1000, std::uint64_t{4294967295} * 1000},
    {"job.max_script_bytes", bytes, &S::job_max_script_bytes, "4MiB",
     "Maximum size of a script; a coordinator rejects larger scripts when they are submitted, an agent when they are "
     "claimed",
     "agent dev run coordinator", "", 1, 1ULL << 29},
    {"job.max_result_bytes", bytes, &S::job_max_result_bytes, "1MiB", "Largest result, keys and values",
     kWorkerCommands, "", 1, 1ULL << 29},
    {"job.max_artifact_bytes", bytes, &S::job_max_artifact_bytes, "64MiB",
     "Maximum size of all artifacts of a job, and of an uploaded file", "agent dev run coordinator job", "", 0,
     1ULL << 40},
    {"message.max_artifact_bytes", bytes, &S::message_max_artifact_bytes, "64MiB",
     "Maximum size of the files of a message, or of one job of its answer", "coordinator dev run", "", 0, 1ULL << 40},
    {"message.max_incoming_bytes", bytes, &S::message_max_incoming_bytes, "2GiB",
     "Files of messages and answers that are on their way in at one time, into all contexts of a host; of one sender "
     "at most a quarter",
     "coordinator dev run", "", 1ULL << 20, 1ULL << 50},
    {"job.output_bytes", bytes, &S::job_output_bytes, "1MiB", "Stored output of a job: its beginning and its end",
     kWorkerCommands, "", 1, 1ULL << 40},
    {"job.log_export", text, &S::job_log_export, "",
     "Also write all output of jobs as JSON lines: stdout, or the folder in which each day gets a file; empty: no",
     "agent"},
    {"job.log_bytes", bytes, &S::job_log_bytes, "64MiB",
     "Log of a job on the disk of its agent, behind the beginning that Redis has; the middle of a longer log is "
     "dropped",
     kWorkerCommands, "", 4096, 16ULL << 30},
    {"job.output_rate", bytes, &S::job_output_rate_bytes, "8MiB",
     "Output that is read from a job per second, after a burst of twice the amount; a job that writes faster waits; 0: "
     "unlimited, otherwise at least 64KiB",
     kWorkerCommands, "", 64U << 10, 1ULL << 40, nullptr, true},
    {"job.frame_rate", count, &S::job_frame_rate, "10000",
     "Messages of a job to its agent (progress, calls, parts of artifacts) that are read in a second, after a burst of "
     "twice as many; 0: any number, else at least 10",
     kWorkerCommands, "", 10, 1U << 30, nullptr, true},
    {"quota.caller_bytes", bytes, &S::quota_caller_bytes, "512MiB",
     "Maximum size of the data of one caller's jobs in the Redis of a context: scripts, output, results; 0: unlimited",
     "", "", 0, 1ULL << 50},
    {"quota.context_bytes", bytes, &S::quota_context_bytes, "2GiB",
     "The same of all callers of a context together; 0: any number", "", "", 0, 1ULL << 50},
    {"quota.caller_artifact_bytes", bytes, &S::quota_caller_artifact_bytes, "1GiB",
     "Artifacts that the jobs of one caller keep on a host, of one context; 0: any number", kWorkerCommands, "", 0,
     1ULL << 50},
    {"quota.context_artifact_bytes", bytes, &S::quota_context_artifact_bytes, "4GiB",
     "The same of all callers of a context together; 0: any number", kWorkerCommands, "", 0, 1ULL << 50},
    {"artifacts.holder_timeout", duration, &S::artifacts_holder_timeout_ms, "24h",
     "Time for which a job waits for the runner that has its inputs, before it ends with artifact_lost",
     kWorkerCommands, "", 1000, 365ULL * 24 * 3600 * 1000},
    {"artifacts.transfer_rate", bytes, &S::artifacts_transfer_rate_bytes, "64MiB",
     "Artifacts that an agent or coordinator sends to other hosts per second, through each Redis server; 0: unlimited, "
     "otherwise at least 256KiB",
     kArtifactCacheCommands, "", 256U << 10, 1ULL << 40, nullptr, true},
    {"artifacts.listen", text, &S::artifacts_listen, "",
     "ADDRESS:PORT at which other hosts download artifacts over HTTPS, such as 10.0.0.5:7443; empty: none",
     kFileListenerCommands},
    {"artifacts.advertise", text, &S::artifacts_advertise, "",
     "HOST or HOST:PORT of artifacts.listen for other hosts; empty: its address", kFileListenerCommands},
    {"artifacts.tls.cert", text, &S::artifacts_tls_cert, "",
     "As api.tls.cert, for artifacts.listen; empty: self-signed", kFileListenerCommands},
    {"artifacts.tls.key", text, &S::artifacts_tls_key, "", "As api.tls.key, for artifacts.listen",
     kFileListenerCommands},
    {"artifacts.networks", texts, &S::artifacts_networks, "any",
     "Networks from which artifacts are downloaded over HTTPS; empty: none", "agent coordinator"},
    {"artifacts.cache_bytes", bytes, &S::artifacts_cache_bytes, "4GiB",
     "Artifacts of other hosts that a host keeps for later jobs, of one context", kArtifactCacheCommands, "",
     256ULL << 20, 1ULL << 50},
    {"artifacts.cache_age", duration, &S::artifacts_cache_age_ms, "7d",
     "Time for which a host keeps an artifact of another host after its last use", kArtifactCacheCommands, "", 60000,
     365ULL * 24 * 3600 * 1000},
    {"uploads.expiry", duration, &S::uploads_expiry_ms, "24h",
     "Time after which an uploaded file that no job uses is deleted", kUploadCommands, "", 60000,
     365ULL * 24 * 3600 * 1000},
    {"uploads.caller_bytes", bytes, &S::uploads_caller_bytes, "1GiB",
     "Uploaded files of one caller in a context; 16 times as many of all callers", kUploadCommands, "", 1U << 20,
     1ULL << 50},
    {"artifacts.store", text, &S::artifacts_store, "",
     "Bucket for the artifacts of all hosts, s3://BUCKET/PREFIX; empty: they stay on the host of their job",
     kBucketCommands},
    {"artifacts.store_endpoint", text, &S::artifacts_store_endpoint, "",
     "Address of its S3 server, https://HOST; empty: Amazon", kBucketCommands},
    {"artifacts.store_region", text, &S::artifacts_store_region, "us-east-1", "Region of the bucket", kBucketCommands},
    {"artifacts.store_path_style", flag, &S::artifacts_store_path_style, "false",
     "Whether the bucket is in the path of the address, not in its host", kBucketCommands},
    {"artifacts.store_credentials", text, &S::artifacts_store_credentials, "",
     "File with aws_access_key_id = KEY and aws_secret_access_key = SECRET, mode 0600", kBucketCommands},
    {"artifacts.store_timeout", duration, &S::artifacts_store_timeout_ms, "24h",
     "Time for which an upload is tried, before its job ends with artifact_store", kWorkerCommands, "", 1000,
     365ULL * 24 * 3600 * 1000},
    {"job.max_deliveries", count, &S::job_max_deliveries, "3",
     "Claims without a reported end after which a job is a dead letter", kWorkerCommands, "", 1, 1000},
    {"sandbox.memory", bytes, &S::sandbox_memory_bytes, "256MiB", "Memory limit of a job, without swap",
     kSandboxOptionCommands, "", 16ULL << 20},
    {"sandbox.pids", count, &S::sandbox_pids, "64", "Processes and threads of a job", kSandboxOptionCommands, "", 4,
     1U << 22},
    {"sandbox.tmp", bytes, &S::sandbox_tmp_bytes, "64MiB", "Files of a job: /tmp and its folder together",
     kSandboxOptionCommands, "", 1ULL << 20},
    {"sandbox.allow_missing", list, &S::sandbox_allow_missing, "", "Layers of the sandbox that this host may lack",
     kSandboxOptionCommands, "cgroup:memory cgroup:pids landlock"},
    {"sandbox.uid_range", text, &S::sandbox_uid_range, "", "User ids for jobs, as base:count; empty: from /etc/subuid",
     kSandboxOptionCommands},
    {"sandbox.prewarmed", count, &S::sandbox_prewarmed, "8",
     "Maximum number of prewarmed sandboxes of each script host; 0: none", kSandboxOptionCommands, "", 0, 256},
    {"sandbox.reused_runs", count, &S::sandbox_reused_runs, "500",
     "Number of jobs of one context that a sandbox serves in sequence, if each leaves no traces; 1: a new sandbox for "
     "each job",
     kSandboxOptionCommands, "", 1, 1U << 20},
    {"sandbox.warm", count, &S::sandbox_warm, "16",
     "Maximum number of processes of warm scripts of an agent; above it, a process of the context with the most "
     "processes is ended; 0: none",
     kSandboxOptionCommands, "", 0, 1024},
    {"sandbox.zygotes", count, &S::sandbox_zygotes, "32",
     "Number of script hosts that an agent keeps ready; above it, the one that has been unused for the longest time "
     "ends",
     kSandboxOptionCommands, "", 1, 4096},
    {"sandbox.zygote_runs", count, &S::sandbox_zygote_runs, "5000",
     "Jobs after which a script host is replaced; 0: any number", kSandboxOptionCommands, "", 0, 1U << 30},
    {"sandbox.zygote_age", duration, &S::sandbox_zygote_age_ms, "1h",
     "Time after which a script host is replaced; 0s: never", kSandboxOptionCommands, "", 0, kWeekMs},
    {"v.compiler", text, &S::v_compiler, "",
     "The V compiler; empty: the first of /usr/bin/v, /usr/local/bin/v, /opt/v/v", kSandboxOptionCommands},
    {"v.flags", texts, &S::v_flags, "", "Flags of the V compiler, such as -prod", kSandboxOptionCommands},
    {"log.level", text, &S::log_level, "info", "Lowest severity of logged messages", "", "debug info warn error"},
    {"log.format", text, &S::log_format, "auto", "auto: text on a terminal, JSON lines otherwise", "",
     "auto text json"},
});

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const auto end = std::min(text.find(separator), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

Result<std::uint64_t> parse_number(const Option& option, std::string_view text, std::uint64_t type_max) {
  const std::uint64_t max = option.max == 0 ? type_max : std::min(option.max, type_max);
  std::uint64_t number = 0;
  if (option.type == duration || option.type == bytes) {
    MJ_TRY(parsed, option.type == duration ? parse_duration_ms(text) : parse_bytes(text));
    number = parsed;
  } else if (!parse_u64(text, number)) {
    return fail(Code::invalid, excerpt(text) + " is not a whole number");
  }
  if (number == 0 && option.accepts_zero) return number;
  if (number < option.min || number > max) {
    const std::string_view unit = option.type == duration ? " ms" : option.type == bytes ? " bytes" : "";
    const std::string min = (option.accepts_zero ? "0 or " : "") + std::to_string(option.min);
    return fail(Code::invalid,
                excerpt(text) + " is out of range: give " + min + " to " + std::to_string(max) + std::string(unit));
  }
  return number;
}

// Sets a member; there is one overload for each type.
struct MemberSetter {
  const Option& option;
  std::string_view text;
  Settings& settings;

  Result<void> operator()(std::string S::*member) const {
    settings.*member = text;
    return {};
  }
  Result<void> operator()(std::uint32_t S::*member) const { return set_number(settings.*member); }
  Result<void> operator()(std::uint64_t S::*member) const { return set_number(settings.*member); }
  Result<void> operator()(bool S::*member) const {
    if (text != "true" && text != "false") return fail(Code::invalid, excerpt(text) + " is not true or false");
    settings.*member = text == "true";
    return {};
  }
  static tl::unexpected<Error> duplicate_error(std::string_view item) {
    return fail(Code::invalid, "names " + excerpt(item) + " twice");
  }
  Result<void> operator()(std::vector<std::string> S::*member) const {
    std::vector<std::string> items;
    for (auto item : split(text, ',')) {
      if (option.type == texts) {
        if (item.empty()) return fail(Code::invalid, "has an empty item");
        items.emplace_back(item);
        continue;
      }
      // Script types are names; layers of the sandbox contain a colon (cgroup:memory).
      const bool is_valid = option.choices.empty() ? is_script_type(item) : is_choice(item);
      if (!is_valid && option.choices.empty()) {
        return fail(Code::invalid, excerpt(item) + " is not a name: 1 to 32 of a-z, 0-9, '_' and '-', a letter first");
      }
      if (!is_valid) return fail(Code::invalid, excerpt(item) + " is not one of " + std::string(option.choices));
      if (std::find(items.begin(), items.end(), item) != items.end()) return duplicate_error(item);
      items.emplace_back(item);
    }
    settings.*member = std::move(items);
    return {};
  }
  Result<void> operator()(std::vector<Id> S::*member) const {
    std::vector<Id> ids;
    for (auto item : split(text, ',')) {
      MJ_TRY(id, parse_number(option, item, std::numeric_limits<Id>::max()));
      if (std::find(ids.begin(), ids.end(), id) != ids.end()) return duplicate_error(item);
      ids.push_back(static_cast<Id>(id));
    }
    if (ids.empty()) return fail(Code::invalid, "is empty: name at least one");
    settings.*member = std::move(ids);
    return {};
  }
  Result<void> operator()(UidRange S::*member) const {
    const auto fields = split(text, ':');
    std::uint64_t base = 0;
    std::uint64_t size = 0;
    settings.*member = {};
    if (text.empty()) return {};
    if (fields.size() != 2 || !parse_u64(fields[0], base) || !parse_u64(fields[1], size) || base == 0 || size == 0 ||
        base > 4294967294 || size > 4294967295 - base) {
      return fail(Code::invalid, excerpt(text) + " is not base:count, such as 100000:65536");
    }
    settings.*member = {static_cast<std::uint32_t>(base), static_cast<std::uint32_t>(size)};
    return {};
  }
  Result<void> operator()(LeaseLostAction S::*member) const { return set_choice(settings.*member); }
  Result<void> operator()(LogLevel S::*member) const { return set_choice(settings.*member); }
  Result<void> operator()(LogFormat S::*member) const { return set_choice(settings.*member); }

 private:
  bool is_choice(std::string_view item) const {
    const auto choices = split(option.choices, ' ');
    return std::find(choices.begin(), choices.end(), item) != choices.end();
  }
  template <class T>
  Result<void> set_number(T& out) const {
    MJ_TRY(value, parse_number(option, text, std::numeric_limits<T>::max()));
    out = static_cast<T>(value);
    return {};
  }
  // REQUIRES: the choices have the order of the enum's values.
  template <class Enum>
  Result<void> set_choice(Enum& out) const {
    const auto choices = split(option.choices, ' ');
    const auto match = std::find(choices.begin(), choices.end(), text);
    if (match == choices.end()) {
      return fail(Code::invalid, excerpt(text) + " is not one of " + std::string(option.choices));
    }
    out = static_cast<Enum>(match - choices.begin());
    return {};
  }
};

}  // namespace

std::span<const Option> options() { return kOptions; }

std::span<const RenamedOption> renamed_options() {
  static constexpr auto kRenamed = std::to_array<RenamedOption>({
      {"sandbox.spares", "sandbox.prewarmed", true},
      {"sandbox.slot_runs", "sandbox.reused_runs", true},
      {"redis_url", "redis", false},
  });
  return kRenamed;
}

std::string_view resolve_option_name(std::string_view name) {
  for (const RenamedOption& entry : renamed_options()) {
    if (entry.alternative == name) return entry.current;
  }
  return name;
}

const Option* find_option(std::string_view name) {
  const auto* entry =
      std::find_if(kOptions.begin(), kOptions.end(), [&](const Option& option) { return option.name == name; });
  return entry == kOptions.end() ? nullptr : entry;
}

std::string get_flag_name(std::string_view name) {
  std::string flag = "--" + std::string(name);
  std::replace_if(
      flag.begin(), flag.end(), [](char c) { return c == '.' || c == '_'; }, '-');
  return flag;
}

std::string get_variable_name(std::string_view option) {
  std::string name = "MYCOJOBS_" + std::string(option);
  for (char& c : name) c = c == '.' ? '_' : c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return name;
}

bool accepts_flag(const Option& option, std::string_view command) {
  const auto names = split(option.commands, ' ');
  return names.empty() || command == "config" || std::find(names.begin(), names.end(), command) != names.end();
}

std::string_view value_placeholder(const Option& option) {
  static constexpr std::string_view kNames[] = {"TEXT", "COUNT", "SIZE", "DURATION", "", "A,B,...", "A,B,..."};
  return kNames[static_cast<std::size_t>(option.type)];
}

PolicyRequest make_operator_defaults(const Settings& settings) {
  const Policy default_policy;
  PolicyRequest out;
  const auto request_if_changed = [&out](PolicyField field, auto& value, auto setting) {
    if (value == setting) return;
    value = setting;
    out.named_fields[static_cast<std::size_t>(field)] = true;
  };
  out.values = default_policy;
  request_if_changed(PolicyField::memory, out.values.memory_bytes, settings.sandbox_memory_bytes);
  request_if_changed(PolicyField::pids, out.values.pids, settings.sandbox_pids);
  request_if_changed(PolicyField::disk, out.values.disk_bytes, settings.sandbox_tmp_bytes);
  request_if_changed(PolicyField::output_keep, out.values.output_bytes, settings.job_output_bytes);
  request_if_changed(PolicyField::log_keep, out.values.log_bytes, settings.job_log_bytes);
  return out;
}

TlsSettings get_api_tls(const Settings& settings) {
  return {.table = "api.tls",
          .ca = "",
          .certificate = settings.api_tls_cert,
          .key = settings.api_tls_key,
          .server_name = ""};
}

TlsSettings get_metrics_tls(const Settings& settings) {
  return {.table = "metrics.tls",
          .ca = "",
          .certificate = settings.metrics_tls_cert,
          .key = settings.metrics_tls_key,
          .server_name = ""};
}

TlsSettings get_artifacts_tls(const Settings& settings) {
  TlsSettings tls{.table = "artifacts.tls",
                  .ca = "",
                  .certificate = settings.artifacts_tls_cert,
                  .key = settings.artifacts_tls_key,
                  .server_name = ""};
  if (!has_certificate(tls)) tls.certificate = tls.key = settings.state_dir + "/artifacts-tls.pem";
  return tls;
}

TlsSettings get_redis_tls(const Settings& settings, Id context) {
  const auto own = settings.context_redis_tls.find(context);
  if (own != settings.context_redis_tls.end()) return own->second;
  return {.table = "redis_tls",
          .ca = settings.redis_tls_ca,
          .certificate = settings.redis_tls_cert,
          .key = settings.redis_tls_key,
          .server_name = settings.redis_tls_server_name,
          .insecure = settings.redis_tls_insecure};
}

Result<void> set_option(const Option& option, std::string_view value, Settings& settings) {
  return std::visit(MemberSetter{option, value, settings}, option.member);
}

// This is the only file of the configuration that uses CLI11.

namespace {

std::string format_help(const Option& option) {
  std::string help(option.help);
  if (!option.choices.empty()) help += "; one of " + std::string(option.choices);
  if (!option.fallback.empty()) help += " [" + std::string(option.fallback) + "]";
  return help + " (" + get_variable_name(option) + ")";
}

}  // namespace

void add_options(CLI::App& app, std::string_view command, FlagValues& values) {
  app.add_option("--config", values.config_file, "Configuration file, TOML (MYCOJOBS_CONFIG)")->type_name("FILE");
  for (const Option& option : options()) {
    if (!accepts_flag(option, command)) continue;
    const std::string flag = get_flag_name(option);
    const auto store_value = [&values, name = std::string(option.name)](const std::string& text) {
      values.values[name] = text;
    };
    if (option.type == OptionType::flag) {
      const std::string names = flag + ",!--no-" + flag.substr(2);
      app.add_flag_function(
          names, [store_value](std::int64_t count) { store_value(count > 0 ? "true" : "false"); }, format_help(option));
      continue;
    }
    auto* cli_option = app.add_option_function<std::string>(flag, store_value, format_help(option));
    cli_option->type_name(std::string(value_placeholder(option)));
    const bool is_list_option = is_list(option.type);
    cli_option->multi_option_policy(is_list_option ? CLI::MultiOptionPolicy::Join : CLI::MultiOptionPolicy::TakeLast);
    if (is_list_option) cli_option->delimiter(',');
  }
  for (const RenamedOption& entry : renamed_options()) {  // accepted, but hidden in the help
    if (!accepts_flag(*find_option(entry.current), command)) continue;
    const auto store_value = [&values, name = std::string(entry.alternative)](const std::string& text) {
      values.values[name] = text;
    };
    app.add_option_function<std::string>(get_flag_name(entry.alternative), store_value)->group("");
  }
}

}  // namespace mycojobs
