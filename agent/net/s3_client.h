// Stores and reads objects by the protocol of Amazon S3. Requests are signed (aws_signature.h), and the hash of each
// body is verified by the server. Credentials are in no message. Not thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "net/aws_signature.h"
#include "net/http_transfer.h"

namespace mycojobs {

class S3Client {
 public:
  struct Settings {
    std::string endpoint;  // "https://s3.example.com", without a path
    std::string region, bucket;
    bool uses_path_style = false;            // whether the bucket is part of the path, not of the name of the host
    std::string ca = {};                     // as in HttpPost
    std::uint64_t part_bytes = 64ULL << 20;  // larger files are stored in parts of at least this size
  };
  struct FileRange {
    int fd = -1;
    std::uint64_t offset = 0, bytes = 0;
  };
  struct Object {
    std::string key;
    std::uint64_t bytes = 0;
    std::uint64_t modified_unix_ms = 0;  // by the clock of the server; 0: unknown
  };
  struct Page {
    std::vector<Object> objects;
    std::string next;  // argument of the next call; empty after the last page
  };
  struct Upload {  // a file whose parts were not joined
    std::string key, id;
    std::uint64_t started_unix_ms = 0;  // by the clock of the server; 0: unknown
  };

  explicit S3Client(Settings settings) : settings_(std::move(settings)) {}
  // Both apply to the following calls. stop: as in HttpTransfer::Request; null if calls cannot be stopped.
  void set_credentials(AwsCredentials credentials) { credentials_ = std::move(credentials); }
  void set_stop(const std::atomic<bool>* stop) { stop_ = stop; }

  // Errors of all functions: unavailable (the server does not answer, or asks for a pause: repeat the call), denied
  // (credentials, rights, clocks), invalid (wrong bucket, region or endpoint), io (this host), not_found (the server
  // says that the object does not exist), unsupported, internal. The message names the cause and the remedy.

  // Stores a file. sha256: the hash of its content. Error conflict: the file has other content, and was not stored.
  Result<void> put_file(const std::string& key, const FileRange&, const std::string& sha256);
  Result<void> put_text(const std::string& key, std::string_view text);
  // Passes the content to on_body in pieces. The caller verifies it.
  Result<void> get(const std::string& key, std::function<Result<void>(std::string_view)> on_body);
  Result<void> remove(const std::string& key);  // succeeds if the object does not exist
  // Lists at most max_keys objects below a prefix. next: Page::next of the previous call, or empty.
  Result<Page> list(const std::string& prefix, const std::string& next, std::size_t max_keys);
  // Lists up to 1,000 uploads below a prefix that were neither completed nor aborted; none if the server cannot list
  // them.
  Result<std::vector<Upload>> list_uploads(const std::string& prefix);
  Result<Upload> begin_upload(const std::string& key);  // begins a file of several parts
  Result<void> abort_upload(const Upload&);             // succeeds if the upload does not exist

 private:
  struct Call {
    std::string method, key;
    std::map<std::string, std::string> query = {}, headers = {};
    std::string sha256 = {};  // of the body
    std::string_view body = {};
    FileRange file = {};
    std::function<Result<void>(std::string_view)> on_body = nullptr;
  };
  Result<HttpTransfer::Answer> perform(const Call&);
  Error make_error(const Call&, const HttpTransfer::Answer&) const;
  Result<void> put_range(const std::string& key, const FileRange&, const std::string& sha256);
  Result<void> put_parts(const std::string& key, const FileRange&, const std::string& sha256);
  Result<std::vector<std::string>> send_parts(const Upload&, const FileRange&, const std::string& sha256);
  Result<std::string> put_part(const Upload&, std::size_t number, const FileRange&, const std::string& sha256);
  Result<void> complete_upload(const Upload&, const std::vector<std::string>& etags);

  const Settings settings_;
  AwsCredentials credentials_;
  const std::atomic<bool>* stop_ = nullptr;
  HttpTransfer http_;
};

}  // namespace mycojobs
