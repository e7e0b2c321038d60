-- Put in front of every script. Scripts do not roll back: for each job (or message) everything is read and its type
-- checked before the first write, what is added is written before anything is taken away, and an error that can still
-- come (out of memory, read-only) comes with the first write, before anything has changed.
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
local function dec(n) return string.format('%.0f', n) end
local function shown(text) return (string.gsub(string.sub(text, 1, 120), '[^\32-\126]', '?')) end

local function type_of(key) return redis.call('TYPE', key).ok end
local function wrong(key, want)  -- the error to answer with, if the key is there with another type
  local is = type_of(key)
  if is ~= 'none' and is ~= want then
    return redis.error_reply('MJTYPE ' .. shown(key) .. ' is a ' .. is .. ' where a ' .. want .. ' belongs')
  end
end
local function wrong_shared()
  return wrong('mj:leases', 'zset') or wrong('mj:missing', 'zset') or wrong('mj:dead', 'stream')
    or wrong('mj:anomalies', 'stream')
end

local function to_table(flat)
  local fields = {}
  for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
  return fields
end
local function read_claim(job)  -- nil: not a hash
  local key = 'mj:claim:' .. job
  local is = type_of(key)
  if is == 'none' then return {} end
  if is == 'hash' then return to_table(redis.call('HGETALL', key)) end
end
local function is_job_key(key)
  local caller, id = string.match(key, '^job:([1-9]%d*):([1-9]%d*)$')
  return caller and #caller <= 10 and #id <= 10 and num(caller) <= 4294967295 and num(id) <= 4294967295
end
local function owns(claim, claim_id, token)
  return claim and claim.claim_id == claim_id and claim.token == redis.sha1hex(token)
end
local function is_live(claim, claim_id, token)
  return owns(claim, claim_id, token) and claim.state == 'live' and now_ms <= num(claim.until_ms)
end

local function add_anomaly(text)
  local last = redis.call('XREVRANGE', 'mj:anomalies', '+', '-', 'COUNT', 1)[1]
  if last and last[2][2] == text then return end
  redis.call('XADD', 'mj:anomalies', 'MAXLEN', '~', 10000, '*', 'text', text)
end
local function add_dead(entry, queue, reason)
  redis.call('XADD', 'mj:dead', 'MAXLEN', '~', 100000, '*', 'key', string.sub(entry, 1, 1024), 'queue', queue,
    'reason', reason)
end

local function last_seq(job)  -- of the job's log
  if type_of('mj:log:' .. job) ~= 'stream' then return 0 end
  local last = redis.call('XREVRANGE', 'mj:log:' .. job, '+', '-', 'COUNT', 1)[1]
  return last and num(string.match(last[1], '^%d+')) or 0
end

-- One job of a message has ended.
local function settle(message, status)
  local mark = 'mj:message:' .. message
  if type_of(mark) ~= 'hash' then return end
  local left = num(redis.call('HGET', mark, 'left'))
  if left == 0 then return end
  local failed = num(redis.call('HGET', mark, 'failed'))
  if status ~= 'finished' then failed = failed + 1 end
  redis.call('HSET', mark, 'left', left - 1, 'failed', failed)
  if left > 1 or type_of(message) ~= 'hash' then return end
  if failed == 0 then
    redis.call('HSET', message, 'status', 'processed', 'updated_at', now_s)
  else
    redis.call('HSET', message, 'status', 'error', 'updated_at', now_s, 'error', failed .. ' of its jobs failed')
  end
end

local function digest(fields)
  local parts = {}
  for i, text in ipairs(fields) do parts[i] = #text .. ':' .. text end
  return redis.sha1hex(table.concat(parts))
end

-- The one terminal transition. fields: name, value, ... with the status first; by_owner: its claim may repeat it.
-- claim nil: the mark cannot be written because another client took its key; the hash says it alone then.
local function finish(job, claim, fields, by_owner)
  local status = fields[2]
  local is = type_of(job)
  local end_seq = last_seq(job) + 1
  if claim then
    local mark = 'mj:claim:' .. job
    redis.call('HSET', mark, 'state', 'ended', 'status', status, 'end', digest(fields), 'ended_ms', dec(now_ms))
    redis.call('HDEL', mark, 'queue', 'message', 'cancel', 'lease_ms', 'until_ms', 'log_base', 'reason')
    if not by_owner then redis.call('HDEL', mark, 'claim_id', 'token') end
    if claim.message then settle(claim.message, status) end
  end
  if is == 'hash' or is == 'none' then
    redis.call('HDEL', job, 'error', 'error_info', 'result', 'usage', 'layers', 'receipt', 'lease_until_ms')
    redis.call('HSET', job, 'ended_ms', dec(now_ms), 'updated_at', now_s, unpack(fields))
  else
    add_dead(job, '', 'wrong_type')
  end
  -- Fails if another client has written a log of its own: the end stands all the same.
  redis.pcall('XADD', 'mj:log:' .. job, dec(end_seq) .. '-0', 'end', status)
  redis.call('ZREM', 'mj:leases', job)
end

local function failure(detail, text) return {'status', 'error', 'detail', detail, 'error', text} end

-- A live claim gives its job back, to be taken next. An error if the queue is a list no more.
local function give_back(job, claim, state, reason)
  if claim.cancel then return finish(job, claim, failure('cancelled', 'cancelled'), false) end
  local queue = claim.queue or ''
  local err = wrong(queue, 'list')
  if err then return err end
  local is = type_of(job)
  redis.call('RPUSH', queue, job)
  redis.call('HSET', 'mj:claim:' .. job, 'state', state, 'reason', reason)
  redis.call('HDEL', 'mj:claim:' .. job, 'until_ms')
  redis.call('ZREM', 'mj:leases', job)
  if is == 'hash' then
    redis.call('HDEL', job, 'claim_id', 'runner_id', 'lease_until_ms')
    redis.call('HSET', job, 'status', 'dispatched', 'detail', 'queued', 'updated_at', now_s)
  end
end
