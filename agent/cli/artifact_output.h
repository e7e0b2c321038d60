// Copies artifacts to files of the user. Names and contents of artifacts are untrusted.
#pragma once

#include <cstdint>
#include <functional>
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
  // Creates a file and its subfolders. name: see is_artifact_name().
  Result<Fd> create(const std::string& name, bool executable) const;
  void remove(const std::string& name) const;  // removes an incomplete file
  const std::string& path() const { return path_; }

 private:
  OutputFolder(std::string path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  Result<Fd> open_parent(const std::string& name) const;
  std::string path_;
  Fd fd_;
};

// Returns a path of an open file of this process, which read_artifact() reads from its begin. The file may have no
// name.
std::string get_open_file_path(int fd);
// Passes the bytes of an artifact on this host to on_bytes() in pieces, and verifies the hash. Errors: not_found (the
// file is not on this host), io (the file is damaged), and errors of on_bytes(). After an error the passed bytes must
// not be used.
Result<void> read_artifact(const StoredArtifact&, const std::function<Result<void>(std::string_view)>& on_bytes);
// Returns true if the file of the artifact exists on this host.
bool is_local_artifact(const StoredArtifact&);

// Copies an artifact into the folder. After an error the folder contains no part of the file.
Result<void> copy_artifact(const StoredArtifact&, const OutputFolder&);

// Writes all bytes. Error io.
Result<void> write_to_descriptor(int fd, std::string_view bytes);

// Stores the artifacts of a run directly in a folder, up to max_bytes for all together.
class FolderSink final : public ArtifactSink {
 public:
  FolderSink(OutputFolder folder, std::uint64_t max_bytes) : folder_(std::move(folder)), free_bytes_(max_bytes) {}
  ~FolderSink() override { remove_incomplete_file(); }
  bool open(const std::string& name, bool executable) override;
  void write(std::string_view bytes) override;
  void close() override;

  struct StoredFile {
    std::string name;
    std::uint64_t bytes = 0;
  };
  const std::vector<StoredFile>& files() const { return files_; }
  const std::vector<std::string>& notes() const { return notes_; }  // rejected artifacts with the reasons

 private:
  // Removes the current file, adds a note and returns false.
  bool reject(const std::string& reason);
  void remove_incomplete_file();

  OutputFolder folder_;
  std::uint64_t free_bytes_;
  StoredFile current_file_;
  Fd fd_;
  std::size_t artifact_count_ = 0;
  std::vector<StoredFile> files_;
  std::vector<std::string> notes_;
};

// Returns a size for users, such as "3 B" or "1.2 MiB".
std::string format_size(std::uint64_t bytes);
// Returns one line for each artifact of a job, up to `max`, and one line with the number of further artifacts.
std::vector<std::string> format_artifacts(const std::string& record_field, std::size_t max);

}  // namespace mycojobs
