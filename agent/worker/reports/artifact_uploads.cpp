#include "worker/reports/artifact_uploads.h"

#include <algorithm>
#include <utility>

#include "artifacts/artifact_folder.h"
#include "artifacts/job_artifacts.h"
#include "base/log.h"
#include "model/artifact.h"
#include "model/trace_context.h"
#include "store/keys.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kFirstUploadPauseMs = 1000, kMaxUploadPauseMs = 60000;
constexpr std::uint64_t kUploadIdleMs = 60000;
constexpr std::uint64_t kStoreRetryMs = 1000;              // pause after the store did not answer
constexpr std::uint64_t kParallelUploads = 4;              // of one context
constexpr RunNumber kAdoptedRunBit = RunNumber{1} << 55U;  // numbers of the runs of previous agents

RunNumber next_adopted_run() {
  static std::atomic<RunNumber> next{1};
  return kAdoptedRunBit | next++;
}

// Uploads the files of a job that are not in `uploaded` yet. Error not_found: a file is not on this host any more.
Result<void> upload_files(const ArtifactBucket& bucket, const ClaimRef& claim, const std::string& artifacts,
                          const std::vector<std::string>& store_names, const std::string& state_dir,
                          std::set<std::string>& uploaded, const std::atomic<bool>& stop, std::uint64_t& sent_bytes) {
  for (const ListedArtifact& file : read_artifact_list(artifacts)) {
    if (uploaded.contains(file.sha256)) continue;
    Fd fd;
    for (const std::string& folder : artifact_folders(state_dir, claim.context, claim.job_key, store_names)) {
      if (fd) break;
      MJ_TRY(opened, open_job_file(folder, {file.sha256, file.bytes}));
      fd = std::move(opened);
    }
    if (!fd) return fail(Code::not_found, "the file of the artifact was deleted from state_dir");
    MJ_CHECK(bucket.upload({store_names.front(), claim.job_key, file.sha256}, fd.get(), file.bytes, &stop));
    uploaded.insert(file.sha256);
    sent_bytes += file.bytes;
  }
  return {};
}

}  // namespace

ArtifactUploads::ArtifactUploads(RecordStore& store, std::shared_ptr<const ArtifactBucket> bucket, Settings settings,
                                 const Clock& clock, Callbacks callbacks, std::shared_ptr<Metrics> metrics)
    : store_(store),
      bucket_(std::move(bucket)),
      settings_(std::move(settings)),
      clock_(clock),
      callbacks_(std::move(callbacks)),
      metrics_(std::move(metrics)),
      saved_ends_(settings_.state_dir, settings_.runner),
      contexts_to_load_(settings_.contexts.begin(), settings_.contexts.end()) {}

ArtifactUploads::~ArtifactUploads() {
  for (auto& [run, upload] : uploads_) *upload.stop = true;
  strands_.stop();
}

bool ArtifactUploads::has_artifacts(const RunReport& report) {
  const auto* end = std::get_if<EndReport>(&report.report);
  return end != nullptr && report.is_last && !end->end.artifacts.empty();
}

void ArtifactUploads::post(Event event) {
  events_.post(std::move(event));
  wake();
}

void ArtifactUploads::submit(RunReport report) {
  ++pending_count_;
  post(EndSubmitted{std::move(report)});
}

void ArtifactUploads::on_settled(std::span<const RunNumber> runs) {
  if (pending_count_ == 0) return;
  for (const RunNumber run : runs) post(EndSettled{run});
}

std::uint64_t ArtifactUploads::run_once() {
  for (const Id context : std::exchange(contexts_to_load_, {})) load_saved_ends(context);
  for (Event& event : events_.consume_all()) std::visit([this](auto& typed_event) { on(typed_event); }, event);
  std::uint64_t pause_ms = contexts_to_load_.empty() ? kUploadIdleMs : kStoreRetryMs;
  for (auto& [run, upload] : uploads_) {
    if (!upload.is_working && !upload.is_reported) advance(run, upload);
    const std::uint64_t now_ms = clock_.boot_ms();
    if (!upload.is_working && !upload.is_reported)
      pause_ms = std::min(pause_ms, upload.next_boot_ms - std::min(upload.next_boot_ms, now_ms));
  }
  has_missing_threads_ = has_missing_threads_ && !strands_.start_missing_threads();
  publish_counts();
  return has_missing_threads_ ? std::min(pause_ms, kStoreRetryMs) : pause_ms;
}

