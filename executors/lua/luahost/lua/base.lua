-- Base of the other modules: errors, argument checks and the job's policy. Every module runs once, before any job, with
-- the table `host` (functions in C++) and the results of earlier modules. Its globals are a copy of Lua's globals,
-- since a script may replace everything that it can reach. A script can reach the methods of strings, so modules call
-- string.find(text), never text:find().
local host = ...
local format, match, find, sub = string.format, string.match, string.find, string.sub
local floor = math.floor

local kit = {folder = "/job", granted = {exec = false, net = "none", ["fs.read"] = {}, ["fs.write"] = {}, secrets = {}, volumes = {}}}

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
function kit.denied(subject, grant)
  local message = subject .. " is not granted to this job; to allow: policy: " .. grant
  error(kit.new_error("denied", message, "PolicyError"), 0)
end

function kit.need_exec(api_name)
  if not kit.granted.exec then kit.denied(api_name .. ": running programs", "exec = true") end
end

local function is_loopback(name)
  return name == "localhost" or name == "::1" or find(name, "^127%.%d+%.%d+%.%d+$") ~= nil
end

local function is_listed(net, place)
  for i = 1, type(net) == "table" and #net or 0 do
    if net[i] == place then return true end
  end
  return false
end

-- Checks the network policy and returns whether the connection must use the proxy, which enforces the allow-list. The
-- job's own network is reached directly; the host's 127.0.0.1 only if the list names it with the port.
function kit.need_net(api_name, name, port)
  local net = kit.granted.net
  local place = find(name, ":", 1, true) and "[" .. name .. "]:" .. port or name .. ":" .. port
  local is_own_network = is_loopback(name) and not is_listed(net, place)
  if net == "none" or net == nil or (net == "loopback" and not is_own_network) then
    kit.denied(api_name .. ": a connection to " .. place, format("net = [%q]", place))
  end
  return net ~= "loopback" and not is_own_network
end

-- Folders of the host with files that can be granted. All other files belong to the system or to the job.
local kGrantable = {"/srv", "/opt", "/home", "/var", "/mnt", "/media", "/data"}

local function is_below(path, folder)
  return path == folder or sub(path, 1, #folder + 1) == folder .. "/"
end

local function is_covered(path, folders)
  for i = 1, #folders do
    if is_below(path, folders[i]) then return true end
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
    if is_below(path, "/tmp") or is_below(path, kit.folder) or is_below(path, "/dev") or is_below(path, "/proc") then
      return nil
    end
    if is_below(path, "/volumes") then return nil end  -- the error of the system is the reason
    return not is_covered(path, granted["fs.write"]) and "fs.write" or nil
  end
  if is_covered(path, granted["fs.read"]) or is_covered(path, granted["fs.write"]) then return nil end
  return is_covered(path, kGrantable) and "fs.read" or nil
end

local function get_grant_folder(path)
  return match(path, "^(/[^/]+/.+)/[^/]+$") or path
end

-- Raises an error after a failed system call. name: name of the errno, "ENOENT".
function kit.fail_path(api_name, path, text, name, writing)
  local full = kit.absolute(path)
  local field = missing_grant(full, writing)
  if field then
    -- Folders that cannot be granted are read-only with any policy.
    if is_covered(full, kGrantable) then
      kit.denied(format("%s: %s (%s)", api_name, path, text), format("%s = [%q]", field, get_grant_folder(full)))
    end
    kit.fail("denied", "%s: %s: %s; a job can write to its own folder, /tmp, and paths of fs.write", api_name, path,
        text)
  end
  local codes = {ENOENT = "not_found", ENOTDIR = "not_found", EEXIST = "conflict", ENOTEMPTY = "conflict",
                 EACCES = "denied", EPERM = "denied", EROFS = "denied", ENOSPC = "too_large", EFBIG = "too_large"}
  kit.fail(codes[name] or "failed", "%s: %s: %s", api_name, path, text)
end

-- A path without grant looks like a missing path; raises an error that names the grant.
function kit.need_read(api_name, path)
  local full = kit.absolute(path)
  local field = missing_grant(full, false)
  if field then kit.denied(format("%s: %s", api_name, path), format("%s = [%q]", field, get_grant_folder(full))) end
end

-- Argument checks. `api_name` is the name of the function, for the message.
local function raise_type_error(api_name, position, expected, value)
  local got = value == nil and "nothing" or type(value)
  kit.fail("invalid", "%s: argument %d must be %s, not %s", api_name, position, expected, got)
end

function kit.text(api_name, position, value, default)
  if value == nil and default ~= nil then return default end
  if type(value) == "number" then value = tostring(value) end
  if type(value) ~= "string" then raise_type_error(api_name, position, "text", value) end
  return value
end

function kit.path(api_name, position, value)
  value = kit.text(api_name, position, value)
  if value == "" then kit.fail("invalid", "%s: argument %d: the path is empty", api_name, position) end
  if find(value, "\0", 1, true) then
    kit.fail("invalid", "%s: argument %d: the path contains NUL", api_name, position)
  end
  return value
end

function kit.number(api_name, position, value, default, min)
  if value == nil and default ~= nil then return default end
  if type(value) ~= "number" then raise_type_error(api_name, position, "a number", value) end
  if value ~= value or (min and value < min) then
    kit.fail("invalid", "%s: argument %d: %s is not a number%s", api_name, position, tostring(value),
        min and " from " .. min or "")
  end
  return value
end

function kit.whole(api_name, position, value, default, min, max)
  value = kit.number(api_name, position, value, default)
  if floor(value) ~= value or value < min or value > max then
    kit.fail("invalid", "%s: argument %d: %s is not a whole number from %d to %d", api_name, position, tostring(value),
        min, max)
  end
  return value // 1 | 0
end

-- A time-out in seconds, limited to 11 days.
function kit.milliseconds(api_name, position, value, default)
  return math.min(kit.number(api_name, position, value, default, 0.001), 1e6) * 1000 // 1 | 0
end

function kit.table(api_name, position, value, default)
  if value == nil and default ~= nil then return default end
  if type(value) ~= "table" then raise_type_error(api_name, position, "a table", value) end
  return value
end

-- Options of a call; unknown names are errors.
function kit.options(api_name, position, value, allowed)
  value = kit.table(api_name, position, value, {})
  for name in next, value do
    if not allowed[name] then kit.fail("invalid", "%s: unknown option %s", api_name, tostring(name)) end
  end
  return value
end

return kit
