// The artifact.* RPC methods.
#include <nlohmann/json.hpp>

#include "api/artifacts/artifact_downloads.h"
#include "api/artifacts/artifact_uploads.h"
#include "api/services.h"
#include "artifacts/bucket/artifact_bucket.h"
#include "base/log.h"
#include "model/media_type.h"
#include "service/artifact_service.h"
#include "store/redis/format_version.h"

namespace mycojobs::api {
namespace artifact_methods {

using nlohmann::json;

Result<service::ArtifactListing> load_listing(const MethodCall& call) {
  MJ_TRY(key, call.job_key());
  return service::load_artifact_listing(call.request_context(), call.store(), key);
}

// Returns why the file cannot be read now, or an empty text. Reads the disk.
std::string find_problem(const MethodCall& call, const service::ArtifactListing& listing,
                         const std::vector<std::string>& folders, const ListedArtifact& file) {
  const auto fd = service::open_artifact(folders, file);
  if (!fd) return describe_to_client(fd.error());
  return *fd ? std::string()
             : service::describe_unreadable(listing, file, get_bucket_url(call.services().settings.bucket.get()));
}

json to_json(const service::ArtifactListing& listing, const ListedArtifact& file, const std::string& problem) {
  return {{"name", file.name},
          {"bytes", file.bytes},
          {"sha256", file.sha256},
          {"media_type", find_media_type(file.name, file.is_text)},
          {"executable", file.executable},
          {"runner_id", listing.holder.runner},
          {"readable", problem.empty()},
          {"problem", problem}};
}

Result<json> handle_list(MethodCall& call) {
  MJ_TRY(listing, load_listing(call));
  const auto folders = service::list_artifact_folders(call.services().settings.state_dir, listing);
  call.release_backend();
  json rows = json::array();
  for (const ListedArtifact& file : listing.files)
    rows.push_back(to_json(listing, file, find_problem(call, listing, folders, file)));
  return rows;
}

// After an error, only this server accepts the link.
void publish_ticket_key(MethodCall& call) {
  const auto published = call.services().tickets.publish_key(call.store(), call.context());
  if (!published)
    log(LogLevel::warn, "api", "context {}: other coordinators do not accept the links of this one: {}", call.context(),
        published.error().message);
}

Result<json> handle_get(MethodCall& call) {
  MJ_TRY(listing, load_listing(call));
  MJ_TRY(file, service::find_artifact(listing, call.text("name")));
  const auto folders = service::list_artifact_folders(call.services().settings.state_dir, listing);
  publish_ticket_key(call);
  call.release_backend();
  const std::string problem = find_problem(call, listing, folders, file);
  if (!problem.empty()) {
    const bool is_away = listing.holder_state == service::HolderState::away;
    return fail(is_away ? Code::unavailable : Code::not_found,
                service::describe_artifact_problem(listing, file.name, problem));
  }
  const TicketObject object{listing.context, listing.job_key, file.name, file.sha256};
  json result = to_json(listing, file, problem);
  result["link"] = format_artifact_path(object) + "&ticket=" + call.services().tickets.create(call.caller(), object);
  result["until_ms"] = call.services().clock.unix_ms() + kTicketLifetimeMs;
  return result;
}

Result<json> handle_put(MethodCall& call) {
  MJ_CHECK(call.report_if_denied(
      service::check_permission(call.request_context(), call.store(), Action::create, {.name = "jobs"})));
  // A small file of the folder is read while the call has its connection to the store.
  MJ_TRY(holder, find_upload_holder(call.services().settings, call.context()));
  const service::UploadRequest request{call.number("bytes"), call.text("sha256"), call.optional_id("caller_id")};
  MJ_TRY(upload, call.report_if_denied(service::begin_upload(call.request_context(), call.store(), request,
                                                             call.services().settings.uploads, holder)));
  publish_ticket_key(call);
  const TicketObject object = make_upload_ticket_object(call.context(), upload.reference);
  return json{{"upload", to_string(upload.reference)},
              {"link", format_upload_path(call.context(), upload.reference) +
                           "&ticket=" + call.services().tickets.create(call.caller(), object)},
              {"until_ms", call.services().clock.unix_ms() + kTicketLifetimeMs}};
}

}  // namespace artifact_methods

void add_artifact_methods(Services& services, std::vector<Method>& methods) {
  using namespace artifact_methods;
  bind_methods(services, {{"artifact.list", handle_list}, {"artifact.get", handle_get}, {"artifact.put", handle_put}},
               methods);
}

}  // namespace mycojobs::api
