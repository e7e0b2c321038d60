#include "cli/uploads/file_upload.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "artifacts/artifact_folder.h"
#include "artifacts/job_artifacts.h"
#include "artifacts/transfer/holder_name.h"
#include "artifacts/uploads/upload_receiver.h"
#include "base/errno_text.h"
#include "base/fd.h"
#include "base/sha256.h"
#include "cli/service_setup.h"
#include "net/json_rpc_client.h"
#include "service/upload_service.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::size_t kBlockBytes = 256U << 10;

std::string get_environment_text(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Passes the file to `write` in blocks. Error io.
template <class Write>
Result<void> read_blocks(int fd, const Write& write) {
  std::string block(kBlockBytes, '\0');
  for (std::uint64_t offset = 0;;) {
    const ssize_t size = ::pread(fd, block.data(), block.size(), static_cast<off_t>(offset));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return fail(Code::io, errno_text(errno));
    if (size == 0) return {};
    MJ_CHECK(write(std::string_view(block.data(), static_cast<std::size_t>(size))));
    offset += static_cast<std::uint64_t>(size);
  }
}

struct OpenFile {
  Fd fd;
  service::UploadRequest request;
};
Result<OpenFile> open_file(const std::string& path, Id caller) {
  OpenFile file;
  file.fd = Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.fd) return fail(errno == ENOENT ? Code::not_found : Code::io, errno_text(errno));
  Sha256 hash;
  MJ_CHECK(read_blocks(file.fd.get(), [&](std::string_view block) {
    hash.update(block);
    file.request.bytes += block.size();
    return Result<void>();
  }));
  file.request.sha256 = hash.hex();
  file.request.owner = caller;
  return file;
}

// Stores the file in the state folder, which the agent of the jobs uses, too.
Result<UploadReference> store_file(const Invocation& call, Store& store, const OpenFile& file) {
  const Id context = call.context();
  const ArtifactFolder folder(call.settings.state_dir, context);
  const service::UploadLimits limits = make_upload_limits(call.settings);
  MJ_TRY(holder, find_or_create_holder_name(folder));
  MJ_TRY(store_name, artifact_store_name(store, context));
  service::RequestContext caller;
  caller.context = context;
  caller.is_operator = true;
  MJ_TRY(upload, service::begin_upload(caller, store, file.request, limits, holder));
  MJ_TRY(receiver, UploadReceiver::create(folder, store_name, upload.reference));
  MJ_CHECK(read_blocks(file.fd.get(), [&](std::string_view block) { return receiver->write(block); }));
  MJ_CHECK(receiver->finish());
  MJ_CHECK(store.complete_upload(context, upload.reference.id, limits.expiry_ms));
  return upload.reference;
}

Error read_http_error(const HttpAnswer& answer) {
  const auto parsed = parse_json(answer.body);
  const auto error = parsed && parsed->is_object() ? parsed->value("error", nlohmann::json()) : nlohmann::json();
  std::string message = error.is_object() ? text_field(error, "message") : std::string();
  if (message.empty()) message = "HTTP status " + std::to_string(answer.status);
  return {answer.status >= 500 ? Code::unavailable : Code::invalid, std::move(message)};
}

Result<UploadReference> send_file(const Invocation& call, const std::string& url, const OpenFile& file) {
  HttpClient client;
  const std::string token = get_environment_text("MYCOJOBS_TOKEN");
  nlohmann::json params{{"bytes", file.request.bytes},
                        {"sha256", file.request.sha256},
                        {"context_id", call.context()},
                        {"caller_id", *file.request.owner}};
  RpcCall rpc;
  rpc.url = url;
  rpc.bearer = token;
  rpc.method = "artifact.put";
  rpc.ca = call.settings.https_ca;
  MJ_TRY(started, call_rpc(client, rpc, params));
  HttpPost put;
  put.url = url + text_field(started, "link");
  put.bearer = token;
  put.ca = call.settings.https_ca;
  put.timeout_ms = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(2 * service::UploadLimits::max_duration_ms(file.request.bytes), UINT32_MAX / 2));
  MJ_TRY(answer, client.put_file(put, file.fd.get(), file.request.bytes));
  if (answer.status != 201) return tl::unexpected<Error>(read_http_error(answer));
  auto reference = parse_upload_reference(text_field(started, "upload"));
  if (!reference) return fail(Code::internal, url + ": artifact.put has returned no reference");
  return std::move(*reference);
}

Result<UploadReference> upload_open_file(const Invocation& call, Store& store, const OpenFile& file) {
  if (call.settings.redis.empty()) return store_file(call, store, file);
  std::string url = find_upload_url(call);
  while (url.ends_with('/')) url.pop_back();
  if (!url.empty()) return send_file(call, url, file);
  return fail(Code::too_large,
              "has more than the 1048576 bytes that are stored with a job: give the address of a coordinator, which "
              "receives larger files, as --url or COORDINATOR_URL (and a token as MYCOJOBS_TOKEN); or let an earlier "
              "job store the file as an artifact and give --input JOB/ARTIFACT");
}

}  // namespace

std::string find_upload_url(const Invocation& call) {
  return call.has("url") ? call.get("url") : get_environment_text("COORDINATOR_URL");
}

Result<UploadReference> upload_file(const Invocation& call, Store& store, const std::string& path, Id caller) {
  auto file = open_file(path, caller);
  if (!file) return fail(std::move(file).error(), excerpt(path));
  auto reference = upload_open_file(call, store, *file);
  if (!reference) return fail(std::move(reference).error(), excerpt(path));
  return reference;
}

}  // namespace mycojobs
