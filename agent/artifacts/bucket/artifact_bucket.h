// The storage of the operator for artifacts of all hosts (setting artifacts.store), a bucket with the protocol of
// Amazon S3. An artifact is one object:
//
//   <prefix>/<store>/<context>/<caller>.<job>/<sha256>
//   <prefix>/<store>/<context>/owner                       the agent that deletes these objects (bucket_sweep.h)
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
    std::string endpoint;  // empty: that of Amazon for the region
    std::string region;
    bool uses_path_style = false;
    std::string credentials;  // file with aws_access_key_id and aws_secret_access_key, read again for each call
    std::string ca;           // as in HttpPost
    std::uint64_t part_bytes = 64ULL << 20;  // as in S3Client::Settings
  };
  // The jobs of a context in one database.
  struct Area {
    std::string store_name;  // artifact_store_name()
    Id context = 0;
  };
  struct Key {
    Area area;
    std::string job_key;
    std::string sha256;
  };
  using Stop = const std::atomic<bool>*;  // true ends a call within a second; null if it cannot be stopped

  // Errors invalid and not_found: a setting cannot be used, or the file with the credentials. The message begins with
  // the name of the setting.
  static Result<std::shared_ptr<ArtifactBucket>> create(const Settings&);

  // The name of the storage in records and messages: the setting artifacts.store.
  const std::string& url() const { return url_; }

  // The errors of the following functions are those of S3Client, with url() in front. If the file with the credentials
  // cannot be used, which may be temporary, the error is unavailable. Calls that fail with unavailable are repeated for
  // about two seconds.

  // Stores a file. fd: a regular file. Error conflict: it does not have this content.
  Result<void> upload(const Key&, int fd, std::uint64_t bytes, Stop) const;
  // Passes the content to on_body in pieces. The caller verifies it, since the server may send wrong bytes. A call
  // that fails is not repeated.
  Result<void> download(const Key&, std::function<Result<void>(std::string_view)> on_body, Stop) const;

  struct ListedObject {
    Key key;
    std::string upload_id = {};         // id of an upload that was not completed; otherwise empty
    std::uint64_t changed_unix_ms = 0;  // start of the upload, or time of the object; 0: unknown
  };
  struct Page {
    std::vector<ListedObject> objects;  // without those that have another form of name
    std::string next;                   // argument of the next call; empty after the last page
  };
  // Lists at most 1,000 objects of jobs.
  Result<Page> list(const Area&, const std::string& next, Stop) const;
  // Lists at most 1,000 incomplete uploads of jobs.
  Result<std::vector<ListedObject>> list_uploads(const Area&, Stop) const;
  // Deletes an object, or aborts an upload. Succeeds if it does not exist. The call is not repeated, so that a decision
  // to delete does not become old.
  Result<void> remove(const ListedObject&, Stop) const;
  // Reads and writes the text of the marker `owner` of an area. Error not_found: there is none.
  Result<std::string> read_owner(const Area&, Stop) const;
  Result<void> write_owner(const Area&, std::string_view text, Stop) const;

  // Checks the settings and all rights with an object below the prefix, and with an upload that is not completed.
  Result<void> check(Stop) const;

 private:
  ArtifactBucket(std::string url, std::string prefix, S3Client::Settings settings, std::string credentials);
  // Calls the function with a client that no other thread uses.
  template <class Call>
  auto use_client(Stop, Call call) const;
  template <class Call>
  auto repeat(Stop, Call call) const;
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
