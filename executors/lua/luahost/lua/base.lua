-- Base of the other modules: errors, argument checks and the job's policy. Every module runs once, before any job, with
-- the table `host` (functions in C++) and the results of earlier modules. Its globals are a copy of Lua's globals,
-- since a script may replace everything that it can reach. A script can reach the methods of strings, so modules call
-- string.find(text), never text:find().
local host = ...
local format, match, find, sub = string.format, string.match, string.find, string.sub
local floor = math.floor

local kit = {folder = "/job", granted = {exec = false, net = "none", ["fs.read"] = {}, ["fs.write"] = {}, secrets = {}}}

-- Errors of the modules: a table {type, code, message} that converts to text.
local Error = {__name = "Error", __metatable = false}
Error.__tostring = function(self) return tostring(rawget(self, "message")) end
Error.__concat = function(left, right) return tostring(left) .. tostring(right) end
Error.__index = {type = "Error"}

-- Codes: denied, not_found, conflict, invalid, too_large, unavailable, and failed for errors of a program or the
-- system.
function kit.new_error(code, message, kind)
  return setmetatable({type = kind or "Error", code = code, message = message}, Error)
end

function kit.fail(code, ...)
  error(kit.new_error(code, format(...)), 0)
end

-- grant: text of the policy, for example `exec = true`.
function kit.denied(what, grant)
  error(kit.new_error("denied", what .. " is not granted to this job; to allow: policy: " .. grant, "PolicyError"), 0)
end

function kit.need_exec(what)
  if not kit.granted.exec then kit.denied(what .. ": running programs", "exec = true") end
end

local function is_loopback(name)
  return name == "localhost" or name == "::1" or find(name, "^127%.%d+%.%d+%.%d+$") ~= nil
end

local function listed(net, place)
  for i = 1, type(net) == "table" and #net or 0 do
    if net[i] == place then return true end
  end
  return false
end

-- Checks the network policy and returns whether the connection must use the proxy, which enforces the allow-list. The
-- job's own network is reached directly; the host's 127.0.0.1 only if the list names it with the port.
function kit.need_net(what, name, port)
  local net = kit.granted.net
  local place = find(name, ":", 1, true) and "[" .. name .. "]:" .. port or name .. ":" .. port
  local own = is_loopback(name) and not listed(net, place)
  if net == "none" or net == nil or (net == "loopback" and not own) then
    kit.denied(what .. ": a connection to " .. place, format("net = [%q]", place))
  end
  return net ~= "loopback" and not own
end

-- Folders of the host with files that can be granted. All other files belong to the system or to the job.
local kGrantable = {"/srv", "/opt", "/home", "/var", "/mnt", "/media", "/data"}

local function below(path, folder)
  return path == folder or sub(path, 1, #folder + 1) == folder .. "/"
end

local function covered(path, folders)
  for i = 1, #folders do
    if below(path, folders[i]) then return true end
  end
  return false
end

function kit.absolute(path)
  if sub(path, 1, 1) ~= "/" then path = (host.getcwd() or "") .. "/" .. path end
  local parts = {}
  for part in string.gmatch(path, "[^/]+") do
    if part == ".." then
      parts[#parts] = nil
    elseif part ~= "." then
      parts[#parts + 1] = part
    end
  end
  return "/" .. table.concat(parts, "/")
end

-- Returns the grant that a path lacks: "fs.read", "fs.write" or nil.
local function missing_grant(path, writing)
  local granted = kit.granted
  if writing then
    if below(path, "/tmp") or below(path, kit.folder) or below(path, "/dev") or below(path, "/proc") then return nil end
    return not covered(path, granted["fs.write"]) and "fs.write" or nil
  end
  if covered(path, granted["fs.read"]) or covered(path, granted["fs.write"]) then return nil end
  return covered(path, kGrantable) and "fs.read" or nil
end

local function folder_of(path)
  return match(path, "^(/[^/]+/.+)/[^/]+$") or path
end

-- Raises an error after a failed system call. name: name of the errno, "ENOENT".
function kit.fail_path(what, path, text, name, writing)
  local full = kit.absolute(path)
  local field = missing_grant(full, writing)
  if field then
    -- Folders that cannot be granted are read-only with any policy.
    if covered(full, kGrantable) then
      kit.denied(format("%s: %s (%s)", what, path, text), format("%s = [%q]", field, folder_of(full)))
    end
    kit.fail("denied", "%s: %s: %s; a job can write to its own folder, /tmp, and paths of fs.write", what, path,
        text)
  end
  local codes = {ENOENT = "not_found", ENOTDIR = "not_found", EEXIST = "conflict", ENOTEMPTY = "conflict",
                 EACCES = "denied", EPERM = "denied", EROFS = "denied", ENOSPC = "too_large", EFBIG = "too_large"}
  kit.fail(codes[name] or "failed", "%s: %s: %s", what, path, text)
end

-- A path without grant looks like a missing path; raises an error that names the grant.
function kit.need_read(what, path)
  local full = kit.absolute(path)
  local field = missing_grant(full, false)
  if field then kit.denied(format("%s: %s", what, path), format("%s = [%q]", field, folder_of(full))) end
end

-- Argument checks. `what` is the name of the function, for the message.
local function wrong(what, position, expected, value)
  local got = value == nil and "nothing" or type(value)
  kit.fail("invalid", "%s: argument %d must be %s, not %s", what, position, expected, got)
end

function kit.text(what, position, value, default)
  if value == nil and default ~= nil then return default end
  if type(value) == "number" then value = tostring(value) end
  if type(value) ~= "string" then wrong(what, position, "text", value) end
  return value
end

function kit.path(what, position, value)
  value = kit.text(what, position, value)
  if value == "" then kit.fail("invalid", "%s: argument %d: the path is empty", what, position) end
  if find(value, "\0", 1, true) then kit.fail("invalid", "%s: argument %d: the path contains NUL", what, position) end
  return value
end

function kit.number(what, position, value, default, least)
  if value == nil and default ~= nil then return default end
  if type(value) ~= "number" then wrong(what, position, "a number", value) end
  if value ~= value or (least and value < least) then
    kit.fail("invalid", "%s: argument %d: %s is not a number%s", what, position, tostring(value),
        least and " from " .. least or "")
  end
  return value
end

function kit.whole(what, position, value, default, least, most)
  value = kit.number(what, position, value, default)
  if floor(value) ~= value or value < least or value > most then
    kit.fail("invalid", "%s: argument %d: %s is not a whole number from %d to %d", what, position, tostring(value),
        least, most)
  end
  return value // 1 | 0
end

-- A time-out in seconds, limited to 11 days.
function kit.milliseconds(what, position, value, default)
  return math.min(kit.number(what, position, value, default, 0.001), 1e6) * 1000 // 1 | 0
end

function kit.table(what, position, value, default)
  if value == nil and default ~= nil then return default end
  if type(value) ~= "table" then wrong(what, position, "a table", value) end
  return value
end

-- Options of a call; unknown names are errors.
function kit.options(what, position, value, known)
  value = kit.table(what, position, value, {})
  for name in next, value do
    if not known[name] then kit.fail("invalid", "%s: unknown option %s", what, tostring(name)) end
  end
  return value
end

return kit
