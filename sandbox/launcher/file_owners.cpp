#include "sandbox/launcher/file_owners.h"

#include <fmt/core.h>
#include <unistd.h>

#include <utility>

namespace mycojobs::sandbox {
namespace {

bool is_root(const FileOwner& owner) { return owner.uid == 0 || owner.gid == 0; }

}  // namespace

Result<FileOwners> FileOwners::make(std::vector<ContextFiles> files, const IdRange& ids, UsedIds used_ids) {
  FileOwners owners;
  owners.ids_ = ids;
  owners.used_ids_ = std::move(used_ids);
  for (const ContextFiles& entry : files) {
    const std::string name = fmt::format("contexts.{}.files.owner", entry.context);
    if (auto checked = owners.check_owner(entry.owner); !checked) return fail(std::move(checked).error(), name);
    if (is_root(entry.owner)) return fail(Code::invalid, name + ": jobs never write as root: name another user");
    if (entry.has_fixed_uid && owners.has_ids() && !are_ids_mapped(entry.owner)) {
      return fail(Code::invalid, fmt::format("{}: the ids {}:{} do not exist in this container: use ids of "
                                             "/proc/self/uid_map and gid_map",
                                             name, entry.owner.uid, entry.owner.gid));
    }
  }
  owners.files_ = std::move(files);
  return owners;
}

// A job with an id of the range could read and change the owner's files without a mapping.
Result<void> FileOwners::check_owner(const FileOwner& owner) const {
  if (owner.uid == kUnknownFileOwner.uid || owner.gid == kUnknownFileOwner.gid)
    return fail(Code::invalid, "is no user of this host");
  if (!has_ids()) {
    if (owner.uid == ::geteuid()) return {};
    return fail(Code::invalid,
                fmt::format("is user {}, but only an agent of root can map ids: name the agent's own user {}, or run "
                            "the agent as root",
                            owner.uid, ::geteuid()));
  }
  for (const std::uint32_t id : {owner.uid, owner.gid}) {
    if (id >= ids_.base && id - ids_.base < ids_.count)
      return fail(Code::invalid, fmt::format("{} is an id of jobs (sandbox.uid_range): name another user", id));
    if (contains_id(used_ids_.of_launchers, id))
      return fail(Code::invalid, fmt::format("{} is an id of jobs of another agent: name another user", id));
  }
  return {};
}

Result<FileOwner> FileOwners::find_owner(ContextId context) const {
  if (!has_ids()) return FileOwner{::geteuid(), ::getegid()};
  if (const ContextFiles* files = find_context_files(files_, context); files != nullptr) return files->owner;
  const FileOwner owner = default_file_owner(context);
  const bool is_free = check_owner(owner) && !contains_id(used_ids_.of_users, owner.uid);
  if (context <= kMaxContextWithFileUid && is_free) return owner;
  return fail(Code::invalid,
              fmt::format("fs.write: files of context {0} have no owner{1}: set [contexts.{0}.files] owner", context,
                          is_free ? "" : fmt::format(", since {} is an id of others on this host", owner.uid)));
}

std::optional<FileOwner> FileOwners::find_fixed_owner(ContextId context) const {
  const ContextFiles* files = find_context_files(files_, context);
  if (!has_ids() || files == nullptr || !files->has_fixed_uid) return {};
  return files->owner;
}

Result<void> FileOwners::check_volume(const Volume& volume) const {
  const std::string name = fmt::format("volume {}: owner", volume.name);
  if (auto checked = check_owner(volume.owner); !checked) return fail(std::move(checked).error(), name);
  if (volume.writable && is_root(volume.owner))
    return fail(Code::invalid, name + ": jobs never write as root: name another user, or use mode = \"ro\"");
  return {};
}

FileOwner FileOwners::get_job_ids(ContextId context, std::uint32_t uid) const {
  if (!has_ids()) return {::geteuid(), ::getegid()};
  if (const auto fixed = find_fixed_owner(context); fixed && uid == ids_.fixed_uid()) return *fixed;
  return {ids_.base + uid, ids_.base + uid};
}

}  // namespace mycojobs::sandbox
