// Fetches artifacts of agents for the messages of a coordinator. A caller requests a file repeatedly, without waiting,
// until the file is in the cache of this host. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "artifacts/artifact_store.h"
#include "artifacts/transfer/artifact_fetcher.h"
#include "base/clock.h"
#include "base/result.h"
#include "store/record_store.h"

namespace mycojobs {

class BackgroundFetches {
 public:
  // Maximum time for which a runner that does not send a file is requested again.
  static constexpr std::uint64_t kMaxWaitMs = 10ULL * 60 * 1000;

  struct Progress {
    bool is_lost = false;     // no runner has the file, or the runner has not sent it for kMaxWaitMs
    std::string reason = {};  // why the file is not on this host; may be empty while bytes arrive
  };
  // The clock must outlive this object.
  BackgroundFetches(std::shared_ptr<ArtifactFetcher> fetcher, const Clock& clock)
      : fetcher_(std::move(fetcher)), clock_(clock) {}

  // Starts to fetch a file that is not on this host from the runner of the job, or checks an earlier start. Waits at
  // most wait_ms for the end of the fetch. Errors: those of the store. REQUIRES: the caller has not found the file on
  // this host.
  // store_names: artifact_store_names() of the context.
  Result<Progress> request(RecordStore&, Id context, const std::vector<std::string>& store_names,
                           const std::string& job_key, const FileContent&, std::uint32_t wait_ms);

 private:
  using FileKey = std::tuple<Id, std::string, std::string>;
  struct Fetch {
    std::uint64_t first_ms = 0, last_ms = 0;  // times of the first and the latest request
    std::uint64_t next_start_ms = 0;
    std::shared_ptr<IncomingArtifact> incoming;
    Progress progress;
  };
  // Applies the end of a fetch, if it has ended. Waits at most wait_ms for the end. Returns whether the file was
  // received.
  static bool check_end(Fetch&, std::uint32_t wait_ms, std::uint64_t now_ms);
  // Returns null if the actor of messages already fetches too many files. Error not_found: no runner has the file.
  Result<std::shared_ptr<IncomingArtifact>> start(RecordStore&, Id context, const std::vector<std::string>& store_names,
                                                  const std::string& job_key, const FileContent&);

  const std::shared_ptr<ArtifactFetcher> fetcher_;
  const Clock& clock_;
  std::mutex mutex_;
  // Guarded by mutex_:
  std::map<FileKey, Fetch> fetches_;
  std::uint64_t full_until_ms_ = 0;  // until then no fetch is started, since too many files are being fetched
};

}  // namespace mycojobs
