-- Files, folders and the type of the machine. Each function raises system errors and names a missing grant.
local host, modules = ...
local kit = modules.base
local find, format, gsub, gmatch, match, sub =
  string.find, string.format, string.gsub, string.gmatch, string.match, string.sub
local sort = table.sort
local files = {}

local function check(api_name, path, writing, done, text, name)
  if done == nil then kit.fail_path(api_name, path, text, name, writing) end
  return done
end

local function base_name(path) return match(gsub(path, "/+$", ""), "[^/]+$") or path end
local function join_path(folder, name) return (gsub(folder, "/+$", "")) .. "/" .. name end
local function is_folder(path)
  local status = host.stat(path)
  return status ~= nil and status.type == "dir"
end

function files.exist(path)
  path = kit.path("exist", 1, path)
  if host.stat(path, true) then return true end
  kit.need_read("exist", path)
  return false
end

-- Creates a folder and its parents; it may exist.
function files.mkdir(path)
  path = kit.path("mkdir", 1, path)
  if is_folder(path) then return "directory " .. path .. " exists" end
  local path_prefix = sub(path, 1, 1) == "/" and "" or "."
  for part in gmatch(path, "[^/]+") do
    path_prefix = path_prefix .. "/" .. part
    if not is_folder(path_prefix) then check("mkdir", path, true, host.mkdir(path_prefix)) end
  end
  return "created directory " .. path
end

local function delete_tree(path)
  local status = host.stat(path, true)
  if status and status.type == "dir" then
    local names = check("delete", path, true, host.list(path))
    for i = 1, #names do delete_tree(join_path(path, names[i])) end
    check("delete", path, true, host.rmdir(path))
  else
    check("delete", path, true, host.unlink(path))
  end
end

-- Deletes a file, a link (not its target), or a folder with its contents. The path may be missing.
function files.delete(path)
  path = kit.path("delete", 1, path)
  if not host.stat(path, true) then
    kit.need_read("delete", path)
    return "nothing to delete at " .. path
  end
  delete_tree(path)
  return "deleted " .. path
end

local function copy_tree(api_name, from, to)
  local status = check(api_name, from, false, host.stat(from, true))
  if status.type == "link" then
    check(api_name, to, true, host.symlink(check(api_name, from, false, host.readlink(from)), to))
  elseif status.type == "dir" then
    if not is_folder(to) then check(api_name, to, true, host.mkdir(to)) end
    local names = check(api_name, from, false, host.list(from))
    for i = 1, #names do copy_tree(api_name, join_path(from, names[i]), join_path(to, names[i])) end
  elseif status.type == "file" then
    local done, text, name, side = host.copy_file(from, to)
    if not done then kit.fail_path(api_name, side == "from" and from or to, text, name, side == "to") end
  else
    kit.fail("invalid", "%s: %s: neither a file nor a folder", api_name, from)
  end
end

