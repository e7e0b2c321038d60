#include "worker/reports/end_uploads.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "artifacts/artifact_folder.h"
#include "artifacts/job_artifacts.h"
#include "base/errno_text.h"
#include "base/log.h"
#include "model/artifact.h"
#include "model/trace_context.h"
#include "store/keys.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kFirstUploadPauseMs = 1000, kMaxUploadPauseMs = 60000;
constexpr std::uint64_t kUploadIdleMs = 60000;
constexpr std::uint64_t kStoreRetryMs = 1000;              // pause after an error of the store
constexpr RunNumber kAdoptedRunBit = RunNumber{1} << 55U;  // set in the numbers of runs of previous agents

RunNumber make_adopted_run_number() {
  static std::atomic<RunNumber> next{1};
  return kAdoptedRunBit | next++;
}

std::uint64_t estimate_end_bytes(const EndReport& report) {
  constexpr std::uint64_t kFixedBytes = 4096;
  const JobEnd& end = report.end;
  std::uint64_t bytes = kFixedBytes + end.artifacts.size() + end.artifacts_dropped.size() + end.error.size() +
                        end.error_info.size() + end.receipt.size() + end.usage.size() + end.layers.size();
  for (const auto& [key, value] : end.result) bytes += key.size() + value.size();
  return bytes;
}

// Uploads the files of a job that are not in `uploaded` yet, and adds their hashes to `uploaded`. Errors: not_found (a
// file is not on this host any more), conflict (a file has other content), io (the file cannot be read, or the disk of
// the context is not mounted), and the errors of ArtifactBucket::upload().
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
    if (!fd) {
      struct stat info {};
      const std::string context_folder = ArtifactFolder(state_dir, claim.context).path();
      if (::stat(context_folder.c_str(), &info) != 0)
        return fail(Code::io, context_folder + ": " + errno_text(errno) + " (is the disk mounted?)");
      return fail(Code::not_found, "the file of the artifact was deleted from state_dir");
    }
    const ArtifactBucket::Key key{{store_names.front(), claim.context}, claim.job_key, file.sha256};
    auto uploaded_file = bucket.upload(key, fd.get(), file.bytes, &stop);
    // not_found would mean that this host has lost the file. A server that answers "not found" to an upload is not
    // ready.
    if (!uploaded_file && uploaded_file.error().code == Code::not_found) uploaded_file.error().code = Code::unavailable;
    MJ_CHECK(uploaded_file);
    uploaded.insert(file.sha256);
    sent_bytes += file.bytes;
  }
  return {};
}

}  // namespace

EndUploads::EndUploads(RecordStore& store, std::shared_ptr<const ArtifactBucket> bucket, Settings settings,
                       const Clock& clock, Callbacks callbacks, std::shared_ptr<Metrics> metrics)
    : store_(store),
      bucket_(std::move(bucket)),
      settings_(std::move(settings)),
      clock_(clock),
      callbacks_(std::move(callbacks)),
      metrics_(std::move(metrics)),
      saved_ends_(settings_.state_dir, settings_.runner),
      store_names_(store, clock),
      contexts_to_load_(settings_.contexts.begin(), settings_.contexts.end()) {}

EndUploads::~EndUploads() {
  for (auto& [run, upload] : uploads_) *upload.stop = true;
  strands_.stop();
}

bool EndUploads::has_artifacts(const RunReport& report) {
  const auto* end = std::get_if<EndReport>(&report.report);
  return end != nullptr && report.is_last && !end->end.artifacts.empty();
}

void EndUploads::post(Event event) {
  events_.post(std::move(event));
  wake();
}

void EndUploads::submit(RunReport report) {
  ++pending_count_;
  const std::uint64_t bytes = add_slotless(std::get<EndReport>(report.report));
  post(EndSubmitted{std::move(report), bytes});
}

// Adds an end to slotless_count_ and pending_bytes_, and returns the size of the end. Returns 0 if the end would exceed
// kMaxPendingBytes, so that the job occupies its slot.
std::uint64_t EndUploads::add_slotless(const EndReport& report) {
  const std::uint64_t bytes = estimate_end_bytes(report);
  if (pending_bytes_ + bytes > kMaxPendingBytes) return 0;
  pending_bytes_ += bytes;
  ++slotless_count_;
  return bytes;
}

