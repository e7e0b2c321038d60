#include "artifacts/transfer/holder_name.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>

#include "base/errno_text.h"
#include "base/fd.h"
#include "base/random.h"
#include "model/file_holder.h"

namespace mycojobs {
namespace {

constexpr std::size_t kNameBytes = 12;  // 24 hex digits

std::string get_name_path(const ArtifactFolder& folder) { return folder.path() + "/holder"; }

std::string read_host_name() {
  std::array<char, 256> host{};
  return ::gethostname(host.data(), host.size() - 1) == 0 ? host.data() : "";
}

Result<void> create_context_folder(const std::string& path) {
  const std::string parent = path.substr(0, path.rfind('/'));
  std::error_code error;
  std::filesystem::create_directories(parent.substr(0, parent.rfind('/')), error);
  for (const std::string& folder : {parent, path})
    if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
      return fail(Code::unavailable, folder + ": " + errno_text(errno));
  return {};
}

Result<void> write_name(const std::string& path, const std::string& name) {
  const Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd || ::write(fd.get(), name.data(), name.size()) != static_cast<ssize_t>(name.size()) || ::fsync(fd.get()) != 0)
    return fail(Code::unavailable, path + ": " + errno_text(errno));
  return {};
}

}  // namespace

std::string find_holder_name(const ArtifactFolder& folder) {
  const Fd fd(::open(get_name_path(folder).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  std::array<char, 256> buffer{};
  const ssize_t size = fd ? ::read(fd.get(), buffer.data(), buffer.size()) : -1;
  if (size <= 0) return {};
  std::string name(buffer.data(), static_cast<std::size_t>(size));
  return is_coordinator_name(name) ? name : std::string();
}

// The file gets its name by a link, so that it is never incomplete, and the first of several processes wins.
Result<std::string> find_or_create_holder_name(const ArtifactFolder& folder) {
  if (std::string name = find_holder_name(folder); !name.empty()) return name;
  MJ_CHECK(create_context_folder(folder.path()));
  const std::string path = get_name_path(folder), new_path = path + '.' + random_hex(8);
  const std::string new_name = make_coordinator_name(random_hex(kNameBytes), read_host_name());
  auto written = write_name(new_path, new_name);
  const bool is_linked = written && ::link(new_path.c_str(), path.c_str()) == 0;
  const int link_error = errno;
  (void)::unlink(new_path.c_str());
  MJ_CHECK(written);
  if (is_linked) return new_name;
  if (std::string name = find_holder_name(folder); !name.empty()) return name;
  return fail(Code::unavailable, path + ": " + errno_text(link_error) + ": delete the file if it exists");
}

}  // namespace mycojobs
