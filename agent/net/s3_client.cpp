#include "net/s3_client.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <utility>

#include "base/errno_text.h"
#include "base/sha256.h"
#include "text/timestamp.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxParts = 10000;       // limit of the protocol
constexpr std::size_t kMaxMessageBytes = 200;  // limit of a text of the server in an error message

// Returns the texts of all elements with this name. REQUIRES: the elements have no attributes and are not nested.
std::vector<std::string_view> find_elements(std::string_view xml, const std::string& name) {
  const std::string begin_tag = '<' + name + '>', end_tag = "</" + name + '>';
  std::vector<std::string_view> texts;
  for (std::size_t position = xml.find(begin_tag); position != std::string_view::npos;) {
    const std::size_t begin = position + begin_tag.size(), end = xml.find(end_tag, begin);
    if (end == std::string_view::npos) break;
    texts.push_back(xml.substr(begin, end - begin));
    position = xml.find(begin_tag, end);
  }
  return texts;
}

std::string decode_entities(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, char>, 5> kEntities = {
      {{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}}};
  std::string decoded;
  while (!text.empty()) {
    const auto* entity = std::find_if(kEntities.begin(), kEntities.end(),
                                      [&](const auto& entry) { return text.starts_with(entry.first); });
    decoded += entity != kEntities.end() ? entity->second : text.front();
    text.remove_prefix(entity != kEntities.end() ? entity->first.size() : 1);
  }
  return decoded;
}

// Returns the text of the first element with this name, or an empty text.
std::string find_element(std::string_view xml, const std::string& name) {
  const auto texts = find_elements(xml, name);
  return texts.empty() ? std::string() : decode_entities(texts.front());
}

std::string get_header(const HttpTransfer::Answer& answer, const std::string& name) {
  const auto header = answer.headers.find(name);
  return header == answer.headers.end() ? std::string() : header->second;
}

// Returns the time of an element in Unix ms, or 0 without a valid time.
std::uint64_t find_time_ms(std::string_view xml, const std::string& name) {
  const std::string text = find_element(xml, name);  // "2026-01-31T12:00:00.000Z"
  const auto time_ms = parse_time_ms(text.substr(0, text.find('.')) + (text.find('.') == std::string::npos ? "" : "Z"));
  return time_ms ? *time_ms : 0;
}

Error make_content_error() {
  return {Code::conflict, "the file on this host does not have the content of its record any more"};
}

// Returns the hash of a range of a file, and also adds the range to the hash `whole` if that is not null. Error io.
Result<std::string> compute_range_hash(const S3Client::FileRange& range, Sha256* whole = nullptr) {
  Sha256 hash;
  std::string buffer(1U << 18, '\0');
  for (std::uint64_t done = 0; done < range.bytes;) {
    const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), range.bytes - done));
    const ssize_t count = ::pread(range.fd, buffer.data(), bytes, static_cast<off_t>(range.offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return fail(Code::io, count < 0 ? errno_text(errno) : "the file is shorter than before");
    hash.update({buffer.data(), static_cast<std::size_t>(count)});
    if (whole != nullptr) whole->update({buffer.data(), static_cast<std::size_t>(count)});
    done += static_cast<std::uint64_t>(count);
  }
  return hash.hex();
}

struct EndpointParts {
  std::string scheme, host;  // "https://" and "s3.example.com:9000"
};
EndpointParts split_endpoint(const std::string& endpoint) {
  const std::size_t scheme_end = endpoint.find("://");
  const std::size_t host_begin = scheme_end == std::string::npos ? 0 : scheme_end + 3;
  return {endpoint.substr(0, host_begin), endpoint.substr(host_begin, endpoint.find('/', host_begin) - host_begin)};
}