void EndUploads::on_settled(std::span<const RunNumber> runs) {
  if (pending_count_ == 0) return;
  for (const RunNumber run : runs) post(EndSettled{run});
}

std::uint64_t EndUploads::run_once() {
  for (const Id context : std::exchange(contexts_to_load_, {})) load_saved_ends(context);
  for (Event& event : events_.consume_all()) std::visit([this](auto& typed_event) { on(typed_event); }, event);
  std::uint64_t pause_ms = contexts_to_load_.empty() ? kUploadIdleMs : kStoreRetryMs;
  for (auto& [run, upload] : uploads_) {
    if (!upload.is_reported) advance(run, upload);
    if (!upload.is_reported) pause_ms = std::min(pause_ms, compute_pause_ms(upload));
  }
  has_missing_threads_ = has_missing_threads_ && !strands_.start_missing_threads();
  publish_counts();
  return has_missing_threads_ ? std::min(pause_ms, kStoreRetryMs) : pause_ms;
}

// Returns the time until the next call of advance() is due. A strand that finishes a task wakes the loop earlier.
std::uint64_t EndUploads::compute_pause_ms(const Upload& upload) const {
  const std::uint64_t now_unix_ms = clock_.unix_ms(), now_boot_ms = clock_.boot_ms();
  const std::uint64_t end_unix_ms = upload.started_unix_ms + settings_.timeout_ms;
  const std::uint64_t timeout_ms = *upload.stop ? kUploadIdleMs : end_unix_ms - std::min(end_unix_ms, now_unix_ms);
  const bool is_waiting_for_strand = upload.is_saving || upload.is_uploading || now_boot_ms >= upload.next_boot_ms;
  return is_waiting_for_strand ? timeout_ms : std::min(timeout_ms, upload.next_boot_ms - now_boot_ms);
}

// Starts to load the ends that a previous agent of the runner has saved. The strand loads them before it saves the
// first end of this agent.
void EndUploads::load_saved_ends(Id context) {
  const auto fields = store_.load(context, kArtifactsKey);
  if (!fields && fields.error().code == Code::not_found) return;  // no artifact was ever stored
  const auto* store_names = store_names_.find(context);
  if (store_names == nullptr) {
    contexts_to_load_.insert(context);
    return;
  }
  post_to_disk(context, [this, context, store_name = store_names->front()] {
    post(EndsLoaded{context, store_name, saved_ends_.load(context, store_name)});
  });
}

void EndUploads::on(EndsLoaded& loaded) {
  for (SavedEnd& saved : loaded.ends) {
    const RunNumber run = make_adopted_run_number();
    log(LogLevel::info, "worker", "{}: its run has ended before this agent was started; its artifacts are uploaded",
        append_trace_id(saved.report.claim.job_key, saved.report.claim.traceparent));
    callbacks_.on_adopted(run, saved.report.claim);
    ++pending_count_;
    Upload& upload = uploads_[run];
    upload.bytes = add_slotless(saved.report);
    upload.report = std::move(saved.report);
    upload.started_unix_ms = saved.started_unix_ms;
    upload.store_name = loaded.store_name;
    upload.is_saved = true;
    upload.needs_save = false;
  }
}

void EndUploads::on(EndSubmitted& submitted) {
  Upload& upload = uploads_[submitted.report.run];
  upload.report = std::move(std::get<EndReport>(submitted.report.report));
  upload.started_unix_ms = clock_.unix_ms();
  upload.bytes = submitted.bytes;
}

void EndUploads::on(EndSettled& settled) { erase(settled.run); }

void EndUploads::on(ClaimLost& lost) {
  const auto entry = uploads_.find(lost.run);
  if (entry == uploads_.end() || entry->second.is_reported) return;  // the store rejects the report
  // The end is still reported, since the answer of the store releases the slot and the lease. The store rejects the
  // end.
  entry->second.is_dropped = true;
  *entry->second.stop = true;
}

void EndUploads::on(JobCancelled& cancelled) {
  const auto entry = uploads_.find(cancelled.run);
  if (entry == uploads_.end() || entry->second.is_reported) return;
  entry->second.is_cancelled = true;
  *entry->second.stop = true;
}

