#include "api/artifacts/artifact_downloads.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "api/http/percent_encoding.h"
#include "artifacts/bucket/artifact_bucket.h"
#include "artifacts/job_artifacts.h"
#include "base/log.h"
#include "base/parse.h"
#include "base/sha256.h"
#include "model/media_type.h"
#include "store/redis/format_version.h"
#include "text/base64.h"
#include "text/json.h"

namespace mycojobs::api {
namespace {

using nlohmann::json;

constexpr std::size_t kBlockBytes = 64U << 10;    // size of the reads from the disk
constexpr std::uint32_t kWaitStepMs = 200;        // interval at which a waiting download checks its connection
constexpr std::uint64_t kMaxFetchWaitMs = 15000;  // maximum wait until fewer files than the limit are being fetched
constexpr std::string_view kArtifactLostWord = "artifact_lost";

HttpReply make_error_reply(int status, Code code, std::string_view error_word, const std::string& message,
                           std::string_view remedy) {
  HttpReply reply;
  reply.status = status;
  reply.body = dump_json(
      {{"jsonrpc", "2.0"},
       {"id", nullptr},
       {"error",
        {{"code", rpc_code(code)}, {"message", message}, {"data", {{"word", error_word}, {"remedy", remedy}}}}}});
  return reply;
}

// is_lost: the job has stored the file, and no host has it any more.
HttpReply make_error_reply(const Error& error, bool is_lost = false) {
  const std::string message = describe_to_client(error);
  switch (error.code) {
    case Code::invalid:
      return make_error_reply(400, error.code, "invalid", message, "GET /artifacts?context=N&job=CALLER:ID&name=NAME");
    case Code::denied:
      return make_error_reply(403, error.code, "denied", message,
                              "ask an admin of the context for the right to read the job");
    case Code::not_found:
      if (is_lost) return make_error_reply(410, error.code, kArtifactLostWord, message, "run the job again");
      return make_error_reply(404, error.code, "not_found", message,
                              "check context and job; artifact.list returns the artifacts of a job");
    case Code::unavailable: {
      HttpReply reply = make_error_reply(503, error.code, "unavailable", message, "request it again in a few seconds");
      reply.headers.emplace_back("Retry-After", "5");
      return reply;
    }
    default:
      return make_error_reply(500, error.code, to_string(error.code), message, "see the log of the server");
  }
}

HttpReply make_range_error_reply(const Error& error, std::uint64_t file_bytes) {
  HttpReply reply = make_error_reply(416, Code::invalid, "invalid", error.message,
                                     "send Range: bytes=FIRST-LAST with positions in the file, or no Range");
  reply.headers.emplace_back("Content-Range", "bytes */" + std::to_string(file_bytes));
  return reply;
}

std::string encode_query_value(std::string_view text) { return percent_encode(text, "-._"); }

std::string strip_job_prefix(const std::string& job_key) {
  constexpr std::string_view kPrefix = "job:";
  return job_key.starts_with(kPrefix) ? job_key.substr(kPrefix.size()) : job_key;
}

// Returns the file that the query names. The values are not checked, because the signature of a ticket covers them.
TicketObject parse_ticket_object(const HttpRequest& request) {
  std::uint64_t context = 0;
  (void)parse_u64(request.parameter("context"), context);
  return {static_cast<Id>(context), "job:" + strip_job_prefix(request.parameter("job")), request.parameter("name"),
          request.parameter("sha256")};
}

void add_download_headers(HttpReply& reply, const ListedArtifact& file) {
  reply.headers.emplace_back("Content-Disposition", format_attachment(file.name));
  reply.headers.emplace_back("Content-Security-Policy", "sandbox; default-src 'none'");
  reply.headers.emplace_back("Cross-Origin-Resource-Policy", "same-origin");
  reply.headers.emplace_back("Referrer-Policy", "no-referrer");
  reply.headers.emplace_back("X-Frame-Options", "DENY");
  reply.headers.emplace_back("Accept-Ranges", "bytes");
  reply.headers.emplace_back("ETag", '"' + file.sha256 + '"');
  reply.headers.emplace_back("Repr-Digest", "sha-256=:" + encode_base64(from_hex(file.sha256)) + ':');
}

// Reports to the server that a handler waits, so that the server may close its connection in favour of another client.
// The wait ends with the scope.
class ScopedWait {
 public:
  explicit ScopedWait(const HttpRequest& request) : report_(request.report_wait) {}
  ~ScopedWait() { (void)report(false); }
  ScopedWait(const ScopedWait&) = delete;
  ScopedWait& operator=(const ScopedWait&) = delete;
  // Reports that the handler still waits. Returns false if the connection was closed.
  bool report_waiting() { return report(true); }