// An error of the server, the code for the caller, and the cause with the remedy.
struct S3ErrorRow {
  std::string_view s3_code;
  Code code;
  std::string_view text;
};
constexpr auto kS3Errors = std::to_array<S3ErrorRow>({
    {"InvalidAccessKeyId", Code::denied,
     "the server does not know the access key: check the file of artifacts.store_credentials"},
    {"SignatureDoesNotMatch", Code::denied,
     "the secret key does not belong to the access key, or a proxy changes requests: check the file of "
     "artifacts.store_credentials"},
    {"AccessDenied", Code::denied,
     "the access key has no right to do this: it needs to list the bucket, and to read, write and delete objects"},
    {"ExpiredToken", Code::denied, "the session token has expired: renew the file of artifacts.store_credentials"},
    {"InvalidToken", Code::denied, "the session token is not valid: correct the file of artifacts.store_credentials"},
    {"NoSuchBucket", Code::invalid, "the bucket does not exist: create it, or correct artifacts.store"},
    {"NoSuchKey", Code::not_found, "the object does not exist"},
    {"NoSuchUpload", Code::unavailable, "the server does not know the upload any more"},
    {"BadDigest", Code::unavailable, "the content was changed on its way to the server"},
    {"XAmzContentSHA256Mismatch", Code::unavailable, "the content was changed on its way to the server"},
    {"SlowDown", Code::unavailable, "the server asks for fewer requests"},
    {"NotImplemented", Code::unsupported, "the server does not support this request"},
    {"MethodNotAllowed", Code::unsupported, "the server does not support this request"},
    {"RequestTimeout", Code::unavailable, "the server has not received the whole request in time"},
});

}  // namespace

Error S3Client::make_error(const Call& call, const HttpTransfer::Answer& answer) const {
  const std::string s3_code = find_element(answer.body, "Code");
  const std::string shown_code = to_ascii(s3_code.empty() ? "no error code" : s3_code, kMaxMessageBytes);
  const std::string status = "status " + std::to_string(answer.status) + ", " + shown_code + ": ";
  if (s3_code == "RequestTimeTooSkewed" || s3_code == "RequestExpired") {
    return {Code::denied, status + "the clock of this host differs from that of the server (" +
                              to_ascii(get_header(answer, "date"), kMaxMessageBytes) +
                              ", this host: " + format_aws_time(std::time(nullptr)) + "): set it"};
  }
  const bool is_wrong_region =
      s3_code == "PermanentRedirect" || s3_code == "TemporaryRedirect" || s3_code == "AuthorizationHeaderMalformed" ||
      s3_code == "IllegalLocationConstraintException" || (answer.status >= 300 && answer.status < 400);
  if (is_wrong_region) {
    std::string region = get_header(answer, "x-amz-bucket-region");
    if (region.empty()) region = find_element(answer.body, "Region");
    return {Code::invalid, status + "the bucket is in another region" +
                               (region.empty() ? "" : ", " + to_ascii(region, kMaxMessageBytes)) + " than " +
                               settings_.region + ": correct artifacts.store_region and artifacts.store_endpoint"};
  }
  if (s3_code == "NoSuchUpload" && call.method == "DELETE") return {Code::not_found, status + "it does not exist"};
  const auto* row = std::find_if(kS3Errors.begin(), kS3Errors.end(),
                                 [&](const S3ErrorRow& entry) { return entry.s3_code == s3_code; });
  if (row != kS3Errors.end()) return {row->code, status + std::string(row->text)};
  std::string text = to_ascii(find_element(answer.body, "Message"), kMaxMessageBytes);
  if (text.empty()) text = "the server gives no reason";
  if (answer.status >= 500 || answer.status == 408 || answer.status == 429) return {Code::unavailable, status + text};
  if (answer.status == 401 || answer.status == 403) return {Code::denied, status + text};
  // Without the code NoSuchKey, the status 404 does not mean that the object is lost: a proxy may have sent the answer.
  if (answer.status == 404) return {Code::invalid, status + text + ": check artifacts.store_endpoint"};
  return {Code::internal, status + text};
}