// Continues with the ends that a previous agent of the runner has saved.
void ArtifactUploads::load_saved_ends(Id context) {
  const auto fields = store_.load(context, kArtifactsKey);
  if (!fields && fields.error().code == Code::not_found) return;  // no artifact was ever stored
  const auto* store_names = find_store_names(context);
  if (store_names == nullptr) {
    contexts_to_load_.insert(context);
    return;
  }
  for (SavedEnd& saved : saved_ends_.load(context, store_names->front())) {
    const RunNumber run = next_adopted_run();
    log(LogLevel::info, "worker", "{}: its run has ended before this agent was started; its artifacts are uploaded",
        append_trace_id(saved.report.claim.job_key, saved.report.claim.traceparent));
    callbacks_.on_adopted(run, saved.report.claim);
    ++pending_count_;
    Upload& upload = uploads_[run];
    upload.report = std::move(saved.report);
    upload.started_unix_ms = saved.started_unix_ms;
    upload.store_name = store_names->front();
    upload.is_saved = true;
  }
}

// Returns null if the store does not answer.
const std::vector<std::string>* ArtifactUploads::find_store_names(Id context) {
  std::vector<std::string>& names = store_names_[context];
  if (names.empty()) {
    auto read_names = artifact_store_names(store_, context);
    if (!read_names) return nullptr;
    names = std::move(*read_names);
  }
  return &names;
}

void ArtifactUploads::on(EndSubmitted& submitted) {
  Upload& upload = uploads_[submitted.report.run];
  upload.report = std::move(std::get<EndReport>(submitted.report.report));
  upload.started_unix_ms = clock_.unix_ms();
}

void ArtifactUploads::on(EndSettled& settled) { erase(settled.run); }

void ArtifactUploads::on(ClaimLost& dropped) {
  const auto entry = uploads_.find(dropped.run);
  if (entry == uploads_.end() || entry->second.is_reported) return;  // the reporter learns the same
  // The answer to the report releases slot and lease. The store refuses it.
  entry->second.is_dropped = true;
  *entry->second.stop = true;
}

void ArtifactUploads::on(JobCancelled& cancelled) {
  const auto entry = uploads_.find(cancelled.run);
  if (entry == uploads_.end() || entry->second.is_reported) return;
  entry->second.is_cancelled = true;
  *entry->second.stop = true;
}

void ArtifactUploads::advance(RunNumber run, Upload& upload) {
  if (upload.is_dropped) return report_end(run, upload);
  if (upload.is_cancelled) {
    fail_end(upload, "cancelled", "cancelled while its artifacts waited for " + bucket_->url());
    return report_end(run, upload);
  }
  if (clock_.boot_ms() < upload.next_boot_ms) return;
  const auto* store_names = find_store_names(upload.report.claim.context);
  if (store_names == nullptr) {
    upload.next_boot_ms = clock_.boot_ms() + kStoreRetryMs;
    return;
  }
  upload.store_name = store_names->front();
  upload.is_working = true;
  if (upload.is_saved) return this->upload(run, upload);
  save(run, upload);
}

void ArtifactUploads::save(RunNumber run, Upload& upload) {
  post_to_strand(upload.report.claim.context, run,
                 [this, run, store_name = upload.store_name, saved = SavedEnd{upload.report, upload.started_unix_ms}] {
                   post(EndSaved{run, saved_ends_.save(store_name, saved)});
                 });
}

// The end is uploaded even if it cannot be saved: without a crash nothing is lost.
void ArtifactUploads::on(EndSaved& saved) {
  const auto entry = uploads_.find(saved.run);
  if (entry == uploads_.end()) return;
  Upload& upload = entry->second;
  upload.is_working = false;
  upload.is_saved = true;
  if (!saved.result)
    log(LogLevel::error, "worker", "{}: its end is lost if this agent dies now: {}", upload.report.claim.job_key,
        saved.result.error().message);
  DetailUpdate update{upload.report.claim, "artifact_store"};
  update.is_end_saved = saved.result.has_value();
  callbacks_.report(RunReport{saved.run, std::move(update), false});
}

void ArtifactUploads::upload(RunNumber run, Upload& upload) {
  const Id context = upload.report.claim.context;
  post_to_strand(context, run,
                 [this, run, context, claim = upload.report.claim, artifacts = upload.report.end.artifacts,
                  store_names = *find_store_names(context), uploaded = upload.uploaded, stop = upload.stop] {
                   std::uint64_t sent_bytes = 0;
                   auto result = upload_files(*bucket_, claim, artifacts, store_names, settings_.state_dir, *uploaded,
                                              *stop, sent_bytes);
                   metrics_->add(Metric::transfer_bytes, {context, "uploaded"}, static_cast<double>(sent_bytes));
                   post(UploadFinished{run, std::move(result)});
                 });
}

