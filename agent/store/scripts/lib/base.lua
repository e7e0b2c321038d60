-- Put in front of every script. Scripts do not roll back: for each job (or message) everything is read and its type
-- checked before the first write, what is added is written before anything is taken away, and an error that can still
-- come (out of memory, read-only) comes with the first write, before anything has changed.
-- A number as an argument of a command is turned into text the slow way: frequent ones are texts from the beginning.
-- Names of keys: ../keys.cpp. Arguments: as the caller in ../redis_*.cpp adds them.
local time = redis.call('TIME')
local now_s = time[1]
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)

local next_arg = 0
local function arg()
  next_arg = next_arg + 1
  return ARGV[next_arg]
end
local function list_arg()  -- a count of texts, then these
  local list = {}
  for i = 1, tonumber(arg()) do list[i] = arg() end
  return list
end

-- What stands in a key may come from anybody: nothing but a whole number in range counts.
local function num(text)
  local n = tonumber(text)
  if n and n >= 0 and n <= 9007199254740991 then return math.floor(n) end
  return 0
end
local function dec(n) return string.format('%d', n) end
local function shown(text) return (string.gsub(string.sub(text, 1, 120), '[^\32-\126]', '?')) end

local function type_of(key) return redis.call('TYPE', key).ok end
local function wrong(key, want)  -- the error to answer with, if the key is there with another type
  local is = type_of(key)
  if is ~= 'none' and is ~= want then
    return redis.error_reply('MJTYPE ' .. shown(key) .. ' is a ' .. is .. ' where a ' .. want .. ' belongs')
  end
end

local function to_table(flat)
  local fields = {}
  for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
  return fields
end
-- Where its state is: of a job, of a flow.
local function mark_of(of)
  local flow = string.match(of, '^flow:(%d+)$')
  return flow and 'mj:flow:' .. flow or 'mj:claim:' .. of
end
-- A hash that takes more than max bytes is not read: its longest field, and how long that is. Nothing: it is not so.
local function too_long(key, max)
  local bytes = redis.pcall('MEMORY', 'USAGE', key, 'SAMPLES', '0')
  if type(bytes) ~= 'number' or bytes <= max then return end
  if redis.call('HLEN', key) > 10000 then return 'its fields together', bytes end
  local longest, most = '', -1
  for _, name in ipairs(redis.call('HKEYS', key)) do
    local size = redis.call('HSTRLEN', key, name)
    if size > most then longest, most = name, size end
  end
  return shown(longest), most
end
local kStates = {planned = true, queued = true, live = true, delayed = true, waiting = true, prerequisites = true, held = true,
  ended = true}
local function read_claim(job)  -- nil: not a hash
  local flat = redis.pcall('HGETALL', 'mj:claim:' .. job)
  if flat.err then return nil end
  local claim = to_table(flat)
  if claim.state and not kStates[claim.state] then claim.state = 'queued' end  -- somebody's nonsense
  return claim
end
local function owns(claim, claim_id, token)
  return claim and claim.claim_id == claim_id and claim.token == redis.sha1hex(token)
end
local function is_live(claim, claim_id, token)
  return owns(claim, claim_id, token) and claim.state == 'live' and now_ms <= num(claim.until_ms)
end
local function is_job_key(key)
  local caller, id = string.match(key, '^job:([1-9]%d*):([1-9]%d*)$')
  return caller and #caller <= 10 and #id <= 10 and num(caller) <= 4294967295 and num(id) <= 4294967295
end
