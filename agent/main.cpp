// mycojobs: parses the command line, loads the configuration, creates the implementations and runs the command. This is
// the only file that names all implementations.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <exception>

#include "base/clock.h"
#include "base/container_init.h"
#include "base/log.h"
#include "base/uncaught_exception.h"
#include "cli/commands/command_line.h"
#include "cli/config/config.h"
#include "cli/delegated_scope.h"
#include "cli/run_service.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "executors/executor_table.h"
#include "executors/python/python_executor.h"
#include "net/http_client.h"
#include "sandbox/host_limits.h"
#include "sandbox/launcher_client.h"
#include "store/redis/embedded_redis.h"
#include "store/redis/redis_store.h"
#include "text/utf8.h"
#include "worker/leases/runner_registration.h"

namespace mycojobs {
namespace {

struct PrivateRedis final : EmbeddedServer {
  explicit PrivateRedis(std::unique_ptr<EmbeddedRedis> started) : redis(std::move(started)) {}
  std::unique_ptr<EmbeddedRedis> redis;
};

SandboxConfig sandbox_config(const Settings& settings, const std::vector<Id>& warm, int alive_fd) {
  SandboxConfig config;
  config.libexec_dir = settings.libexec_dir;
  config.allow_missing = settings.sandbox_allow_missing;
  if (settings.sandbox_uid_range.count > 0) {
    config.uid_base = settings.sandbox_uid_range.base;
    config.uid_count = settings.sandbox_uid_range.count;
  }
  for (Id context : warm) config.warm.push_back({"python", context});
  config.prewarmed = settings.sandbox_prewarmed;
  config.sandbox_runs = settings.sandbox_reused_runs;
  config.warm_processes = settings.sandbox_warm;
  config.zygote_runs = settings.sandbox_zygote_runs;
  config.zygote_age_ms = settings.sandbox_zygote_age_ms;
  config.alive_fd = alive_fd;
  config.hosts = python_hosts(settings.libexec_dir, settings.context_python);
  return config;
}

ExecutorSettings executor_settings(const Settings& settings, const Clock& clock) {
  return {settings.libexec_dir,
          settings.state_dir,
          settings.executors,
          settings.plugins_dir,
          settings.v_compiler,
          settings.v_flags,
          clock};
}

// Creates the exporter of spans to the configured collector. The service name of the spans contains the command.
Result<std::shared_ptr<Traces>> open_traces(const std::string& url, std::string_view command,
                                            const std::shared_ptr<Metrics>& metrics) {
  if (url.empty()) return no_traces();
  if (auto fits = check_trace_endpoint(url); !fits) return fail(fits.error(), "trace.endpoint");
  const bool named = command == "agent" || command == "coordinator" || command == "dev";
  const TraceSource source{named ? "mycojobs-" + std::string(command) : "mycojobs", current_instance().host};
  auto send = [url, client = std::make_shared<HttpClient>()](const std::string& body,
                                                             const std::atomic<bool>& stop) -> Result<void> {
    constexpr std::uint32_t kTimeoutMs = 5000;
    HttpPost post;
    post.url = url;
    post.body = body;
    post.timeout_ms = kTimeoutMs;
    post.max_bytes = 0;
    post.headers = {"Content-Type: application/json"};
    post.stop = &stop;
    MJ_TRY(answer, client->post(post));
    if (answer.status >= 200 && answer.status < 300) return {};
    return fail(Code::unavailable, url + ": answers with HTTP status " + std::to_string(answer.status));
  };
  return start_traces(source, std::move(send), metrics);
}

// typed: the words of the command line, for a remedy that repeats them.
ProgramDependencies wire(const Clock& clock, const std::shared_ptr<Metrics>& metrics,
                         const std::shared_ptr<Traces>& traces, std::vector<std::string> typed) {
  return ProgramDependencies{
      .stores = [&metrics, &traces](const Settings& settings, const std::string& url) -> std::unique_ptr<StoreFactory> {
        RedisStoreConfig config;
        config.default_url = url;
        config.context_urls = settings.context_redis;
        config.observed = {metrics, traces, {settings.quota_caller_bytes, settings.quota_context_bytes}};
        config.is_intermittent = url == EmbeddedRedis::url(settings.state_dir);
        config.wait_replicas = settings.redis_wait_replicas;
        return make_redis_stores(std::move(config));
      },
      .embedded = [](const Settings& settings) -> Result<std::unique_ptr<EmbeddedServer>> {
        MJ_TRY(redis, EmbeddedRedis::start(settings.state_dir, {.again = true}));
        return std::make_unique<PrivateRedis>(std::move(redis));
      },
      .embedded_url = [](const Settings& settings) { return EmbeddedRedis::url(settings.state_dir); },
      .sandbox = [typed = std::move(typed)](const Settings& settings, const std::vector<Id>& warm,
                                            int alive_fd) -> Result<std::unique_ptr<Sandbox>> {
        auto started = start_sandbox(sandbox_config(settings, warm, alive_fd));
        if (!started) started.error().message += scope_remedy(started.error().message, typed);
        return started;
      },
      .executors = [&clock](const Settings& settings) { return make_executors(executor_settings(settings, clock)); },
      .plugins = [&clock](const Settings& settings) { return list_plugins(executor_settings(settings, clock)); },
      .check_plugin = [&clock](
                          const Settings& settings,
                          const std::string& file) { return check_plugin(executor_settings(settings, clock), file); },
      .executor_of_plugin = &executor_of_plugin,
      .probe_layers = [](const Settings& settings) -> Result<std::vector<LayerCheck>> {
        MJ_TRY(reports, probe_layers(sandbox_config(settings, {}, -1)));
        std::vector<LayerCheck> checks;
        checks.reserve(reports.size());
        for (const LayerReport& report : reports)
          checks.push_back({report.name, report.ok, report.detail, report.remedy});
        return checks;
      },
      .fit_slots =
          [](std::uint32_t slots) {
            sandbox::SlotFit fit = sandbox::fit_slots(slots, sandbox::read_host_limits());
            return std::pair(fit.slots, std::move(fit.why));
          },
      .clock = clock,
      .metrics = metrics,
      .traces = traces,
  };
}

int run(int argc, char** argv) {
  if (std::any_of(argv + 1, argv + argc, [](const char* word) { return std::string_view(word) == "--json"; }))
    print_errors_as_json();
  CommandLine line = parse_command_line(argc, argv);
  if (line.command == nullptr) return line.exit_code;
  const SystemClock clock;
  std::shared_ptr<Metrics> metrics = no_metrics();
  std::shared_ptr<Traces> traces = no_traces();
  const ProgramDependencies parts = wire(clock, metrics, traces, std::vector<std::string>(argv, argv + argc));
  Invocation call{parts, line.options, {}, line.json, std::move(line.arguments), std::move(line.flags)};
  const std::string_view name = line.command->name;
  if (!name.starts_with("config") && name != "completion" && name != "man-page") {
    auto config = load_config(system_sources(line.options));
    if (!config) return print_error(config.error());
    call.settings = std::move(config->settings);
    call.values = config->values;
    enter_delegated_scope(name, call, argv);
    for (const std::string& warning : config->warnings)
      print_message(paint(OutputStyle::warn, "warning: ", true) + warning);
    if (line.command->serves && !call.settings.metrics_listen.empty()) metrics = Metrics::make();
    auto opened = open_traces(call.settings.trace_endpoint, name, metrics);
    if (!opened) return print_error(opened.error());
    traces = std::move(*opened);
    const auto level = std::find_if(config->values.begin(), config->values.end(),
                                    [](const ConfigValue& value) { return value.name == "log.level"; });
    const bool chosen = level != config->values.end() && level->source != "default";
    init_log(chosen || line.command->serves ? call.settings.log_level : LogLevel::warn, call.settings.log_format);
  }
  return exit_process(line.command->run(call));
}

}  // namespace
}  // namespace mycojobs

// Opens descriptors that the shell has closed (">&-"). Otherwise a connection could get such a descriptor and receive
// output.
static void keep_standard_descriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) < 0) (void)::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);  // use is EBADF
  }
}

int main(int argc, char** argv) try {
  keep_standard_descriptors();
  mycojobs::start_as_container_init();
  // A job needs three descriptors in this process, so the limit is raised to its maximum.
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &files);
  }
  mycojobs::block_stop_signals();
  // Handles exceptions on other threads. Child processes then detect the end of this process.
  std::set_terminate([] { mycojobs::exit_with_report("mycojobs"); });
  return mycojobs::run(argc, argv);
} catch (...) {
  return mycojobs::report_uncaught_exception("mycojobs");
}
