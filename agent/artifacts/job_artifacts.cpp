#include "artifacts/job_artifacts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "artifacts/artifact_file.h"
#include "artifacts/artifact_folder.h"
#include "base/errno_text.h"
#include "base/parse.h"
#include "base/random.h"
#include "store/keys.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr int kLockWaitMs = 2000;  // processes that delete files hold the lock for some milliseconds

bool is_store_name(std::string_view name) { return is_hex(name, 24); }

// Creates the object with the content of this file. An existing object is used and not replaced: a run that is linking
// it at the same time would otherwise keep a file that is not among the objects.
Result<void> make_object(const WholeFile& file, const std::string& object) {
  if (::link(file.path.c_str(), object.c_str()) == 0) return {};
  struct stat there {};
  if (errno != EEXIST) return fail(Code::io, errno_text(errno));
  if (::stat(object.c_str(), &there) == 0 && static_cast<std::uint64_t>(there.st_size) == file.bytes) return {};
  // The object has another size, so a loss of power has damaged it. It is replaced atomically.
  if (::rename(file.path.c_str(), object.c_str()) == 0) return {};
  return fail(Code::io, errno_text(errno));
}

}  // namespace

Result<void> keep_artifact(const WholeFile& file, const std::string& object, const std::string& of_the_job) {
  MJ_CHECK(make_object(file, object));
  (void)::unlink(of_the_job.c_str());  // link of an earlier attempt, possibly to an object that was deleted
  if (::link(object.c_str(), of_the_job.c_str()) == 0) return {};
  // The object has the maximum number of links, so this file replaces it as the object for further links.
  if (errno != EMLINK || ::rename(file.path.c_str(), object.c_str()) != 0 ||
      ::link(object.c_str(), of_the_job.c_str()) != 0)
    return fail(Code::io, errno_text(errno));
  return {};
}

namespace {

class RunArtifactsImpl final : public RunArtifacts {
 public:
  RunArtifactsImpl(const std::string& state_dir, Id context, std::string store_name, std::string job_key,
                   std::uint64_t max_bytes, ArtifactQuota quota)
      : folder_(state_dir, context),
        store_name_(std::move(store_name)),
        job_key_(std::move(job_key)),
        max_bytes_(max_bytes),
        left_(max_bytes),
        quota_(quota) {}

  void keep_out(std::shared_ptr<const Redactor> redactor) override { redactor_ = std::move(redactor); }
  bool open(const std::string& sent, bool executable) override;
  void write(std::string_view bytes) override;
  void close() override;
  std::vector<std::string> take_notes() override { return std::exchange(notes_, {}); }
  std::string finish() override;
  void report_dropped(const DroppedArtifact&) override;
  std::vector<DroppedArtifact> dropped() const override { return dropped_.all(); }

 private:
  // Drop the current artifact. All refuse functions return false.
  bool refuse(DropReason, const std::string& why, std::uint64_t limit = 0);
  bool refuse_for_disk(const std::string& what, const Error& error) {
    return refuse(DropReason::disk, "this host cannot " + what + " it: " + error.message);
  }
  bool refuse_over_limit() {
    return refuse(DropReason::bytes,
                  "all artifacts of a job together may have " + std::to_string(max_bytes_) +
                      " bytes: store less, or ask the operator to raise job.max_artifact_bytes",
                  max_bytes_);
  }
  bool refuse_incomplete() { return refuse(DropReason::incomplete, "it ended in the middle"); }
  std::string problem_with(const std::string& name) const;
  bool refuse_over_quota(ArtifactUsage::Fit fit) {
    const bool is_caller = fit == ArtifactUsage::Fit::caller_full;
    const std::uint64_t limit = is_caller ? quota_.caller_bytes : quota_.context_bytes;
    return refuse(is_caller ? DropReason::caller_quota : DropReason::context_quota,
                  std::string(is_caller ? "its caller" : "its context") + " may have artifacts of " +
                      std::to_string(limit) + " bytes on this host: delete jobs that have some, or let the operator " +
                      "raise quota." + (is_caller ? "caller" : "context") + "_artifact_bytes",
                  limit);
  }
  Result<void> begin_file();
  Result<void> reserve_space_for(const ArtifactUsage&, const std::string& folder_of_job);
  void give_back_lost(const ArtifactUsage&, const std::string& folder_of_job) const;

