#include "api/artifacts/artifact_uploads.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "api/artifacts/artifact_downloads.h"
#include "artifacts/job_artifacts.h"
#include "artifacts/transfer/holder_name.h"
#include "base/log.h"
#include "base/parse.h"
#include "store/redis/format_version.h"
#include "text/json.h"

namespace mycojobs::api {
namespace {

using nlohmann::json;

constexpr const char* kNoFolder = "this coordinator has no state_dir for uploads: set it, or call another coordinator";
constexpr std::string_view kUploadTicketPrefix = "upload:";  // no job key begins with it

HttpReply make_upload_error_reply(const Error& error) {
  const std::string message = describe_to_client(error);
  switch (error.code) {
    case Code::invalid:
      return error_reply(400, "invalid", message, "call artifact.put with the size and hash of the file");
    case Code::denied:
      return error_reply(403, "denied", message, "ask an admin of the context for the right to create jobs");
    case Code::not_found:
      return error_reply(404, "not_found", message, "call artifact.put for a new upload");
    case Code::conflict:
      return error_reply(409, "conflict", message, "wait for the other request, or call artifact.put again");
    case Code::too_large:
      return error_reply(413, "too_large", message, "call artifact.put with the size of the file");
    case Code::unsupported:
      return error_reply(501, "unsupported", message, "set state_dir at the coordinator");
    case Code::unavailable:
      return error_reply(503, "unavailable", message, "send the file again in a few seconds");
    default:
      return error_reply(500, std::string(to_string(error.code)), message, "see the log of the server");
  }
}

Result<Id> parse_context(const HttpRequest& request) {
  std::uint64_t context = 0;
  if (!parse_u64(request.parameter("context"), context) || context == 0 || context > UINT32_MAX)
    return fail(Code::invalid, "context: is not the id of a context");
  return static_cast<Id>(context);
}

Result<UploadReference> parse_reference(const HttpRequest& request) {
  auto reference = parse_upload_reference(request.parameter("upload"));
  if (!reference) return fail(Code::invalid, "upload: is not the reference that artifact.put has returned");
  return std::move(*reference);
}

}  // namespace

// Writes the body of one request. The record of the upload is completed after the file.
class ArtifactUploads::Receiver final : public BodyReceiver {
 public:
  // file: null if the upload is complete; the body is then dropped.
  Receiver(Services& services, RpcCaller caller, Id context, UploadRecord upload, std::unique_ptr<UploadReceiver> file)
      : services_(services),
        caller_(std::move(caller)),
        context_(context),
        upload_(std::move(upload)),
        file_(std::move(file)) {}
  Result<void> write(std::string_view bytes) override { return file_ ? file_->write(bytes) : Result<void>(); }
  HttpReply write_error_reply(const Error& error) override { return make_upload_error_reply(error); }
  HttpReply finish() override {
    auto until_ms = complete();
    if (!until_ms) return make_upload_error_reply(until_ms.error());
    HttpReply reply;
    reply.status = 201;
    reply.body = dump_json({{"upload", to_string(upload_.reference)}, {"until_ms", *until_ms}});
    return reply;
  }

 private:
  Result<std::uint64_t> complete() {
    if (file_) MJ_CHECK(file_->finish());
    MJ_TRY(lease, services_.select_backends(caller_).acquire(caller_.actor));
    return lease.store().complete_upload(context_, upload_.reference.id, services_.settings.uploads.expiry_ms);
  }
  Services& services_;
  const RpcCaller caller_;
  const Id context_;
  const UploadRecord upload_;
  const std::unique_ptr<UploadReceiver> file_;
};

Result<std::string> find_upload_holder(const ApiSettings& settings, Id context) {
  if (settings.state_dir.empty()) return fail(Code::unsupported, kNoFolder);
  return find_or_create_holder_name(ArtifactFolder(settings.state_dir, context));
}

TicketObject make_upload_ticket_object(Id context, const UploadReference& reference) {
  return {context, std::string(kUploadTicketPrefix) + to_string(reference), "", reference.sha256};
}

std::string format_upload_path(Id context, const UploadReference& reference) {
  return std::string(kArtifactPath) + "?context=" + std::to_string(context) + "&upload=" + to_string(reference);
}

bool ArtifactUploads::has_ticket(const HttpRequest& request) {
  return request.method == "PUT" && request.path == kArtifactPath && request.header("authorization").empty() &&
         request.query.contains("ticket");
}

Result<Ticket> ArtifactUploads::verify_ticket(const HttpRequest& request) const {
  MJ_TRY(context, parse_context(request));
  MJ_TRY(reference, parse_reference(request));
  MJ_TRY(ticket, services_.tickets.verify(request.parameter("ticket"), make_upload_ticket_object(context, reference)));
  const bool is_allowed = !ticket.caller.anonymous || (services_.settings.allows_anonymous && request.loopback);
  if (!is_allowed) return fail(Code::denied, "the ticket is for clients on the host of the server");
  return ticket;
}

Result<BodyStream> ArtifactUploads::open_upload(const HttpRequest& request, const RpcCaller& caller) const {
  MJ_TRY(context, parse_context(request));
  MJ_TRY(reference, parse_reference(request));
  const json params{{"context_id", context}};
  MJ_TRY(call, MethodCall::create(services_, params, caller));
  const std::string& state_dir = services_.settings.state_dir;
  if (state_dir.empty()) return fail(Code::unsupported, kNoFolder);
  // Only artifact.put creates the folder, so that a request without rights or upload does not change the disk.
  const std::string holder = find_holder_name(ArtifactFolder(state_dir, context));
  MJ_TRY(upload, call.report_if_denied(service::find_upload(call.request_context(), call.store(), reference, holder)));
  MJ_TRY(store_name, artifact_store_name(call.store(), context));
  call.release_backend();
  std::unique_ptr<UploadReceiver> file;
  if (!upload.is_complete) {
    MJ_TRY(created, UploadReceiver::create(ArtifactFolder(state_dir, context), store_name, reference));
    file = std::move(created);
  }
  BodyStream stream;
  stream.max_bytes = reference.bytes;
  stream.timeout_ms = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(service::UploadLimits::max_duration_ms(reference.bytes), UINT32_MAX));
  stream.receiver = std::make_unique<Receiver>(services_, caller, context, std::move(upload), std::move(file));
  return stream;
}

BodyStream ArtifactUploads::open(const HttpRequest& request, const RpcCaller& caller) const {
  auto stream = open_upload(request, caller);
  if (stream) return std::move(*stream);
  BodyStream refused;
  refused.refusal = make_upload_error_reply(stream.error());
  return refused;
}

}  // namespace mycojobs::api
