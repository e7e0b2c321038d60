#include "service/artifact_service.h"

#include <algorithm>
#include <utility>

#include "artifacts/job_artifacts.h"
#include "inspect/runner_view.h"
#include "service/job_service.h"
#include "store/job_fields.h"
#include "text/terminal_text.h"
#include "text/utf8.h"

namespace mycojobs::service {
namespace {

constexpr std::size_t kMaxShownNameBytes = 200;

Result<void> load_holder(Store& store, ArtifactListing& listing) {
  if (!listing.holder.is_known()) return {};
  listing.holder_name = describe(listing.holder);
  if (listing.holder.runner == 0) {
    MJ_TRY(is_registered, store.is_holding_files(listing.context, listing.holder.coordinator));
    listing.holder_state = is_registered ? HolderState::live : HolderState::away;
    return {};
  }
  MJ_TRY(runners, store.runners(listing.context));
  const auto info = std::find_if(runners.begin(), runners.end(),
                                 [&](const RunnerInfo& entry) { return entry.runner.id == listing.holder.runner; });
  if (info == runners.end()) {
    listing.holder_state = HolderState::deleted;
    return {};
  }
  if (!info->holder.host.empty()) listing.holder_name += " on host " + to_printable_line(info->holder.host);
  listing.holder_state = get_presence(*info) == RunnerPresence::live ? HolderState::live : HolderState::away;
  return {};
}

}  // namespace

Result<ArtifactListing> load_artifact_listing(const RequestContext& caller, Store& store, const std::string& job_key) {
  MJ_TRY(view, find_job(caller, store, Action::read, job_key));
  ArtifactListing listing;
  listing.job_key = view.key;
  listing.context = caller.context;
  listing.files = read_artifact_list(view.job.artifacts);
  if (listing.files.empty()) return listing;
  MJ_TRY(store_names, artifact_store_names(store, caller.context));
  listing.store_names = std::move(store_names);
  MJ_TRY(holder, find_artifact_holder(store, caller.context, view.key, view.job.runner_id));
  listing.holder = std::move(holder);
  MJ_CHECK(load_holder(store, listing));
  return listing;
}

Result<ListedArtifact> find_artifact(const ArtifactListing& listing, const std::string& name) {
  const auto file = std::find_if(listing.files.begin(), listing.files.end(),
                                 [&](const ListedArtifact& entry) { return entry.name == name; });
  if (file != listing.files.end()) return *file;
  return fail(Code::not_found, listing.job_key + ": stored no artifact " + excerpt(name, kMaxShownNameBytes) +
                                   ": artifact.list returns its " + std::to_string(listing.files.size()) +
                                   " artifacts");
}

RemoteArtifact make_remote_artifact(const ArtifactListing& listing, const ListedArtifact& file) {
  return {listing.context,
          listing.holder,
          listing.job_key,
          {file.sha256, file.bytes},
          "the artifact " + excerpt(file.name, kMaxShownNameBytes) + " of " + listing.job_key,
          file.object_store,
          listing.store_names};
}

std::vector<std::string> list_artifact_folders(const std::string& state_dir, const ArtifactListing& listing) {
  if (state_dir.empty()) return {};
  return all_artifact_folders(state_dir, listing.context, listing.job_key, listing.store_names);
}

Result<Fd> open_artifact(const std::vector<std::string>& folders, const ListedArtifact& file) {
  for (const std::string& folder : folders) {
    MJ_TRY(fd, open_job_file(folder, {file.sha256, file.bytes}));
    if (fd) return std::move(fd);
  }
  return Fd();
}

std::string describe_unreadable(const ArtifactListing& listing, const ListedArtifact& file,
                                const std::string& own_object_store) {
  if (!file.object_store.empty() && file.object_store == own_object_store) return {};
  switch (listing.holder_state) {
    case HolderState::live:
      return {};
    case HolderState::away:
      return listing.holder_name + ", which has it, is away: start " +
             (listing.holder.runner == 0 ? "it" : "its agent") + ", or run the job again";
    case HolderState::deleted:
      return "artifact_lost: " + listing.holder_name + ", which had it, was deleted: run the job again";
    case HolderState::unknown:
      return "artifact_lost: it is not on the host of this coordinator, and the record of the job names no runner: run "
             "the job again";
  }
  return {};
}

std::string describe_artifact_problem(const ArtifactListing& listing, std::string_view name, std::string_view reason) {
  return listing.job_key + ": artifact " + excerpt(name, kMaxShownNameBytes) + ": " + std::string(reason);
}

}  // namespace mycojobs::service