  ArtifactFolder folder_;
  std::string store_name_, job_key_;
  std::uint64_t max_bytes_, left_;
  ArtifactQuota quota_;
  std::shared_ptr<const Redactor> redactor_;
  std::optional<Spool> spool_;
  std::string name_;  // name of the current artifact
  bool executable_ = false;
  std::optional<ArtifactFile> file_;
  std::map<std::string, WholeFile> whole_;
  std::set<std::string, std::less<>> folders_;  // folders in the names of whole_
  std::size_t opened_ = 0, refused_ = 0;
  std::vector<std::string> notes_;
  DroppedArtifacts dropped_;
};

bool RunArtifactsImpl::refuse(DropReason reason, const std::string& why, std::uint64_t limit) {
  constexpr std::size_t kMaxNotes = 20;
  file_.reset();
  dropped_.add({name_, reason, limit});
  if (++refused_ <= kMaxNotes) notes_.push_back("artifact " + excerpt(name_, 200) + ": not kept: " + why);
  if (refused_ == kMaxNotes + 1) notes_.emplace_back("further artifacts were not stored; their reasons are omitted");
  return false;
}

std::string RunArtifactsImpl::problem_with(const std::string& name) const {
  if (const std::string problem = problem_with_artifact_name(name); !problem.empty()) return problem;
  if (whole_.contains(name)) return "another one has its name";
  if (folders_.contains(name)) return "its name is the name of a folder with other artifacts";
  for (std::size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1)) {
    if (whole_.contains(name.substr(0, slash))) return "the name of its folder is that of a file";
  }
  return {};
}

Result<void> RunArtifactsImpl::begin_file() {
  if (store_name_.empty())
    return fail(Code::io, "the name of the store is unknown; the log of the agent has the reason");
  if (!spool_) {
    MJ_CHECK(folder_.make(store_name_));
    MJ_TRY(spool, Spool::make(folder_.spool()));
    spool_.emplace(std::move(spool));
  }
  MJ_TRY(file, ArtifactFile::create(spool_->path() + '/' + std::to_string(opened_), redactor_.get()));
  file_.emplace(std::move(file));
  return {};
}

// The name of an artifact can contain a secret too.
bool RunArtifactsImpl::open(const std::string& sent, bool executable) {
  if (file_) refuse_incomplete();
  name_ = redactor_ ? redactor_->redact(sent) : sent;
  if (const std::string problem = problem_with(name_); !problem.empty()) return refuse(DropReason::name, problem);
  if (opened_ >= kMaxArtifacts) {
    return refuse(DropReason::files, "a job may leave " + std::to_string(kMaxArtifacts) + " files: pack them",
                  kMaxArtifacts);
  }
  ++opened_;
  executable_ = executable;
  if (auto start_result = begin_file(); !start_result) return refuse_for_disk("write", start_result.error());
  return true;
}

void RunArtifactsImpl::report_dropped(const DroppedArtifact& sent) {
  DroppedArtifact dropped = sent;
  if (redactor_) dropped.name = redactor_->redact(dropped.name);
  dropped_.add(std::move(dropped));
}

void RunArtifactsImpl::write(std::string_view bytes) {
  if (!file_) return;
  if (bytes.size() > left_) {
    refuse_over_limit();
    return;
  }
  left_ -= bytes.size();  // never added again: the bytes of a refused artifact were written too
  if (auto written = file_->write(bytes); !written) {
    refuse_for_disk("write", written.error());
  } else if (file_->grown() > left_) {
    refuse_over_limit();  // a redaction mark can be longer than the secret
  }
}

void RunArtifactsImpl::close() {
  if (!file_) return;
  left_ -= std::min(left_, file_->grown());
  auto whole = file_->finish();
  if (!whole) {
    refuse_for_disk("write", whole.error());
    return;
  }
  file_.reset();
  for (std::size_t slash = name_.find('/'); slash != std::string::npos; slash = name_.find('/', slash + 1))
    folders_.insert(name_.substr(0, slash));
  whole->executable = executable_;
  whole_.emplace(name_, std::move(*whole));
}

// Reserves space for the new files, and drops files that exceed the quota. Content that the job has here already, from
// an earlier attempt or under another name, needs no space.
Result<void> RunArtifactsImpl::reserve_space_for(const ArtifactUsage& usage, const std::string& folder_of_job) {
  std::vector<std::string> hashes;
  std::vector<std::uint64_t> sizes;
  for (const auto& [name, file] : whole_) {
    const bool is_new = ::access((folder_of_job + '/' + file.sha256).c_str(), F_OK) != 0;
    if (!is_new || std::find(hashes.begin(), hashes.end(), file.sha256) != hashes.end()) continue;
    hashes.push_back(file.sha256);
    sizes.push_back(file.bytes);
  }
  if (sizes.empty()) return {};
  MJ_TRY(fits, usage.reserve(caller_of_job(job_key_), sizes, quota_));
  std::map<std::string, ArtifactUsage::Fit, std::less<>> refused;
  for (std::size_t i = 0; i < fits.size(); ++i) {
    if (fits[i] != ArtifactUsage::Fit::fits) refused[hashes[i]] = fits[i];
  }
  for (auto file = whole_.begin(); file != whole_.end();) {
    const auto found = refused.find(file->second.sha256);
    if (found == refused.end()) {
      ++file;
      continue;
    }
    name_ = file->first;
    refuse_over_quota(found->second);
    file = whole_.erase(file);
  }
  return {};
}