Result<HttpTransfer::Answer> S3Client::perform(const Call& call) {
  const EndpointParts endpoint = split_endpoint(settings_.endpoint);
  AwsRequest request;
  request.method = call.method;
  request.path = (settings_.uses_path_style ? '/' + settings_.bucket : std::string()) + '/' + call.key;
  request.query = call.query;
  request.headers = call.headers;
  request.headers["host"] = (settings_.uses_path_style ? "" : settings_.bucket + '.') + endpoint.host;
  request.headers["x-amz-date"] = format_aws_time(std::time(nullptr));
  request.headers["x-amz-content-sha256"] = call.sha256.empty() ? sha256_hex(call.body) : call.sha256;
  if (!credentials_.session_token.empty()) request.headers["x-amz-security-token"] = credentials_.session_token;

  HttpTransfer::Request transfer;
  transfer.method = call.method;
  const std::string query = encode_aws_query(call.query);
  transfer.url = endpoint.scheme + request.headers["host"] + encode_aws_uri(request.path, true) +
                 (query.empty() ? "" : '?' + query);
  for (const auto& [name, value] : request.headers) transfer.headers.push_back(name + ": " + value);
  transfer.headers.push_back("authorization: " + sign_aws_request(request, credentials_, settings_.region));
  transfer.body = call.body;
  transfer.file = call.file.fd;
  transfer.file_offset = call.file.offset;
  transfer.file_bytes = call.file.bytes;
  transfer.on_body = call.on_body;
  transfer.ca = settings_.ca;
  transfer.stop = stop_;
  MJ_TRY(answer, http_.perform(transfer));
  if (answer.status >= 200 && answer.status <= 299) return std::move(answer);
  return tl::unexpected<Error>(make_error(call, answer));
}

Result<void> S3Client::put_text(const std::string& key, std::string_view text) {
  Call call{"PUT", key};
  call.body = text;
  MJ_CHECK(perform(call));
  return {};
}

// The hash is also compared on this host, since not every server does so, and the error of a server would be temporary.
Result<void> S3Client::put_file(const std::string& key, const FileRange& file, const std::string& sha256) {
  return file.bytes > settings_.part_bytes ? put_parts(key, file, sha256) : put_range(key, file, sha256);
}

Result<void> S3Client::put_range(const std::string& key, const FileRange& file, const std::string& sha256) {
  MJ_TRY(content_hash, compute_range_hash(file));
  if (content_hash != sha256) return tl::unexpected<Error>(make_content_error());
  Call call{"PUT", key};
  call.file = file;
  call.sha256 = sha256;
  MJ_CHECK(perform(call));
  return {};
}

Result<S3Client::Upload> S3Client::begin_upload(const std::string& key) {
  MJ_TRY(answer, perform(Call{"POST", key, {{"uploads", ""}}}));
  Upload upload{key, find_element(answer.body, "UploadId")};
  if (upload.id.empty()) return fail(Code::internal, "the server has not named the upload");
  return upload;
}

Result<void> S3Client::put_parts(const std::string& key, const FileRange& file, const std::string& sha256) {
  MJ_TRY(upload, begin_upload(key));
  auto etags = send_parts(upload, file, sha256);
  Result<void> result;
  if (etags)
    result = complete_upload(upload, *etags);
  else
    result = tl::unexpected<Error>(std::move(etags).error());
  if (!result) (void)abort_upload(upload);  // if this fails, BucketSweep aborts the upload later
  return result;
}

Result<std::vector<std::string>> S3Client::send_parts(const Upload& upload, const FileRange& file,
                                                      const std::string& sha256) {
  const std::uint64_t part_bytes = std::max(settings_.part_bytes, file.bytes / kMaxParts + 1);
  std::vector<std::string> etags;
  Sha256 whole;
  for (std::uint64_t done = 0; done < file.bytes; done += part_bytes) {
    const FileRange part{file.fd, file.offset + done, std::min(part_bytes, file.bytes - done)};
    MJ_TRY(part_hash, compute_range_hash(part, &whole));
    auto etag = put_part(upload, etags.size() + 1, part, part_hash);
    // Only the failed part is sent again, and not the whole file.
    if (!etag && etag.error().code == Code::unavailable) etag = put_part(upload, etags.size() + 1, part, part_hash);
    if (!etag) return tl::unexpected<Error>(std::move(etag).error());
    etags.push_back(std::move(*etag));
  }
  if (whole.hex() != sha256) return tl::unexpected<Error>(make_content_error());
  return etags;
}

