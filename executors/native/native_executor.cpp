#include "executors/native/native_executor.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string_view>
#include <utility>

#include "base/errno_text.h"
#include "base/sha256.h"
#include "executors/exec/program_conversation.h"
#include "executors/executor_settings.h"
#include "security/profiles.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

// Returns whether the error is a temporary lack of resources.
bool is_shortage(int error) { return error == EMFILE || error == ENFILE || error == ENOMEM; }

std::int64_t nanoseconds(const timespec& time) { return time.tv_sec * std::int64_t{1'000'000'000} + time.tv_nsec; }

// Returns a copy in memory that no process can change, including this one.
Result<Fd> seal(const Fd& file, std::size_t size) {
  Fd copy(::memfd_create("program", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!copy) return fail(Code::io, "memfd_create: " + errno_text(errno));
  for (std::size_t done = 0; done < size;) {
    const ssize_t sent = ::sendfile(copy.get(), file.get(), nullptr, size - done);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return fail(Code::io, sent < 0 ? errno_text(errno) : "it was truncated while it was read");
    done += static_cast<std::size_t>(sent);
  }
  if (::fcntl(copy.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0)
    return fail(Code::io, "F_ADD_SEALS: " + errno_text(errno));
  return copy;
}

Result<std::string> hash_file(const Fd& file, std::size_t size) {
  if (size == 0) return sha256_hex({});
  void* bytes = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file.get(), 0);
  if (bytes == MAP_FAILED) return fail(Code::io, "mmap: " + errno_text(errno));
  std::string hash = sha256_hex({static_cast<const char*>(bytes), size});
  ::munmap(bytes, size);
  return hash;
}

}  // namespace

Result<std::shared_ptr<const Fd>> ProgramCache::load(const std::string& path, const std::string& hash,
                                                     std::uint64_t max_bytes) {
  const auto read_error = [&](Code code, const std::string& reason) {
    return fail(code, "the program " + hash + " cannot be read: " + path + ": " + reason);
  };
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0)
    return read_error(is_shortage(errno) ? Code::unavailable : Code::unsupported, errno_text(errno));
  if (!S_ISREG(info.st_mode)) return read_error(Code::unsupported, "it is not a regular file");
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size > max_bytes) {
    return fail(Code::invalid, "script: the program has " + std::to_string(size) +
                                   " bytes, and the job's disk and files at most " + std::to_string(max_bytes) +
                                   ": increase policy.disk and policy.file_size");
  }
  const Identity identity{info.st_dev, info.st_ino, info.st_size, nanoseconds(info.st_mtim), nanoseconds(info.st_ctim)};
  if (auto cached = find(path, identity)) return cached;
  auto copy = seal(file, size);
  if (!copy) return read_error(Code::unavailable, copy.error().message);
  const auto file_hash = hash_file(*copy, size);
  if (!file_hash) return read_error(Code::unavailable, file_hash.error().message);
  if (*file_hash != hash)
    return fail(Code::invalid, "script: " + path + " does not match the hash in its name: remove it and add it again");
  auto shared = std::make_shared<const Fd>(std::move(*copy));
  store({path, identity, shared});
  return shared;
}

std::shared_ptr<const Fd> ProgramCache::find(const std::string& path, const Identity& identity) {
  const std::scoped_lock lock(mutex_);
  const auto entry =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& candidate) { return candidate.path == path; });
  if (entry == entries_.end()) return nullptr;
  if (entry->identity == identity) {
    entries_.splice(entries_.begin(), entries_, entry);
    return entry->file;
  }
  stored_bytes_ -= static_cast<std::uint64_t>(entry->identity.size);
  entries_.erase(entry);
  return nullptr;
}

void ProgramCache::store(Entry entry) {
  const auto size = static_cast<std::uint64_t>(entry.identity.size);
  if (size > max_stored_bytes_) return;
  const std::scoped_lock lock(mutex_);
  stored_bytes_ += size;
  entries_.push_front(std::move(entry));
  for (; stored_bytes_ > max_stored_bytes_; entries_.pop_back())
    stored_bytes_ -= static_cast<std::uint64_t>(entries_.back().identity.size);
}

namespace {

constexpr std::size_t kMinDigits = 8, kHashDigits = 64;
constexpr const char* kRemedy = ": add it with `mycojobs program add FILE`, which prints its hash";

std::vector<std::string> split_lines(const std::string& script) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < script.size();) {
    const std::size_t end = std::min(script.find('\n', begin), script.size());
    std::string line = script.substr(begin, end - begin);
    if (line.ends_with('\r')) line.pop_back();
    lines.push_back(std::move(line));
    begin = end + 1;
  }
  return lines;
}

Result<std::string> find_program(const std::string& folder, const std::string& prefix) {
  const bool is_hash = prefix.size() >= kMinDigits && prefix.size() <= kHashDigits &&
                       prefix.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!is_hash) {
    return fail(Code::invalid,
                "script: its first line must be the SHA-256 of a program, 8 to 64 digits in lower-case "
                "letters, not " +
                    excerpt(prefix, 80) + kRemedy);
  }
  std::string match;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(folder.c_str()), ::closedir);
  while (const dirent* entry = listing ? ::readdir(listing.get()) : nullptr) {
    const std::string name = entry->d_name;
    if (name.size() != kHashDigits || !name.starts_with(prefix)) continue;
    if (!match.empty())
      return fail(Code::invalid, "script: more than one program begins with " + prefix + ": use more digits");
    match = name;
  }
  if (match.empty())
    return fail(Code::invalid, "script: no program of this context on this host is " + prefix + kRemedy);
  return match;
}

}  // namespace

std::vector<Stage> NativeExecutor::stages() const {
  return {{.profile = "native", .host = kProgramHost, .policy = profile("native"), .needs_exec = true}};
}

Result<std::string> NativeExecutor::probe() const {
  utsname host{};
  ::uname(&host);
  return "programs for Linux " + std::string(host.machine);
}

Result<std::unique_ptr<Conversation>> NativeExecutor::begin(const JobFacts& facts, ArtifactSink* sink) const {
  std::vector<std::string> lines = split_lines(facts.job.script);
  const std::string folder = programs_folder(state_dir_, facts.job.context_id);
  MJ_TRY(hash, find_program(folder, lines.empty() ? "" : lines.front()));
  const std::uint64_t max_bytes =
      std::min({facts.granted_policy.disk_bytes, facts.granted_policy.file_bytes, kMaxProgramBytes});
  MJ_TRY(program, programs_.load(folder + '/' + hash, hash, max_bytes));
  lines.front() = "/job/program";
  return begin_program(facts,
                       {.executor = name(),
                        .profile = "native",
                        .command = std::move(lines),
                        .is_verbatim = true,
                        .attached_path = "program",
                        .attached = std::move(program)},
                       sink);
}

}  // namespace mycojobs