// Space was reserved once for each hash, so it is released once for each hash without a link.
void RunArtifactsImpl::give_back_lost(const ArtifactUsage& usage, const std::string& folder_of_job) const {
  std::map<std::string_view, std::uint64_t> lost;
  for (const auto& [name, file] : whole_) {
    if (::access((folder_of_job + '/' + file.sha256).c_str(), F_OK) != 0)
      lost[file.sha256] = accounted_artifact_bytes(file.bytes);
  }
  std::uint64_t room = 0;
  for (const auto& [sha256, bytes] : lost) room += bytes;
  (void)usage.release_bytes(caller_of_job(job_key_), room);  // after an error ArtifactSweep corrects the count
}

std::string RunArtifactsImpl::finish() {
  if (file_) refuse_incomplete();
  if (whole_.empty()) {
    spool_.reset();
    return {};
  }
  const std::string mine = folder_.job(store_name_, job_key_);
  const auto shared = folder_.lock(false, kLockWaitMs);
  std::string problem;
  if (!shared) problem = "the folder is locked by another agent: " + folder_.path() + "/lock";
  if (shared && ::mkdir(mine.c_str(), 0700) != 0 && errno != EEXIST) problem = mine + ": " + errno_text(errno);
  // Updates the time stamp of the folder: a process that has decided to delete the folder notices the change.
  if (problem.empty() && ::utimensat(AT_FDCWD, mine.c_str(), nullptr, AT_SYMLINK_NOFOLLOW) != 0)
    problem = mine + ": " + errno_text(errno);
  const ArtifactUsage usage(folder_, store_name_);
  if (problem.empty()) {
    if (auto taken = reserve_space_for(usage, mine); !taken) problem = taken.error().message;
  }
  std::map<std::string_view, Result<void>> kept;  // by hash, since files with the same content share one link
  nlohmann::json all = nlohmann::json::object();
  for (const auto& [name, file] : whole_) {
    name_ = name;
    if (!problem.empty()) {
      refuse(DropReason::disk, problem);
      continue;
    }
    const auto [result, is_new] = kept.try_emplace(file.sha256);
    if (is_new) result->second = keep_artifact(file, folder_.objects() + '/' + file.sha256, mine + '/' + file.sha256);
    if (!result->second) {
      refuse_for_disk("keep", result->second.error());
      continue;
    }
    all[name] = {{"sha256", file.sha256}, {"bytes", file.bytes}, {"text", file.text}};
    if (file.executable) all[name]["executable"] = true;
  }
  if (problem.empty()) give_back_lost(usage, mine);
  whole_.clear();
  spool_.reset();
  return all.empty() ? std::string() : dump_json(all);
}

}  // namespace

std::string object_path(const std::string& state_dir, Id context, const std::string& sha256) {
  return ArtifactFolder(state_dir, context).objects() + '/' + sha256;
}

std::vector<std::string> artifact_folders(const std::string& state_dir, Id context, const std::string& job_key,
                                          const std::vector<std::string>& store_names) {
  std::vector<std::string> folders;
  for (const std::string& name : store_names) folders.push_back(ArtifactFolder(state_dir, context).job(name, job_key));
  return folders;
}

std::vector<StoredArtifact> read_artifacts(const std::string& json, const std::vector<std::string>& folders) {
  const auto is_kept = [](const std::string& path) {
    struct stat info {};
    return ::lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
  };
  std::vector<StoredArtifact> out;
  for (ListedArtifact& each : read_artifact_list(json)) {
    std::string path;
    for (const std::string& folder : folders) {
      if (path.empty() || !is_kept(path)) path = folder + '/' + each.sha256;
    }
    out.push_back({std::move(each.name), std::move(each.sha256), each.bytes, std::move(path), each.executable});
  }
  return out;
}

Result<std::vector<std::string>> artifact_store_names(RecordStore& store, Id context) {
  for (int tries = 0; tries < 2; ++tries) {
    auto fields = store.load(context, kArtifactsKey);
    if (!fields && fields.error().code != Code::not_found) return tl::unexpected<Error>(std::move(fields).error());
    std::vector<std::string> store_names;
    if (fields) {
      for (const auto& [name, value] : *fields) {
        if (is_store_name(name)) store_names.push_back(name);
      }
    }
    std::sort(store_names.begin(), store_names.end());
    if (!store_names.empty()) return store_names;
    MJ_CHECK(store.save(context, kArtifactsKey, {{random_hex(12), "1"}}));
  }
  return fail(Code::internal, std::string(kArtifactsKey) + ": files written there are lost immediately");
}

Result<std::string> artifact_store_name(RecordStore& store, Id context) {
  MJ_TRY(store_names, artifact_store_names(store, context));
  return store_names.front();
}

std::unique_ptr<RunArtifacts> make_run_artifacts(const std::string& state_dir, Id context,
                                                 const std::string& store_name, const std::string& job_key,
                                                 std::uint64_t max_bytes, ArtifactQuota quota) {
  if (state_dir.empty()) return nullptr;
  return std::make_unique<RunArtifactsImpl>(state_dir, context, store_name, job_key, max_bytes, quota);
}

}  // namespace mycojobs
