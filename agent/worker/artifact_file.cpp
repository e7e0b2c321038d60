#include "worker/artifact_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/errno_text.h"
#include "domain/utf8.h"
#include "domain/utf8_cut.h"

namespace mycojobs {
bool TextWatch::feed(std::string_view bytes) {
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
  bytes_ += bytes.size();
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) return fail(Code::io, errno_text(errno));
    if (written > 0) bytes.remove_prefix(static_cast<std::size_t>(written));
  }
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
    (void)::unlink(clean_->path().c_str());  // goes with its folder otherwise
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
    (void)::unlink(raw_.path().c_str());
    return WholeFile{clean_->path(), clean_->hash(), clean_->bytes(), true, false};
  }
  if (clean_) (void)::unlink(clean_->path().c_str());
  return WholeFile{raw_.path(), raw_.hash(), raw_.bytes(), text, false};
}

}  // namespace mycojobs
