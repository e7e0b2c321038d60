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

constexpr std::size_t kHoleBlock = 4096;

bool is_zero_block(std::string_view bytes) {
  return bytes.size() == kHoleBlock && bytes.front() == '\0' && bytes.find_first_not_of('\0') == std::string_view::npos;
}

}  // namespace

bool TextDetector::feed(std::string_view bytes) {
  if (!text_) return false;
  std::string joined;
  if (!cut_.empty()) {
    joined = cut_ + std::string(bytes);
    bytes = joined;
  }
  const std::size_t end = complete_characters(bytes).size();
  text_ = bytes.find('\0') == std::string_view::npos && is_utf8(bytes.substr(0, end));
  cut_ = std::string(bytes.substr(end));
  return text_;
}

Result<void> HashedFile::create(const std::string& path) {
  fd_.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd_) return fail(Code::io, errno_text(errno));
  path_ = path;
  return {};
}

Result<void> HashedFile::write(std::string_view bytes) {
  hash_.update(bytes);
  std::uint64_t at = bytes_;
  bytes_ += bytes.size();
  while (!bytes.empty()) {
    const std::size_t size = std::min<std::size_t>(bytes.size(), kHoleBlock - at % kHoleBlock);
    std::size_t some = size;
    if (is_zero_block(bytes.substr(0, size))) {
      has_hole_ = true;
      bytes.remove_prefix(size);
      at += size;
      continue;
    }
    while (some < bytes.size() && !is_zero_block(bytes.substr(some, kHoleBlock)))
      some += std::min<std::size_t>(kHoleBlock, bytes.size() - some);
    const ssize_t written = ::pwrite(fd_.get(), bytes.data(), some, static_cast<off_t>(at));
    if (written < 0 && errno != EINTR) return fail(Code::io, errno_text(errno));
    if (written > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
      at += static_cast<std::uint64_t>(written);
    }
  }
  return {};
}

Result<void> HashedFile::finish() {
  if (has_hole_ && ::ftruncate(fd_.get(), static_cast<off_t>(bytes_)) != 0) return fail(Code::io, errno_text(errno));
  return {};
}

Result<ArtifactFile> ArtifactFile::create(const std::string& path, const Redactor* redactor) {
  ArtifactFile file;
  MJ_CHECK(file.raw_.create(path));
  if (redactor == nullptr || redactor->finds_nothing()) return file;
  file.redaction_ = std::make_unique<Redaction>(*redactor);
  file.clean_ = std::make_unique<HashedFile>();
  MJ_CHECK(file.clean_->create(path + ".text"));
  return file;
}

Result<void> ArtifactFile::write(std::string_view bytes) {
  if (!watch_.feed(bytes) && clean_) {
    (void)::unlink(clean_->path().c_str());  // if this fails, the file is deleted with its folder
    clean_.reset();
    redaction_.reset();
  }
  MJ_CHECK(raw_.write(bytes));
  if (clean_) MJ_CHECK(clean_->write(redaction_->feed(bytes)));
  return {};
}

Result<WholeFile> ArtifactFile::finish() {
  const bool text = watch_.finish();
  if (clean_ && text) {
    MJ_CHECK(clean_->write(redaction_->finish()));
    MJ_CHECK(clean_->finish());
    (void)::unlink(raw_.path().c_str());
    return WholeFile{clean_->path(), clean_->hash(), clean_->bytes(), true, false};
  }
  if (clean_) (void)::unlink(clean_->path().c_str());
  MJ_CHECK(raw_.finish());
  return WholeFile{raw_.path(), raw_.hash(), raw_.bytes(), text, false};
}

}  // namespace mycojobs
