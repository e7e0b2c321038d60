-- TCP and HTTP. Connections to other hosts use the job's proxy, which enforces the allow-list in the policy's `net`.
local host, modules = ...
local kit, files = modules.base, modules.files
local find, format, gsub, lower, match, sub, upper =
  string.find, string.format, string.gsub, string.lower, string.match, string.sub, string.upper
local net = {}

local PROXY = {host = "127.0.0.1", port = 3128, url = "http://127.0.0.1:3128"}
local TIMEOUT = 30 -- seconds
local MAX_BODY = 8 << 20

local Connection = {__name = "connection", __metatable = false}
Connection.__index = Connection
local sockets = setmetatable({}, {__mode = "k"}) -- sockets of connections, hidden from scripts
local buffers = setmetatable({}, {__mode = "k"})

local function check(self, api_name, done, text, name)
  if done ~= nil then return done end
  kit.fail(name == "ETIMEDOUT" and "unavailable" or "failed", "%s: %s: %s", api_name, self.place, text)
end

local function socket_of(self, api_name)
  local socket = sockets[self]
  if not socket then kit.fail("invalid", "%s: the connection is closed", api_name) end
  return socket
end

function Connection:send(bytes)
  check(self, "send", host.tcp_send(socket_of(self, "send"), kit.text("send", 1, bytes)))
  return self
end

local function receive_more(self, api_name)
  local bytes = check(self, api_name, host.tcp_receive(socket_of(self, api_name)))
  buffers[self] = buffers[self] .. bytes
  return bytes ~= ""
end

local function pop_bytes(self, count)
  local bytes = sub(buffers[self], 1, count)
  buffers[self] = sub(buffers[self], count + 1)
  return bytes
end

