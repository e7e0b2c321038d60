#include "artifacts/bucket/artifact_bucket.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>
#include <utility>

#include "artifacts/artifact_folder.h"
#include "base/parse.h"
#include "base/random.h"
#include "base/sha256.h"
#include "net/host.h"
#include "security/private_file.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxIdleClients = 8;  // each client has an open connection
constexpr std::size_t kMaxListedObjects = 1000;
constexpr int kAttempts = 4;
constexpr std::uint64_t kFirstPauseMs = 250;  // doubles with each attempt
constexpr std::string_view kScheme = "s3://";
constexpr const char* kOwnerName = "owner";

std::string_view trim_spaces(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

bool has_only(std::string_view text, std::string_view further_characters) {
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           further_characters.find(c) != std::string_view::npos;
  });
}

struct Bucket {
  std::string name, prefix;
};

Result<Bucket> parse_store_url(const std::string& url) {
  const auto make_url_error = [&] {
    return fail(Code::invalid, "artifacts.store: \"" + url +
                                   "\" is not a bucket: use s3://BUCKET or s3://BUCKET/PREFIX with letters, digits "
                                   "and - . _");
  };
  if (!url.starts_with(kScheme)) return make_url_error();
  const std::string path = url.substr(kScheme.size());
  const std::size_t slash = std::min(path.find('/'), path.size());
  Bucket bucket{path.substr(0, slash), slash < path.size() ? path.substr(slash + 1) : ""};
  const bool is_valid_prefix = bucket.prefix.empty()
                                   ? slash == path.size()
                                   : has_only(bucket.prefix, "-._/") && !bucket.prefix.ends_with('/') &&
                                         ('/' + bucket.prefix + '/').find("/../") == std::string::npos &&
                                         ('/' + bucket.prefix + '/').find("//") == std::string::npos;
  if (bucket.name.size() < 3 || bucket.name.size() > 63 || !has_only(bucket.name, "-._") || !is_valid_prefix)
    return make_url_error();
  if (!bucket.prefix.empty()) bucket.prefix += '/';
  return bucket;
}

Result<void> check_endpoint(const std::string& endpoint) {
  const bool is_http = endpoint.starts_with("http://");
  if (!is_http && !endpoint.starts_with("https://"))
    return fail(Code::invalid, "artifacts.store_endpoint: does not begin with https://");
  const std::string address = endpoint.substr(is_http ? 7 : 8);
  if (auto host = parse_host_port(address, is_http ? 80 : 443); !host)
    return fail(std::move(host).error(), "artifacts.store_endpoint");
  return {};
}

Result<AwsCredentials> read_credentials(const std::string& path) {
  MJ_TRY(text, read_private_file(path));
  auto credentials = parse_aws_credentials(text);
  if (!credentials) return fail(std::move(credentials).error(), path);
  return credentials;
}

// Waits for pause_ms. Returns false if the call was stopped.
bool wait_for_retry(std::uint64_t pause_ms, ArtifactBucket::StopFlag stop) {
  constexpr std::uint64_t kStepMs = 50;
  for (std::uint64_t waited_ms = 0; waited_ms < pause_ms; waited_ms += kStepMs) {
    if (stop != nullptr && *stop) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(std::min(kStepMs, pause_ms - waited_ms)));
  }
  return stop == nullptr || !*stop;
}

// Returns a random pause from the upper half of the interval, so that hosts do not repeat their calls at the same time.
std::uint64_t make_random_pause_ms(int attempt) {
  thread_local std::minstd_rand random(std::random_device{}());
  const std::uint64_t longest_ms = kFirstPauseMs << static_cast<unsigned>(attempt);
  return longest_ms / 2 + std::uniform_int_distribution<std::uint64_t>(0, longest_ms / 2)(random);
}

}  // namespace

Result<AwsCredentials> parse_aws_credentials(const std::string& text) {
  AwsCredentials credentials;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = trim_spaces(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const std::size_t separator = line.find('=');
    if (line.empty() || line[0] == '#' || line[0] == '[' || separator == std::string_view::npos) continue;
    const std::string_view name = trim_spaces(line.substr(0, separator));
    const std::string value(trim_spaces(line.substr(separator + 1)));
    if (name == "aws_access_key_id") credentials.access_key_id = value;
    if (name == "aws_secret_access_key") credentials.secret_access_key = value;
    if (name == "aws_session_token") credentials.session_token = value;
  }
  const auto is_header_text = [](const std::string& value) {
    return std::all_of(value.begin(), value.end(), [](char c) { return c > ' ' && c < 0x7f; });
  };
  if (credentials.access_key_id.empty() || credentials.secret_access_key.empty())
    return fail(Code::invalid, "has no lines aws_access_key_id = ... and aws_secret_access_key = ...");
  if (!is_header_text(credentials.access_key_id) || !is_header_text(credentials.session_token))
    return fail(Code::invalid, "aws_access_key_id and aws_session_token are one word of ASCII each");
  return credentials;
}

