// mycojobs doctor, verify: doctor checks everything that jobs need on this host and prints the remedies; verify checks
// the data in the store.
#include <fmt/format.h>
#include <sysexits.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "api/server.h"
#include "artifacts/artifact_usage.h"
#include "cli/command_output.h"
#include "cli/commands/commands.h"
#include "cli/executor_trial.h"
#include "cli/service_setup.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "executors/python/packages/environment_cache.h"
#include "executors/python/python_executor.h"
#include "inspect/doctor.h"
#include "inspect/verify/actor_verify.h"
#include "inspect/verify/context_verify.h"
#include "inspect/verify/deployment_verify.h"
#include "inspect/verify/flow_verify.h"
#include "inspect/verify/object_verify.h"
#include "inspect/verify/rebuild.h"
#include "model/codec.h"
#include "net/http_transfer.h"
#include "net/tls_identity.h"
#include "store/checks/default_user.h"
#include "text/plural.h"

namespace mycojobs {
namespace {

using Checks = std::vector<Check>;

constexpr OutputStyle kStatusStyles[] = {OutputStyle::good, OutputStyle::warn, OutputStyle::bad};

void add_failed_check(Checks& checks, std::string area, std::string name, const Error& error) {
  checks.push_back({std::move(area), std::move(name), CheckStatus::error, error.message, ""});
}

void check_sandbox(const Invocation& call, Checks& checks) {
  auto layers = call.dependencies.probe_layers(call.settings);
  if (!layers) return add_failed_check(checks, "sandbox", "launcher", layers.error());
  for (const LayerCheck& layer : *layers) {
    const auto& allowed = call.settings.sandbox_allow_missing;
    // Without several user ids all jobs share one. This is weaker and is reported with every result, but jobs can run.
    const bool may_be_missing = layer.name == "uid" || layer.is_optional ||
                                std::find(allowed.begin(), allowed.end(), layer.name) != allowed.end();
    checks.push_back({"sandbox", layer.name,
                      layer.ok ? CheckStatus::ok : (may_be_missing ? CheckStatus::warning : CheckStatus::error),
                      layer.detail, layer.remedy});
  }
}

void check_executors(const Invocation& call, Checks& checks) {
  ExecutorTrials trials(call);
  for (const auto& executor : call.dependencies.make_executors(call.settings)) {
    auto probe = executor->probe();
    const std::string failure = probe ? trials.find_failure(*executor) : "";
    if (!failure.empty()) {
      checks.push_back({"executor", std::string(executor->name()), CheckStatus::error, *probe + "; " + failure, ""});
    } else if (probe) {
      checks.push_back({"executor", std::string(executor->name()), CheckStatus::ok, *probe, ""});
    } else {
      add_failed_check(checks, "executor", std::string(executor->name()), probe.error());
      // An interpreter that is not installed is an error only if its script type is configured.
      const auto& script_types = call.settings.script_types;
      const auto types = executor->script_types();
      const bool is_wanted = std::find_first_of(script_types.begin(), script_types.end(), types.begin(), types.end()) !=
                             script_types.end();
      if (probe.error().code == Code::not_found && !is_wanted) checks.back().status = CheckStatus::warning;
    }
  }
}

// The environments of scripts with packages. Without pip none can be installed.
void check_packages(const Invocation& call, Checks& checks) {
  const auto& contexts = call.settings.context_python;
  const auto has_packages = [](const auto& entry) { return entry.second.packages.has_value(); };
  if (std::none_of(contexts.begin(), contexts.end(), has_packages)) return;
  if (const auto pip = find_pip()) {
    checks.push_back({"packages", "pip", CheckStatus::ok, *pip, ""});
  } else {
    add_failed_check(checks, "packages", "pip", pip.error());
  }
  for (const auto& [context, python] : contexts) {
    if (!python.packages) continue;
    const EnvironmentCache cache(call.settings.state_dir, context);
    const std::vector<std::uint64_t> sizes = cache.list_sizes();
    const std::uint64_t bytes = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
    const auto failures = cache.list_failures();
    Check check{"packages", fmt::format("context {}", context), CheckStatus::ok,
                fmt::format("{}: {}, {:.1f} MiB", python.packages->index, count_with_noun(sizes.size(), "environment"),
                            static_cast<double>(bytes) / (1 << 20)),
                ""};
    for (const FailedInstallation& failure : failures) {
      check.status = CheckStatus::warning;
      check.detail += fmt::format("; an installation failed {} s ago: {}", failure.seconds_ago,
                                  to_printable_line(extract_pip_error(failure.error)));
    }
    checks.push_back(std::move(check));
  }
}

// A rejected plugin is a warning, because an agent works without it.
void check_plugins(const Invocation& call, Checks& checks) {
  for (const auto& report : call.dependencies.list_plugins(call.settings)) {
    if (report.state == plugin::PluginState::refused)
      checks.push_back({"plugin", std::filesystem::path(report.file).filename().string(), CheckStatus::warning,
                        "refused: " + report.reason, "mycojobs plugin check " + report.file});
  }
}

Result<StoreServerInfo> load_server_info(Result<std::unique_ptr<Store>> store) {
  if (!store) return tl::unexpected(store.error());
  return (*store)->server_info();
}

// A Redis server, with the settings of its certificates.
struct CheckedServer {
  std::string name, url;
  TlsSettings tls;
};

// The servers that were checked, and whether they can be used. A server with several contexts is checked once.
using CheckedServers = std::vector<std::pair<CheckedServer, bool>>;
std::optional<bool> find_checked_server(const CheckedServers& checked_servers, const CheckedServer& server) {
  const auto read_endpoint = [](const CheckedServer& checked) {
    auto endpoint = parse_redis_url(checked.url);
    if (endpoint) endpoint->database.reset();
    return endpoint;
  };
  const auto endpoint = read_endpoint(server);
  for (const auto& [checked, is_usable] : checked_servers) {
    const auto other = read_endpoint(checked);
    if (endpoint && other && *endpoint == *other && checked.tls == server.tls) return is_usable;
  }
  return std::nullopt;
}

// Adds the checks of one server. max_context: the largest context in its databases. Returns false if the server cannot
// be used.
bool add_server_checks(const Invocation& call, Checks& checks, const CheckedServer& server,
                       const Result<StoreServerInfo>& server_info, Id max_context) {
  const auto& [name, url, tls_settings] = server;
  const auto tls = std::make_shared<TlsContext>(tls_settings);
  const SentinelSettings sentinel_settings = get_sentinel_settings(call.settings);
  if (const auto overview = load_sentinel_overview(url, tls, sentinel_settings); overview && *overview) {
    for (Check& check : diagnose_sentinels(**overview, call.settings.redis_wait_replicas)) {
      check.area = name;
      checks.push_back(std::move(check));
    }
  }
  if (!server_info) {
    add_failed_check(checks, name, "server", server_info.error());
    return false;
  }
  for (Check& check : diagnose_server(*server_info, max_context, call.settings.redis_wait_replicas)) {
    check.area = name;
    checks.push_back(std::move(check));
  }
  if (const auto state = probe_tls(url, tls, sentinel_settings); state && *state) {
    const auto now_s = static_cast<std::int64_t>(call.dependencies.clock.unix_ms() / 1000);
    checks.push_back(diagnose_tls(**state, tls_settings, now_s));
    checks.back().area = name;
  }
  if (const auto user = probe_default_user(url, tls, sentinel_settings); user && *user) {
    checks.push_back(diagnose_default_user(**user == DefaultUser::open));
    checks.back().area = name;
  }
  return true;
}

// Checks the size of the artifacts of a context on this host.
void check_artifacts(const Invocation& call, Id context, Checks& checks) {
  const ArtifactTotals totals = read_artifact_totals(call.settings.state_dir, context);
  if (totals.bytes == 0) return;
  checks.push_back(diagnose_artifact_quota(fmt::format("artifacts of context {} here", context), totals.bytes,
                                           call.settings.quota_context_artifact_bytes, "quota.context_artifact_bytes"));
  checks.push_back(diagnose_artifact_quota(
      fmt::format("largest caller of artifacts of context {}: {}", context, totals.largest_caller),
      totals.largest_bytes, call.settings.quota_caller_artifact_bytes, "quota.caller_artifact_bytes"));
}

// Checks the settings of the object storage and the rights of its access key.
void check_artifact_bucket(const Invocation& call, Checks& checks) {
  if (call.settings.artifacts_store.empty()) return;
  const std::string name = "artifacts.store";
  auto bucket = make_artifact_bucket(call.settings);
  auto result = bucket ? (*bucket)->check(nullptr) : tl::unexpected<Error>(std::move(bucket).error());
  if (!result) return add_failed_check(checks, "artifacts", name, result.error());
  checks.push_back({"artifacts", name, CheckStatus::ok,
                    call.settings.artifacts_store + ": an object was written, read, listed and deleted", ""});
}

// Checks whether the listener for artifacts can be opened, or is the one of a running process of this host.
void check_file_listener(const Invocation& call, Checks& checks) {
  const Settings& settings = call.settings;
  if (settings.artifacts_listen.empty()) return;
  const std::string name = "artifacts.listen";
  const auto address = api::make_link_address(settings.artifacts_listen, settings.artifacts_advertise, 0);
  if (!address) return add_failed_check(checks, "artifacts", "artifacts.advertise", address.error());
  const auto available = api::check_listen_address(settings.artifacts_listen);
  if (available) {
    checks.push_back({"artifacts", name, CheckStatus::ok, settings.artifacts_listen + " is free", ""});
    return;
  }
  const auto key_sha256 = read_public_key_sha256(get_artifacts_tls(settings).certificate);
  if (available.error().code != Code::conflict || !key_sha256)
    return add_failed_check(checks, "artifacts", name, available.error());
  HttpTransfer::Request request;
  request.url = "https://" + *address + kFileLinkPath;
  request.server_key_sha256 = *key_sha256;
  if (auto answer = HttpTransfer().perform(request); !answer)
    return add_failed_check(checks, "artifacts", name,
                            {Code::conflict, available.error().message + " (" + answer.error().message + ")"});
  checks.push_back({"artifacts", name, CheckStatus::ok, "a process of this host sends artifacts at " + *address, ""});
}

// Checks the keys of each context whose server can be used, and the artifacts of each context.
void check_contexts(const Invocation& call, const std::vector<Id>& usable_contexts, Checks& checks) {
  auto services = open_services(call.dependencies, call.settings, false);
  if (!services) return;  // reported by check_redis()
  auto store = services->stores->open();
  if (!store) return;
  for (Id context : call.settings.contexts) {
    if (std::find(usable_contexts.begin(), usable_contexts.end(), context) != usable_contexts.end()) {
      for (Check& check : diagnose_format(**store, context)) checks.push_back(std::move(check));
      for (Check& check : diagnose_writes(**store, context)) checks.push_back(std::move(check));
      for (Check& check : diagnose_quota(**store, context)) checks.push_back(std::move(check));
    }
    check_artifacts(call, context, checks);
  }
}

// Checks the default server and the servers of single contexts. Returns the contexts whose server can be used.
std::vector<Id> check_redis(const Invocation& call, Checks& checks) {
  const auto& dedicated_servers = call.settings.context_redis;
  std::vector<Id> usable_contexts;
  Id max_context = 0;
  for (Id context : call.settings.contexts) {
    if (!dedicated_servers.contains(context)) max_context = std::max(max_context, context);
  }
  bool is_default_usable = false;
  CheckedServers checked_servers;
  if (max_context > 0) {
    auto services = open_services(call.dependencies, call.settings, false);
    const std::string url =
        call.settings.redis.empty() ? EmbeddedRedis::url(call.settings.state_dir) : call.settings.redis;
    const CheckedServer checked{"redis", url, get_redis_tls(call.settings)};
    is_default_usable = add_server_checks(call, checks, checked,
                                          services ? load_server_info(services->stores->open())
                                                   : Result<StoreServerInfo>(tl::unexpected(services.error())),
                                          max_context);
    checked_servers.emplace_back(checked, is_default_usable);
  }
  for (Id context : call.settings.contexts) {
    const auto server = dedicated_servers.find(context);
    if (server == dedicated_servers.end()) {
      if (is_default_usable) usable_contexts.push_back(context);
      continue;
    }
    const Settings server_settings = select_context_server(call.settings, context);
    const CheckedServer checked{"redis of context " + std::to_string(context), server->second,
                                get_redis_tls(call.settings, context)};
    if (const auto usable = find_checked_server(checked_servers, checked)) {
      if (*usable) usable_contexts.push_back(context);
      continue;
    }
    const auto server_info = load_server_info(call.dependencies.make_stores(server_settings, server->second)->open());
    const bool is_usable = add_server_checks(call, checks, checked, server_info, 0);
    if (is_usable) usable_contexts.push_back(context);
    checked_servers.emplace_back(checked, is_usable);
  }
  return usable_contexts;
}

// Checks the certificates of the API and of /metrics of this host.
void check_certificates(const Invocation& call, Checks& checks) {
  for (const TlsSettings& settings : {get_api_tls(call.settings), get_metrics_tls(call.settings)}) {
    if (!has_certificate(settings)) continue;
    const auto expiry_s = TlsContext(settings, TlsRole::server).load_own_expiry_s();
    if (!expiry_s) {
      add_failed_check(checks, settings.table, "certificate", expiry_s.error());
      continue;
    }
    const auto now_s = static_cast<std::int64_t>(call.dependencies.clock.unix_ms() / 1000);
    checks.push_back(diagnose_server_certificate(settings.table, *expiry_s, now_s));
  }
}

int run_doctor(Invocation& call) {
  Checks checks;
  (void)resolve_owners(call.settings, {});  // the sandbox reports owners that do not exist
  check_sandbox(call, checks);
  check_executors(call, checks);
  check_packages(call, checks);
  check_artifact_bucket(call, checks);
  check_file_listener(call, checks);
  check_plugins(call, checks);
  const std::vector<Id> usable_contexts = check_redis(call, checks);
  check_contexts(call, usable_contexts, checks);
  check_certificates(call, checks);

  nlohmann::json array = nlohmann::json::array();
  TableRows rows{{"AREA", "WHAT", "STATE", "DETAIL"}};
  bool is_ready = true;
  for (const Check& check : checks) {
    is_ready = is_ready && check.status != CheckStatus::error;
    array.push_back(to_json(check));
    const OutputStyle style = kStatusStyles[static_cast<std::size_t>(check.status)];
    rows.push_back({check.area, check.name, paint(style, to_string(check.status)), check.detail});
    if (!check.remedy.empty()) rows.push_back({"", "", "", paint(OutputStyle::strong, "remedy: ") + check.remedy});
  }
  print_listing(call, array, rows);
  return is_ready ? 0 : EX_UNAVAILABLE;
}

// Functions of mycojobs verify and mycojobs doctor --rebuild

ProgressCallback make_progress_callback(ProgressLine& progress) {
  return [&progress](std::string_view phase, std::uint64_t done, std::uint64_t total) {
    progress.show(phase, done, total);
  };
}

constexpr std::size_t kMaxShownPerRule = 3;

std::string format_finding_kind(const Finding& finding) {
  return finding.violation ? paint(OutputStyle::bad, "violation") : paint(OutputStyle::faint, "note");
}

// Prints the number of findings per rule, violations first, and then the first findings of each rule.
void print_findings(const std::vector<Finding>& findings, bool show_all) {
  if (findings.empty()) return;
  std::map<std::string, std::vector<const Finding*>> findings_by_rule;
  for (const Finding& finding : findings) findings_by_rule[finding.rule].push_back(&finding);
  TableRows totals;
  TableRows rows;
  std::size_t omitted_count = 0;
  for (const bool violations : {true, false}) {
    for (const VerifyRule& rule : verify_rules()) {
      const auto entry = findings_by_rule.find(std::string(rule.name));
      if (rule.violation != violations || entry == findings_by_rule.end()) continue;
      const auto& rule_findings = entry->second;
      totals.push_back({format_finding_kind(*rule_findings.front()), entry->first, std::to_string(rule_findings.size()),
                        std::string(rule.meaning)});
      const std::size_t shown_count =
          show_all ? rule_findings.size() : std::min(rule_findings.size(), kMaxShownPerRule);
      omitted_count += rule_findings.size() - shown_count;
      for (std::size_t i = 0; i < shown_count; ++i)
        rows.push_back({format_finding_kind(*rule_findings[i]), entry->first, to_printable(rule_findings[i]->subject),
                        to_printable(rule_findings[i]->text)});
    }
  }
  print_table(totals);
  print("\n");
  print_table(rows);
  if (omitted_count > 0) print(fmt::format("and {} more: --all lists every one\n", omitted_count));
}

void print_report(Id context, const VerifyReport& report, bool show_all) {
  print(fmt::format("context {}: {} jobs, {} facts, {} queues\n", context, report.jobs, report.facts, report.queues));
  print_findings(report.findings, show_all);
}

struct ContextStores {
  std::unique_ptr<ObjectStore> objects;
  std::unique_ptr<FlowStore> flows;
  std::unique_ptr<WorkflowStore> deployments;
};

Result<ContextStores> open_context_stores(StoreFactory& factory) {
  MJ_TRY(objects, factory.open_objects());
  MJ_TRY(flows, factory.open_flows());
  MJ_TRY(deployments, factory.open_workflows());
  return ContextStores{std::move(objects), std::move(flows), std::move(deployments)};
}

struct ContextRebuild {
  RebuildReport report;
  std::vector<Finding> remaining_violations;  // empty for a dry run
  bool is_complete = true;
};

Result<ContextRebuild> rebuild_context(Store& records, const ContextStores& stores, Id context, bool dry_run,
                                       const ProgressCallback& progress) {
  ContextRebuild out;
  const auto add_differences = [&](std::vector<std::string>& lines) {
    std::move(lines.begin(), lines.end(), std::back_inserter(out.report.differences));
  };
  MJ_TRY(report, rebuild(records, context, dry_run, progress));
  out.report = std::move(report);
  MJ_TRY(object_differences, rebuild_objects(*stores.objects, context, dry_run));
  add_differences(object_differences);
  MJ_TRY(flow_rebuild, rebuild_flows(*stores.flows, records, context, dry_run));
  add_differences(flow_rebuild.differences);
  out.is_complete = flow_rebuild.is_complete;
  MJ_TRY(deployment_differences, rebuild_deployments(*stores.deployments, records, context, dry_run));
  add_differences(deployment_differences);
  if (dry_run) return out;
  MJ_TRY(verification,
         verify_context({records, *stores.objects, *stores.flows, *stores.deployments}, context, progress));
  std::copy_if(verification.findings.begin(), verification.findings.end(), std::back_inserter(out.remaining_violations),
               [](const Finding& finding) { return finding.violation; });
  out.is_complete = out.is_complete && out.remaining_violations.empty();
  return out;
}

void print_rebuild(Id context, const ContextRebuild& result, bool dry_run) {
  const std::size_t differences = result.report.differences.size();
  const char* state = differences == 0     ? ""
                      : dry_run            ? ", not repaired"
                      : result.is_complete ? ", repaired"
                                           : ", not all repaired";
  print(fmt::format("context {}: {}, {}{}\n", context, count_with_noun(result.report.jobs, "job"),
                    count_with_noun(differences, "difference"), state));
  for (const std::string& line : result.report.differences) print("  " + to_printable_line(line) + "\n");
  if (!result.remaining_violations.empty()) print("  left:\n");
  for (const Finding& finding : result.remaining_violations)
    print("  " + finding.rule + "  " + to_printable_line(to_printable(finding.text)) + "\n");
}

Result<int> rebuild_all(const Invocation& call) {
  const bool dry_run = call.has("dry-run");
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(stores, open_context_stores(*session.services.stores));
  nlohmann::json contexts = nlohmann::json::array();
  std::size_t differences = 0;
  bool is_complete = true;
  for (Id context : call.settings.contexts) {
    Result<ContextRebuild> result;
    {
      ProgressLine progress(call.dependencies.clock);
      result = rebuild_context(*session.store, stores, context, dry_run, make_progress_callback(progress));
    }
    if (!result) return fail(result.error(), fmt::format("context {}", context));
    const RebuildReport& report = result->report;
    differences += report.differences.size();
    is_complete = is_complete && result->is_complete;
    nlohmann::json remaining_violations = nlohmann::json::array();
    for (const Finding& finding : result->remaining_violations) remaining_violations.push_back(to_json(finding));
    contexts.push_back({{"context", context},
                        {"jobs", report.jobs},
                        {"differences", report.differences},
                        {"left", std::move(remaining_violations)}});
    if (!call.json) print_rebuild(context, *result, dry_run);
  }
  MJ_TRY(actor_differences, rebuild_actors(*session.store, dry_run));
  differences += actor_differences.size();
  if (call.json) {
    print_json({{"dry_run", dry_run},
                {"complete", is_complete},
                {"differences", differences},
                {"contexts", contexts},
                {"actors", actor_differences}});
  } else {
    for (const std::string& line : actor_differences) print("actors: " + to_printable_line(line) + "\n");
  }
  if (!is_complete && !dry_run)
    print_message("some violations cannot be repaired: docs/protocol.md explains the loss of each key");
  return (dry_run && differences > 0) || !is_complete ? 1 : 0;
}

}  // namespace

Result<int> verify_command(Invocation& call) {
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(stores, open_context_stores(*session.services.stores));
  nlohmann::json contexts = nlohmann::json::array();
  std::size_t violations = 0;
  std::size_t notes = 0;
  const auto to_counted_json = [&](const std::vector<Finding>& findings) {
    nlohmann::json array = nlohmann::json::array();
    for (const Finding& finding : findings) {
      ++(finding.violation ? violations : notes);
      array.push_back(to_json(finding));
    }
    return array;
  };
  for (Id context : call.settings.contexts) {
    Result<VerifyReport> report;
    {
      ProgressLine progress(call.dependencies.clock);
      report = verify_context({*session.store, *stores.objects, *stores.flows, *stores.deployments}, context,
                              make_progress_callback(progress));
    }
    if (!report) return fail(report.error(), fmt::format("context {}", context));
    contexts.push_back({{"context", context},
                        {"jobs", report->jobs},
                        {"facts", report->facts},
                        {"queues", report->queues},
                        {"findings", to_counted_json(report->findings)}});
    if (!call.json) print_report(context, *report, call.has("all"));
  }
  MJ_TRY(actor_findings, verify_actors(*session.store));
  nlohmann::json actors = to_counted_json(actor_findings);
  if (call.json) {
    print_json({{"clean", violations == 0},
                {"violations", violations},
                {"contexts", contexts},
                {"actors", std::move(actors)}});
  } else {
    print_findings(actor_findings, call.has("all"));
    print(violations == 0 ? paint(OutputStyle::good, "clean")
                          : paint(OutputStyle::bad, count_with_noun(violations, "violation")));
    print(notes == 0 ? "\n" : ", " + count_with_noun(notes, "note") + "\n");
  }
  if (violations > 0) print_message("`mycojobs doctor --rebuild --dry-run` shows possible repairs from the journals");
  return violations == 0 ? 0 : 1;
}

Result<int> doctor_command(Invocation& call) {
  if (call.has("rebuild")) return rebuild_all(call);
  if (call.has("dry-run")) return fail(Code::invalid, "--dry-run: belongs to --rebuild");
  return run_doctor(call);
}

}  // namespace mycojobs
