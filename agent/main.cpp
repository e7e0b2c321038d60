// mycojobs: parses the command line, loads the configuration, creates the implementations and runs the command. This is
// the only file that names all implementations.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <set>

#include "base/clock.h"
#include "base/container_init.h"
#include "base/log.h"
#include "base/uncaught_exception.h"
#include "cli/command_output.h"
#include "cli/commands/command_line.h"
#include "cli/config/config.h"
#include "cli/delegated_scope.h"
#include "cli/run_service.h"
#include "cli/service_setup.h"
#include "cli/terminal.h"
#include "executors/executor_table.h"
#include "executors/python/python_executor.h"
#include "net/http_client.h"
#include "sandbox/host_limits.h"
#include "sandbox/launcher_client.h"
#include "store/redis/embedded_redis.h"
#include "store/redis/redis_stores.h"
#include "worker/leases/runner_registration.h"

namespace mycojobs {
namespace {

SandboxConfig make_sandbox_config(const Settings& settings, const std::vector<Id>& warm_contexts, int alive_fd) {
  SandboxConfig config;
  config.libexec_dir = settings.libexec_dir;
  config.allow_missing = settings.sandbox_allow_missing;
  if (settings.sandbox_uid_range.count > 0) {
    config.uid_base = settings.sandbox_uid_range.base;
    config.uid_count = settings.sandbox_uid_range.count;
  }
  config.max_zygotes = settings.sandbox_zygotes;
  for (Id context : warm_contexts) {
    if (config.initial_zygotes.size() < config.max_zygotes) config.initial_zygotes.push_back({"python", context});
  }
  config.max_prewarmed = settings.sandbox_prewarmed;
  config.max_sandbox_runs = settings.sandbox_reused_runs;
  config.max_warm_processes = settings.sandbox_warm;
  config.max_zygote_runs = settings.sandbox_zygote_runs;
  config.max_zygote_age_ms = settings.sandbox_zygote_age_ms;
  config.alive_fd = alive_fd;
  config.hosts = python_hosts(settings.libexec_dir, settings.context_python);
  return config;
}

// Adds the folders of fs.write to check. A folder of several contexts is checked once.
void add_written_folders(const Settings& settings, const std::vector<Id>& contexts, SandboxConfig& config) {
  constexpr std::size_t kMaxBytes = 16U << 10;  // the launcher receives all of them in one message
  std::set<std::string> paths;
  std::size_t bytes = 0;
  for (const Id context : contexts) {
    for (const std::string& path : settings.ceilings.get(context).max.fs_write) {
      if (bytes + path.size() > kMaxBytes || !paths.insert(path).second) continue;
      bytes += path.size();
      config.written_folders.emplace_back(context, path);
    }
  }
}

// Adds the owners of files of these contexts, and the volumes to check.
void add_folder_checks(const Settings& settings, const std::vector<Id>& contexts, SandboxConfig& config) {
  for (const Id context : contexts) {
    const ContextFiles* files = find_context_files(settings.context_files, static_cast<ContextId>(context));
    if (files != nullptr) config.files.push_back(*files);
    const auto volumes = settings.ceilings.volumes.find(context);
    if (volumes == settings.ceilings.volumes.end()) continue;
    for (const Volume& volume : volumes->second) config.volumes.emplace_back(context, volume);
  }
  add_written_folders(settings, contexts, config);
}

// Adds the owners of files of all contexts that the command has resolved. It has checked the owner that its script
// needs; unknown owners of other contexts must not prevent the run.
void add_known_owners(const Settings& settings, SandboxConfig& config) {
  for (const ContextFiles& files : settings.context_files) {
    if (files.owner != kUnknownFileOwner) config.files.push_back(files);
  }
}

ExecutorSettings make_executor_settings(const Settings& settings, const Clock& clock) {
  return {settings.libexec_dir,
          settings.state_dir,
          settings.executors,
          settings.plugins_dir,
          settings.v_compiler,
          settings.v_flags,
          settings.context_python,
          clock};
}

// Creates the exporter of spans to the configured collector. ca: see HttpPost. The service name of the spans contains
// the command.
Result<std::shared_ptr<Traces>> open_traces(const std::string& url, const std::string& ca, std::string_view command,
                                            const std::shared_ptr<Metrics>& metrics) {
  if (url.empty()) return no_traces();
  if (auto valid = check_trace_endpoint(url); !valid) return fail(valid.error(), "trace.endpoint");
  const bool is_service = command == "agent" || command == "coordinator" || command == "dev";
  const TraceSource source{is_service ? "mycojobs-" + std::string(command) : "mycojobs", current_instance().host};
  auto send = [url, ca, client = std::make_shared<HttpClient>()](const std::string& body,
                                                                 const std::atomic<bool>& stop) -> Result<void> {
    constexpr std::uint32_t kTimeoutMs = 5000;
    HttpPost post;
    post.url = url;
    post.body = body;
    post.timeout_ms = kTimeoutMs;
    post.max_bytes = 0;
    post.ca = ca;
    post.headers = {"Content-Type: application/json"};
    post.stop = &stop;
    MJ_TRY(response, client->post(post));
    if (response.status >= 200 && response.status < 300) return {};
    return fail(Code::unavailable, url + ": answers with HTTP status " + std::to_string(response.status));
  };
  return start_traces(source, std::move(send), metrics);
}

// Creates the dependencies of the commands. `arguments` is the command line of this process, which the remedy for a
// missing cgroup repeats. REQUIRES: the referenced objects outlive the result.
ProgramDependencies make_dependencies(const Clock& clock, const std::shared_ptr<Metrics>& metrics,
                                      const std::shared_ptr<Traces>& traces, std::vector<std::string> arguments) {
  return ProgramDependencies{
      .make_stores = [&metrics, &traces](const Settings& settings,
                                         const std::string& url) -> std::unique_ptr<StoreFactory> {
        RedisStoreConfig config;
        config.default_url = url;
        config.context_urls = settings.context_redis;
        config.tls = std::make_shared<TlsContext>(get_redis_tls(settings));
        for (const auto& entry : settings.context_redis_tls)
          config.context_tls[entry.first] = std::make_shared<TlsContext>(entry.second);
        config.sentinel = get_sentinel_settings(settings);
        config.instrumentation = {metrics, traces, {settings.quota_caller_bytes, settings.quota_context_bytes}};
        config.is_intermittent = url == EmbeddedRedis::url(settings.state_dir);
        config.wait_replicas = settings.redis_wait_replicas;
        return make_redis_stores(std::move(config));
      },
      .start_sandbox = [arguments = std::move(arguments)](const Settings& settings,
                                                          const std::vector<Id>& warm_contexts,
                                                          int alive_fd) -> Result<std::unique_ptr<Sandbox>> {
        SandboxConfig config = make_sandbox_config(settings, warm_contexts, alive_fd);
        add_folder_checks(settings, warm_contexts, config);
        // A trial of a script by an ordinary user must not fail because of settings for an agent of root.
        if (warm_contexts.empty() && ::geteuid() == 0) add_known_owners(settings, config);
        auto sandbox = start_sandbox(config);
        if (!sandbox) sandbox.error().message += make_scope_remedy(sandbox.error().message, arguments);
        return sandbox;
      },
      .make_executors =
          [&clock](const Settings& settings) { return create_executors(make_executor_settings(settings, clock)); },
      .list_plugins =
          [&clock](const Settings& settings) { return list_plugins(make_executor_settings(settings, clock)); },
      .check_plugin =
          [&clock](const Settings& settings, const std::string& file) {
            return check_plugin(make_executor_settings(settings, clock), file);
          },
      .create_plugin_executor = &create_plugin_executor,
      .probe_layers = [](const Settings& settings) -> Result<std::vector<LayerCheck>> {
        SandboxConfig config = make_sandbox_config(settings, {}, -1);
        add_folder_checks(settings, settings.contexts, config);
        MJ_TRY(reports, probe_layers(config));
        std::vector<LayerCheck> checks;
        checks.reserve(reports.size());
        for (const LayerReport& report : reports)
          checks.push_back({report.name, report.ok, report.detail, report.remedy, report.is_optional});
        return checks;
      },
      .fit_slots =
          [](std::uint32_t slots) {
            sandbox::SlotFit fit = sandbox::fit_slots(slots, sandbox::read_host_limits());
            return std::pair(fit.slots, std::move(fit.reason));
          },
      .clock = clock,
      .metrics = metrics,
      .traces = traces,
  };
}

int run(int argc, char** argv) {
  if (std::any_of(argv + 1, argv + argc, [](const char* argument) { return std::string_view(argument) == "--json"; }))
    print_errors_as_json();
  CommandLine line = parse_command_line(argc, argv);
  if (line.command == nullptr) return line.exit_code;
  const SystemClock clock;
  std::shared_ptr<Metrics> metrics = no_metrics();
  std::shared_ptr<Traces> traces = no_traces();
  const ProgramDependencies dependencies =
      make_dependencies(clock, metrics, traces, std::vector<std::string>(argv, argv + argc));
  Invocation invocation{dependencies,          line.options, {}, line.json, std::move(line.arguments),
                        std::move(line.flags), line.command};
  const std::string_view command = line.command->name;
  if (!command.starts_with("config") && command != "completion" && command != "man-page") {
    auto config = load_config(read_system_sources(line.options));
    if (!config) return print_error(config.error());
    invocation.settings = std::move(config->settings);
    invocation.config_values = config->values;
    enter_delegated_scope(command, invocation, argv);
    for (const std::string& warning : config->warnings) print_warning(warning);
    if (line.command->is_service && !invocation.settings.metrics_listen.empty()) metrics = Metrics::make();
    auto opened_traces =
        open_traces(invocation.settings.trace_endpoint, invocation.settings.https_ca, command, metrics);
    if (!opened_traces) return print_error(opened_traces.error());
    traces = std::move(*opened_traces);
    const auto level = std::find_if(config->values.begin(), config->values.end(),
                                    [](const ConfigValue& value) { return value.name == "log.level"; });
    const bool is_level_chosen = level != config->values.end() && level->source != "default";
    init_log(is_level_chosen || line.command->is_service ? invocation.settings.log_level : LogLevel::warn,
             invocation.settings.log_format);
    log_insecure_redis(invocation.settings);
  }
  const Result<int> exit_code = line.command->run(invocation);
  return check_output_written(exit_code ? *exit_code : print_error(exit_code.error()));
}

}  // namespace
}  // namespace mycojobs

// Opens the standard descriptors that the shell has closed (">&-"). Otherwise a connection could get such a descriptor
// and receive the output of the program.
static void open_standard_descriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) < 0)
      (void)::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);  // a wrong use fails with EBADF
  }
}

int main(int argc, char** argv) try {
  open_standard_descriptors();
  mycojobs::start_as_container_init();
  // A job needs three descriptors in this process, so the limit is raised to its maximum.
  rlimit file_limit{};
  if (::getrlimit(RLIMIT_NOFILE, &file_limit) == 0) {
    file_limit.rlim_cur = file_limit.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &file_limit);
  }
  mycojobs::block_stop_signals();
  // An exception that no thread catches ends the process with a report and without a core dump. The child processes
  // notice the end of this process and exit, too.
  std::set_terminate([] { mycojobs::exit_with_report("mycojobs"); });
  return mycojobs::run(argc, argv);
} catch (...) {
  return mycojobs::report_uncaught_exception("mycojobs");
}
