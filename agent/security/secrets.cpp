#include "security/secrets.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <memory>

#include "base/errno_text.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/parse.h"
#include "base/result.h"
#include "security/private_file.h"
#include "text/plural.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxSecretNameBytes = 64;
constexpr const char* kNotRegular = "it is not a regular file: store the value in a regular file";

// Returns a text that changes when the file changes.
std::string format_file_state(const struct stat& file) {
  return fmt::format("{}:{}:{}.{}:{}.{}:{}:{:o}:{}", file.st_dev, file.st_ino, file.st_mtim.tv_sec,
                     file.st_mtim.tv_nsec, file.st_ctim.tv_sec, file.st_ctim.tv_nsec, file.st_uid, file.st_mode,
                     file.st_size);
}

struct SecretFolderListing {
  std::string path;
  std::string prefix;       // prefix of the names of files that may be secrets of the context
  bool is_managed = false;  // the creator of the files is responsible for their permissions
  Fd folder;                // invalid if the folder does not exist
  std::vector<std::string> names;
  std::string state;
  bool is_recent = false;  // a file may change again without a change of `state`
};

// Returns whether the file was changed very recently. Files that are written within one tick of the kernel's clock (10
// ms at most) have the same time stamp.
bool is_recently_changed(const struct stat& file) {
  constexpr std::int64_t kClockTickMs = 50;
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  const auto ms = [](const timespec& time) { return time.tv_sec * 1000 + time.tv_nsec / 1'000'000; };
  return ms(now) - ms(file.st_ctim) < kClockTickMs;
}

Result<SecretFolderListing> list_folder(const std::string& path, const std::string& prefix, bool is_managed) {
  const auto io_error = [&path] {
    return fail(errno == EACCES ? Code::denied : Code::io, path + ": " + errno_text(errno));
  };
  SecretFolderListing listing{path, prefix, is_managed, {}, {}, {}, {}};
  listing.folder.reset(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!listing.folder) return errno == ENOENT ? Result<SecretFolderListing>(std::move(listing)) : io_error();
  const int copy = ::fcntl(listing.folder.get(), F_DUPFD_CLOEXEC, 0);
  DIR* entries = copy >= 0 ? ::fdopendir(copy) : nullptr;
  if (entries == nullptr) return io_error();
  while (const dirent* entry = ::readdir(entries)) {
    const std::string name = entry->d_name;
    if (name != "." && name != ".." && name.starts_with(prefix)) listing.names.push_back(name);
  }
  ::closedir(entries);
  std::sort(listing.names.begin(), listing.names.end());
  for (const std::string& name : listing.names) {
    struct stat file {};
    if (::fstatat(listing.folder.get(), name.c_str(), &file, AT_SYMLINK_NOFOLLOW) != 0) continue;
    listing.state += name + '\0' + format_file_state(file) + '\n';
    listing.is_recent = listing.is_recent || is_recently_changed(file);
  }
  return listing;
}

std::string find_name_problem(const std::string& name) {
  const auto is_allowed_char = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' || c == '-' ||
           c == '.';
  };
  if (!name.empty() && name.size() <= kMaxSecretNameBytes && name[0] != '.' &&
      std::all_of(name.begin(), name.end(), is_allowed_char))
    return {};
  return fmt::format("a name is 1 to {} of A-Z a-z 0-9 _ - and dots, no dot in front: rename it", kMaxSecretNameBytes);
}

std::string find_file_problem(const struct stat& file, bool is_managed) {
  if (!S_ISREG(file.st_mode)) return kNotRegular;
  if (!is_managed) {
    if (std::string problem = find_private_file_problem(file); !problem.empty()) return problem;
  }
  if (static_cast<std::uint64_t>(file.st_size) > SecretReader::kMaxBytes + 2)
    return fmt::format("it has {} bytes, the most is {}", file.st_size, SecretReader::kMaxBytes);
  return {};
}

// Returns whether the value is one line of text. `echo secret > file` appends a line end, which is not part of the
// secret. A key of several lines, or of binary data, is used unchanged.
bool is_line(std::string_view value) {
  return value.find('\n') == value.size() - 1 && is_utf8(value) && value.find('\0') == std::string_view::npos;
}

