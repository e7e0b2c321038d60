// File functions for the Lua modules. Each function returns true or a value; or nil, the error text and the name of
// errno.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <memory>
#include <string>

#include "base/fd.h"
#include "executors/lua/luahost/state.h"

namespace mycojobs::lua {
namespace {

int push_result(lua_State* state, bool success) {
  if (!success) return push_errno(state, errno);
  lua_pushboolean(state, 1);
  return 1;
}

const char* get_path(lua_State* state, int index) { return luaL_checkstring(state, index); }

const char* get_file_type(mode_t mode) {
  if (S_ISREG(mode)) return "file";
  if (S_ISDIR(mode)) return "dir";
  return S_ISLNK(mode) ? "link" : "other";
}

void set_number(lua_State* state, const char* name, lua_Integer value) {
  lua_pushinteger(state, value);
  lua_setfield(state, -2, name);
}

// Arguments: path, do not follow a link.
int lua_stat(lua_State* state) {
  struct stat status {};
  const int flags = lua_toboolean(state, 2) != 0 ? AT_SYMLINK_NOFOLLOW : 0;
  if (::fstatat(AT_FDCWD, get_path(state, 1), &status, flags) != 0) return push_errno(state, errno);
  lua_newtable(state);
  lua_pushstring(state, get_file_type(status.st_mode));
  lua_setfield(state, -2, "type");
  set_number(state, "size", status.st_size);
  set_number(state, "mode", status.st_mode & 07777);
  set_number(state, "modified", status.st_mtime);
  return 1;
}

// Returns two lists: names and types; a symbolic link has the type link.
int lua_list(lua_State* state) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(get_path(state, 1)), ::closedir);
  if (folder == nullptr) return push_errno(state, errno);
  lua_newtable(state);
  lua_newtable(state);
  lua_Integer count = 0;
  while (const dirent* entry = ::readdir(folder.get())) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    struct stat status {};
    const bool has_status = ::fstatat(::dirfd(folder.get()), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0;
    ++count;
    lua_pushstring(state, entry->d_name);
    lua_rawseti(state, -3, count);
    lua_pushstring(state, has_status ? get_file_type(status.st_mode) : "other");
    lua_rawseti(state, -2, count);
  }
  return 2;
}

int lua_mkdir(lua_State* state) { return push_result(state, ::mkdir(get_path(state, 1), 0755) == 0); }
int lua_rmdir(lua_State* state) { return push_result(state, ::rmdir(get_path(state, 1)) == 0); }
int lua_unlink(lua_State* state) { return push_result(state, ::unlink(get_path(state, 1)) == 0); }
int lua_rename(lua_State* state) { return push_result(state, ::rename(get_path(state, 1), get_path(state, 2)) == 0); }
int lua_symlink(lua_State* state) { return push_result(state, ::symlink(get_path(state, 1), get_path(state, 2)) == 0); }
int lua_chdir(lua_State* state) { return push_result(state, ::chdir(get_path(state, 1)) == 0); }
int lua_executable(lua_State* state) { return push_result(state, ::access(get_path(state, 1), X_OK) == 0); }
int lua_chmod(lua_State* state) {
  return push_result(state, ::chmod(get_path(state, 1), static_cast<mode_t>(luaL_checkinteger(state, 2)) & 07777) == 0);
}

int lua_readlink(lua_State* state) {
  std::array<char, PATH_MAX> target;  // NOLINT(*-member-init): filled by readlink
  const ssize_t size = ::readlink(get_path(state, 1), target.data(), target.size());
  if (size < 0) return push_errno(state, errno);
  lua_pushlstring(state, target.data(), static_cast<std::size_t>(size));
  return 1;
}

int lua_getcwd(lua_State* state) {
  std::array<char, PATH_MAX> path;  // NOLINT(*-member-init): filled by getcwd
  if (::getcwd(path.data(), path.size()) == nullptr) return push_errno(state, errno);
  lua_pushstring(state, path.data());
  return 1;
}

// Returns the whole contents of a file. A folder fails with EISDIR.
int lua_read_file(lua_State* state) {
  const Fd file(::open(get_path(state, 1), O_RDONLY | O_CLOEXEC));
  if (!file) return push_errno(state, errno);
  luaL_Buffer buffer;
  luaL_buffinit(state, &buffer);
  for (;;) {
    char* const buffer_end = luaL_prepbuffsize(&buffer, 65536);
    const ssize_t count = ::read(file.get(), buffer_end, 65536);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return push_errno(state, errno);
    if (count == 0) break;
    luaL_addsize(&buffer, static_cast<std::size_t>(count));
  }
  luaL_pushresult(&buffer);
  return 1;
}

// Arguments: path, bytes, append.
int lua_write_file(lua_State* state) {
  std::size_t size = 0;
  const char* bytes = luaL_checklstring(state, 2, &size);
  const int mode_flag = lua_toboolean(state, 3) != 0 ? O_APPEND : O_TRUNC;
  const Fd file(::open(get_path(state, 1), O_WRONLY | O_CREAT | O_CLOEXEC | mode_flag, 0644));
  return push_result(state, file && write_all(file.get(), {bytes, size}));
}

// Arguments: from, to. Copies the contents and permissions of one file. On failure, a fourth value names the argument
// that failed: from or to. EEXIST: both are the same file, for example through a link; it is not changed.
int lua_copy_file(lua_State* state) {
  const char* failed_argument = "from";
  struct stat status {};
  const Fd source(::open(get_path(state, 1), O_RDONLY | O_CLOEXEC));
  bool is_ok = source && ::fstat(source.get(), &status) == 0;
  Fd target;
  if (is_ok) {
    failed_argument = "to";
    target.reset(::open(get_path(state, 2), O_WRONLY | O_CREAT | O_CLOEXEC, status.st_mode & 0777));
    struct stat target_status {};
    is_ok = target && ::fstat(target.get(), &target_status) == 0;
    if (is_ok && target_status.st_dev == status.st_dev && target_status.st_ino == status.st_ino) {
      lua_pushnil(state);
      for (const char* text : {"source and target are the same file", "EEXIST", failed_argument})
        lua_pushstring(state, text);
      return 4;
    }
    is_ok = is_ok && (!S_ISREG(target_status.st_mode) || ::ftruncate(target.get(), 0) == 0);
  }
  std::array<char, 65536> part;  // NOLINT(*-member-init): filled by read
  for (ssize_t count = 1; is_ok && count != 0;) {
    count = ::read(source.get(), part.data(), part.size());
    if (count < 0 && errno == EINTR) continue;
    is_ok = count >= 0 && write_all(target.get(), {part.data(), static_cast<std::size_t>(count)});
  }
  if (is_ok) return push_result(state, true);
  push_errno(state, errno);
  lua_pushstring(state, failed_argument);
  return 4;
}

}  // namespace

void add_file_functions(lua_State* state) {
  const luaL_Reg functions[] = {{"stat", lua_stat},
                                {"list", lua_list},
                                {"mkdir", lua_mkdir},
                                {"rmdir", lua_rmdir},
                                {"unlink", lua_unlink},
                                {"rename", lua_rename},
                                {"symlink", lua_symlink},
                                {"readlink", lua_readlink},
                                {"chdir", lua_chdir},
                                {"chmod", lua_chmod},
                                {"executable", lua_executable},
                                {"getcwd", lua_getcwd},
                                {"read_file", lua_read_file},
                                {"write_file", lua_write_file},
                                {"copy_file", lua_copy_file},
                                {nullptr, nullptr}};
  add_functions(state, functions);
}

}  // namespace mycojobs::lua
