#include "artifacts/transfer/background_fetches.h"

#include <array>
#include <string_view>
#include <utility>

#include "artifacts/job_artifacts.h"
#include "model/artifact.h"
#include "model/codec.h"
#include "store/job_fields.h"

namespace mycojobs {
namespace {

constexpr Id kMessageActor = 0;                                                  // the fetches count to no actor
constexpr std::uint64_t kFetchPauseMs = 5000;                                    // after a runner did not send
constexpr std::uint64_t kFullPauseMs = 500;                                      // while other files are fetched
constexpr std::uint64_t kUnusedFetchMs = BackgroundFetches::kMaxWaitMs * 3 / 2;  // then a request begins a new wait

}  // namespace

bool BackgroundFetches::check_end(Fetch& fetch, std::uint32_t wait_ms, std::uint64_t now_ms) {
  if (!fetch.incoming) return false;
  const auto is_complete = fetch.incoming->wait_until_complete(wait_ms);
  if (is_complete && !*is_complete) return false;
  fetch.incoming.reset();
  if (is_complete) return true;
  fetch.progress = {is_complete.error().code == Code::not_found, is_complete.error().message};
  fetch.next_start_ms = now_ms + kFetchPauseMs;
  return false;
}

Result<std::shared_ptr<IncomingArtifact>> BackgroundFetches::start(RecordStore& store, Id context,
                                                                   const std::vector<std::string>& store_names,
                                                                   const std::string& job_key,
                                                                   const FileContent& file) {
  static constexpr std::array<std::string_view, 2> kFieldNames = {"runner_id", "artifacts"};
  MJ_TRY(fields, store.load_fields(context, job_key, kFieldNames));
  const Job job = decode<Job>(fields).record;
  MJ_TRY(holder, find_artifact_holder(store, context, job_key, job.runner_id));
  RemoteArtifact artifact{context, holder, job_key, file, "an artifact of " + job_key};
  for (ListedArtifact& entry : read_artifact_list(job.artifacts)) {
    if (entry.sha256 == file.sha256) artifact.object_store = std::move(entry.object_store);
  }
  artifact.store_names = store_names;
  if (!artifact.object_store.empty()) return fetcher_->open(artifact, store_names.front(), kMessageActor);
  if (!holder.is_known()) return fail(Code::not_found, "the record of the job names no runner");
  Runner runner;
  runner.id = holder.runner;
  const auto record = runner.id == 0 ? Fields() : store.load(context, redis_key(runner));
  if (!record && record.error().code == Code::not_found)
    return fail(Code::not_found, describe(holder) + ", which had it, was deleted");
  if (!record) return tl::unexpected<Error>(record.error());
  return fetcher_->open(artifact, store_names.front(), kMessageActor);
}

// The lock is not held while the store is called or a fetch is awaited, since a server or a runner that does not answer
// must not delay the messages of other contexts.
Result<BackgroundFetches::Progress> BackgroundFetches::request(RecordStore& store, Id context,
                                                               const std::vector<std::string>& store_names,
                                                               const std::string& job_key, const FileContent& file,
                                                               std::uint32_t wait_ms) {
  const std::uint64_t now_ms = clock_.boot_ms();
  const FileKey key{context, job_key, file.sha256};
  std::unique_lock lock(mutex_);
  std::erase_if(fetches_, [&](const auto& entry) { return now_ms > entry.second.last_ms + kUnusedFetchMs; });
  Fetch fetch = fetches_[key];
  const bool is_full = now_ms < full_until_ms_;
  lock.unlock();
  const auto forget = [&] {
    const std::lock_guard guard(mutex_);
    fetches_.erase(key);  // a later request begins a new wait
    return Progress{};
  };
  if (fetch.first_ms == 0) fetch.first_ms = now_ms;
  fetch.last_ms = now_ms;
  if (check_end(fetch, 0, now_ms)) return forget();
  if (now_ms >= fetch.first_ms + kMaxWaitMs) fetch.progress.is_lost = true;
  bool has_capacity = true;
  if (!fetch.incoming && !fetch.progress.is_lost && !is_full && now_ms >= fetch.next_start_ms) {
    auto incoming = start(store, context, store_names, job_key, file);
    if (!incoming && incoming.error().code != Code::not_found)
      return tl::unexpected<Error>(std::move(incoming).error());
    if (incoming) {
      fetch.incoming = std::move(*incoming);
      has_capacity = fetch.incoming != nullptr;
    } else {
      fetch.progress = {true, std::move(incoming).error().message};
    }
  }
  if (check_end(fetch, wait_ms, now_ms)) return forget();
  lock.lock();
  if (!has_capacity) full_until_ms_ = now_ms + kFullPauseMs;
  fetches_[key] = fetch;
  return fetch.progress;
}

}  // namespace mycojobs
