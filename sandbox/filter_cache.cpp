#include "sandbox/filter_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "base/errno_text.h"
#include "sandbox/policy.h"

namespace mycojobs::sandbox {
namespace {

constexpr std::size_t kMost = 64;

std::string key_of(const FilterRequest& request) {
  std::string key = request.exec ? "exec" : "";
  key += request.sockets ? " sockets" : "";
  key += request.learn ? " learn" : "";
  key += request.shared_files ? " files" : "";
  auto names = request.added;
  std::sort(names.begin(), names.end());
  for (const auto& name : names) key += " " + name;
  return key;
}

}  // namespace

Result<int> FilterCache::filter_for(const RunSpec& spec) {
  FilterRequest request{spec.limits.exec, spec.grants.network != Network::none, spec.grants.syscalls, spec.learn};
  request.shared_files = !request.exec && !(spec.grants.fs_read.empty() && spec.grants.fs_write.empty());
  if (!request.sockets && request.added.empty() && !request.learn && !request.shared_files) return -1;
  const std::string key = key_of(request);
  const auto found = std::find_if(files_.begin(), files_.end(), [&](const auto& file) { return file.first == key; });
  if (found != files_.end()) {
    files_.splice(files_.begin(), files_, found);
    return files_.front().second.get();
  }
  MJ_TRY(program, compile_filter(request));
  Fd file(::memfd_create("filter", MFD_CLOEXEC));
  if (!file) return fail(Code::io, "seccomp: memfd_create: " + errno_text(errno));
  if (int error = write_filter(file.get(), program); error != 0) return fail(Code::io, "seccomp: " + errno_text(error));
  files_.emplace_front(key, std::move(file));
  if (files_.size() > kMost) files_.pop_back();
  return files_.front().second.get();
}

}  // namespace mycojobs::sandbox
