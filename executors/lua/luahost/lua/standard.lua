-- Lua's standard library for jobs: no bytecode, no C modules, no access to the host by debug, programs only with a
-- grant.
local host, modules = ...
local kit = modules.base
local find, gsub = string.find, string.gsub
local load, loadfile, getinfo, traceback = load, loadfile, debug.getinfo, debug.traceback
local open = io.open
local globals = _G
local io, os = globals.io, globals.os

local kNoBytecode = "bytecode is not accepted: pass the source"

local function load_text(chunk, name, mode, ...)
  if mode == "b" then return nil, kNoBytecode end
  return load(chunk, name, "t", ...)
end

local function load_file(name, mode, ...)
  if mode == "b" then return nil, kNoBytecode end
  return loadfile(name, "t", ...)
end

local function do_file(name)
  local chunk, problem = loadfile(name, "t")
  if not chunk then error(problem, 0) end
  return chunk()
end

-- Modules are Lua files beside the script, or below a granted folder in package.path.
local package = {path = "./?.lua;./?/init.lua", loaded = {}, preload = {}, config = "/\n;\n?\n!\n-\n"}

function package.searchpath(name, path)
  name = gsub(kit.text("package.searchpath", 1, name), "%.", "/")
  local tried = {}
  for template in string.gmatch(kit.text("package.searchpath", 2, path), "[^;]+") do
    local file = gsub(template, "%?", (gsub(name, "%%", "%%%%")))
    if host.stat(file) then return file end
    tried[#tried + 1] = "no file '" .. file .. "'"
  end
  return nil, table.concat(tried, "\n\t")
end
local searchpath = package.searchpath

local function require(name)
  name = kit.text("require", 1, name)
  local loaded = package.loaded[name]
  if loaded ~= nil then return loaded end
  local loader, where = package.preload[name], ":preload:"
  if not loader then
    local tried
    where, tried = searchpath(name, kit.text("require: package.path", 1, package.path))
    if not where then kit.fail("not_found", "module '%s' not found:\n\t%s", name, tried) end
    local problem
    loader, problem = loadfile(where, "t")
    if not loader then kit.fail("invalid", "require: %s", problem) end
  end
  local value = loader(name, where)
  if value ~= nil then package.loaded[name] = value end
  if package.loaded[name] == nil then package.loaded[name] = true end
  return package.loaded[name], where
end

-- Returns no function values, since scripts must not receive functions of the host.
local function read_info(where, what)
  if type(where) == "number" then where = where + 1 end
  local info = getinfo(where, (gsub(kit.text("debug.getinfo", 2, what, "nSltur"), "[fL]", "")))
  return info
end

-- Like io.open, but the error names the missing grant.
local function open_file(path, mode)
  local file, problem, code = open(path, mode)
  if file or type(path) ~= "string" then return file, problem, code end
  local reason = gsub(problem or "", "^.*: ", "")
  local fine, denied = pcall(kit.fail_path, "io.open", path, reason, "", find(tostring(mode), "[wa+]") ~= nil)
  if not fine and type(denied) == "table" and denied.code == "denied" then problem = tostring(denied) end
  return nil, problem, code
end

local function close_standard()
  local named = {"_G", "coroutine", "debug", "io", "math", "os", "string", "table", "utf8"}
  for _, name in next, named do package.loaded[name] = globals[name] end
  rawset(globals, "load", load_text)
  rawset(globals, "loadfile", load_file)
  rawset(globals, "dofile", do_file)
  rawset(globals, "require", require)
  rawset(globals, "package", package)
  globals.debug = {traceback = traceback, getinfo = read_info}
  package.loaded.debug = globals.debug
  io.open = open_file
  os.exit = function(code)
    if code == nil or code == true then code = 0 end
    if code == false then code = 1 end
    host.exit(kit.whole("os.exit", 1, code, nil, -2147483648, 2147483647) & 255)
  end
end

close_standard()

-- Called in the job, after its policy is known.
function kit.open_standard()
  for _, name in next, {"json", "mycojobs"} do package.loaded[name] = globals[name] end
  if kit.granted.exec then return end
  io.popen = function() kit.need_exec("io.popen") end
  os.execute = function(command)
    if command == nil then return false end
    kit.need_exec("os.execute")
  end
end
