-- A Redis client: redis.connect("redis://user:password@host:port/0"), or functions that use REDIS_URL of the
-- environment.
local host, modules = ...
local kit, net = modules.base, modules.net
local find, format, gsub, match, sub, upper =
  string.find, string.format, string.gsub, string.match, string.sub, string.upper
local concat, char = table.concat, string.char
local redis = {}
local MAX_BYTES = 8 << 20

local function line_of(connection)
  local line = connection:read_line()
  if not line or line == "" then kit.fail("unavailable", "redis: %s: the connection has ended", connection.place) end
  return sub(line, 1, 1), sub(line, 2)
end

-- Reads one value of RESP 2. An error reply is a table {refused = text}, since it may be part of a list.
local function read_value(connection, depth)
  local kind, rest = line_of(connection)
  if kind == "+" then return rest end
  if kind == "-" then return {refused = rest} end
  local number = math.tointeger(tonumber(rest))
  if not number or depth > 16 then kit.fail("failed", "redis: %s: invalid reply of Redis", connection.place) end
  if kind == ":" then return number end
  if number == -1 and (kind == "$" or kind == "*") then return nil end
  if number < 0 or number > MAX_BYTES then kit.fail("too_large", "redis: an answer of %d", number) end
  if kind == "$" then
    local bytes = connection:receive(number + 2) or ""
    return sub(bytes, 1, number)
  end
  if kind ~= "*" then kit.fail("failed", "redis: %s: invalid reply of Redis", connection.place) end
  local values = {n = number}
  for i = 1, number do values[i] = read_value(connection, depth + 1) end
  return values
end

local Client = {__name = "redis"}
Client.__index = Client

local function send_command(connection, ...)
  local count = select("#", ...)
  local parts = {format("*%d\r\n", count)}
  for i = 1, count do
    local word = kit.text("redis", i, (select(i, ...)))
    parts[#parts + 1] = format("$%d\r\n", #word)
    parts[#parts + 1] = word
    parts[#parts + 1] = "\r\n"
  end
  connection:send(concat(parts))
  local value = read_value(connection, 0)
  if type(value) == "table" and value.refused then
    kit.fail("failed", "redis: %s: %s", tostring((...)), value.refused)
  end
  return value
end

local function decode_reply(text)
  return (gsub(text or "", "%%(%x%x)", function(digits) return char(tonumber(digits, 16)) end))
end

local function open(self)
  if self.connection then return self.connection end
  local connection = net.connect(self.host, self.port)
  if self.password then
    if self.user ~= "" then
      send_command(connection, "AUTH", self.user, self.password)
    else
      send_command(connection, "AUTH", self.password)
    end
  end
  if self.database ~= "0" then send_command(connection, "SELECT", self.database) end
  self.connection = connection
  return connection
end

function redis.connect(url)
  url = kit.text("redis.connect", 1, url)
  local user, place, database = match(url, "^redis://([^@/]*)@?([^/]*)/?(%d*)$")
  if user and place == "" and not find(url, "@", 1, true) then user, place = "", user end
  local name, port = match(place or "", "^%[([^%]]+)%]:?(%d*)$")
  if not name then name, port = match(place or "", "^([^:]+):?(%d*)$") end
  if not name then kit.fail("invalid", "redis.connect: %q is not redis://host:port/database", url) end
  local account, password = match(user, "^([^:]*):(.*)$")
  return setmetatable({host = name, port = tonumber(port) or 6379, user = decode_reply(account),
      password = password and decode_reply(password),
                       database = database ~= "" and database or "0"}, Client)
end

-- Sends any command. Commands are not retried, since it is unknown whether the server executed the command before a
-- failure.
function Client:command(...)
  local connection = open(self)
  local fine, value = pcall(send_command, connection, ...)
  if fine then return value end
  if not (type(value) == "table" and value.code == "failed" and find(tostring(value), "^redis: [^:]*: [A-Z]+ ")) then
    Client.close(self)
  end
  error(value, 0)
end

function Client:close()
  if self.connection then self.connection:close() end
  self.connection = nil
end

function Client:hgetall(key)
  local flat, map = self:command("HGETALL", key), {}
  for i = 1, #flat, 2 do map[flat[i]] = flat[i + 1] end
  return map
end
function Client:lrange(key, first, last) return self:command("LRANGE", key, first, last) end
function Client:set(key, value, seconds)
  if seconds then return self:command("SET", key, value, "EX", seconds) end
  return self:command("SET", key, value)
end

local PLAIN = {"ping", "get", "del", "exists", "expire", "incr", "keys", "hset", "hget", "hdel", "lpush", "rpush",
    "lpop", "rpop", "llen", "publish"}
for _, name in next, PLAIN do
  local command = upper(name)
  Client[name] = function(self, ...) return self:command(command, ...) end
end

-- The same commands as functions (redis_get and so on), for the address in REDIS_URL.
local standard
local function default_client()
  if not standard then standard = redis.connect(host.getenv("REDIS_URL") or "redis://127.0.0.1:6379") end
  return standard
end

function redis.reset()
  if standard then standard:close() end
  standard = nil
end
function redis.command(...) return default_client():command(...) end
for name, method in next, Client do
  if type(method) == "function" and name ~= "command" and name ~= "close" then
    redis[name] = function(...) return method(default_client(), ...) end
  end
end

return redis
