// Stores and reads objects with the protocol of Amazon S3. Requests are signed (aws_signature.h), and the server
// verifies the hash of each body. Error messages do not contain credentials. Not thread-safe.
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
    bool uses_path_style = false;            // the bucket is part of the path and not of the host name
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
  struct Upload {  // an incomplete upload of a file in several parts
    std::string key, id;
    std::uint64_t started_unix_ms = 0;  // by the clock of the server; 0: unknown
  };

  explicit S3Client(Settings settings) : settings_(std::move(settings)) {}
  // Set the credentials and the stop flag of the following calls. stop: as in HttpTransfer::Request; null if calls
  // cannot be stopped.
  void set_credentials(AwsCredentials credentials) { credentials_ = std::move(credentials); }
  void set_stop(const std::atomic<bool>* stop) { stop_ = stop; }

  // Errors of all functions: unavailable (the server does not answer, or requests a pause; the caller should repeat the
  // call), denied (credentials, access rights or clocks are wrong), invalid (bucket, region or endpoint are wrong), io
  // (a file on this host cannot be read), not_found (the object does not exist), unsupported (the server does not
  // support the call), internal (unexpected answer). The message has the cause and the remedy.

  // Stores a file. sha256: the hash of the content. Error conflict: the content has another hash and was not stored.
  Result<void> put_file(const std::string& key, const FileRange&, const std::string& sha256);
  Result<void> put_text(const std::string& key, std::string_view text);
  // Passes the content of an object to on_body in pieces. The caller verifies the content.
  Result<void> get(const std::string& key, std::function<Result<void>(std::string_view)> on_body);
  Result<void> remove(const std::string& key);  // succeeds if the object does not exist
  // Lists at most max_keys objects below a prefix. next: Page::next of the previous call, or empty.
  Result<Page> list(const std::string& prefix, const std::string& next, std::size_t max_keys);
  // Lists at most 1,000 incomplete uploads below a prefix. Returns an empty list if the server does not support the
  // call.
  Result<std::vector<Upload>> list_uploads(const std::string& prefix);
  Result<Upload> begin_upload(const std::string& key);  // begins a file of several parts
  Result<void> abort_upload(const Upload&);             // succeeds if the upload does not exist

 private:
  struct Call {
    std::string method, key;
    std::map<std::string, std::string> query = {}, headers = {};
    std::string sha256 = {};  // hash of the body; empty: perform() computes the hash of `body`
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
