-- Definitions for all scripts. assemble.py puts the definitions that a script uses in front of that script.

-- Redis does not roll back a script that fails. For each job or message a script therefore reads everything and checks
-- all types before its first write, and adds new entries before it removes old ones. An error that is still possible
-- (out of memory, read-only server) occurs at the first write, before anything has changed.
-- The scripts use no KEYS: they build key names (listed in ../keys.toml) from ARGV. The callers in ../redis_*.cpp add
-- ARGV in the order in which a script reads it. Lua converts a number in a command to text slowly, so frequent numbers
-- are kept as text.
local time = redis.call('TIME')
local now_s = time[1]
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)

local arg_index = 0
local function next_arg()
  arg_index = arg_index + 1
  return ARGV[arg_index]
end
-- Reads a list from ARGV: its length, followed by that many texts.
local kMaxUnpacked = 1000
local function list_arg()
  local length, begin, list = tonumber(next_arg()), arg_index, {}
  arg_index = begin + length
  if length <= kMaxUnpacked then return {unpack(ARGV, begin + 1, arg_index)} end
  for i = 1, length do list[i] = ARGV[begin + i] end
  return list
end

-- Parses a whole number from 0 to 2^53 - 1. Returns 0 for any other text, since any client may write to a key.
local function to_number(text)
  local n = tonumber(text)
  if n and n >= 0 and n <= 9007199254740991 then return math.floor(n) end
  return 0
end
local integer_texts = {}  -- the same times are converted several times for each job
local function to_integer_text(n)
  local text = integer_texts[n]
  if not text then
    text = string.format('%d', n)
    integer_texts[n] = text
  end
  return text
end
local function to_printable(text) return (string.gsub(string.sub(text, 1, 120), '[^\32-\126]', '?')) end

local function key_type(key) return redis.call('TYPE', key).ok end
-- Returns the error MJTYPE if `key` exists with another type than `expected_type`, otherwise nil.
local function check_type(key, expected_type)
  local actual_type = key_type(key)
  if actual_type ~= 'none' and actual_type ~= expected_type then
    return redis.error_reply('MJTYPE ' .. to_printable(key) .. ' is a ' .. actual_type .. ' where a ' .. expected_type .. ' belongs')
  end
end

local function to_table(pairs_list)
  local fields = {}
  for i = 1, #pairs_list, 2 do fields[pairs_list[i]] = pairs_list[i + 1] end
  return fields
end
-- Returns the key of the hash that holds the state of a job (its claim) or of a flow (its mark).
local function state_key(record_key)
  local flow_id = string.match(record_key, '^flow:(%d+)$')
  return flow_id and kFlowKey .. flow_id or kClaimKey .. record_key
end
-- Checks the size of a hash before it is read as a whole. If the hash uses more than `max_bytes` bytes, returns the
-- name of its longest field and the length of that field in bytes; otherwise returns nothing.
local function find_oversized_field(key, max_bytes)
  local bytes = redis.pcall('MEMORY', 'USAGE', key, 'SAMPLES', '0')
  if type(bytes) ~= 'number' or bytes <= max_bytes then return end
  if redis.call('HLEN', key) > 10000 then return 'its fields together', bytes end
  local longest_name, longest_size = '', -1
  for _, name in ipairs(redis.call('HKEYS', key)) do
    local size = redis.call('HSTRLEN', key, name)
    if size > longest_size then longest_name, longest_size = name, size end
  end
  return to_printable(longest_name), longest_size
end
local kStates = kJobStateSet
-- Returns the claim of a job as a table (empty if the job has no claim), or nil if the key is not a hash.
local function read_claim(job)
  local reply = redis.pcall('HGETALL', kClaimKey .. job)
  if reply.err then return nil end
  local claim = to_table(reply)
  if claim.state and not kStates[claim.state] then claim.state = kJobStateQueued end  -- an invalid state that another client wrote
  return claim
end
local function is_claim_owner(claim, claim_id, token)
  return claim and claim.claim_id == claim_id and claim.token == redis.sha1hex(token)
end
local function is_live(claim, claim_id, token)
  return is_claim_owner(claim, claim_id, token) and claim.state == kJobStateLive and now_ms <= to_number(claim.until_ms)
end
local function is_job_key(key)
  local caller, id = string.match(key, '^job:([1-9]%d*):([1-9]%d*)$')
  return caller and #caller <= 10 and #id <= 10 and to_number(caller) <= 4294967295 and to_number(id) <= 4294967295
end
