// mycojobs job artifacts JOB [NAME]: the files that a job left.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/artifact_files.h"
#include "cli/commands.h"
#include "cli/opened.h"
#include "cli/terminal.h"
#include "domain/codec.h"
#include "domain/utf8.h"
#include "inspect/jobs.h"
#include "worker/job_inputs.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMostOnTerminal = 1U << 20;

struct FoundArtifacts {
  std::string key;
  std::vector<StoredArtifact> all;
  std::string where;  // "runner 3 on host atlas"
};

std::string runner_of(Store& store, Id context, Id runner) {
  if (runner == 0) return "an unknown runner";
  const std::string named = fmt::format("runner {}", runner);
  const auto all = store.runners(context);
  if (!all) return named;
  const auto found = std::find_if(all->begin(), all->end(), [&](const auto& each) { return each.runner.id == runner; });
  const bool known = found != all->end() && !found->hold.host.empty();
  return known ? named + " on host " + one_line(found->hold.host) : named;
}

Result<FoundArtifacts> find(const Invocation& call) {
  MJ_TRY(key, job_argument(call));
  MJ_TRY(opened, open_to_answer(call));
  const Id context = context_of(call);
  MJ_TRY(view, load_job(*opened.store, context, key));
  FoundArtifacts found{key, read_artifacts(view.job.artifacts, context, call.settings.state_dir), {}};
  if (!std::all_of(found.all.begin(), found.all.end(), is_here))
    found.where = runner_of(*opened.store, context, view.job.runner_id);
  return found;
}

// What to do about an artifact that lies elsewhere.
Error explained(const FoundArtifacts& found, const StoredArtifact& artifact, Error error) {
  if (error.code == Code::not_found) {
    error.message += fmt::format("; the job ran at {}: call this there, with the --state-dir of its agent",
                                 found.where.empty() ? "another host" : found.where);
  }
  error.message.insert(0, found.key + ": artifact " + shown(artifact.name, 200) + ": ");
  return error;
}

nlohmann::json to_json(const StoredArtifact& artifact) {
  return {{"name", artifact.name},     {"bytes", artifact.bytes},
          {"sha256", artifact.sha256}, {"executable", artifact.executable},
          {"here", is_here(artifact)}, {"path", artifact.path}};
}

void list(const Invocation& call, const FoundArtifacts& found) {
  if (call.json) {
    nlohmann::json array = nlohmann::json::array();
    for (const auto& each : found.all) array.push_back(to_json(each));
    print(dump_json(array, 2) + "\n");
    return;
  }
  if (found.all.empty()) return say(found.key + " left no artifacts");
  std::vector<std::vector<std::string>> rows{{"NAME", "BYTES", "HERE", "SHA256"}};
  for (const auto& each : found.all)
    rows.push_back({one_line(each.name), std::to_string(each.bytes), is_here(each) ? "yes" : "no", each.sha256});
  print_table(rows);
  if (!found.where.empty()) say("what is not here lies at " + found.where);
}

// As it is, but for a terminal: what a stranger wrote may not speak to that.
Result<void> print_artifact(const StoredArtifact& artifact) {
  if (::isatty(STDOUT_FILENO) == 0)
    return read_artifact(artifact, [](std::string_view bytes) { return write_out(STDOUT_FILENO, bytes); });
  std::string text;
  MJ_CHECK(read_artifact(artifact, [&text](std::string_view bytes) -> Result<void> {
    text.append(bytes.substr(0, kMostOnTerminal + 1 - std::min(text.size(), kMostOnTerminal + 1)));
    return {};
  }));
  if (text.size() > kMostOnTerminal || !is_utf8(text) || text.find('\0') != std::string::npos)
    return fail(Code::invalid, "is nothing for a terminal: give --output FILE");
  print(printable(text));
  return {};
}

Result<void> write_one(const StoredArtifact& artifact, const std::string& output) {
  std::error_code unseen;  // opening it tells why
  if (std::filesystem::is_directory(output, unseen) || output.ends_with('/')) {
    MJ_TRY(folder, OutputFolder::open(output));
    return copy_artifact(artifact, folder);
  }
  const std::filesystem::path path(output);
  MJ_TRY(folder, OutputFolder::open(path.has_parent_path() ? path.parent_path().string() : "."));
  StoredArtifact renamed = artifact;
  renamed.name = path.filename().string();
  return copy_artifact(renamed, folder);
}

Result<int> artifacts(const Invocation& call) {
  const std::string output = call.get("output");
  if (call.has("output") && output.empty()) return fail(Code::invalid, "--output: is empty");
  MJ_TRY(found, find(call));
  const bool one = call.arguments.size() > 1;
  std::vector<StoredArtifact> wanted = found.all;
  if (one) {
    std::erase_if(wanted, [&](const auto& each) { return each.name != call.arguments[1]; });
    if (wanted.empty()) {
      return fail(Code::not_found, fmt::format("{} left no artifact {}: `mycojobs job artifacts {}` lists them",
                                               found.key, shown(call.arguments[1], 200), found.key.substr(4)));
    }
  }
  if (!call.has("output") && (call.json || !one)) {
    found.all = wanted;
    list(call, found);
    return 0;
  }
  for (const StoredArtifact& each : wanted) {
    Result<void> done;
    if (!call.has("output")) {
      done = print_artifact(each);
    } else if (one) {
      done = write_one(each, output);
    } else {
      MJ_TRY(folder, OutputFolder::open(output));
      done = copy_artifact(each, folder);
    }
    if (!done) return tl::unexpected<Error>(explained(found, each, std::move(done).error()));
    if (call.has("output")) say("wrote " + one_line(each.name) + " (" + size_text(each.bytes) + ")");
  }
  return 0;
}

}  // namespace

int job_artifacts_command(Invocation& call) { return finish(artifacts(call)); }

}  // namespace mycojobs
