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

int answer(lua_State* state, bool done) {
  if (!done) return push_errno(state, errno);
  lua_pushboolean(state, 1);
  return 1;
}

const char* path_at(lua_State* state, int index) { return luaL_checkstring(state, index); }

const char* type_of(mode_t mode) {
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
  struct stat found {};
  const int flags = lua_toboolean(state, 2) != 0 ? AT_SYMLINK_NOFOLLOW : 0;
  if (::fstatat(AT_FDCWD, path_at(state, 1), &found, flags) != 0) return push_errno(state, errno);
  lua_newtable(state);
  lua_pushstring(state, type_of(found.st_mode));
  lua_setfield(state, -2, "type");
  set_number(state, "size", found.st_size);
  set_number(state, "mode", found.st_mode & 07777);
  set_number(state, "modified", found.st_mtime);
  return 1;
}

// Returns two lists: names and types; a symbolic link has the type link.
int lua_list(lua_State* state) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(path_at(state, 1)), ::closedir);
  if (folder == nullptr) return push_errno(state, errno);
  lua_newtable(state);
  lua_newtable(state);
  lua_Integer count = 0;
  while (const dirent* entry = ::readdir(folder.get())) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    struct stat found {};
    const bool known = ::fstatat(::dirfd(folder.get()), entry->d_name, &found, AT_SYMLINK_NOFOLLOW) == 0;
    ++count;
    lua_pushstring(state, entry->d_name);
    lua_rawseti(state, -3, count);
    lua_pushstring(state, known ? type_of(found.st_mode) : "other");
    lua_rawseti(state, -2, count);
  }
  return 2;
}

int lua_mkdir(lua_State* state) { return answer(state, ::mkdir(path_at(state, 1), 0755) == 0); }
int lua_rmdir(lua_State* state) { return answer(state, ::rmdir(path_at(state, 1)) == 0); }
int lua_unlink(lua_State* state) { return answer(state, ::unlink(path_at(state, 1)) == 0); }
int lua_rename(lua_State* state) { return answer(state, ::rename(path_at(state, 1), path_at(state, 2)) == 0); }
int lua_symlink(lua_State* state) { return answer(state, ::symlink(path_at(state, 1), path_at(state, 2)) == 0); }
int lua_chdir(lua_State* state) { return answer(state, ::chdir(path_at(state, 1)) == 0); }
int lua_executable(lua_State* state) { return answer(state, ::access(path_at(state, 1), X_OK) == 0); }
int lua_chmod(lua_State* state) {
  return answer(state, ::chmod(path_at(state, 1), static_cast<mode_t>(luaL_checkinteger(state, 2)) & 07777) == 0);
}

int lua_readlink(lua_State* state) {
  std::array<char, PATH_MAX> target;  // NOLINT(*-member-init): filled by readlink
  const ssize_t size = ::readlink(path_at(state, 1), target.data(), target.size());
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
  const Fd file(::open(path_at(state, 1), O_RDONLY | O_CLOEXEC));
  if (!file) return push_errno(state, errno);
  luaL_Buffer buffer;
  luaL_buffinit(state, &buffer);
  for (;;) {
    char* const room = luaL_prepbuffsize(&buffer, 65536);
    const ssize_t got = ::read(file.get(), room, 65536);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return push_errno(state, errno);
    if (got == 0) break;
    luaL_addsize(&buffer, static_cast<std::size_t>(got));
  }
  luaL_pushresult(&buffer);
  return 1;
}

// Arguments: path, bytes, append.
int lua_write_file(lua_State* state) {
  std::size_t size = 0;
  const char* bytes = luaL_checklstring(state, 2, &size);
  const int how = lua_toboolean(state, 3) != 0 ? O_APPEND : O_TRUNC;
  const Fd file(::open(path_at(state, 1), O_WRONLY | O_CREAT | O_CLOEXEC | how, 0644));
  return answer(state, file && write_all(file.get(), {bytes, size}));
}

// Arguments: from, to. Copies the contents and permissions of one file. On failure, a fourth value names the argument
// that failed: from or to. EEXIST: both are the same file, for example through a link; it is not changed.
int lua_copy_file(lua_State* state) {
  const char* wrong = "from";
  struct stat found {};
  const Fd from(::open(path_at(state, 1), O_RDONLY | O_CLOEXEC));
  bool fine = from && ::fstat(from.get(), &found) == 0;
  Fd to;
  if (fine) {
    wrong = "to";
    to.reset(::open(path_at(state, 2), O_WRONLY | O_CREAT | O_CLOEXEC, found.st_mode & 0777));
    struct stat there {};
    fine = to && ::fstat(to.get(), &there) == 0;
    if (fine && there.st_dev == found.st_dev && there.st_ino == found.st_ino) {
      lua_pushnil(state);
      for (const char* text : {"source and target are the same file", "EEXIST", wrong}) lua_pushstring(state, text);
      return 4;
    }
    fine = fine && (!S_ISREG(there.st_mode) || ::ftruncate(to.get(), 0) == 0);
  }
  std::array<char, 65536> part;  // NOLINT(*-member-init): filled by read
  for (ssize_t got = 1; fine && got != 0;) {
    got = ::read(from.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    fine = got >= 0 && write_all(to.get(), {part.data(), static_cast<std::size_t>(got)});
  }
  if (fine) return answer(state, true);
  push_errno(state, errno);
  lua_pushstring(state, wrong);
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
