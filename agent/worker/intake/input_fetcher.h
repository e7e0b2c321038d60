// Fetches the inputs of jobs that are on other hosts into the caches of this host (artifacts/transfer/). Jobs that
// need the same file share one fetch. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "artifacts/transfer/artifact_cache.h"
#include "artifacts/transfer/artifact_source.h"
#include "worker/worker_types.h"

namespace mycojobs {

class InputFetcher {
 public:
  // source must outlive the object, and must not call its callbacks after the object was destroyed.
  InputFetcher(ArtifactSource& source, std::string state_dir, ArtifactCache::Limits limits)
      : source_(source), state_dir_(std::move(state_dir)), limits_(limits) {}

  using OnEnd = std::function<void(InputsEnd)>;
  // Fetches all files, a few at a time. on_end is called once, by any thread, after the last file or the first one that
  // is not received. It must not call this object. REQUIRES: `files` is not empty; run has no fetch.
  void fetch(RunNumber run, std::vector<MissingInput> files, OnEnd on_end);
  // Drops the fetch of a run. on_end may still be called if the fetch ends at the same time.
  void cancel(RunNumber run);

 private:
  static constexpr std::size_t kMaxFilesOfRun = 4;  // fetched at the same time

  using FileKey = std::tuple<Id, std::string, std::string>;  // context, job key, hash
  struct RunFetch {
    std::deque<MissingInput> waiting_files;
    std::size_t active_files = 0;
    OnEnd on_end;
  };
  struct FileFetch {
    ArtifactSource::FetchNumber number = 0;
    std::uint64_t fetch_id = 0;  // for its end, which can be reported before the source has returned the number
    std::vector<RunNumber> runs;
    MissingInput file;
  };
  // The functions below require the lock.
  void start_files(RunNumber run, RunFetch&);
  void remove_run(RunNumber run);

  void on_file_ended(const FileKey&, std::uint64_t fetch_id, const FetchEnd&);

  ArtifactSource& source_;
  const std::string state_dir_;
  const ArtifactCache::Limits limits_;
  std::mutex mutex_;
  std::map<RunNumber, RunFetch> runs_;
  std::map<FileKey, FileFetch> files_;
  std::uint64_t last_fetch_id_ = 0;
  std::map<Id, ArtifactCache> caches_;  // by context
};

}  // namespace mycojobs