-- Copies a file, into `to` under the same name if `to` is a folder; or the contents of a folder into the folder `to`,
-- which is created.
function files.copy(from, to)
  from, to = kit.path("copy", 1, from), kit.path("copy", 2, to)
  local status = check("copy", from, false, host.stat(from))
  if status.type ~= "dir" and (is_folder(to) or sub(to, -1) == "/") then to = join_path(to, base_name(from)) end
  if status.type == "dir" and sub(kit.absolute(to) .. "/", 1, #kit.absolute(from) + 1) == kit.absolute(from) .. "/" then
    kit.fail("invalid", "copy: %s is inside of %s", to, from)
  end
  local above = match(kit.absolute(to), "^(.+)/[^/]+$")
  if above and not is_folder(above) then files.mkdir(above) end
  if status.type == "file" then
    local done, text, name, side = host.copy_file(from, to)
    if not done then kit.fail_path("copy", side == "from" and from or to, text, name, side == "to") end
  else
    copy_tree("copy", from, to)
  end
  return format("copied %s to %s", from, to)
end

function files.mv(from, to)
  from, to = kit.path("mv", 1, from), kit.path("mv", 2, to)
  check("mv", from, false, host.stat(from, true))
  if is_folder(to) then to = join_path(to, base_name(from)) end
  local done, text, name = host.rename(from, to)
  if not done and name == "EXDEV" then
    copy_tree("mv", from, to)
    delete_tree(from)
  elseif not done then
    kit.fail_path("mv", host.stat(match(kit.absolute(to), "^(.*)/") .. "/.") and from or to, text, name, true)
  end
  return format("moved %s to %s", from, to)
end

-- Converts a shell pattern with * and ?. It is matched with names, or with relative paths if it contains '/'.
local function matcher(pattern)
  local plain = gsub(pattern, "[%^%$%(%)%%%.%[%]%+%-]", "%%%0")
  return "^" .. gsub(gsub(plain, "%*", ".*"), "%?", ".") .. "$"
end
kit.matcher = matcher

local function walk(api_name, folder, entry_type, pattern, matches, relative_folder, depth)
  if depth > 100 then kit.fail("too_large", "%s: %s: more than 100 folders deep", api_name, folder) end
  local names, types, code = host.list(folder)
  if not names then
    if depth > 0 and code == "EACCES" then return end -- skip a subfolder that the job may not read
    kit.need_read(api_name, folder)
    kit.fail_path(api_name, folder, types, code, false)
  end
  for i = 1, #names do
    local path, relative = join_path(folder, names[i]), relative_folder .. names[i]
    if types[i] == entry_type and find(find(pattern, "/", 1, true) and relative or names[i], matcher(pattern)) then
      matches[#matches + 1] = path
    end
    if types[i] == "dir" then walk(api_name, path, entry_type, pattern, matches, relative .. "/", depth + 1) end
  end
end

local function finder(api_name, entry_type, returns_all)
  return function(folder, pattern)
    folder, pattern = kit.path(api_name, 1, folder), kit.text(api_name, 2, pattern)
    local matches = {}
    walk(api_name, folder, entry_type, pattern, matches, "", 0)
    sort(matches)
    if returns_all then return matches end
    if not matches[1] then kit.fail("not_found", "%s: nothing below %s matches %s", api_name, folder, pattern) end
    return matches[1]
  end
end
files.find_file, files.find_files = finder("find_file", "file"), finder("find_files", "file", true)
files.find_dir, files.find_dirs = finder("find_dir", "dir"), finder("find_dirs", "dir", true)

function files.file_size(path)
  path = kit.path("file_size", 1, path)
  return check("file_size", path, false, host.stat(path)).size
end
function files.file_read(path)
  path = kit.path("file_read", 1, path)
  return check("file_read", path, false, host.read_file(path))
end

local function write_file(api_name, path, value, append)
  path, value = kit.path(api_name, 1, path), kit.text(api_name, 2, value)
  local above = match(kit.absolute(path), "^(.+)/[^/]+$")
  if above and not is_folder(above) then files.mkdir(above) end
  check(api_name, path, true, host.write_file(path, value, append))
  return format("wrote %d bytes to %s", #value, path)
end
function files.file_write(path, value) return write_file("file_write", path, value, false) end
function files.file_write_append(path, value) return write_file("file_write_append", path, value, true) end

function files.chdir(path)
  path = kit.path("chdir", 1, path)
  check("chdir", path, false, host.chdir(path))
  return "in directory " .. path
end
function files.cwd() return (host.getcwd()) end
function files.chmod_exec(path)
  path = kit.path("chmod_exec", 1, path)
  check("chmod_exec", path, true, host.chmod(path, 493)) -- 0755
  return path .. " is executable"
end

-- Returns the path of a program, or "".
function files.which(name)
  name = kit.path("which", 1, name)
  if find(name, "/", 1, true) then return host.executable(name) and name or "" end
  for folder in gmatch(host.getenv("PATH") or "/usr/bin:/bin", "[^:]+") do
    local path = join_path(folder, name)
    local status = host.stat(path)
    if status and status.type == "file" and host.executable(path) then return path end
  end
  return ""
end

function files.cmd_ensure_exists(names)
  for name in gmatch(kit.text("cmd_ensure_exists", 1, names), "[^,%s]+") do
    if files.which(name) == "" then
      kit.fail("not_found", "cmd_ensure_exists: program %s does not exist on this host", name)
    end
  end
  return "all programs exist"
end

local system, machine = host.machine()
function files.platform_is_linux() return system == "Linux" end
function files.platform_is_osx() return system == "Darwin" end
function files.platform_is_arm() return find(machine, "^arm") ~= nil or machine == "aarch64" end
function files.platform_is_x86() return machine == "x86_64" or find(machine, "^i%d86") ~= nil end
function files.platform_check_linux_x86()
  if not (files.platform_is_linux() and files.platform_is_x86()) then
    kit.fail("failed", "platform_check_linux_x86: this is %s on %s", system, machine)
  end
end

return files
