#include "worker/secrets.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "base/errno_text.h"
#include "base/fd.h"
#include "base/log.h"
#include "domain/utf8.h"
#include "mycojobs/result.h"

namespace mycojobs {
namespace {

constexpr std::size_t kLongestName = 64;
constexpr const char* kNotRegular = "it is not a regular file: put the value itself there";

// What would change if the file did.
std::string trace_of(const struct stat& file) {
  return fmt::format("{}:{}:{}.{}:{}.{}:{}:{:o}:{}", file.st_dev, file.st_ino, file.st_mtim.tv_sec,
                     file.st_mtim.tv_nsec, file.st_ctim.tv_sec, file.st_ctim.tv_nsec, file.st_uid, file.st_mode,
                     file.st_size);
}

struct Listing {
  Fd folder;  // none: there is no such folder
  std::vector<std::string> names;
  std::string seen;
};

Result<Listing> list(const std::string& path) {
  const auto failed = [&path] { return fail(Code::io, path + ": " + errno_text(errno)); };
  Listing listing;
  listing.folder.reset(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!listing.folder) return errno == ENOENT ? Result<Listing>(std::move(listing)) : failed();
  const int copy = ::fcntl(listing.folder.get(), F_DUPFD_CLOEXEC, 0);
  DIR* entries = copy >= 0 ? ::fdopendir(copy) : nullptr;
  if (entries == nullptr) return failed();
  while (const dirent* entry = ::readdir(entries)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") listing.names.push_back(name);
  }
  ::closedir(entries);
  std::sort(listing.names.begin(), listing.names.end());
  for (const std::string& name : listing.names) {
    struct stat file {};
    if (::fstatat(listing.folder.get(), name.c_str(), &file, AT_SYMLINK_NOFOLLOW) == 0)
      listing.seen += name + '\0' + trace_of(file) + '\n';
  }
  return listing;
}

std::string problem_with_name(const std::string& name) {
  const auto fits = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' || c == '-' ||
           c == '.';
  };
  if (name.size() <= kLongestName && name[0] != '.' && std::all_of(name.begin(), name.end(), fits)) return {};
  return fmt::format("a name is 1 to {} of A-Z a-z 0-9 _ - and dots, no dot in front: rename it", kLongestName);
}

std::string problem_with_file(const struct stat& file) {
  if (!S_ISREG(file.st_mode)) return kNotRegular;
  if (file.st_uid != 0 && file.st_uid != ::geteuid())
    return fmt::format("user {} owns it: chown it to root or to user {}", file.st_uid, ::geteuid());
  if ((file.st_mode & 077) != 0) return fmt::format("mode {:04o} lets others at it: chmod 600", file.st_mode & 07777);
  if (static_cast<std::uint64_t>(file.st_size) > Secrets::kMostBytes + 2)
    return fmt::format("it has {} bytes, the most is {}", file.st_size, Secrets::kMostBytes);
  return {};
}

// The whole of it, without the line end at its end. Error invalid: it cannot be a secret; io: now.
Result<std::string> read_value(int folder, const std::string& name) {
  if (std::string problem = problem_with_name(name); !problem.empty()) return fail(Code::invalid, std::move(problem));
  // Neither through a link, nor waiting for whoever writes into a pipe.
  const Fd file(::openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat about {};
  if (!file && (errno == ELOOP || errno == ENXIO)) return fail(Code::invalid, kNotRegular);
  if (!file && errno == EACCES)
    return fail(Code::invalid, fmt::format("user {} may not read it: chown it", ::geteuid()));
  if (!file || ::fstat(file.get(), &about) != 0) return fail(Code::io, errno_text(errno));
  if (std::string problem = problem_with_file(about); !problem.empty()) return fail(Code::invalid, std::move(problem));
  std::string value(Secrets::kMostBytes + 3, '\0');
  std::size_t size = 0;
  for (ssize_t got = 1; got != 0 && size < value.size();) {
    got = ::read(file.get(), value.data() + size, value.size() - size);
    if (got < 0 && errno != EINTR) return fail(Code::io, errno_text(errno));
    if (got > 0) size += static_cast<std::size_t>(got);
  }
  value.resize(size);
  if (value.ends_with('\n')) value.resize(value.size() - (value.ends_with("\r\n") ? 2 : 1));
  if (value.size() > Secrets::kMostBytes)
    return fail(Code::invalid, fmt::format("the most is {} bytes", Secrets::kMostBytes));
  if (std::string problem = Redactor::problem_with(value); !problem.empty())
    return fail(Code::invalid, std::move(problem));
  return value;
}

struct Found {
  std::vector<Secret> secrets;
  std::string unread;  // a file that may be a secret and could not be read now
};

Found read_all(const Listing& listing, const std::string& path) {
  Found found;
  std::size_t bytes = 0;
  for (const std::string& name : listing.names) {
    auto value = read_value(listing.folder.get(), name);
    if (value && bytes + value->size() > Secrets::kMostBytesTogether) {
      value = fail(Code::invalid, fmt::format("the secrets of a context may have {} bytes together at most",
                                              Secrets::kMostBytesTogether));
    }
    if (value) {
      bytes += value->size();
      found.secrets.push_back({name, std::move(*value)});
      continue;
    }
    const std::string problem = fmt::format("{}/{}: {}", path, shown(name, kLongestName), value.error().message);
    if (value.error().code == Code::invalid) {
      log(LogLevel::warn, "worker", "refused as a secret: {}", problem);
    } else {
      found.unread = problem;
    }
  }
  return found;
}

}  // namespace

Secrets::Context& Secrets::looked_at(Id id) {
  Context& context = contexts_[id];
  const std::uint64_t now = clock_.boot_ms();
  if (!context.looked || now - context.looked_at_ms >= kLookMs) {
    context.looked = true;
    context.looked_at_ms = now;
    look(id, context);
  }
  return context;
}

std::shared_ptr<const Redactor> Secrets::redactor(Id id) { return folder_.empty() ? nullptr : looked_at(id).redactor; }

Result<std::vector<SecretValue>> Secrets::values(Id id, const std::vector<std::string>& names) {
  std::vector<SecretValue> out;
  if (names.empty()) return out;
  if (folder_.empty()) {
    return fail(Code::denied, "policy.secrets: this agent has no folder of secrets: let the operator set secrets_dir");
  }
  const Context& context = looked_at(id);
  for (const std::string& name : names) {
    const auto found = std::find_if(context.secrets.begin(), context.secrets.end(),
                                    [&](const Secret& secret) { return secret.name == name; });
    if (found == context.secrets.end()) {
      return fail(Code::denied, fmt::format("policy.secrets: there is no secret {} here: let the operator put it into "
                                            "{}/{}/{}, owned by root or the agent's user, mode 0600",
                                            shown(name, kLongestName), folder_, id, name));
    }
    out.push_back({found->name, found->value});
  }
  return out;
}

void Secrets::look(Id id, Context& context) const {
  const std::string path = folder_ + "/" + std::to_string(id);
  const auto listing = list(path);
  if (listing && listing->seen == context.seen) return;
  Found found = listing ? read_all(*listing, path) : Found{{}, listing.error().message};
  if (!found.unread.empty() && found.unread != context.problem)
    log(LogLevel::error, "worker", "a secret cannot be read, which is tried again: {}", found.unread);
  context.problem = found.unread;
  if (!found.unread.empty() && context.redactor) return;
  context.redactor = found.secrets.empty() ? nullptr : std::make_shared<const Redactor>(found.secrets);
  context.secrets = std::move(found.secrets);
  if (!found.unread.empty()) return;
  context.seen = listing->seen;
  log(LogLevel::info, "worker", "context {}: {} secret(s) are kept out of what its jobs hand out", id,
      context.secrets.size());
}

}  // namespace mycojobs
