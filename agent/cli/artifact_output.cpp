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
#include "text/terminal_text.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::string_view kOpenFileFolder = "/proc/self/fd/";
constexpr int kFolderFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

std::string get_file_name(const std::string& name) { return name.substr(name.rfind('/') + 1); }

}  // namespace

std::string get_open_file_path(int fd) { return std::string(kOpenFileFolder) + std::to_string(fd); }

Result<OutputFolder> OutputFolder::open(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST)
    return fail(Code::io, to_printable(path) + ": cannot be made: " + errno_text(errno));
  Fd fd(::open(path.c_str(), kFolderFlags));
  if (!fd) return fail(Code::io, to_printable(path) + ": is not a folder that can be opened: " + errno_text(errno));
  return OutputFolder(path, std::move(fd));
}

Result<Fd> OutputFolder::open_parent(const std::string& name) const {
  Fd parent(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  std::size_t part_begin = 0;
  for (std::size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', part_begin)) {
    const std::string part = name.substr(part_begin, slash - part_begin);
    (void)::mkdirat(parent.get(), part.c_str(), 0777);  // an error is detected by the next call
    Fd subfolder(::openat(parent.get(), part.c_str(), kFolderFlags | O_NOFOLLOW));
    if (!subfolder) {
      return fail(Code::io, to_printable(path_ + '/' + name.substr(0, slash)) +
                                ": is not a folder that can be opened (links are not followed): " + errno_text(errno));
    }
    parent = std::move(subfolder);
    part_begin = slash + 1;
  }
  return parent;
}

Result<Fd> OutputFolder::create(const std::string& name, bool executable) const {
  if (!is_artifact_name(name)) return fail(Code::invalid, excerpt(name) + ": is not a name of an artifact");
  MJ_TRY(parent, open_parent(name));
  constexpr int kNewFileFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  Fd fd(::openat(parent.get(), get_file_name(name).c_str(), kNewFileFlags, executable ? 0777 : 0666));
  if (fd) return fd;
  const std::string path = to_printable(path_ + '/' + name);
  if (errno == EEXIST) return fail(Code::invalid, path + ": exists already: move it, or use another folder");
  return fail(Code::io, path + ": " + errno_text(errno));
}

void OutputFolder::remove(const std::string& name) const {
  const auto parent = open_parent(name);
  if (parent) (void)::unlinkat(parent->get(), get_file_name(name).c_str(), 0);
}

bool is_local_artifact(const StoredArtifact& artifact) {
  struct stat info {};
  const int link_flag = artifact.path.starts_with(kOpenFileFolder) ? 0 : AT_SYMLINK_NOFOLLOW;
  return ::fstatat(AT_FDCWD, artifact.path.c_str(), &info, link_flag) == 0 && S_ISREG(info.st_mode);
}

Result<void> read_artifact(const StoredArtifact& artifact,
                           const std::function<Result<void>(std::string_view)>& on_bytes) {
  const int link_flag = artifact.path.starts_with(kOpenFileFolder) ? 0 : O_NOFOLLOW;
  const Fd fd(::open(artifact.path.c_str(), O_RDONLY | link_flag | O_NONBLOCK | O_CLOEXEC));
  if (!fd && errno == ENOENT) return fail(Code::not_found, "is not on this host: " + artifact.path);
  if (!fd) return fail(Code::io, artifact.path + ": " + errno_text(errno));
  Sha256 hash;
  std::array<char, 65536> buffer;  // NOLINT(*-member-init): filled by read
  for (;;) {
    const ssize_t count = ::read(fd.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail(Code::io, artifact.path + ": " + errno_text(errno));
    if (count == 0) break;
    const std::string_view bytes(buffer.data(), static_cast<std::size_t>(count));
    hash.update(bytes);
    MJ_CHECK(on_bytes(bytes));
  }
  if (hash.hex() == artifact.sha256) return {};
  return fail(Code::io, artifact.path + ": is damaged: its hash is not that of the record; let the job run again");
}

Result<void> write_to_descriptor(int fd, std::string_view bytes) {
  if (write_all(fd, bytes)) return {};
  return fail(Code::io, errno_text(errno));
}

Result<void> copy_artifact(const StoredArtifact& artifact, const OutputFolder& folder) {
  if (!is_local_artifact(artifact)) return fail(Code::not_found, "is not on this host: " + artifact.path);
  MJ_TRY(file, folder.create(artifact.name, artifact.executable));
  auto result =
      read_artifact(artifact, [&file](std::string_view bytes) { return write_to_descriptor(file.get(), bytes); });
  if (!result) folder.remove(artifact.name);
  return result;
}

bool FolderSink::reject(const std::string& reason) {
  constexpr std::size_t kMaxNotes = 20;
  remove_incomplete_file();
  if (notes_.size() < kMaxNotes)
    notes_.push_back("artifact " + excerpt(current_file_.name, 200) + ": not kept: " + reason);
  return false;
}

void FolderSink::remove_incomplete_file() {
  if (fd_) folder_.remove(current_file_.name);
  fd_.reset();
}

bool FolderSink::open(const std::string& name, bool executable) {
  remove_incomplete_file();
  current_file_ = {name, 0};
  if (++artifact_count_ > kMaxArtifacts) return reject("a job may leave " + std::to_string(kMaxArtifacts) + " files");
  auto file = folder_.create(name, executable);
  if (!file) return reject(file.error().message);
  fd_ = std::move(*file);
  return true;
}

void FolderSink::write(std::string_view bytes) {
  if (!fd_) return;
  if (bytes.size() > free_bytes_) {
    reject("over job.max_artifact_bytes, all artifacts together");
    return;
  }
  free_bytes_ -= bytes.size();
  current_file_.bytes += bytes.size();
  if (auto result = write_to_descriptor(fd_.get(), bytes); !result) reject(result.error().message);
}

void FolderSink::close() {
  if (!fd_) return;
  fd_.reset();
  files_.push_back(current_file_);
}

std::string format_size(std::uint64_t bytes) {
  constexpr std::uint64_t kMaxWithoutUnit = 10000;
  if (bytes < kMaxWithoutUnit) return fmt::format("{} B", bytes);
  if (bytes < kMaxWithoutUnit << 10) return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / (1 << 10));
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

std::vector<std::string> format_artifacts(const std::string& record_field, std::size_t max) {
  std::vector<std::string> lines;
  const auto artifacts = read_artifact_list(record_field);
  for (const ListedArtifact& artifact : artifacts) {
    if (lines.size() == max) {
      lines.push_back(fmt::format("{} more", artifacts.size() - max));
      break;
    }
    lines.push_back(fmt::format("{} ({})", to_printable_line(artifact.name), format_size(artifact.bytes)));
  }
  return lines;
}

}  // namespace mycojobs
