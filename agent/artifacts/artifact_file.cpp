#include "artifacts/artifact_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/errno_text.h"
#include "text/utf8.h"
#include "text/utf8_cut.h"

namespace mycojobs {
namespace {

constexpr std::size_t kBlockBytes = 4096;  // Size and alignment of a hole in a file.

bool is_zero_block(std::string_view bytes) {
  return bytes.size() == kBlockBytes && bytes.front() == '\0' &&
         bytes.find_first_not_of('\0') == std::string_view::npos;
}

}  // namespace

bool TextDetector::feed(std::string_view bytes) {
  if (!is_text_) return false;
  std::string buffer;
  if (!incomplete_character_.empty()) {
    buffer = incomplete_character_ + std::string(bytes);
    bytes = buffer;
  }
  const std::size_t end = complete_characters(bytes).size();
  is_text_ = bytes.find('\0') == std::string_view::npos && is_utf8(bytes.substr(0, end));
  incomplete_character_ = std::string(bytes.substr(end));
  return is_text_;
}

Result<void> HashedFile::create(const std::string& path) {
  fd_.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd_) return fail(Code::io, errno_text(errno));
  path_ = path;
  return {};
}

// Skips aligned blocks of zeros, so that the file has holes there. Consecutive other blocks are written in one call.
Result<void> HashedFile::write(std::string_view bytes) {
  hash_.update(bytes);
  std::uint64_t offset = total_bytes_;
  total_bytes_ += bytes.size();
  while (!bytes.empty()) {
    const std::size_t block_bytes = std::min<std::size_t>(bytes.size(), kBlockBytes - offset % kBlockBytes);
    if (is_zero_block(bytes.substr(0, block_bytes))) {
      has_hole_ = true;
      bytes.remove_prefix(block_bytes);
      offset += block_bytes;
      continue;
    }
    std::size_t nonzero_bytes = block_bytes;
    while (nonzero_bytes < bytes.size() && !is_zero_block(bytes.substr(nonzero_bytes, kBlockBytes)))
      nonzero_bytes += std::min<std::size_t>(kBlockBytes, bytes.size() - nonzero_bytes);
    const ssize_t written = ::pwrite(fd_.get(), bytes.data(), nonzero_bytes, static_cast<off_t>(offset));
    if (written < 0 && errno != EINTR) return fail(Code::io, errno_text(errno));
    if (written > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
      offset += static_cast<std::uint64_t>(written);
    }
  }
  return {};
}

Result<void> HashedFile::finish() {
  if (has_hole_ && ::ftruncate(fd_.get(), static_cast<off_t>(total_bytes_)) != 0)
    return fail(Code::io, errno_text(errno));
  return {};
}

Result<ArtifactFile> ArtifactFile::create(const std::string& path, const Redactor* redactor) {
  ArtifactFile file;
  MJ_CHECK(file.raw_file_.create(path));
  if (redactor == nullptr || redactor->is_empty()) return file;
  file.redaction_ = std::make_unique<Redaction>(*redactor);
  file.redacted_file_ = std::make_unique<HashedFile>();
  MJ_CHECK(file.redacted_file_->create(path + ".text"));
  return file;
}

Result<void> ArtifactFile::write(std::string_view bytes) {
  if (!text_detector_.feed(bytes) && redacted_file_) {
    (void)::unlink(redacted_file_->path().c_str());  // After an error the file is deleted with its folder.
    redacted_file_.reset();
    redaction_.reset();
  }
  MJ_CHECK(raw_file_.write(bytes));
  if (redacted_file_) MJ_CHECK(redacted_file_->write(redaction_->feed(bytes)));
  return {};
}

Result<CompleteFile> ArtifactFile::finish() {
  const bool is_text = text_detector_.finish();
  if (redacted_file_ && is_text) {
    MJ_CHECK(redacted_file_->write(redaction_->finish()));
    MJ_CHECK(redacted_file_->finish());
    (void)::unlink(raw_file_.path().c_str());
    return CompleteFile{redacted_file_->path(), redacted_file_->hash(), redacted_file_->bytes(), true, false};
  }
  if (redacted_file_) (void)::unlink(redacted_file_->path().c_str());
  MJ_CHECK(raw_file_.finish());
  return CompleteFile{raw_file_.path(), raw_file_.hash(), raw_file_.bytes(), is_text, false};
}

}  // namespace mycojobs
