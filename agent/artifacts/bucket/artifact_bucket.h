// The object storage for the artifacts of all hosts (setting artifacts.store): a bucket of a server with the protocol
// of Amazon S3. Each artifact is an object:
//
//   <prefix>/<store>/<context>/<caller>.<job>/<sha256>
//   <prefix>/<store>/<context>/owner                       a marker with the agent that deletes objects
//   (bucket_sweep.h)
//
// <store> is the name of the Redis database (artifact_store_name()). The key contains the job that stored the file, so
// that a client cannot read a file of another job by its hash. Decision 41.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "artifacts/artifact_store.h"
#include "base/result.h"
#include "net/s3_client.h"

namespace mycojobs {

// Thread-safe. Calls of several threads run at the same time.
class ArtifactBucket {
 public:
  struct Settings {
    std::string url;       // "s3://bucket/prefix"
    std::string endpoint;  // empty: the endpoint of Amazon for the region
    std::string region;
    bool uses_path_style = false;
    std::string credentials;  // file with aws_access_key_id and aws_secret_access_key, read again for each call
    std::string ca;           // as in HttpPost
    std::uint64_t part_bytes = 64ULL << 20;  // as in S3Client::Settings
  };
  // The objects of one context and one database.
  struct Area {
    std::string store_name;  // artifact_store_name()
    Id context = 0;
  };
  struct Key {
    Area area;
    std::string job_key;
    std::string sha256;
  };
  using StopFlag = const std::atomic<bool>*;  // true ends a call within a second; null: the call cannot be stopped

  // Errors: invalid (a setting or the content of the file with the credentials is invalid), not_found (that file does
  // not exist). The message begins with the name of the setting.
  static Result<std::shared_ptr<ArtifactBucket>> create(const Settings&);

  // Returns the setting artifacts.store, which names the storage in records and messages.
  const std::string& url() const { return url_; }

  // The following functions return the errors of S3Client. The message begins with url(). If the file with the
  // credentials cannot be read, the error is unavailable, since another program may be replacing the file. After the
  // error unavailable, all functions except download() and remove() repeat the call for about two seconds.

  // Stores a file. fd: a regular file. Error conflict: the content of the file does not have the hash of the key.
  Result<void> upload(const Key&, int fd, std::uint64_t bytes, StopFlag) const;
  // Passes the content to on_body in pieces. The caller verifies the hash, since the server may send wrong bytes. Does
  // not repeat a failed call, since on_body has already received pieces.
  Result<void> download(const Key&, std::function<Result<void>(std::string_view)> on_body, StopFlag) const;

  struct ListedObject {
    Key key;
    std::string upload_id = {};         // id of an incomplete upload; empty for a complete object
    std::uint64_t changed_unix_ms = 0;  // start of the upload, or modification time of the object; 0: unknown
  };
  struct Page {
    std::vector<ListedObject> objects;  // only objects with the name of an artifact
    std::string next;                   // argument of the next call; empty after the last page
  };
  // Lists at most 1,000 objects of jobs.
  Result<Page> list(const Area&, const std::string& next, StopFlag) const;
  // Lists at most 1,000 incomplete uploads of jobs.
  Result<std::vector<ListedObject>> list_uploads(const Area&, StopFlag) const;
  // Deletes an object, or aborts an upload. Succeeds if the object or upload does not exist. Does not repeat a failed
  // call, since the caller must check the record of the job again.
  Result<void> remove(const ListedObject&, StopFlag) const;
  // Reads and writes the text of the marker `owner` of an area. Error not_found: the marker does not exist.
  Result<std::string> read_owner(const Area&, StopFlag) const;
  Result<void> write_owner(const Area&, std::string_view text, StopFlag) const;

  // Checks the settings and all access rights: writes, reads, lists and deletes an object below the prefix, and begins
  // and aborts an upload.
  Result<void> check(StopFlag) const;

 private:
  ArtifactBucket(std::string url, std::string prefix, S3Client::Settings settings, std::string credentials);
  // Calls a function with a client that no other thread uses.
  template <class Call>
  auto call_client(StopFlag, Call call) const;
  // Calls a function by call_client(), and repeats the call after the error unavailable.
  template <class Call>
  auto call_with_retries(StopFlag, Call call) const;
  std::string format_folder(const Area&) const;
  std::string format_key(const Key&) const;

  const std::string url_, prefix_;  // prefix_: "jobs/" or empty
  const S3Client::Settings settings_;
  const std::string credentials_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<S3Client>> idle_clients_;  // guarded by mutex_
};

// Returns url(), or an empty text without an object storage.
inline std::string get_bucket_url(const ArtifactBucket* bucket) { return bucket == nullptr ? "" : bucket->url(); }

// Parses a file with credentials, in the format of the tools of Amazon: lines "name = value", without quotes. Sections
// and comments are ignored. Error invalid: a key is missing; the message has no content of the file.
Result<AwsCredentials> parse_aws_credentials(const std::string& text);

}  // namespace mycojobs