ArtifactBucket::ArtifactBucket(std::string url, std::string prefix, S3Client::Settings settings,
                               std::string credentials)
    : url_(std::move(url)),
      prefix_(std::move(prefix)),
      settings_(std::move(settings)),
      credentials_(std::move(credentials)) {}

Result<std::shared_ptr<ArtifactBucket>> ArtifactBucket::create(const Settings& settings) {
  MJ_TRY(bucket, parse_store_url(settings.url));
  if (settings.region.empty() || !has_only(settings.region, "-_"))
    return fail(Code::invalid, "artifacts.store_region: is not a name of letters, digits and -");
  const std::string endpoint =
      settings.endpoint.empty() ? "https://s3." + settings.region + ".amazonaws.com" : settings.endpoint;
  MJ_CHECK(check_endpoint(endpoint));
  if (settings.credentials.empty())
    return fail(Code::invalid, "artifacts.store_credentials: name the file with the access key of artifacts.store");
  if (auto credentials = read_credentials(settings.credentials); !credentials)
    return fail(std::move(credentials).error(), "artifacts.store_credentials");
  S3Client::Settings client{endpoint,    settings.region,    bucket.name, settings.uses_path_style,
                            settings.ca, settings.part_bytes};
  return std::shared_ptr<ArtifactBucket>(
      new ArtifactBucket(settings.url, std::move(bucket.prefix), std::move(client), settings.credentials));
}

template <class Call>
auto ArtifactBucket::call_client(StopFlag stop, Call call) const {
  using CallResult = decltype(call(std::declval<S3Client&>()));
  std::unique_ptr<S3Client> client;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_clients_.empty()) {
      client = std::move(idle_clients_.back());
      idle_clients_.pop_back();
    }
  }
  if (!client) client = std::make_unique<S3Client>(settings_);
  auto credentials = read_credentials(credentials_);
  if (!credentials)  // unavailable, since another program may be replacing the file
    return CallResult(fail(Code::unavailable, "artifacts.store_credentials: " + credentials.error().message));
  client->set_credentials(std::move(*credentials));
  client->set_stop(stop);
  CallResult result = call(*client);
  const std::lock_guard lock(mutex_);
  if (idle_clients_.size() < kMaxIdleClients) idle_clients_.push_back(std::move(client));
  if (!result) result.error().message.insert(0, url_ + ": ");
  return result;
}

template <class Call>
auto ArtifactBucket::call_with_retries(StopFlag stop, Call call) const {
  auto result = call_client(stop, call);
  for (int attempt = 0; attempt + 1 < kAttempts && !result && result.error().code == Code::unavailable &&
                        wait_for_retry(make_random_pause_ms(attempt), stop);
       ++attempt)
    result = call_client(stop, call);
  return result;
}

std::string ArtifactBucket::format_folder(const Area& area) const {
  return prefix_ + area.store_name + '/' + std::to_string(area.context) + '/';
}

std::string ArtifactBucket::format_key(const Key& key) const {
  return format_folder(key.area) + job_folder_name(key.job_key) + '/' + key.sha256;
}

Result<void> ArtifactBucket::upload(const Key& key, int fd, std::uint64_t bytes, StopFlag stop) const {
  return call_with_retries(stop, [&](S3Client& client) {
    return client.put_file(format_key(key), {fd, 0, bytes}, key.sha256);
  });
}

Result<void> ArtifactBucket::download(const Key& key, std::function<Result<void>(std::string_view)> on_body,
                                      StopFlag stop) const {
  return call_client(stop, [&](S3Client& client) { return client.get(format_key(key), on_body); });
}

