// One artifact while it comes: in pieces, of a size that nobody knows before.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/sha256.h"
#include "domain/redactor.h"
#include "mycojobs/result.h"

namespace mycojobs {

// Whether what came so far is text: UTF-8 without NUL.
class TextWatch {
 public:
  bool feed(std::string_view bytes);  // false from the first wrong byte on
  bool finish() const { return text_ && cut_.empty(); }

 private:
  bool text_ = true;
  std::string cut_;  // the beginning of a character, at the end of the last piece
};

// Bytes on their way into a file. Mode 0600. Blocks of zeros become holes, so that a sparse file stays one.
class HashedFile {
 public:
  Result<void> create(const std::string& path);
  Result<void> write(std::string_view bytes);
  Result<void> finish();                      // after the last write(): the file has its length
  std::string hash() { return hash_.hex(); }  // once
  std::uint64_t bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  Fd fd_;
  Sha256 hash_;
  std::uint64_t bytes_ = 0;
  bool has_hole_ = false;
};

struct WholeFile {
  std::string path, sha256;
  std::uint64_t bytes = 0;
  bool text = false;
  bool executable = false;
};

// As long as it is text, it is written twice: as it comes, and without secrets. Whichever it turns out to need is kept:
// of a binary file no byte may change, and what is text is known at its end.
class ArtifactFile {
 public:
  // redactor null: there are no secrets; must live as long.
  static Result<ArtifactFile> create(const std::string& path, const Redactor* redactor);
  Result<void> write(std::string_view bytes);
  // By so many bytes the text without secrets is longer than what came.
  std::uint64_t grown() const { return clean_ && clean_->bytes() > raw_.bytes() ? clean_->bytes() - raw_.bytes() : 0; }
  Result<WholeFile> finish();  // once; the other file, if there is one, is gone

 private:
  ArtifactFile() = default;

  TextWatch watch_;
  HashedFile raw_;
  std::unique_ptr<Redaction> redaction_;  // null: it is not text, or there is nothing to look for
  std::unique_ptr<HashedFile> clean_;
};

}  // namespace mycojobs