void ArtifactUploads::on(UploadFinished& uploaded) {
  const auto entry = uploads_.find(uploaded.run);
  if (entry == uploads_.end()) return;
  Upload& upload = entry->second;
  upload.is_working = false;
  if (!uploaded.result) return on_failed(uploaded.run, upload, uploaded.result.error());
  upload.report.end.artifacts = set_object_store(upload.report.end.artifacts, bucket_->url());
  report_end(uploaded.run, upload);
}

void ArtifactUploads::on_failed(RunNumber run, Upload& upload, const Error& error) {
  if (upload.is_dropped || upload.is_cancelled) return;  // advance() reports the end
  if (error.code == Code::not_found || has_timed_out(upload)) {
    fail_end(upload, "artifact_store",
             "its artifacts could not be stored: " + error.message +
                 (error.code == Code::not_found ? "" : " (artifacts.store_timeout)") +
                 "; its result and artifacts are on its runner");
    return report_end(run, upload);
  }
  const std::uint64_t longest_ms = std::min(kFirstUploadPauseMs << std::min(upload.failures, 6U), kMaxUploadPauseMs);
  std::uint64_t pause_ms = longest_ms / 2 + std::uniform_int_distribution<std::uint64_t>(0, longest_ms / 2)(random_);
  const std::uint64_t end_unix_ms = upload.started_unix_ms + settings_.timeout_ms, now_unix_ms = clock_.unix_ms();
  pause_ms = std::min(pause_ms, end_unix_ms - std::min(end_unix_ms, now_unix_ms));
  ++upload.failures;
  upload.next_boot_ms = clock_.boot_ms() + pause_ms;
  show_reason(run, upload, error.message);
}

void ArtifactUploads::show_reason(RunNumber run, Upload& upload, const std::string& reason) {
  if (upload.shown_reason == reason) return;
  upload.shown_reason = reason;
  log(LogLevel::warn, "worker", "{}: its artifacts wait for the object storage: {}",
      append_trace_id(upload.report.claim.job_key, upload.report.claim.traceparent), reason);
  callbacks_.report(RunReport{run, DetailUpdate{upload.report.claim, "artifact_store", reason}, false});
}

bool ArtifactUploads::has_timed_out(const Upload& upload) const {
  return clock_.unix_ms() >= upload.started_unix_ms + settings_.timeout_ms;
}

void ArtifactUploads::fail_end(Upload& upload, std::string detail, std::string error) {
  upload.report.end.status = JobStatus::error;
  upload.report.end.detail = std::move(detail);
  upload.report.end.error = std::move(error);
  upload.report.retry_after_ms.reset();
}

void ArtifactUploads::report_end(RunNumber run, Upload& upload) {
  upload.is_reported = true;
  RunReport report{run, upload.report, true};
  report.was_uploaded = true;
  callbacks_.report(std::move(report));
}

void ArtifactUploads::erase(RunNumber run) {
  const auto entry = uploads_.find(run);
  if (entry == uploads_.end()) return;
  const Upload& upload = entry->second;
  if (upload.is_saved) {
    post_to_strand(
        upload.report.claim.context, run,
        [this, store_name = upload.store_name, claim = upload.report.claim] { saved_ends_.remove(store_name, claim); });
  }
  uploads_.erase(entry);
  --pending_count_;
}

void ArtifactUploads::post_to_strand(Id context, RunNumber run, StrandPool::Work work) {
  const std::string strand = "upload " + std::to_string(context) + ' ' + std::to_string(run % kParallelUploads);
  const std::string mount = mounts_.find_mount_point(ArtifactFolder(settings_.state_dir, context).path());
  if (!strands_.post({strand, mount}, std::move(work))) has_missing_threads_ = true;
}

void ArtifactUploads::publish_counts() {
  std::uint32_t failing = 0;
  std::map<Id, std::uint32_t> counts;
  for (const Id context : settings_.contexts) counts[context] = 0;
  for (const auto& [run, upload] : uploads_) {
    ++counts[upload.report.claim.context];
    if (upload.failures > 0 && !upload.is_reported) ++failing;
  }
  failing_count_ = failing;
  for (const auto& [context, count] : counts) metrics_->set(Metric::artifact_uploads, {context}, count);
}

}  // namespace mycojobs