// Reads the value of a secret. Returns error invalid if the file cannot be a secret, and io if it cannot be read now.
Result<std::string> read_value(const SecretFolderListing& listing, const std::string& name) {
  if (std::string problem = find_name_problem(name.substr(listing.prefix.size())); !problem.empty())
    return fail(Code::invalid, std::move(problem));
  // Does not follow links, and does not wait for a writer of a pipe.
  const Fd file(
      ::openat(listing.folder.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat status {};
  if (!file && (errno == ELOOP || errno == ENXIO)) return fail(Code::invalid, kNotRegular);
  if (!file && errno == EACCES)
    return fail(Code::invalid, fmt::format("user {} has no permission to read it: chown it", ::geteuid()));
  if (!file || ::fstat(file.get(), &status) != 0) return fail(Code::io, errno_text(errno));
  if (std::string problem = find_file_problem(status, listing.is_managed); !problem.empty())
    return fail(Code::invalid, std::move(problem));
  std::string value(SecretReader::kMaxBytes + 3, '\0');
  std::size_t size = 0;
  for (ssize_t count = 1; count != 0 && size < value.size();) {
    count = ::read(file.get(), value.data() + size, value.size() - size);
    if (count < 0 && errno != EINTR) return fail(Code::io, errno_text(errno));
    if (count > 0) size += static_cast<std::size_t>(count);
  }
  value.resize(size);
  if (value.ends_with('\n') && is_line(value)) value.resize(value.size() - (value.ends_with("\r\n") ? 2 : 1));
  if (value.size() > SecretReader::kMaxBytes)
    return fail(Code::invalid, fmt::format("the most is {} bytes", SecretReader::kMaxBytes));
  if (std::string problem = Redactor::find_value_problem(value); !problem.empty())
    return fail(Code::invalid, std::move(problem));
  return value;
}

// Returns the path for the log. The folder is set by the operator, but a name can contain any characters.
std::string printable_path(const SecretFile& file) {
  const std::size_t slash = file.path.rfind('/');
  return file.path.substr(0, slash + 1) + excerpt(file.path.substr(slash + 1), kMaxSecretNameBytes);
}

struct SecretScan {
  std::vector<SecretFolderListing> listings;
  std::string state;
  bool is_recent = false;
};

Result<SecretScan> scan_folders(const SecretSources& sources, Id context) {
  const std::string number = std::to_string(context);
  SecretScan scan;
  if (!sources.folder.empty()) {
    MJ_TRY(files, list_folder(sources.folder + '/' + number, "", false));
    scan.listings.push_back(std::move(files));
  }
  if (!sources.credentials.empty()) {
    MJ_TRY(credentials, list_folder(sources.credentials, "mycojobs." + number + '.', true));
    scan.listings.push_back(std::move(credentials));
  }
  for (const SecretFolderListing& listing : scan.listings) {
    scan.state += listing.state.empty() ? "" : listing.path + '\n' + listing.state;
    scan.is_recent = scan.is_recent || listing.is_recent;
  }
  return scan;
}

std::vector<SecretFile> read_files(const SecretScan& scan) {
  std::vector<SecretFile> files;
  std::size_t bytes = 0;
  for (const SecretFolderListing& listing : scan.listings) {
    for (const std::string& name : listing.names) {
      SecretFile file{name.substr(listing.prefix.size()), listing.path + '/' + name, {}, false, {}};
      const bool is_duplicate =
          std::any_of(files.begin(), files.end(), [&](const auto& other) { return other.name == file.name; });
      auto value = is_duplicate
                       ? Result<std::string>(fail(Code::invalid, "a file has the same name: remove one of them"))
                       : read_value(listing, name);
      if (value && bytes + value->size() > SecretReader::kMaxTotalBytes) {
        value = fail(Code::invalid, fmt::format("the secrets of a context may have {} bytes together at most",
                                                SecretReader::kMaxTotalBytes));
      }
      if (value) {
        bytes += value->size();
        file.value = std::move(*value);
      } else {
        file.problem = value.error().message;
        file.is_unread = value.error().code != Code::invalid;
      }
      files.push_back(std::move(file));
    }
  }
  return files;
}

}  // namespace

Result<std::vector<SecretFile>> find_secrets(const SecretSources& sources, Id context) {
  const auto scan = scan_folders(sources, context);
  if (!scan) return fail(Code::io, scan.error().message);
  return read_files(*scan);
}

Result<void> check_always_redacted(const std::vector<std::string>& entries) {
  for (const std::string& entry : entries) {
    const std::size_t slash = entry.find('/');
    std::uint64_t context = 0;
    const bool is_pair = slash != std::string::npos && slash + 1 < entry.size() &&
                         parse_u64(std::string_view(entry).substr(0, slash), context);
    if (!is_pair || context > std::numeric_limits<Id>::max())
      return fail(Code::invalid, "secrets_redacted: " + excerpt(entry, 200) + " is not CONTEXT/NAME, such as 1/db");
    if (const std::string problem = find_name_problem(entry.substr(slash + 1)); !problem.empty())
      return fail(Code::invalid, "secrets_redacted: " + excerpt(entry, 200) + ": " + problem);
  }
  return {};
}

bool is_always_redacted(const SecretSources& sources, Id context, const std::string& name) {
  const auto& entries = sources.always_redacted;
  return std::find(entries.begin(), entries.end(), std::to_string(context) + '/' + name) != entries.end();
}

SecretSet::SecretSet(SecretSources sources, Id context, std::vector<Secret> all)
    : sources_(std::move(sources)), context_(context), all_(std::move(all)) {}

std::shared_ptr<const Redactor> SecretSet::get_redactor(const std::vector<Secret>& granted) const {
  std::vector<std::string> names;
  std::vector<Secret> redacted;
  for (const Secret& secret : all_) {
    const bool is_granted = std::any_of(granted.begin(), granted.end(), [&](const Secret& granted_secret) {
      return granted_secret.name == secret.name;
    });
    if (!is_granted && !is_always_redacted(sources_, context_, secret.name)) continue;
    names.push_back(secret.name);
    redacted.push_back(secret);
  }
  if (redacted.empty()) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto match = std::find_if(redactors_.begin(), redactors_.end(),
                                  [&](const NamedRedactor& redactor) { return redactor.first == names; });
  if (match != redactors_.end()) {
    std::rotate(redactors_.begin(), match, match + 1);
  } else {
    if (redactors_.size() == kMaxRedactors) redactors_.pop_back();
    redactors_.emplace(redactors_.begin(), std::move(names), std::make_shared<const Redactor>(redacted));
  }
  return redactors_.front().second;
}

Result<std::vector<Secret>> SecretSet::get_secrets(const std::vector<std::string>& names) const {
  std::vector<Secret> out;
  if (!names.empty() && sources_.empty()) {
    return fail(Code::denied, "policy.secrets: this agent has no folder of secrets: let the operator set secrets_dir");
  }
  for (const std::string& name : names) {
    const auto match =
        std::find_if(all_.begin(), all_.end(), [&](const Secret& secret) { return secret.name == name; });
    if (match == all_.end()) {
      return fail(
          Code::denied,
          fmt::format("policy.secrets: secret {} does not exist on this host: the operator must store it in {}/{}/{}, "
                      "owned by root or the agent's user, mode 0600; `mycojobs secret check` lists rejected files",
                      excerpt(name, kMaxSecretNameBytes), sources_.folder, context_, name));
    }
    out.push_back({match->name, match->value});
  }
  return out;
}

bool SecretSet::contains(const std::vector<Secret>& secrets) const {
  return std::all_of(secrets.begin(), secrets.end(), [this](const Secret& secret) {
    return std::any_of(all_.begin(), all_.end(), [&secret](const Secret& current) {
      return current.name == secret.name && current.value == secret.value;
    });
  });
}

SecretReader::SecretReader(SecretSources sources, Id context) : sources_(std::move(sources)), context_(context) {}

std::shared_ptr<const SecretSet> SecretReader::rescan() {
  const auto scan = scan_folders(sources_, context_);
  if (scan && scan->state == folder_state_) return current_;
  folder_state_.reset();
  std::vector<Secret> secrets;
  std::vector<std::string> rejections;
  std::string read_problem = scan ? std::string() : scan.error().message;
  for (SecretFile& file : scan ? read_files(*scan) : std::vector<SecretFile>()) {
    if (file.problem.empty()) {
      secrets.push_back({file.name, std::move(file.value)});
    } else if (file.is_unread) {
      read_problem = printable_path(file) + ": " + file.problem;
    } else {
      rejections.push_back(printable_path(file) + ": " + file.problem);
    }
  }
  if (rejections != std::exchange(logged_rejections_, rejections)) {
    for (const std::string& rejection : rejections) log(LogLevel::warn, "worker", "refused as a secret: {}", rejection);
  }
  if (!read_problem.empty() && read_problem != logged_problem_)
    log(LogLevel::error, "worker", "a secret cannot be read, which is tried again: {}", read_problem);
  logged_problem_ = read_problem;
  // A folder without read permission contains no secrets for this agent. After any other error the secrets are unknown.
  const bool is_unknown = !scan && scan.error().code != Code::denied;
  if (is_unknown || (scan && !read_problem.empty())) return current_;
  if (scan && !scan->is_recent) folder_state_ = scan->state;
  return update_current(std::move(secrets));
}

std::shared_ptr<const SecretSet> SecretReader::update_current(std::vector<Secret> secrets) {
  if (current_ && current_->all() == secrets) return current_;
  if (current_ || !secrets.empty())
    log(LogLevel::info, "worker", "context {}: {} for its jobs", context_, count_with_noun(secrets.size(), "secret"));
  current_ = std::make_shared<const SecretSet>(sources_, context_, std::move(secrets));
  return current_;
}

}  // namespace mycojobs
