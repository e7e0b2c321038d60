#include "worker/intake/input_fetcher.h"

#include <algorithm>
#include <utility>

#include "artifacts/artifact_folder.h"
#include "base/log.h"

namespace mycojobs {

void InputFetcher::fetch(RunNumber run, std::vector<MissingInput> files, OnEnd on_end) {
  const std::lock_guard lock(mutex_);
  RunFetch& run_fetch = runs_[run];
  run_fetch.on_end = std::move(on_end);
  run_fetch.waiting_files.assign(std::make_move_iterator(files.begin()), std::make_move_iterator(files.end()));
  start_files(run, run_fetch);
}

void InputFetcher::cancel(RunNumber run) {
  const std::lock_guard lock(mutex_);
  remove_run(run);
}

void InputFetcher::start_files(RunNumber run, RunFetch& run_fetch) {
  while (!run_fetch.waiting_files.empty() && run_fetch.active_files < kMaxFilesOfRun) {
    MissingInput file = std::move(run_fetch.waiting_files.front());
    run_fetch.waiting_files.pop_front();
    const RemoteArtifact& artifact = file.artifact;
    const FileKey key{artifact.context, artifact.job_key, artifact.content.sha256};
    ++run_fetch.active_files;
    FileFetch& file_fetch = files_[key];
    file_fetch.runs.push_back(run);
    if (file_fetch.runs.size() > 1) continue;  // another run has started the fetch
    file_fetch.file = std::move(file);
    file_fetch.fetch_id = ++last_fetch_id_;
    const Id context = file_fetch.file.artifact.context;
    const ArtifactCache& cache =
        caches_.try_emplace(context, ArtifactFolder(state_dir_, context), limits_).first->second;
    file_fetch.number = source_.fetch(file_fetch.file.artifact,
                                      cache.make_target(file_fetch.file.store_name, file_fetch.file.artifact.job_key),
                                      [this, key, fetch_id = file_fetch.fetch_id](const FetchEnd& fetch_end) {
                                        on_file_ended(key, fetch_id, fetch_end);
                                      });
  }
}

void InputFetcher::remove_run(RunNumber run) {
  runs_.erase(run);
  for (auto file = files_.begin(); file != files_.end();) {
    std::erase(file->second.runs, run);
    if (!file->second.runs.empty()) {
      ++file;
      continue;
    }
    source_.cancel(file->second.number);
    file = files_.erase(file);
  }
}

void InputFetcher::on_file_ended(const FileKey& key, std::uint64_t fetch_id, const FetchEnd& fetch_end) {
  std::vector<std::pair<OnEnd, InputsEnd>> ended;
  {
    const std::lock_guard lock(mutex_);
    const auto file = files_.find(key);
    if (file == files_.end() || file->second.fetch_id != fetch_id) return;  // cancelled before its end
    const FileFetch file_fetch = std::move(file->second);
    files_.erase(file);
    const RemoteArtifact& artifact = file_fetch.file.artifact;
    if (fetch_end.status != FetchStatus::received) {
      log(LogLevel::warn, "worker", "context {}: {} was not received from {}: {}", artifact.context, artifact.label,
          artifact.object_store.empty() ? describe(artifact.holder) : artifact.object_store, fetch_end.reason);
    }
    for (const RunNumber run : file_fetch.runs) {
      const auto run_fetch = runs_.find(run);
      if (run_fetch == runs_.end()) continue;
      --run_fetch->second.active_files;
      if (fetch_end.status == FetchStatus::received) start_files(run, run_fetch->second);
      if (fetch_end.status == FetchStatus::received && run_fetch->second.active_files > 0) continue;
      ended.emplace_back(std::move(run_fetch->second.on_end),
                         InputsEnd{fetch_end.status, artifact.holder, artifact.label + ": " + fetch_end.reason});
      remove_run(run);
    }
  }
  for (auto& [on_end, inputs_end] : ended) on_end(std::move(inputs_end));
}

}  // namespace mycojobs