namespace {

// Parses a name of the form "<folder><caller>.<job>/<sha256>". Returns no value for other names.
std::optional<ArtifactBucket::Key> parse_object_name(std::string_view name, const std::string& folder,
                                                     const ArtifactBucket::Area& area) {
  if (!name.starts_with(folder)) return std::nullopt;
  name.remove_prefix(folder.size());
  const std::size_t slash = name.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  ArtifactBucket::Key key{area, parse_job_folder_name(std::string(name.substr(0, slash))),
                          std::string(name.substr(slash + 1))};
  if (key.job_key.empty() || !is_hex(key.sha256, kSha256Digits)) return std::nullopt;
  return key;
}

Result<void> prefix_error(Result<void> result, const char* prefix) {
  if (!result) result.error().message.insert(0, std::string(prefix) + ": ");
  return result;
}

template <class Value>
Result<void> drop_value(Result<Value> result) {
  if (!result) return tl::unexpected<Error>(std::move(result).error());
  return {};
}

// Checks the access rights for files of several parts. Ignores calls that the server does not support.
Result<void> check_upload(S3Client& client, const std::string& key) {
  auto upload = client.begin_upload(key);
  if (!upload) return prefix_error(drop_value(std::move(upload)), "beginning a file of several parts");
  auto listed =
      prefix_error(drop_value(client.list_uploads(key)), "listing incomplete uploads (s3:ListBucketMultipartUploads)");
  auto aborted = prefix_error(client.abort_upload(*upload), "aborting an upload (s3:AbortMultipartUpload)");
  for (const auto* result : {&listed, &aborted}) {
    if (!*result && result->error().code != Code::unsupported) return *result;
  }
  return {};
}

}  // namespace

Result<ArtifactBucket::Page> ArtifactBucket::list(const Area& area, const std::string& next, StopFlag stop) const {
  const std::string folder = format_folder(area);
  MJ_TRY(listed,
         call_with_retries(stop, [&](S3Client& client) { return client.list(folder, next, kMaxListedObjects); }));
  Page page;
  page.next = std::move(listed.next);
  for (const S3Client::Object& object : listed.objects) {
    if (auto key = parse_object_name(object.key, folder, area))
      page.objects.push_back({std::move(*key), {}, object.modified_unix_ms});
  }
  return page;
}

Result<std::vector<ArtifactBucket::ListedObject>> ArtifactBucket::list_uploads(const Area& area, StopFlag stop) const {
  const std::string folder = format_folder(area);
  MJ_TRY(uploads, call_with_retries(stop, [&](S3Client& client) { return client.list_uploads(folder); }));
  std::vector<ListedObject> found;
  for (const S3Client::Upload& upload : uploads) {
    if (upload.id.empty()) continue;
    if (auto key = parse_object_name(upload.key, folder, area))
      found.push_back({std::move(*key), upload.id, upload.started_unix_ms});
  }
  return found;
}

Result<void> ArtifactBucket::remove(const ListedObject& object, StopFlag stop) const {
  const std::string key = format_key(object.key);
  return call_client(stop, [&](S3Client& client) {
    return object.upload_id.empty() ? client.remove(key) : client.abort_upload({key, object.upload_id});
  });
}

Result<std::string> ArtifactBucket::read_owner(const Area& area, StopFlag stop) const {
  constexpr std::size_t kMaxOwnerBytes = 1024;
  return call_with_retries(stop, [&](S3Client& client) -> Result<std::string> {
    std::string text;
    MJ_CHECK(client.get(format_folder(area) + kOwnerName, [&](std::string_view piece) -> Result<void> {
      text += piece.substr(0, kMaxOwnerBytes - std::min(kMaxOwnerBytes, text.size()));
      return {};
    }));
    return text;
  });
}

Result<void> ArtifactBucket::write_owner(const Area& area, std::string_view text, StopFlag stop) const {
  return call_with_retries(stop,
                           [&](S3Client& client) { return client.put_text(format_folder(area) + kOwnerName, text); });
}

Result<void> ArtifactBucket::check(StopFlag stop) const {
  const std::string key = prefix_ + ".probe-" + random_hex(8), text = "mycojobs doctor " + random_hex(8);
  MJ_CHECK(prefix_error(call_client(stop, [&](S3Client& client) { return client.put_text(key, text); }),
                        "writing an object"));
  std::string received;
  Result<void> result = prefix_error(call_client(stop,
                                                 [&](S3Client& client) {
                                                   return client.get(key, [&](std::string_view piece) -> Result<void> {
                                                     received += piece;
                                                     return {};
                                                   });
                                                 }),
                                     "reading an object");
  if (result && received != text)
    result = fail(Code::internal, url_ + ": the object has other content than was written");
  if (result) {
    result = prefix_error(drop_value(call_client(stop, [&](S3Client& client) { return client.list(key, "", 1); })),
                          "listing objects");
  }
  if (result) result = call_client(stop, [&](S3Client& client) { return check_upload(client, key); });
  Result<void> removed =
      prefix_error(call_client(stop, [&](S3Client& client) { return client.remove(key); }), "deleting an object");
  return result ? removed : result;
}

}  // namespace mycojobs
