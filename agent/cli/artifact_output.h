// Copies artifacts to files of the user. Names and contents of artifacts are untrusted.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "executors/executor.h"

namespace mycojobs {

// A folder for output files. Files are created only below the folder: symbolic links are not followed, and existing
// files are not overwritten.
class OutputFolder {
 public:
  static Result<OutputFolder> open(const std::string& path);  // creates the folder, but not its parents
  // name: see is_artifact_name(). Creates subfolders.
  Result<Fd> create(const std::string& name, bool executable) const;
  void remove(const std::string& name) const;  // removes an incomplete file
  const std::string& path() const { return path_; }

 private:
  OutputFolder(std::string path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  Result<Fd> parent_of(const std::string& name) const;
  std::string path_;
  Fd fd_;
};

// Passes the bytes of an artifact on this host to `take` in pieces, and verifies the hash. Errors: not_found (the file
// is not on this host), io (the file is damaged), and errors of `take`. After an error the passed bytes must not be
// used.
Result<void> read_artifact(const StoredArtifact&, const std::function<Result<void>(std::string_view)>& take);
bool is_on_this_host(const StoredArtifact&);

// Copies the whole artifact into the folder, or leaves no file.
Result<void> copy_artifact(const StoredArtifact&, const OutputFolder&);

Result<void> write_out(int fd, std::string_view bytes);

// Stores the artifacts of a run directly in a folder.
class FolderSink final : public ArtifactSink {
 public:
  FolderSink(OutputFolder folder, std::uint64_t max_bytes) : folder_(std::move(folder)), left_(max_bytes) {}
  ~FolderSink() override { drop(); }
  bool open(const std::string& name, bool executable) override;
  void write(std::string_view bytes) override;
  void close() override;

  struct StoredFile {
    std::string name;
    std::uint64_t bytes = 0;
  };
  const std::vector<StoredFile>& kept() const { return stored_; }
  const std::vector<std::string>& notes() const { return notes_; }  // rejected artifacts with the reasons

 private:
  bool refuse(const std::string& why);
  void drop();

  OutputFolder folder_;
  std::uint64_t left_;
  StoredFile coming_;
  Fd fd_;
  std::size_t opened_ = 0;
  std::vector<StoredFile> stored_;
  std::vector<std::string> notes_;
};

// Examples: "3 B", "1.2 MiB".
std::string size_text(std::uint64_t bytes);
// Returns one line for each artifact of a job, up to `max`, and one line with the number of further artifacts.
std::vector<std::string> artifact_lines(const std::string& record_field, std::size_t max);

}  // namespace mycojobs
