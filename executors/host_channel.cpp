#include "executors/host_channel.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/errno_text.h"
#include "base/fd.h"
#include "model/artifact.h"

namespace mycojobs {
namespace {

// Returns whether the failed call should be repeated: at once after EINTR; after EAGAIN, which occurs if a script has
// made the descriptor non-blocking, when `events` are ready. Returns false after any other error.
bool wait_for_retry(int fd, short events) {
  if (errno == EINTR) return true;
  if (errno != EAGAIN) return false;
  pollfd descriptor{fd, events, 0};
  ::poll(&descriptor, 1, -1);
  return true;
}

bool write_blocking(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && !wait_for_retry(fd, POLLOUT)) return false;
    if (written > 0) bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

// Like read(2), but also receives an attached descriptor.
ssize_t receive(int channel, char* buffer, std::size_t size, Fd& attached) {
  iovec part{buffer, size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t count = ::recvmsg(channel, &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* header = count > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    attached.reset(fd);
  }
  return count;
}

Result<void> make_parents(const std::string& folder, const std::string& path) {
  for (std::size_t slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    const std::string parent = folder + '/' + path.substr(0, slash);
    if (::mkdir(parent.c_str(), 0755) != 0 && errno != EEXIST) return fail(Code::io, parent + ": " + errno_text(errno));
  }
  return {};
}

// Writes the files of one request below a folder.
class IncomingFiles {
 public:
  explicit IncomingFiles(std::string folder) : folder_(std::move(folder)) {}
  Result<void> append(std::string_view payload);                 // payload of a `file` frame
  const std::string& stdin_path() const { return stdin_path_; }  // empty without a standard input

 private:
  std::string folder_, path_, stdin_path_;
  Fd file_;
};

Result<void> IncomingFiles::append(std::string_view payload) {
  const std::size_t first = payload.find('\0');
  const std::size_t second = first == std::string_view::npos ? first : payload.find('\0', first + 1);
  if (second == std::string_view::npos) return fail(Code::invalid, "a file without its name");
  const std::string path(payload.substr(0, first));
  const std::string_view bytes = payload.substr(second + 1);
  if (path.empty() || path.front() == '/' || ("/" + path + "/").find("/../") != std::string::npos)
    return fail(Code::invalid, "a file outside of the job's folder: " + path);
  const std::string full = folder_ + '/' + path;
  if (path != path_) {
    MJ_CHECK(make_parents(folder_, path));
    const std::string octal(payload.substr(first + 1, second - first - 1));
    const auto mode = static_cast<mode_t>(std::strtoul(octal.c_str(), nullptr, 8) & 0777);
    file_.reset(::open(full.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file_ || ::fchmod(file_.get(), mode) != 0) return fail(Code::io, full + ": " + errno_text(errno));
    path_ = path;
    if (path == kStdinName) stdin_path_ = full;
  }
  if (!write_all(file_.get(), bytes))
    return fail(Code::io, full + ": " + errno_text(errno) + " (remedy: policy: disk, a larger one)");
  return {};
}

// Makes a file the standard input of this process, and removes its name. An empty path means no input. Returns whether
// descriptor 0 was replaced: a process without earlier input keeps its descriptor.
Result<bool> replace_stdin(const std::string& path) {
  static bool has_input = false;
  if (path.empty() && !has_input) return false;
  has_input = !path.empty();
  Fd file(::open(has_input ? path.c_str() : "/dev/null", O_RDONLY | O_CLOEXEC));
  // dup2() clears O_CLOEXEC, except if a script has closed descriptor 0, so that open() has returned it.
  const bool is_replaced = file && (file.get() == STDIN_FILENO ? ::fcntl(file.get(), F_SETFD, 0) == 0
                                                               : ::dup2(file.get(), STDIN_FILENO) == STDIN_FILENO);
  if (!is_replaced) return fail(Code::io, "stdin: " + errno_text(errno));
  if (file.get() == STDIN_FILENO) static_cast<void>(file.release());
  if (has_input) ::unlink(path.c_str());
  return true;
}

// Checks the order of frames: kinds must ascend, and only `file` may repeat.
struct HostRequestParser {
  explicit HostRequestParser(const std::string& folder) : files(folder) { request.inputs = "{}"; }
  bool is_complete() const { return last_kind == static_cast<std::uint8_t>(FrameKind::script); }

  void process_frame(Frame&& frame) {
    const auto kind = static_cast<FrameKind>(frame.kind);
    const bool is_in_order = frame.kind > last_kind || (kind == FrameKind::file && frame.kind == last_kind);
    if (!problem.empty()) return;
    const bool is_too_early = kind > FrameKind::environment && request.environment.empty();
    if (frame.status != Frame::FrameStatus::accepted || !is_in_order || is_too_early ||
        (frame.kind == 2 && request.facts.empty())) {
      problem = "frame of kind " + std::to_string(frame.kind) + " with " + std::to_string(frame.size) +
                " bytes after kind " + std::to_string(last_kind);
      return;
    }
    last_kind = frame.kind;
    if (kind == FrameKind::file) {
      if (auto written = files.append(frame.payload); !written) problem = written.error().message;
      return;
    }
    std::string* const parts[] = {&request.facts, &request.environment, &request.inputs, nullptr, &request.script};
    *parts[frame.kind - 1] = std::move(frame.payload);
  }

  HostRequest request;
  IncomingFiles files;
  std::uint8_t last_kind = 0;
  std::string problem;  // empty if there is no error
};

// Returns text that needs no escapes in a JSON string; each other byte is replaced by "?".
std::string to_plain_text(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 200)) out += c >= ' ' && c < '\x7f' && c != '"' && c != '\\' ? c : '?';
  return out;
}

// Fast path for the common case of no artifacts: reading a folder changes it, so the folder would have to be reset for
// the next job. An empty tmpfs folder has size 40 (20 bytes each for "." and ".."); other file systems do not report
// this size.
bool is_empty_tmpfs_folder(const std::string& folder) {
  struct stat info {};
  struct statfs system {};
  return ::lstat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_nlink == 2 && info.st_size == 40 &&
         ::statfs(folder.c_str(), &system) == 0 && system.f_type == TMPFS_MAGIC;
}

// Reads at most kMaxArtifacts + 1 names. Returns false if readdir(3) fails.
bool read_names(DIR* listing, std::vector<std::string>& names) {
  while (names.size() <= kMaxArtifacts) {
    errno = 0;
    const dirent* entry = ::readdir(listing);
    if (entry == nullptr) return errno == 0;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  return true;
}

// Walks once through the artifacts of a script. File names are untrusted; links are never followed.
class ArtifactWalk {
 public:
  ArtifactWalk(int channel, std::uint64_t max_bytes)
      : channel_(channel), max_bytes_(max_bytes), remaining_bytes_(max_bytes) {}

  bool send_folder(int parent, const char* name, const std::string& path, int depth) {
    const int fd = ::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return report_open_error(path, errno);
    const std::unique_ptr<DIR, int (*)(DIR*)> listing(::fdopendir(fd), ::closedir);
    if (!listing) return ::close(fd), report_dropped(path, DropReason::unreadable, "cannot be listed");
    std::vector<std::string> names;
    if (!read_names(listing.get(), names) &&
        !report_dropped(path, DropReason::unreadable, "cannot be listed to its end"))
      return false;
    const bool has_more_names = names.size() > kMaxArtifacts;
    std::sort(names.begin(), names.end());
    for (const auto& entry_name : names) {
      const std::string entry_path = path.empty() ? entry_name : path + '/' + entry_name;
      if (sent_ >= kMaxArtifacts)
        return std::exchange(is_file_limit_reported_, true) ||
               report_dropped(entry_path, DropReason::files, "and the files after it: over 1000 files", kMaxArtifacts);
      if (!send_entry(fd, entry_name.c_str(), entry_path, depth)) return false;
    }
    return !has_more_names || is_file_limit_reported_ ||
           report_dropped(path, DropReason::files, "has over 1000 names; the others were not stored", kMaxArtifacts);
  }

 private:
  bool send_entry(int parent, const char* name, const std::string& path, int depth) {
    struct stat info {};
    if (::fstatat(parent, name, &info, AT_SYMLINK_NOFOLLOW) != 0)
      return errno == ENOENT || report_dropped(path, DropReason::unreadable, "cannot be read");
    if (!S_ISDIR(info.st_mode)) return send_file(parent, name, path, info);
    if (depth >= kMaxArtifactFolders)
      return report_dropped(path, DropReason::folders, "is more than 32 folders deep", kMaxArtifactFolders);
    return send_folder(parent, name, path, depth + 1);
  }

  bool report_open_error(const std::string& path, int error) {
    // The artifacts folder itself existed when the script started.
    if (path.empty() && error == ENOENT) return send_note(path, "it was removed with its content");
    if (error == ENOTDIR || error == ELOOP) return report_dropped(path, DropReason::link, "is no longer a folder");
    return report_dropped(path, DropReason::unreadable, "cannot be opened");
  }

  // Sends a `dropped` frame for programs and a note for the job's log.
  bool report_dropped(const std::string& path, DropReason reason, const char* explanation, std::uint64_t limit = 0) {
    constexpr std::size_t kMaxName = 4096;  // PATH_MAX of Linux
    const DropReasonRow& row = get_drop_reason_row(reason);
    std::size_t& sent = row.loses_data ? dropped_ : dropped_links_;
    if (++sent > DroppedArtifacts::kMaxPerKind) return send_note(path, std::string("not kept: ") + explanation);
    const std::string payload = path.substr(0, kMaxName) + '\0' + std::string(row.word) + '\0' + std::to_string(limit);
    return send_frame(channel_, FrameKind::dropped, payload) &&
           send_note(path, std::string("not kept: ") + explanation);
  }

  bool send_note(const std::string& path, const std::string& explanation) {
    constexpr std::size_t kMaxNotes = 20;
    std::string text = path.empty() ? "the folder of artifacts: " : "artifact " + to_plain_text(path) + ": ";
    text += explanation;
    if (++notes_ > kMaxNotes + 1) return true;
    if (notes_ > kMaxNotes) text = "further artifacts were not kept; their reasons are omitted";
    return send_frame(channel_, FrameKind::note, "{\"text\":\"" + text + "\"}");
  }

  bool send_file(int parent, const char* name, const std::string& path, const struct stat& info) {
    if (!S_ISREG(info.st_mode))
      return report_dropped(path, S_ISLNK(info.st_mode) ? DropReason::link : DropReason::special, "not a regular file");
    if (info.st_nlink != 1) return report_dropped(path, DropReason::link, "has another hard link");
    if (path.size() > kMaxArtifactPath)
      return report_dropped(path, DropReason::name, "its name is too long", kMaxArtifactPath);
    if (static_cast<std::uint64_t>(info.st_size) > remaining_bytes_)
      return report_dropped(path, DropReason::bytes, "over the limit for all artifacts together", max_bytes_);
    const Fd fd(::openat(parent, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat opened {};
    if (!fd || ::fstat(fd.get(), &opened) != 0 || opened.st_ino != info.st_ino)
      return report_dropped(path, DropReason::unreadable, "cannot be read");
    ++sent_;
    const std::string head = path + '\0' + ((info.st_mode & S_IXUSR) != 0 ? "755" : "644") + '\0';
    std::array<char, 65536> part;  // NOLINT(*-member-init): filled by read
    // Reads only the size from before: a remaining process may still append to the file.
    auto remaining = static_cast<std::uint64_t>(info.st_size);
    bool has_sent_frame = false;
    do {
      const ssize_t count = ::read(fd.get(), part.data(), std::min<std::uint64_t>(part.size(), remaining));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0)
        return report_dropped(path, DropReason::unreadable, "cannot be read to its end; the part before may be kept");
      if (count == 0 && remaining > 0)
        return (has_sent_frame || send_frame(channel_, FrameKind::artifact, head)) &&
               send_note(path, "kept in part: the file was truncated while it was read");
      remaining_bytes_ -= static_cast<std::uint64_t>(count);
      remaining -= static_cast<std::uint64_t>(count);
      has_sent_frame = true;
      const std::string_view bytes(part.data(), static_cast<std::size_t>(count));
      if (!send_frame(channel_, FrameKind::artifact, head + std::string(bytes))) return false;
    } while (remaining > 0);
    return true;
  }

  int channel_;
  std::uint64_t max_bytes_, remaining_bytes_;
  std::size_t sent_ = 0, notes_ = 0, dropped_ = 0, dropped_links_ = 0;
  bool is_file_limit_reported_ = false;
};

}  // namespace

Result<HostRequest> read_request(int down, const std::string& folder) {
  HostRequestParser parser(folder);
  HostRequest& request = parser.request;
  FrameReader reader({{FrameKind::facts, kMaxFactsBytes},
                      {FrameKind::environment, kMaxEnvironmentBytes},
                      {FrameKind::inputs, kMaxInputsBytes},
                      {FrameKind::file, kMaxFileFrameBytes},
                      {FrameKind::script, kMaxScriptBytes}});
  // Most requests fit into this small buffer, which keeps memory use low.
  std::array<char, 4096> small_buffer;  // NOLINT(*-member-init): filled by read
  std::vector<char> large_buffer;
  std::span<char> buffer = small_buffer;
  for (bool has_input = false; !parser.is_complete(); has_input = true) {
    ssize_t count = 0;
    while ((count = receive(down, buffer.data(), buffer.size(), request.attached)) < 0) {
      if (!wait_for_retry(down, POLLIN))
        return fail(Code::io, "channel: cannot read the request: " + errno_text(errno));
    }
    if (count == 0 && !has_input) return fail(Code::unavailable, "channel: closed before a job was received");
    if (count == 0) return fail(Code::invalid, "channel: the request ends in the middle");
    reader.feed({buffer.data(), static_cast<std::size_t>(count)},
                [&](Frame&& frame) { parser.process_frame(std::move(frame)); });
    if (!parser.problem.empty()) return fail(Code::invalid, "channel: " + parser.problem);
    if (large_buffer.empty() && static_cast<std::size_t>(count) == buffer.size()) {
      large_buffer.resize(65536);
      buffer = large_buffer;
    }
  }
  MJ_TRY(has_replaced_stdin, replace_stdin(parser.files.stdin_path()));
  request.has_replaced_stdin = has_replaced_stdin;
  // If the folder cannot be created, there is no sandbox, and a script that uses the folder receives the error itself.
  const std::string artifacts = folder + std::string(kArtifactsFolder).substr(4);
  struct stat status {};  // the folder usually exists, and lstat is cheaper than mkdir
  if (::lstat(artifacts.c_str(), &status) != 0) static_cast<void>(::mkdir(artifacts.c_str(), 0755));
  return std::move(request);
}

int exit_before_start(int channel, const Error& error) {
  constexpr int kExit = 125;
  if (error.code == Code::unavailable) return kExit;
  std::string message;
  for (const char c : error.message) {
    if (c == '"' || c == '\\') message += '\\';
    message += static_cast<unsigned char>(c) < ' ' ? '?' : c;
  }
  send_frame(channel, FrameKind::error, R"({"type":"SetupError","message":")" + message + R"("})");
  return kExit;
}

Result<std::string> call_agent(const JobChannel& channel, std::string_view call) {
  if (!send_frame(channel.to_agent, FrameKind::call, call))
    return fail(Code::unavailable, "channel: the agent has exited");
  // Only one call is pending at a time, so the next frame is its reply.
  std::string reply;
  bool is_complete = false;
  FrameReader reader({{FrameKind::reply, kMaxReplyBytes}});
  std::array<char, 65536> buffer;   // NOLINT(*-member-init): filled by read
  std::uint32_t missing_bytes = 5;  // bytes of this frame; later bytes belong to the next reply
  std::string header;
  while (!is_complete) {
    const ssize_t count =
        ::read(channel.from_agent, buffer.data(), std::min<std::size_t>(buffer.size(), missing_bytes));
    if (count < 0 && wait_for_retry(channel.from_agent, POLLIN)) continue;
    if (count <= 0) return fail(Code::unavailable, "channel: the agent has exited");
    const std::string_view bytes(buffer.data(), static_cast<std::size_t>(count));
    missing_bytes -= static_cast<std::uint32_t>(count);
    if (header.size() < 5) {
      header += bytes;
      if (header.size() == 5) {
        for (unsigned i = 0; i < 4; ++i)
          missing_bytes |= std::uint32_t{static_cast<unsigned char>(header[i])} << (8 * i);
      }
    }
    reader.feed(bytes, [&](Frame&& frame) {
      is_complete = frame.status == Frame::FrameStatus::accepted;
      reply = std::move(frame.payload);
    });
    if (missing_bytes == 0 && !is_complete && header.size() == 5) return fail(Code::invalid, "channel: not a reply");
  }
  return reply;
}

bool send_frame(int channel, FrameKind kind, std::string_view payload) {
  std::string bytes;
  bytes.reserve(payload.size() + 8);
  append_frame(bytes, kind, payload);
  return write_blocking(channel, bytes);
}

bool send_frames(int channel, std::string_view frames) { return write_blocking(channel, frames); }

bool send_artifacts(int channel, const std::string& folder, std::uint64_t max_bytes) {
  if (is_empty_tmpfs_folder(folder)) return true;
  // Without the job's folder there is no sandbox, and no artifacts folder ever existed.
  if (::access(folder.substr(0, folder.rfind('/')).c_str(), F_OK) != 0) return true;
  return ArtifactWalk(channel, max_bytes).send_folder(AT_FDCWD, folder.c_str(), "", 0);
}

}  // namespace mycojobs
