-- Git repositories, with the host's git.
local host, modules = ...
local kit, files = modules.base, modules.files
local find, gsub, match, sub = string.find, string.gsub, string.match, string.sub
local sort = table.sort
local git = {}

-- Granted folders belong to another user, and there is no terminal for a password prompt.
local function run_git(api_name, arguments, folder)
  local words = {"git", "-c", "safe.directory=*", "-c", "core.askPass=true", "-c", "credential.interactive=never"}
  for i = 1, #arguments do words[#words + 1] = arguments[i] end
  local result = kit.run_words(api_name, words, {folder = folder})
  return kit.check_success(api_name, folder or arguments[#arguments], result)
end

local Repo, Tree = {__name = "repo"}, {__name = "tree"}
Repo.__index, Tree.__index = Repo, Tree

local function new_repo(path) return setmetatable({folder = kit.absolute(path)}, Repo) end

function Repo:path() return self.folder end
function Repo:has_changes() return run_git("has_changes", {"status", "--porcelain"}, self.folder).stdout ~= "" end

function Repo:pull()
  if Repo.has_changes(self) then
    kit.fail("conflict", "pull: %s has changes: commit them, or discard them with reset()", self.folder)
  end
  run_git("pull", {"pull", "--ff-only", "--quiet"}, self.folder)
  return self
end

-- Discards all changes and untracked files.
function Repo:reset()
  run_git("reset", {"reset", "--hard", "--quiet"}, self.folder)
  run_git("reset", {"clean", "-fd", "--quiet"}, self.folder)
  return self
end

local function has_author(folder)
  local result = kit.run_words("commit", {"git", "-c", "safe.directory=*", "config", "user.email"}, {folder = folder})
  return result.success
end

-- Commits all changes. If the repository's configuration has no author, the author is job@localhost.
function Repo:commit(message)
  message = kit.text("commit", 1, message)
  if message == "" then kit.fail("invalid", "commit: the message is empty") end
  if not Repo.has_changes(self) then return self end
  run_git("commit", {"add", "--all"}, self.folder)
  local words = {"commit", "--quiet", "-m", message}
  if not has_author(self.folder) then
    words = {"-c", "user.name=job", "-c", "user.email=job@localhost", "commit", "--quiet", "-m", message}
  end
  run_git("commit", words, self.folder)
  return self
end

function Repo:push()
  run_git("push", {"push", "--quiet", "origin", "HEAD"}, self.folder)
  return self
end

-- Returns server, port and path of https://user@server:port/path; nil for other texts.
local function split_url(url)
  local scheme, authority, path = match(url, "^(https?)://([^/]+)/+(.+)$")
  if not scheme then return nil end
  local server, port = match(gsub(authority, "^.*@", ""), "^([^:]+):?(%d*)$")
  if not server then kit.fail("invalid", "git_clone: %q has no server", url) end
  return server, port ~= "" and port or (scheme == "https" and "443" or "80"), path
end

-- Returns the relative folder of a repository in a tree: server, account and name; or "local" and the last two parts of
-- a path.
local function get_repository_folder(url)
  local server, _, path = split_url(url)
  if not server then server, path = "local", match(url, "([^/]+/[^/]+)/*$") or url end
  path = gsub(gsub(path, "/+$", ""), "%.git$", "")
  if path == "" or find("/" .. path .. "/", "/%.*/") then
    kit.fail("invalid", "git_clone: %q has no plain path", url)
  end
  return server .. "/" .. path
end

local function clone(api_name, url, folder)
  kit.need_exec(api_name)
  local server, port = split_url(url)
  if server then
    kit.need_net(api_name, server, port)
  elseif not find(url, "^/") and not find(url, "^file:///") then
    kit.fail("invalid", "%s: %q: a job clones from https://, http:// and from folders", api_name, url)
  end
  files.mkdir(match(kit.absolute(folder), "^(.*)/"))
  run_git(api_name, {"clone", "--quiet", "--", url, folder})
  return new_repo(folder)
end

-- Clones into `folder`, by default below code/ in the job's folder. An existing repository is pulled.
function git.git_clone(url, folder)
  url = kit.text("git_clone", 1, url)
  folder = kit.text("git_clone", 2, folder, kit.folder .. "/code/" .. get_repository_folder(url))
  if host.stat(folder .. "/.git") then return new_repo(folder):pull() end
  return clone("git_clone", url, folder)
end

function git.git_tree_new(folder)
  folder = kit.path("git_tree_new", 1, folder)
  files.mkdir(folder)
  return setmetatable({base = kit.absolute(folder)}, Tree)
end

function Tree:list()
  local list = {}
  local matches = files.find_dirs(self.base, ".git")
  for i = 1, #matches do list[i] = gsub(matches[i], "/%.git$", "") end
  sort(list)
  return list
end

-- Returns the repositories with a relative path or name that matches the pattern.
function Tree:find(pattern)
  local lua_pattern, matches = kit.matcher(kit.text("find", 1, pattern)), {}
  for _, path in ipairs(Tree.list(self)) do
    if find(sub(path, #self.base + 2), lua_pattern) or find(match(path, "[^/]+$"), lua_pattern) then
      matches[#matches + 1] = new_repo(path)
    end
  end
  return matches
end

-- Returns one repository: by its address (cloned if missing), or by its path or name.
function Tree:get(name)
  name = kit.text("get", 1, name)
  if find(name, "://", 1, true) then
    local folder = self.base .. "/" .. get_repository_folder(name)
    if host.stat(folder .. "/.git") then return new_repo(folder) end
    return clone("get", name, folder)
  end
  local matches = Tree.find(self, name)
  if #matches == 1 then return matches[1] end
  kit.fail(#matches == 0 and "not_found" or "conflict", "get: %d repositories below %s match %s", #matches, self.base,
      name)
end

return git