// Starts the next step of an upload. A running upload is stopped before the end is reported, since the strand uses the
// state of the upload. A running save is not awaited, since the same strand deletes the saved end later.
void EndUploads::advance(RunNumber run, Upload& upload) {
  const bool has_expired = has_timed_out(upload);
  if (upload.is_uploading) {
    if (has_expired) *upload.stop = true;
    return;
  }
  if (upload.is_dropped) return report_end(run, upload);
  if (upload.is_cancelled) {
    set_failure(upload, "cancelled", "cancelled while its artifacts waited for " + bucket_->url());
    return report_end(run, upload);
  }
  if (has_expired) {
    return report_failure(run, upload, upload.shown_reason.empty() ? "the time is over" : upload.shown_reason,
                          " (artifacts.store_timeout)");
  }
  const Id context = upload.report.claim.context;
  if (upload.is_saving || clock_.boot_ms() < upload.next_boot_ms) return;
  const auto* store_names = contexts_to_load_.contains(context) ? nullptr : store_names_.find(context);
  if (store_names == nullptr) {
    upload.next_boot_ms = clock_.boot_ms() + kStoreRetryMs;
  } else if (upload.needs_save) {
    save(run, upload, store_names->front());
  } else if (uploading_counts_[context] < kMaxParallelUploads) {
    this->upload(run, upload, *store_names);
  }
}

void EndUploads::save(RunNumber run, Upload& upload, const std::string& store_name) {
  const Id context = upload.report.claim.context;
  upload.is_saving = true;
  if (upload.store_name.empty()) upload.store_name = store_name;
  post_to_disk(context,
               [this, run, folder_name = upload.store_name, saved = SavedEnd{upload.report, upload.started_unix_ms}] {
                 post(EndSaved{run, saved_ends_.save(folder_name, saved)});
               });
}

// An end that cannot be saved is uploaded nevertheless. It is lost only if the agent dies.
void EndUploads::on(EndSaved& saved) {
  const auto entry = uploads_.find(saved.run);
  if (entry == uploads_.end()) return;
  Upload& upload = entry->second;
  upload.is_saving = false;
  upload.needs_save = false;
  upload.is_saved = saved.result.has_value();
  if (upload.is_reported) return;
  if (!saved.result)
    log(LogLevel::error, "worker", "{}: its end is lost if this agent dies now: {}", upload.report.claim.job_key,
        saved.result.error().message);
  DetailUpdate update{upload.report.claim, "artifact_store"};
  update.is_end_saved = upload.is_saved;
  callbacks_.report(RunReport{saved.run, std::move(update), false});
}

void EndUploads::upload(RunNumber run, Upload& upload, const std::vector<std::string>& store_names) {
  const Id context = upload.report.claim.context;
  upload.is_uploading = true;
  ++uploading_counts_[context];
  post_to_strand({"upload " + std::to_string(run), "uploads"},
                 [this, run, context, claim = upload.report.claim, artifacts = upload.report.end.artifacts,
                  names = store_names, uploaded = upload.uploaded, stop = upload.stop] {
                   std::uint64_t sent_bytes = 0;
                   auto result = upload_files(*bucket_, claim, artifacts, names, settings_.state_dir, *uploaded, *stop,
                                              sent_bytes);
                   metrics_->add(Metric::transfer_bytes, {context, "uploaded"}, static_cast<double>(sent_bytes));
                   post(UploadFinished{run, std::move(result)});
                 });
}

void EndUploads::on(UploadFinished& uploaded) {
  const auto entry = uploads_.find(uploaded.run);
  if (entry == uploads_.end()) return;
  Upload& upload = entry->second;
  upload.is_uploading = false;
  --uploading_counts_[upload.report.claim.context];
  if (!uploaded.result) return on_failed(uploaded.run, upload, uploaded.result.error());
  upload.report.end.artifacts = set_object_store(upload.report.end.artifacts, bucket_->url());
  report_end(uploaded.run, upload);
}

