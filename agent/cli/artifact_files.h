// Artifacts on their way out of the system: names and contents are a stranger's.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "mycojobs/executor.h"
#include "mycojobs/result.h"

namespace mycojobs {

// A folder that files are written into, below it and nowhere else: no link on the way is followed, and no file that is
// there already is written over.
class OutputFolder {
 public:
  static Result<OutputFolder> open(const std::string& path);          // made if it is missing; its parents are not
  Result<Fd> create(const std::string& name, bool executable) const;  // is_artifact_name(); its folders are made
  void remove(const std::string& name) const;                         // a file that was not made whole
  const std::string& path() const { return path_; }

 private:
  OutputFolder(std::string path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  Result<Fd> parent_of(const std::string& name) const;
  std::string path_;
  Fd fd_;
};

// Gives the bytes of an artifact of this host to `take`, in pieces, and checks them meanwhile. Error not_found: it is
// not on this host; io: it is damaged, or the error of `take`: what was given is not to be used.
Result<void> read_artifact(const StoredArtifact&, const std::function<Result<void>(std::string_view)>& take);
bool is_here(const StoredArtifact&);

// Into the folder, whole or not at all.
Result<void> copy_artifact(const StoredArtifact&, const OutputFolder&);

Result<void> write_out(int fd, std::string_view bytes);

// What a run leaves, straight into a folder.
class FolderSink final : public ArtifactSink {
 public:
  FolderSink(OutputFolder folder, std::uint64_t max_bytes) : folder_(std::move(folder)), left_(max_bytes) {}
  ~FolderSink() override { drop(); }
  bool open(const std::string& name, bool executable) override;
  void write(std::string_view bytes) override;
  void close() override;

  struct Kept {
    std::string name;
    std::uint64_t bytes = 0;
  };
  const std::vector<Kept>& kept() const { return kept_; }
  const std::vector<std::string>& notes() const { return notes_; }  // what was not kept, and why

 private:
  bool refuse(const std::string& why);
  void drop();

  OutputFolder folder_;
  std::uint64_t left_;
  Kept coming_;
  Fd fd_;
  std::size_t opened_ = 0;
  std::vector<Kept> kept_;
  std::vector<std::string> notes_;
};

// "3 B", "1.2 MiB"
std::string size_text(std::uint64_t bytes);
// One line for each of a job's artifacts, at most `most`, and one for the others.
std::vector<std::string> artifact_lines(const std::string& record_field, std::size_t most);

}  // namespace mycojobs