 private:
  bool report(bool is_waiting) { return !report_ || report_(is_waiting); }
  const std::function<bool(bool)>& report_;
};

// Forwards the blocks of a file. The block with the last byte is sent only if the file has the recorded hash.
// REQUIRES: the blocks passed to add_unsent() and send() are consecutive from the first byte of the file on.
class VerifyingSender {
 public:
  VerifyingSender(EventSink& sink, const ListedArtifact& file) : sink_(sink), file_(file) {}
  // Returns false if the connection is closed or the hash is wrong.
  bool send(std::string_view bytes) {
    add_unsent(bytes);
    if (hashed_bytes_ < file_.bytes) return sink_.send(bytes);
    return hash_.hex() == file_.sha256 && sink_.send(bytes);
  }
  // Hashes bytes that precede the requested range.
  void add_unsent(std::string_view bytes) {
    hash_.update(bytes);
    hashed_bytes_ += bytes.size();
  }
  // Returns true if all bytes of the file were hashed.
  bool is_complete() const { return hashed_bytes_ >= file_.bytes; }

 private:
  EventSink& sink_;
  const ListedArtifact& file_;
  Sha256 hash_;
  std::uint64_t hashed_bytes_ = 0;
};

}  // namespace

struct ArtifactDownloads::Download {
  service::ArtifactListing listing;
  ListedArtifact file;
  std::vector<std::string> folders;  // folders of this host that can contain the file
  ByteRange range;
  // open_file() sets one of these two fields.
  std::shared_ptr<Fd> fd = {};                      // the file on this host
  std::shared_ptr<IncomingArtifact> incoming = {};  // the file that is received from another host

