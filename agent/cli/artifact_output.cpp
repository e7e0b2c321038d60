#include "cli/artifact_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "artifacts/job_artifacts.h"
#include "base/errno_text.h"
#include "base/fd.h"
#include "base/sha256.h"
#include "cli/terminal.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr int kFolder = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

std::string last_part(const std::string& name) { return name.substr(name.rfind('/') + 1); }

}  // namespace

Result<OutputFolder> OutputFolder::open(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST)
    return fail(Code::io, printable(path) + ": cannot be made: " + errno_text(errno));
  Fd fd(::open(path.c_str(), kFolder));
  if (!fd) return fail(Code::io, printable(path) + ": is not a folder that can be opened: " + errno_text(errno));
  return OutputFolder(path, std::move(fd));
}

Result<Fd> OutputFolder::parent_of(const std::string& name) const {
  Fd parent(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  std::size_t from = 0;
  for (std::size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', from)) {
    const std::string part = name.substr(from, slash - from);
    (void)::mkdirat(parent.get(), part.c_str(), 0777);  // an error is detected by the next call
    Fd next(::openat(parent.get(), part.c_str(), kFolder | O_NOFOLLOW));
    if (!next) {
      return fail(Code::io, printable(path_ + '/' + name.substr(0, slash)) +
                                ": is not a folder that can be opened (links are not followed): " + errno_text(errno));
    }
    parent = std::move(next);
    from = slash + 1;
  }
  return parent;
}

Result<Fd> OutputFolder::create(const std::string& name, bool executable) const {
  if (!is_artifact_name(name)) return fail(Code::invalid, excerpt(name) + ": is not a name of an artifact");
  MJ_TRY(parent, parent_of(name));
  constexpr int kNew = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  Fd fd(::openat(parent.get(), last_part(name).c_str(), kNew, executable ? 0777 : 0666));
  if (fd) return fd;
  const std::string path = printable(path_ + '/' + name);
  if (errno == EEXIST) return fail(Code::invalid, path + ": exists already: move it, or use another folder");
  return fail(Code::io, path + ": " + errno_text(errno));
}

void OutputFolder::remove(const std::string& name) const {
  const auto parent = parent_of(name);
  if (parent) (void)::unlinkat(parent->get(), last_part(name).c_str(), 0);
}

bool is_on_this_host(const StoredArtifact& artifact) {
  struct stat info {};
  return ::lstat(artifact.path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

Result<void> read_artifact(const StoredArtifact& artifact, const std::function<Result<void>(std::string_view)>& take) {
  const Fd fd(::open(artifact.path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd && errno == ENOENT) return fail(Code::not_found, "is not on this host: " + artifact.path);
  if (!fd) return fail(Code::io, artifact.path + ": " + errno_text(errno));
  Sha256 hash;
  std::array<char, 65536> part;  // NOLINT(*-member-init): filled by read
  for (;;) {
    const ssize_t got = ::read(fd.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail(Code::io, artifact.path + ": " + errno_text(errno));
    if (got == 0) break;
    const std::string_view bytes(part.data(), static_cast<std::size_t>(got));
    hash.update(bytes);
    MJ_CHECK(take(bytes));
  }
  if (hash.hex() == artifact.sha256) return {};
  return fail(Code::io, artifact.path + ": is damaged: its hash is not that of the record; let the job run again");
}

Result<void> write_out(int fd, std::string_view bytes) {
  if (write_all(fd, bytes)) return {};
  return fail(Code::io, errno_text(errno));
}

Result<void> copy_artifact(const StoredArtifact& artifact, const OutputFolder& folder) {
  if (!is_on_this_host(artifact)) return fail(Code::not_found, "is not on this host: " + artifact.path);
  MJ_TRY(file, folder.create(artifact.name, artifact.executable));
  auto copied = read_artifact(artifact, [&file](std::string_view bytes) { return write_out(file.get(), bytes); });
  if (!copied) folder.remove(artifact.name);
  return copied;
}

bool FolderSink::refuse(const std::string& why) {
  constexpr std::size_t kMaxNotes = 20;
  drop();
  if (notes_.size() < kMaxNotes) notes_.push_back("artifact " + excerpt(coming_.name, 200) + ": not kept: " + why);
  return false;
}

void FolderSink::drop() {
  if (fd_) folder_.remove(coming_.name);
  fd_.reset();
}

bool FolderSink::open(const std::string& name, bool executable) {
  drop();
  coming_ = {name, 0};
  if (++opened_ > kMaxArtifacts) return refuse("a job may leave " + std::to_string(kMaxArtifacts) + " files");
  auto created = folder_.create(name, executable);
  if (!created) return refuse(created.error().message);
  fd_ = std::move(*created);
  return true;
}

void FolderSink::write(std::string_view bytes) {
  if (!fd_) return;
  if (bytes.size() > left_) {
    refuse("over job.max_artifact_bytes, all artifacts together");
    return;
  }
  left_ -= bytes.size();
  coming_.bytes += bytes.size();
  if (auto written = write_out(fd_.get(), bytes); !written) refuse(written.error().message);
}

void FolderSink::close() {
  if (!fd_) return;
  fd_.reset();
  stored_.push_back(coming_);
}

std::string size_text(std::uint64_t bytes) {
  constexpr std::uint64_t kMany = 10000;
  if (bytes < kMany) return fmt::format("{} B", bytes);
  if (bytes < kMany << 10) return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / (1 << 10));
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

std::vector<std::string> artifact_lines(const std::string& record_field, std::size_t max) {
  std::vector<std::string> lines;
  const auto all = read_artifact_list(record_field);
  for (const ListedArtifact& each : all) {
    if (lines.size() == max) {
      lines.push_back(fmt::format("{} more", all.size() - max));
      break;
    }
    lines.push_back(fmt::format("{} ({})", one_line(each.name), size_text(each.bytes)));
  }
  return lines;
}

}  // namespace mycojobs
