// Compresses the complete log of a run into a file of the gzip format: the text of all entries in their order, without
// their times. Not thread-safe. The functions can block on a disk.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace mycojobs {

class LogArchive {
 public:
  // max_bytes: limit of the compressed size. Output beyond it is dropped, which the last line of the file reports.
  static Result<LogArchive> create(const std::string& path, std::uint64_t max_bytes);
  Result<void> write(std::string_view text);
  // Completes the file. REQUIRES: called once, as the last call.
  Result<void> finish();
  const std::string& path() const { return path_; }

 private:
  struct CloseFile {
    void operator()(gzFile file) const { (void)gzclose(file); }
  };
  LogArchive(std::string path, gzFile file, std::uint64_t max_bytes)
      : path_(std::move(path)), file_(file), max_bytes_(max_bytes) {}
  Result<void> compress(std::string_view text);
  tl::unexpected<Error> make_error() const;

  std::string path_;
  std::unique_ptr<gzFile_s, CloseFile> file_;
  std::uint64_t max_bytes_;
  std::uint64_t dropped_bytes_ = 0;
};

}  // namespace mycojobs