void EndUploads::on_failed(RunNumber run, Upload& upload, const Error& error) {
  if (upload.is_dropped || upload.is_cancelled) return;  // advance() reports the end
  if (has_timed_out(upload)) {
    // The error of a call that was stopped does not name the failure of the storage.
    const bool is_stopped = *upload.stop;
    const std::string reason = is_stopped && !upload.shown_reason.empty() ? upload.shown_reason : error.message;
    return report_failure(run, upload, reason, " (artifacts.store_timeout)");
  }
  if (error.code == Code::not_found && !std::exchange(upload.has_refreshed_names, true)) {
    store_names_.remove(upload.report.claim.context);  // the store has other names after it was emptied or restored
    return;
  }
  if (error.code == Code::not_found || error.code == Code::conflict)
    return report_failure(run, upload, error.message, "");
  const std::uint64_t longest_ms = std::min(kFirstUploadPauseMs << std::min(upload.failures, 6U), kMaxUploadPauseMs);
  std::uint64_t pause_ms = longest_ms / 2 + std::uniform_int_distribution<std::uint64_t>(0, longest_ms / 2)(random_);
  const std::uint64_t end_unix_ms = upload.started_unix_ms + settings_.timeout_ms, now_unix_ms = clock_.unix_ms();
  pause_ms = std::min(pause_ms, end_unix_ms - std::min(end_unix_ms, now_unix_ms));
  ++upload.failures;
  upload.needs_save = !upload.is_saved;
  upload.next_boot_ms = clock_.boot_ms() + pause_ms;
  show_reason(run, upload, error.message);
}

void EndUploads::show_reason(RunNumber run, Upload& upload, const std::string& reason) {
  if (upload.shown_reason == reason) return;
  upload.shown_reason = reason;
  log(LogLevel::warn, "worker", "{}: its artifacts wait for the object storage: {}",
      append_trace_id(upload.report.claim.job_key, upload.report.claim.traceparent), reason);
  callbacks_.report(RunReport{run, DetailUpdate{upload.report.claim, "artifact_store", reason}, false});
}

bool EndUploads::has_timed_out(const Upload& upload) const {
  return clock_.unix_ms() >= upload.started_unix_ms + settings_.timeout_ms;
}

void EndUploads::report_failure(RunNumber run, Upload& upload, const std::string& reason, const char* remark) {
  set_failure(upload, "artifact_store",
              "its artifacts could not be stored: " + reason + remark + "; its result and artifacts are on its runner");
  report_end(run, upload);
}

void EndUploads::set_failure(Upload& upload, std::string detail, std::string error) {
  upload.report.end.status = JobStatus::error;
  upload.report.end.detail = std::move(detail);
  upload.report.end.error = std::move(error);
  upload.report.retry_after_ms.reset();
}

void EndUploads::report_end(RunNumber run, Upload& upload) {
  upload.is_reported = true;
  RunReport report{run, upload.report, true};
  report.was_uploaded = true;
  callbacks_.report(std::move(report));
}

// Forgets an upload, and deletes the saved end. The strand of the disk also executes a queued save before the deletion.
void EndUploads::erase(RunNumber run) {
  const auto entry = uploads_.find(run);
  if (entry == uploads_.end()) return;
  const Upload& upload = entry->second;
  if (!upload.store_name.empty()) {
    post_to_disk(upload.report.claim.context, [this, store_name = upload.store_name, claim = upload.report.claim] {
      saved_ends_.remove(store_name, claim);
    });
  }
  if (upload.bytes > 0) {
    pending_bytes_ -= upload.bytes;
    --slotless_count_;
  }
  uploads_.erase(entry);
  --pending_count_;
}

// Posts work to the strand of a context, which executes the work in the order of the calls.
void EndUploads::post_to_disk(Id context, StrandPool::Work work) {
  const std::string mount = mounts_.find_mount_point(ArtifactFolder(settings_.state_dir, context).path());
  post_to_strand({"save " + std::to_string(context), mount}, std::move(work));
}

void EndUploads::post_to_strand(const StrandPool::Strand& strand, StrandPool::Work work) {
  if (!strands_.post(strand, std::move(work))) has_missing_threads_ = true;
}

void EndUploads::publish_counts() {
  std::uint32_t failing = 0;
  std::map<Id, std::uint32_t> counts;
  for (const Id context : settings_.contexts) counts[context] = 0;
  for (const auto& [run, upload] : uploads_) {
    ++counts[upload.report.claim.context];
    if (upload.failures > 0 && upload.is_saved && !upload.is_reported) ++failing;
  }
  failing_count_ = failing;
  for (const auto& [context, count] : counts) metrics_->set(Metric::artifact_uploads, {context}, count);
}

}  // namespace mycojobs