  // Adds the names of the job and the artifact to the message.
  Error describe(Error error) const {
    error.message = service::describe_artifact_problem(listing, file.name, error.message);
    return error;
  }
};

std::string format_artifact_path(const TicketObject& object) {
  return std::string(kArtifactPath) + "?context=" + std::to_string(object.context) +
         "&job=" + encode_query_value(strip_job_prefix(object.job_key)) + "&name=" + encode_query_value(object.name) +
         "&sha256=" + object.sha256;
}

ArtifactDownloads::ArtifactDownloads(Services& services, StoreFactory& stores) : services_(services) {
  const ApiSettings& settings = services.settings;
  if (settings.state_dir.empty()) return;
  fetcher_ =
      std::make_unique<ArtifactFetcher>(stores, services.clock,
                                        ArtifactFetcher::Settings{settings.state_dir, settings.artifact_cache_limits, 2,
                                                                  settings.bucket, settings.link_networks},
                                        settings.metrics);
}

bool ArtifactDownloads::has_ticket(const HttpRequest& request) {
  return request.method != "PUT" && request.path == kArtifactPath && request.header("authorization").empty() &&
         request.query.contains("ticket");
}

Result<Ticket> ArtifactDownloads::verify_ticket(const HttpRequest& request) const {
  MJ_TRY(ticket, services_.tickets.verify(request.parameter("ticket"), parse_ticket_object(request)));
  const bool is_allowed = !ticket.caller.anonymous || (services_.settings.allows_anonymous && request.loopback);
  if (!is_allowed) return fail(Code::denied, "the ticket is for clients on the host of the server");
  return ticket;
}

Result<ArtifactDownloads::Download> ArtifactDownloads::find_file(const HttpRequest& request,
                                                                 const RpcCaller& caller) const {
  const std::string name = request.parameter("name"), sha256 = request.parameter("sha256");
  json params{{"id", request.parameter("job")}};
  if (const std::string text = request.parameter("context"); !text.empty()) {
    std::uint64_t context = 0;
    if (!parse_u64(text, context) || context == 0 || context > UINT32_MAX)
      return fail(Code::invalid, "context: is not the id of a context");
    params["context_id"] = context;
  }
  if (params["id"] == "" || name.empty()) return fail(Code::invalid, "job and name: are missing");
  MJ_TRY(call, MethodCall::create(services_, params, caller));
  MJ_TRY(job_key, call.job_key());
  MJ_TRY(listing, call.report_if_denied(service::load_artifact_listing(call.request_context(), call.store(), job_key)));
  MJ_TRY(file, service::find_artifact(listing, name));
  if (!sha256.empty() && sha256 != file.sha256) {
    return fail(Code::not_found, service::describe_artifact_problem(
                                     listing, name, "has other content now: request it without sha256, or a new link"));
  }
  auto folders = service::list_artifact_folders(services_.settings.state_dir, listing);
  return Download{std::move(listing), std::move(file), std::move(folders), {}};
}

Result<void> ArtifactDownloads::wait_for_transfer(const HttpRequest& request, Download& download, Id actor) {
  ScopedWait wait(request);
  const std::uint64_t deadline_ms = services_.clock.boot_ms() + kMaxFetchWaitMs;
  while (!services_.stopping && wait.report_waiting()) {
    if (download.incoming) {
      const ByteRange& range = download.range;
      if (range.size() == 0) {
        MJ_TRY(is_complete, download.incoming->wait_until_complete(kWaitStepMs));
        if (is_complete) return {};
        continue;
      }
      MJ_TRY(first_byte, download.incoming->read(range.begin, range.end, 1, kWaitStepMs));
      if (!first_byte.empty()) return {};
      continue;
    }
    MJ_TRY(incoming, fetcher_->open(service::make_remote_artifact(download.listing, download.file),
                                    download.listing.store_names.front(), actor));
    download.incoming = std::move(incoming);
    if (download.incoming) continue;
    if (services_.clock.boot_ms() >= deadline_ms)
      return fail(Code::unavailable, "other files of other hosts are being received: request it again later");
    std::this_thread::sleep_for(std::chrono::milliseconds(kWaitStepMs));
  }
  return fail(Code::unavailable, "the server is stopping or has closed the connection");
}

Result<void> ArtifactDownloads::open_file(const HttpRequest& request, Download& download, Id actor) {
  MJ_TRY(fd, service::open_artifact(download.folders, download.file));
  if (fd) {
    download.fd = std::make_shared<Fd>(std::move(fd));
    for (const std::string& folder : download.folders)
      ArtifactCache::mark_used_if_cached(folder + '/' + download.file.sha256);
    return {};
  }
  const auto state = download.listing.holder_state;
  const std::string problem =
      service::describe_unreadable(download.listing, download.file, get_bucket_url(services_.settings.bucket.get()));
  if (!problem.empty() && (state == service::HolderState::deleted || state == service::HolderState::unknown))
    return fail(Code::not_found, problem);
  if (!fetcher_) return fail(Code::unavailable, "this coordinator has no state_dir for files of other hosts");
  auto result = wait_for_transfer(request, download, actor);
  if (result) return {};
  Error error = std::move(result).error();
  if (error.code == Code::not_found)
    error.message = std::string(kArtifactLostWord) + ": " + error.message + ": run the job again";
  if (error.code == Code::unavailable && !problem.empty()) error.message += "; " + problem;
  return tl::unexpected<Error>(std::move(error));
}

HttpReply ArtifactDownloads::make_reply(const HttpRequest& request, const RpcCaller& caller) {
  auto found = find_file(request, caller);
  if (!found) return make_error_reply(found.error());
  Download& download = *found;
  const ListedArtifact& file = download.file;
  const std::string condition = request.header("if-range");
  const bool uses_range = condition.empty() || condition == '"' + file.sha256 + '"';
  const auto range = parse_byte_range(uses_range ? request.header("range") : std::string(), file.bytes);
  if (!range) return make_range_error_reply(download.describe(range.error()), file.bytes);
  download.range = *range;
  if (auto opened = open_file(request, download, caller.actor); !opened)
    return make_error_reply(download.describe(std::move(opened).error()), true);
  HttpReply reply;
  reply.status = range->is_partial ? 206 : 200;
  reply.type = get_download_type(find_media_type(file.name, file.is_text));
  add_download_headers(reply, file);
  if (range->is_partial) reply.headers.emplace_back("Content-Range", format_content_range(*range, file.bytes));
  reply.stream_bytes = range->size();
  reply.stream = [this, shared = std::make_shared<Download>(std::move(download))](EventSink& sink) {
    send(*shared, sink);
  };
  return reply;
}

void ArtifactDownloads::send(const Download& download, EventSink& sink) const {
  const ByteRange& range = download.range;
  VerifyingSender verifying_sender(sink, download.file);
  const auto log_problem = [&](const Error& error) {
    log(LogLevel::warn, "api", "a download ended early: {}", download.describe(error).message);
  };
  // Without a range, all blocks are hashed here. For a range with the last byte, the bytes before it must be read, too;
  // for files that are received, ArtifactFetcher has verified the hash of such a range.
  const bool is_verified_here = !range.is_partial || (download.fd && range.end == download.file.bytes);
  for (std::uint64_t offset = 0; is_verified_here && offset < range.begin;) {
    const auto max_bytes = static_cast<std::size_t>(std::min<std::uint64_t>(range.begin - offset, kBlockBytes));
    const auto bytes = read_file_piece(download.fd->get(), offset, max_bytes);
    if (!bytes) return log_problem(bytes.error());
    if (bytes->empty() || !sink.is_open()) return;
    verifying_sender.add_unsent(*bytes);
    offset += bytes->size();
  }
  for (std::uint64_t offset = range.begin; offset < range.end;) {
    const auto max_bytes = static_cast<std::size_t>(std::min<std::uint64_t>(range.end - offset, kBlockBytes));
    const auto bytes = download.fd ? read_file_piece(download.fd->get(), offset, max_bytes)
                                   : download.incoming->read(offset, range.end, max_bytes, kWaitStepMs);
    if (!bytes) return log_problem(bytes.error());
    if (bytes->empty()) {
      if (!sink.is_open()) return;
      continue;
    }
    const bool is_sent = is_verified_here ? verifying_sender.send(*bytes) : sink.send(*bytes);
    if (!is_sent && is_verified_here && verifying_sender.is_complete() && sink.is_open())
      log_problem({Code::io, "the file on this host does not have the hash of the record: run the job again"});
    if (!is_sent) return;
    offset += bytes->size();
  }
}

}  // namespace mycojobs::api
