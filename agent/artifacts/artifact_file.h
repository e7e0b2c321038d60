// Writes one artifact that is received in pieces. The total size is unknown until the last piece. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"
#include "base/sha256.h"
#include "security/redactor.h"

namespace mycojobs {

// Checks whether the received bytes are text, which means UTF-8 without NUL.
class TextDetector {
 public:
  bool feed(std::string_view bytes);  // Returns false if this or an earlier piece is not text.
  bool finish() const { return is_text_ && incomplete_character_.empty(); }

 private:
  bool is_text_ = true;
  std::string incomplete_character_;  // The bytes of an incomplete character at the end of the last piece.
};

// Writes a file of mode 0600 in pieces and computes its hash at the same time. Blocks of zeros become holes, so that a
// sparse file stays sparse.
class HashedFile {
 public:
  Result<void> create(const std::string& path);  // Error io if the file exists.
  Result<void> write(std::string_view bytes);
  Result<void> finish();                      // Sets the length of the file. REQUIRES: called after the last write().
  std::string hash() { return hash_.hex(); }  // REQUIRES: called once, after the last write().
  std::uint64_t bytes() const { return total_bytes_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  Fd fd_;
  Sha256 hash_;
  std::uint64_t total_bytes_ = 0;  // Size of the file with its holes.
  bool has_hole_ = false;
};

// A complete artifact in a temporary file.
struct CompleteFile {
  std::string path, sha256;
  std::uint64_t bytes = 0;
  bool is_text = false;
  bool is_executable = false;
};

// Writes an artifact. While the bytes are text, two files are written: the bytes as received, and the text without
// secrets. finish() selects one of them, since the bytes of a binary file must not change.
class ArtifactFile {
 public:
  // A null redactor means that there are no secrets. The redactor must outlive this object.
  static Result<ArtifactFile> create(const std::string& path, const Redactor* redactor);
  Result<void> write(std::string_view bytes);
  // Returns the number of bytes by which the redacted text is longer than the received text, or 0.
  std::uint64_t redaction_growth() const {
    return redacted_file_ && redacted_file_->bytes() > raw_file_.bytes() ? redacted_file_->bytes() - raw_file_.bytes()
                                                                         : 0;
  }
  Result<CompleteFile> finish();  // Deletes the file that is not needed. REQUIRES: called once.

 private:
  ArtifactFile() = default;

  TextDetector text_detector_;
  HashedFile raw_file_;
  std::unique_ptr<Redaction> redaction_;  // Null for a binary file, or if there are no secrets.
  std::unique_ptr<HashedFile> redacted_file_;
};

}  // namespace mycojobs
