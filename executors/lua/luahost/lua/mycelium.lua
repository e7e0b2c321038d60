-- The HTTP API of a Mycelium daemon, https://github.com/threefoldtech/mycelium/blob/master/docs/api.yaml.
local host, modules = ...
local kit, net, json = modules.base, modules.net, modules.json
local byte, char, find, format, gsub, sub =
  string.byte, string.char, string.find, string.format, string.gsub, string.sub
local concat = table.concat
local mycelium = {}

local LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
local VALUES = {}
for i = 1, 64 do VALUES[byte(LETTERS, i)] = i - 1 end

function mycelium.base64_encode(text)
  local out = {}
  for i = 1, #text, 3 do
    local a, b, c = byte(text, i, i + 2)
    local bits = a << 16 | (b or 0) << 8 | (c or 0)
    local quad = {}
    for place = 1, 4 do
      local value = bits >> (24 - 6 * place) & 63
      quad[place] = sub(LETTERS, value + 1, value + 1)
    end
    if not c then quad[4] = "=" end
    if not b then quad[3] = "=" end
    out[#out + 1] = concat(quad)
  end
  return concat(out)
end

function mycelium.base64_decode(text)
  local out, bits, count = {}, 0, 0
  for i = 1, #text do
    local value = VALUES[byte(text, i)]
    if value then
      bits, count = (bits << 6 | value) & 0xFFFFFF, count + 6
      if count >= 8 then
        count = count - 8
        out[#out + 1] = char(bits >> count & 255)
      end
    elseif not find(sub(text, i, i), "[=%s]") then
      kit.fail("invalid", "mycelium: the received text is not base64")
    end
  end
  return concat(out)
end

local function path_text(text)
  return (gsub(text, "[^%w%-%._~]", function(letter) return format("%%%02X", byte(letter)) end))
end

local function send_request(api_name, api, method, path, body, seconds)
  api = gsub(kit.text(api_name, 1, api), "/+$", "")
  return net.http{url = api .. "/api/v1" .. path, method = method, body = body, timeout = seconds or 30}, api
end

-- Responses of the daemon: 2xx with JSON, or 204 without a body.
local function get_result(api_name, api, answer)
  if not answer.success then
    local code = answer.status == 404 and "not_found" or (answer.status == 409 and "conflict" or "failed")
    kit.fail(code, "%s: %s: status %d: %s", api_name, api, answer.status, sub(answer.body, 1, 200))
  end
  if answer.body == "" or answer.status == 204 then return nil end
  return json.decode(answer.body)
end

local function call(api_name, api, method, path, body)
  local answer, place = send_request(api_name, api, method, path, body)
  return get_result(api_name, place, answer)
end

-- Decodes the topic and payload of a message; nil if there is no message.
local function decode_message(message)
  if type(message) ~= "table" then return nil end
  for _, field in next, {"topic", "payload"} do
    if type(message[field]) == "string" then message[field] = mycelium.base64_decode(message[field]) end
  end
  return message
end

function mycelium.get_node_info(api) return call("mycelium_get_node_info", api, "GET", "/admin") end
function mycelium.list_peers(api) return call("mycelium_list_peers", api, "GET", "/admin/peers") end
function mycelium.add_peer(api, endpoint)
  call("mycelium_add_peer", api, "POST", "/admin/peers", {endpoint = kit.text("mycelium_add_peer", 2, endpoint)})
  return true
end
function mycelium.remove_peer(api, endpoint)
  call("mycelium_remove_peer", api, "DELETE", "/admin/peers/" .. path_text(kit.text("mycelium_remove_peer", 2,
      endpoint)))
  return true
end
function mycelium.list_selected_routes(api)
  return call("mycelium_list_selected_routes", api, "GET", "/admin/routes/selected")
end
function mycelium.list_fallback_routes(api)
  return call("mycelium_list_fallback_routes", api, "GET", "/admin/routes/fallback")
end

-- destination: an address of the overlay network, or a public key (64 hexadecimal digits). Returns the id of the
-- message; with reply_seconds, returns the reply, or raises an error if none arrives in that time.
function mycelium.send_message(api, destination, topic, message, reply_seconds)
  local api_name = "mycelium_send_message"
  destination = kit.text(api_name, 2, destination)
  local body = {dst = {[find(destination, "^%x+$") and #destination == 64 and "pk" or "ip"] = destination},
                payload = mycelium.base64_encode(kit.text(api_name, 4, message))}
  topic = kit.text(api_name, 3, topic, "")
  if topic ~= "" then body.topic = mycelium.base64_encode(topic) end
  local wait = reply_seconds and kit.whole(api_name, 5, reply_seconds, nil, 0, 86400) or 0
  local path = "/messages" .. (wait > 0 and "?reply_timeout=" .. wait or "")
  local answer, place = send_request(api_name, api, "POST", path, body, wait + 30)
  if wait > 0 and answer.status == 408 then
    kit.fail("unavailable", "%s: no reply to the message with topic %q from %s within %d s", api_name, topic,
        destination, wait)
  end
  return decode_message(get_result(api_name, place, answer))
end

local SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.25 -- seconds between two polls

-- Returns one message with its topic and payload as text; nil after the time-out or if the job is asked to end. A
-- blocking call would hold the daemon's only lock and block all other clients, so each poll returns immediately.
function mycelium.receive_messages(api, topic, seconds)
  local api_name = "mycelium_receive_messages"
  topic = kit.text(api_name, 2, topic, "")
  local wait = kit.whole(api_name, 3, seconds, 0, 0, 86400)
  local query = "?timeout=0" .. (topic ~= "" and "&topic=" .. path_text(mycelium.base64_encode(topic)) or "")
  local stop, pause = host.monotonic() + wait, SHORTEST_PAUSE
  while true do
    local message = decode_message(call(api_name, api, "GET", "/messages" .. query))
    local remaining = stop - host.monotonic()
    if message or remaining <= 0 or not host.sleep(math.min(pause, remaining)) then return message end
    pause = math.min(pause * 2, LONGEST_PAUSE)
  end
end

return mycelium