-- Returns exactly `count` bytes; without `count`, the next available bytes. nil at the end.
function Connection:receive(count)
  count = count and kit.whole("receive", 1, count, nil, 1, MAX_BODY)
  while #buffers[self] < (count or 1) do
    if not receive_more(self, "receive") then
      if buffers[self] == "" then return nil end
      if not count then break end
      kit.fail("failed", "receive: %s: the connection ended after %d of %d bytes", self.place, #buffers[self], count)
    end
  end
  return pop_bytes(self, count or #buffers[self])
end

-- Returns a line without its "\n" or "\r\n". nil at the end.
function Connection:read_line()
  local from = 1
  while true do
    local stop = find(buffers[self], "\n", from, true)
    if stop then return (gsub(sub(pop_bytes(self, stop), 1, -2), "\r$", "")) end
    from = #buffers[self] + 1
    if from > MAX_BODY then kit.fail("too_large", "read_line: %s: a line over %d bytes", self.place, MAX_BODY) end
    if not receive_more(self, "read_line") then
      return buffers[self] ~= "" and pop_bytes(self, #buffers[self]) or nil
    end
  end
end

function Connection:read_all()
  while receive_more(self, "read_all") do
    if #buffers[self] > MAX_BODY then kit.fail("too_large", "read_all: %s: over %d bytes", self.place, MAX_BODY) end
  end
  return pop_bytes(self, #buffers[self])
end

function Connection:close()
  if sockets[self] then host.tcp_close(sockets[self]) end
  sockets[self] = nil
end

local function open(api_name, name, port, milliseconds)
  local place = name .. ":" .. port
  local by_proxy = kit.need_net(api_name, name, port)
  local to, at = by_proxy and PROXY.host or name, by_proxy and PROXY.port or port
  local socket, text, code = host.tcp_connect(to, at, milliseconds)
  if not socket then
    kit.fail(code == "ENOENT" and "not_found" or "unavailable", "%s: %s: %s", api_name, place, text)
  end
  local self = setmetatable({place = place}, Connection)
  sockets[self], buffers[self] = socket, ""
  if not by_proxy then return self end
  local target = find(name, ":", 1, true) and "[" .. name .. "]:" .. port or place
  self:send(format("CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target))
  local status = self:read_line() or ""
  while (self:read_line() or "") ~= "" do end
  local number, reason = match(status, "^HTTP/1%.%d (%d+) ?(.*)$")
  reason = reason and gsub(reason, "^mycojobs: ", "")
  if number == "200" then return self end
  self:close()
  kit.fail(number == "403" and "denied" or "unavailable", "%s: %s: %s", api_name, place,
      reason or "the proxy does not answer")
end

local function place_of(api_name, name, port)
  name = kit.text(api_name, 1, name)
  if name == "" or find(name, "[%s%c/]") then kit.fail("invalid", "%s: %q is not a host", api_name, name) end
  return gsub(name, "^%[(.*)%]$", "%1"), kit.whole(api_name, 2, port, nil, 1, 65535)
end

function net.connect(name, port, options)
  name, port = place_of("connect", name, port)
  options = kit.options("connect", 3, options, {timeout = true})
  return open("connect", name, port, kit.milliseconds("connect: timeout", 3, options.timeout, TIMEOUT))
end

-- Returns whether a server accepts connections. A place that the policy does not allow is an error, not false.
function net.tcp_check(name, port)
  name, port = place_of("tcp_check", name, port)
  local fine, got = pcall(open, "tcp_check", name, port, 5000)
  if fine then
    got:close()
    return true
  end
  if type(got) == "table" and got.code ~= "denied" and got.code ~= "invalid" then return false end
  error(got, 0)
end

local function split_url(api_name, url)
  local scheme, rest = match(url, "^(%a+)://([^/?#]+)")
  scheme = scheme and lower(scheme)
  if scheme ~= "http" and scheme ~= "https" then
    kit.fail("invalid", "%s: %q is not an address of http or https", api_name, url)
  end
  local place = gsub(rest, "^.*@", "")
  local name, port = match(place, "^%[([^%]]+)%]:?(%d*)$")
  if not name then name, port = match(place, "^([^:]+):?(%d*)$") end
  if not name then kit.fail("invalid", "%s: %q has no host", api_name, url) end
  return name, tonumber(port) or (scheme == "https" and 443 or 80)
end

local function header_lines(api_name, headers)
  local lines, label = {}, api_name .. ": headers"
  for name, value in next, kit.table(label, 1, headers, {}) do
    local line = format("%s: %s", kit.text(label, 1, name), kit.text(label, 1, value))
    if find(line, "[\r\n%z]") then kit.fail("invalid", "%s: the header %s contains a line end", api_name, name) end
    lines[#lines + 1] = line
  end
  return lines
end

-- {url, method, headers, body, timeout, file, redirects} -> {status, body, headers, success}; body: text, or a table
-- that is encoded as JSON. Raises an error without a response; a status of 400 or more is a response.
local function http(api_name, request)
  request = kit.options(api_name, 1, request, {url = 1, method = 1, headers = 1, body = 1, timeout = 1, file = 1,
      redirects = 1, max_bytes = 1})
  local url = kit.text(api_name .. ": url", 1, request.url)
  if find(url, "[%s%c]") then kit.fail("invalid", "%s: %q contains blanks", api_name, url) end
  local name, port = split_url(api_name, url)
  local by_proxy = kit.need_net(api_name, name, port)
  if request.file then files.file_write(request.file, "") end -- raises an error if the file cannot be written
  local shown = gsub(url, "//[^/@]*@", "//***@")
  local headers, body = header_lines(api_name, request.headers), request.body
  if type(body) == "table" then
    body = kit.to_json(api_name .. ": body", body)
    headers[#headers + 1] = "Content-Type: application/json"
  end
  local method = upper(kit.text(api_name .. ": method", 1, request.method, body and "POST" or "GET"))
  if not find(method, "^%u+$") then kit.fail("invalid", "%s: %q is not a method", api_name, method) end
  local status, text, got, line = host.http{url = url, method = method, headers = headers, body = body,
      file = request.file, proxy = by_proxy and PROXY.url or "",
    milliseconds = kit.milliseconds(api_name .. ": timeout", 1, request.timeout, TIMEOUT),
    redirects = kit.whole(api_name .. ": redirects", 1, request.redirects, 10, 0, 50),
    max_bytes = kit.whole(api_name .. ": max_bytes", 1, request.max_bytes, request.file and 1 << 40 or MAX_BODY, 1,
        1 << 40)}
  -- The proxy's status line contains the reason of a refusal.
  local number, refusal = match(status and line or got or "", "^HTTP/[%d.]+ (%d+) mycojobs: (.*)$")
  if refusal then kit.fail(number == "403" and "denied" or "unavailable", "%s: %s: %s", api_name, shown, refusal) end
  if not status then kit.fail("unavailable", "%s: %s: %s", api_name, shown, text) end
  return {status = status, body = text, headers = got, success = status >= 200 and status < 300}
end

function net.http(request) return http("http", request) end
local function with(api_name, url, options, fields)
  local request = {url = url}
  for name, value in next, kit.table(api_name, 2, options, {}) do request[name] = value end
  for name, value in next, fields do request[name] = value end
  return http(api_name, request)
end
function net.http_get(url, options) return with("http_get", url, options, {}) end
function net.http_post(url, body, options)
  return with("http_post", url, options, {method = "POST", body = body or ""})
end
function net.http_check(url)
  local fine, answer = pcall(with, "http_check", url, {timeout = 10}, {method = "HEAD"})
  if fine then return answer.status < 400 end
  if type(answer) == "table" and (answer.code == "unavailable" or answer.code == "failed") then return false end
  error(answer, 0)
end
function net.http_status(url) return with("http_status", url, {timeout = 10}, {}).status end

-- Downloads to a file. least: minimum size in KiB; a smaller file is an error.
function files.download_file(url, path, least)
  url, path = kit.text("download_file", 1, url), kit.path("download_file", 2, path)
  least = kit.number("download_file", 3, least, 0, 0)
  local part = path .. ".part"
  files.file_write(part, "")
  local fine, answer = pcall(with, "download_file", url, {timeout = 3600}, {file = part})
  local size = fine and answer.success and files.file_size(part)
  if not size or size < least * 1024 then
    host.unlink(part)
    if not fine then error(answer, 0) end
    if not answer.success then kit.fail("failed", "download_file: %s: status %d", url, answer.status) end
    kit.fail("failed", "download_file: %s: %d bytes are less than the requested %s KiB", url, size,
        tostring(least))
  end
  files.mv(part, path)
  return path
end

local ARCHIVES = {{"%.tar%.gz$", "-xzf"}, {"%.tgz$", "-xzf"}, {"%.tar%.bz2$", "-xjf"}, {"%.tar%.xz$", "-xJf"},
    {"%.tar$", "-xf"}}

-- Downloads to a folder; an archive is unpacked there with the host's tar or unzip.
function files.download(url, folder, least)
  url, folder = kit.text("download", 1, url), kit.path("download", 2, folder)
  local name = match(gsub(url, "[?#].*$", ""), "([^/]+)/*$") or "download"
  local unpack_with
  for _, row in next, ARCHIVES do
    if find(name, row[1]) then unpack_with = function(path) return {"tar", row[2], path, "-C", folder} end end
  end
  if find(name, "%.zip$") then unpack_with = function(path) return {"unzip", "-q", "-o", path, "-d", folder} end end
  if unpack_with then kit.need_exec("download: unpacking " .. name) end
  files.mkdir(folder)
  local path = files.download_file(url, folder .. "/" .. name, least)
  if not unpack_with then return path end
  kit.check_success("download", "unpacking " .. name, kit.run_words("download", unpack_with(path), {}))
  files.delete(path)
  return folder
end

return net
