// The table of options, from which flags, environment variables, file keys, --help, completion and `config print` are
// derived. The name of a row is its key in the file. The flag and the variable follow from the name:
//   job.default_timeout    --job-default-timeout    MYCOJOBS_JOB_DEFAULT_TIMEOUT
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "executors/executor_settings.h"
#include "model/records.h"
#include "net/tls.h"
#include "security/ceilings.h"

namespace CLI {
class App;
}

namespace mycojobs {

// User ids that jobs may run as.
struct UidRange {
  std::uint32_t base = 0;
  std::uint32_t count = 0;  // 0: not set
  bool operator==(const UidRange&) const = default;
};

// Action for a run whose lease could not be renewed in time.
enum class LeaseLostAction { kill, carry_on };

// The owner of a volume, or of the files of a context, as the file names it.
struct OwnerSetting {
  Id context = 0;
  std::string volume;  // empty: [contexts.<id>.files]
  std::string user;    // name or id
  bool operator==(const OwnerSetting&) const = default;
};

// Values of all options. load_config() sets them; every member belongs to one row of the table.
struct Settings {
  std::string redis;                        // empty: the embedded Redis
  std::map<Id, std::string> context_redis;  // contexts with a Redis of their own; file only
  std::string redis_tls_ca, redis_tls_cert, redis_tls_key, redis_tls_server_name;
  bool redis_tls_insecure = false;
  std::string redis_sentinel_user, redis_sentinel_password_file;
  std::map<Id, TlsSettings> context_redis_tls;  // [contexts.<id>.redis_tls]; file only
  Ceilings ceilings;                            // maximum policies of jobs; file only
  std::vector<CommandSettings> executors;       // [executors.<name>]; file only
  std::map<Id, PythonSettings> context_python;  // [contexts.<id>.python]; file only
  std::vector<ContextFiles> context_files;      // [contexts.<id>.files]; file only
  // By the names of the settings contexts.<id>.volumes.<name>.owner and contexts.<id>.files.owner. resolve_owners()
  // sets the owners in `ceilings` and `context_files`, which are kUnknownFileOwner before.
  std::map<std::string, OwnerSetting> owners;
  std::uint32_t redis_wait_replicas = 0;
  std::vector<Id> contexts;
  bool contexts_chosen = false;  // set by file, variable or flag, not by default
  Id runner = 0;
  std::uint32_t slots = 0;
  bool local = false;
  std::vector<std::string> script_types;  // empty: all types that the executors serve
  std::string api_listen, api_tokens, supervisor_listen, health_listen, metrics_listen;
  std::string api_tls_cert, api_tls_key, metrics_tls_cert, metrics_tls_key, https_ca;
  bool api_insecure = false;
  std::string trace_endpoint;  // empty: no spans are sent
  std::string keys_dir, runner_key, coordinator_key;
  std::string topic;  // topic of the runner
  std::vector<std::string> api_names, coordinator_networks, coordinator_webhooks;
  std::string coordinator_webhook_secrets;
  // Empty: no node. Otherwise http:// or https://, also if it was set by mycelium_ip and mycelium_port.
  std::string mycelium_url;
  std::string mycelium_ip;
  std::uint32_t mycelium_port = 0;
  Id runner_actor = 0;
  bool api_listen_chosen = false;  // set by file, variable or flag
  std::string state_dir, libexec_dir, secrets_dir, plugins_dir;
  std::uint32_t lease_ms = 0, grace_ms = 0, coordinator_lease_ms = 0, coordinator_deliveries = 0;
  std::uint32_t coordinator_cell_cache = 0;
  std::uint64_t coordinator_cell_cache_bytes = 0;
  LeaseLostAction on_lease_lost = LeaseLostAction::kill;
  std::uint64_t retry_min_ms = 0, retry_max_ms = 0;
  std::uint64_t retention_ms = 0, retention_failed_ms = 0, retention_flows_ms = 0, retention_count = 0;
  std::vector<std::string> prerequisites_allow;
  std::vector<std::string> secrets_redacted;  // CONTEXT/NAME
  std::uint64_t job_output_rate_bytes = 0;    // per second
  std::uint32_t job_frame_rate = 0;
  std::uint64_t prerequisites_timeout_ms = 0;
  std::uint64_t job_default_timeout_ms = 0;
  std::uint64_t job_max_script_bytes = 0, job_max_result_bytes = 0, job_max_artifact_bytes = 0;
  std::uint64_t message_max_artifact_bytes = 0, message_max_incoming_bytes = 0;
  std::uint64_t job_output_bytes = 0, job_log_bytes = 0;
  std::uint64_t quota_caller_bytes = 0, quota_context_bytes = 0;
  std::uint64_t quota_caller_artifact_bytes = 0, quota_context_artifact_bytes = 0;
  std::uint64_t artifacts_holder_timeout_ms = 0, artifacts_cache_age_ms = 0;
  std::string artifacts_store, artifacts_store_endpoint, artifacts_store_region, artifacts_store_credentials;
  bool artifacts_store_path_style = false;
  std::string artifacts_listen, artifacts_advertise, artifacts_tls_cert, artifacts_tls_key;
  std::vector<std::string> artifacts_networks;
  std::uint64_t artifacts_store_timeout_ms = 0;
  std::uint64_t artifacts_transfer_rate_bytes = 0, artifacts_cache_bytes = 0;
  std::uint64_t uploads_expiry_ms = 0, uploads_caller_bytes = 0;
  std::uint32_t job_max_deliveries = 0;
  std::uint64_t sandbox_memory_bytes = 0, sandbox_tmp_bytes = 0;
  std::uint32_t sandbox_pids = 0;
  std::vector<std::string> sandbox_allow_missing;  // names of layers
  UidRange sandbox_uid_range;
  std::string v_compiler;
  std::vector<std::string> v_flags;
  std::uint32_t sandbox_prewarmed = 0, sandbox_reused_runs = 0, sandbox_warm = 0, sandbox_zygotes = 0,
                sandbox_zygote_runs = 0, sandbox_zygote_age_ms = 0;
  LogLevel log_level = LogLevel::info;
  LogFormat log_format = LogFormat::automatic;
  std::string job_log_export;
};

// Type of an option's value. list: script types, choices or ids; texts: any texts without commas.
enum class OptionType { text, count, bytes, duration, flag, list, texts };
inline bool is_list(OptionType type) { return type == OptionType::list || type == OptionType::texts; }

using SettingsMember =
    std::variant<std::string Settings::*, std::uint32_t Settings::*, std::uint64_t Settings::*, bool Settings::*,
                 std::vector<std::string> Settings::*, std::vector<Id> Settings::*, UidRange Settings::*,
                 LeaseLostAction Settings::*, LogLevel Settings::*, LogFormat Settings::*>;

// Inputs of computed defaults.
struct HostFacts {
  std::uint32_t cpus = 1;
  bool root = false;
  std::string program_dir;  // folder of the running program
  // The folder ../libexec/mycojobs relative to program_dir; empty if it does not exist, as in a build folder.
  std::string installed_helpers;
  std::map<std::string, std::string> environment;
  // Returns the value of an environment variable, or an empty text if it is not set.
  std::string variable(const std::string& name) const {
    const auto entry = environment.find(name);
    return entry == environment.end() ? "" : entry->second;
  }
};

// A row of the table of options.
struct Option {
  std::string_view name;
  OptionType type;
  SettingsMember member;
  std::string_view fallback;      // the default as a user would write it, or a description of a computed default
  std::string_view help;          // one line
  std::string_view commands;      // commands with the flag, besides `config`; separated by spaces; empty: all commands
  std::string_view choices = {};  // the allowed values, separated by spaces
  std::uint64_t min = 0;          // minimum of a number, or of each id in a list
  std::uint64_t max = 0;          // maximum; 0: limited by the member's type
  std::string (*computed)(const HostFacts&) = nullptr;
  bool accepts_zero = false;  // 0 is also accepted, and means that there is no limit
};

std::span<const Option> options();
const Option* find_option(std::string_view name);
// Alternative names of options: former names, which are accepted with a warning, and names from other programs.
struct RenamedOption {
  std::string_view alternative, current;
  bool is_former;  // true: using the alternative name causes a warning
};
std::span<const RenamedOption> renamed_options();
std::string_view resolve_option_name(std::string_view name);  // returns the current name of an option
std::string get_flag_name(std::string_view name);             // "--job-default-timeout"
std::string get_variable_name(std::string_view name);         // "MYCOJOBS_JOB_DEFAULT_TIMEOUT"
inline std::string get_flag_name(const Option& option) { return get_flag_name(option.name); }
inline std::string get_variable_name(const Option& option) { return get_variable_name(option.name); }
bool accepts_flag(const Option&, std::string_view command);
std::string_view value_placeholder(const Option&);  // for the help, such as "DURATION"

// Returns the policy that job.output_bytes, sandbox.memory, .pids and .tmp give to every job. A setting with its
// default value does not change the profiles of executors.
PolicyRequest make_operator_defaults(const Settings&);

// Returns the certificates for Redis servers with TLS: of a context with a server and a table of its own, or those of
// redis_tls.
TlsSettings get_redis_tls(const Settings&, Id context = 0);

// The certificates of api.listen and supervisor.listen, and of metrics.listen; both texts are empty without TLS.
TlsSettings get_api_tls(const Settings&);
TlsSettings get_metrics_tls(const Settings&);
// Without configured files, the certificate is in a file that create_tls_identity() creates in state_dir.
TlsSettings get_artifacts_tls(const Settings&);
inline bool has_certificate(const TlsSettings& tls) { return !tls.certificate.empty() || !tls.key.empty(); }

// Parses `text` as the option's type into the member. Lists are separated by commas. Error invalid: describes the
// problem without the source of the text.
Result<void> set_option(const Option&, std::string_view text, Settings& settings);

// Options of the command line. The last value of a flag is used; values of a list are joined.
struct FlagValues {
  std::map<std::string, std::string> values;  // by the name of the option
  std::string config_file;
};
// Adds --config and the flags of this command ("agent"). Parsing with app fills `values`, which must outlive app.
void add_options(CLI::App& app, std::string_view command, FlagValues& values);

}  // namespace mycojobs
