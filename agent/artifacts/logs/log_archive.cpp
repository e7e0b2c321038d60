#include "artifacts/logs/log_archive.h"

#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "base/errno_text.h"
#include "base/fd.h"
#include "model/output_gap.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kReservedBytes = 64U << 10;  // for data that zlib has buffered, and for the last line

}  // namespace

Result<LogArchive> LogArchive::create(const std::string& path, std::uint64_t max_bytes) {
  constexpr const char* kFastMode = "wb3";  // a log at the default output rate takes a few percent of a processor
  Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return fail(Code::io, path + ": " + errno_text(errno));
  const gzFile file = gzdopen(fd.get(), kFastMode);
  if (file == nullptr) return fail(Code::io, path + ": not enough memory to compress");
  (void)fd.release();
  return LogArchive(path, file, max_bytes - std::min(max_bytes, kReservedBytes));
}

tl::unexpected<Error> LogArchive::make_error() const {
  int code = 0;
  const char* text = gzerror(file_.get(), &code);
  return fail(Code::io, path_ + ": " + (code == Z_ERRNO ? errno_text(errno) : std::string(text)));
}

Result<void> LogArchive::compress(std::string_view text) {
  if (gzwrite(file_.get(), text.data(), static_cast<unsigned>(text.size())) != static_cast<int>(text.size()))
    return make_error();
  return {};
}

Result<void> LogArchive::write(std::string_view text) {
  if (text.empty()) return {};
  if (dropped_bytes_ == 0 && static_cast<std::uint64_t>(gzoffset(file_.get())) < max_bytes_) return compress(text);
  dropped_bytes_ += text.size();
  return {};
}

Result<void> LogArchive::finish() {
  if (dropped_bytes_ > 0) MJ_CHECK(compress(format_output_gap(dropped_bytes_)));
  if (gzclose(file_.release()) != Z_OK) return fail(Code::io, path_ + ": " + errno_text(errno));
  return {};
}

}  // namespace mycojobs