Result<std::string> S3Client::put_part(const Upload& upload, std::size_t number, const FileRange& part,
                                       const std::string& sha256) {
  Call call{"PUT", upload.key, {{"partNumber", std::to_string(number)}, {"uploadId", upload.id}}};
  call.file = part;
  call.sha256 = sha256;
  MJ_TRY(answer, perform(call));
  std::string etag = get_header(answer, "etag");
  if (etag.empty()) return fail(Code::internal, "the server has sent no ETag of a part");
  return etag;
}

// The server reports an error of this call with the status 200 and a body without the element of the result.
Result<void> S3Client::complete_upload(const Upload& upload, const std::vector<std::string>& etags) {
  std::string body = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  for (std::size_t i = 0; i < etags.size(); ++i) {
    body += "<Part><PartNumber>" + std::to_string(i + 1) + "</PartNumber><ETag>" + etags[i] + "</ETag></Part>";
  }
  body += "</CompleteMultipartUpload>";
  Call call{"POST", upload.key, {{"uploadId", upload.id}}, {{"content-type", "application/xml"}}};
  call.body = body;
  MJ_TRY(answer, perform(call));
  if (answer.body.find("<CompleteMultipartUploadResult") != std::string::npos) return {};
  answer.status = 500;
  return tl::unexpected<Error>(make_error(call, answer));
}

Result<void> S3Client::get(const std::string& key, std::function<Result<void>(std::string_view)> on_body) {
  Call call{"GET", key};
  call.on_body = std::move(on_body);
  MJ_CHECK(perform(call));
  return {};
}

Result<void> S3Client::remove(const std::string& key) {
  auto answer = perform(Call{"DELETE", key});
  if (!answer && answer.error().code != Code::not_found) return tl::unexpected<Error>(std::move(answer).error());
  return {};
}

Result<S3Client::Page> S3Client::list(const std::string& prefix, const std::string& next, std::size_t max_keys) {
  Call call{"GET", "", {{"list-type", "2"}, {"max-keys", std::to_string(max_keys)}, {"prefix", prefix}}};
  if (!next.empty()) call.query["continuation-token"] = next;
  MJ_TRY(answer, perform(call));
  Page page;
  for (const std::string_view entry : find_elements(answer.body, "Contents")) {
    Object object{find_element(entry, "Key")};
    for (const char digit : find_element(entry, "Size")) {
      if (digit >= '0' && digit <= '9') object.bytes = object.bytes * 10 + static_cast<std::uint64_t>(digit - '0');
    }
    object.modified_unix_ms = find_time_ms(entry, "LastModified");
    page.objects.push_back(std::move(object));
  }
  if (find_element(answer.body, "IsTruncated") == "true")
    page.next = find_element(answer.body, "NextContinuationToken");
  return page;
}

Result<std::vector<S3Client::Upload>> S3Client::list_uploads(const std::string& prefix) {
  auto answered = perform(Call{"GET", "", {{"uploads", ""}, {"prefix", prefix}}});
  if (!answered && answered.error().code == Code::unsupported) return std::vector<Upload>();
  MJ_TRY(answer, std::move(answered));
  std::vector<Upload> uploads;
  for (const std::string_view entry : find_elements(answer.body, "Upload"))
    uploads.push_back({find_element(entry, "Key"), find_element(entry, "UploadId"), find_time_ms(entry, "Initiated")});
  return uploads;
}

Result<void> S3Client::abort_upload(const Upload& upload) {
  auto answer = perform(Call{"DELETE", upload.key, {{"uploadId", upload.id}}});
  if (!answer && answer.error().code != Code::not_found) return tl::unexpected<Error>(std::move(answer).error());
  return {};
}

}  // namespace mycojobs
