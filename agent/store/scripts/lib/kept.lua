-- Bytes that the jobs of a caller keep in this Redis: field <caller> of mj:kept; field all is the sum over all callers. A job
-- is charged when its record is written, for its output and for its end, and credited when it is deleted. Its claim holds the
-- charges: kept (record), kept_end, log_bytes. For a job that was created and never queued, and for a message that a client
-- created here, mj:kept-created holds the charge.
-- The fields over and at of mj:kept are the caller whose oldest ended jobs are retired next, and the end time (ms) up to which
-- mj:ended was searched. changes counts the changes; caller_max and context_max are the quotas, for readers.
local kKept, kKeptCreated = 'mj:kept', 'mj:kept-created'
local kLeastKept = 3072     -- minimum charge of a job: record, claim and facts
local kLeastEnd = 2048      -- a shorter end is covered by the minimum charge
local kLogStep = 2048       -- output is charged in steps
local kLineBytes = 32       -- overhead of a line of output
local quota = {caller = 0, context = 0}  -- 0: any number of bytes. Set by the scripts that are given it
local function read_quota() quota = {caller = num(arg()), context = num(arg())} end

local function caller_of(key) return string.match(key, '^%l+:(%d+):') end  -- of a job or a message
local function bytes_of(texts)
  local bytes = 0
  for _, text in ipairs(texts) do bytes = bytes + #text end
  return bytes
end
local function record_charge(fields) return math.max(kLeastKept, bytes_of(fields)) end
local function log_charge(bytes) return bytes - bytes % kLogStep end

-- In a full context a caller that keeps little is still accepted, so that other callers cannot lock it out.
local function exceeded(own, all)
  if quota.caller > 0 and own > quota.caller then return 'quota.caller_bytes', quota.caller end
  local share = quota.caller > 0 and math.min(quota.caller, quota.context) or quota.context
  if quota.context > 0 and all > quota.context and own > share / 16 then
    return 'quota.context_bytes', quota.context
  end
end
-- Above this level the oldest ended jobs are retired, so that new jobs rarely reach the quota.
local function is_almost(bytes, limit) return limit > 0 and bytes > limit - limit / 8 end

-- Charges the caller. If the charge exceeds a quota and may be refused, nothing is charged, and the setting and its value are
-- returned.
local function charge(caller, bytes, may_refuse)
  local now = bytes > 0 and call_index('HMGET', kKept, caller, 'all', 'changes')
  if not now then return end
  local own, all, changes = num(now[1] or nil) + bytes, num(now[2] or nil) + bytes, dec(num(now[3] or nil) + 1)
  local setting, limit = exceeded(own, all)
  if setting and may_refuse then
    redis.call('HSET', kKept, 'over', caller)
    return setting, limit
  end
  if is_almost(own, quota.caller) or is_almost(all, quota.context) then
    redis.call('HSET', kKept, caller, dec(own), 'all', dec(all), 'changes', changes, 'over', caller)
  else
    redis.call('HSET', kKept, caller, dec(own), 'all', dec(all), 'changes', changes)
  end
end
local function credit(caller, bytes)
  local now = bytes > 0 and call_index('HMGET', kKept, caller, 'all', 'changes')
  if not now then return end
  local own, all = math.max(0, num(now[1] or nil) - bytes), math.max(0, num(now[2] or nil) - bytes)
  redis.call('HSET', kKept, caller, dec(own), 'all', dec(all), 'changes', dec(num(now[3] or nil) + 1))
  if own == 0 then redis.call('HDEL', kKept, caller) end
  if all == 0 then redis.call('HDEL', kKept, 'all', 'changes', 'over', 'at', 'caller_max', 'context_max') end
end
local function refusal_of_quota(caller, setting, limit)
  return redis.error_reply('MJFULL the jobs of caller ' .. caller .. ' and their output keep as much in this Redis as the setting '
    .. setting .. ' allows, ' .. dec(limit) .. ' bytes: wait until some have ended, delete some (mycojobs job delete), or raise it')
end

-- Removes and returns the charge of a record that has no claim with its charge.
local function created_charge(key)
  local noted = call_index('HGET', kKeptCreated, key)
  if noted then redis.call('HDEL', kKeptCreated, key) end
  return noted and num(noted) or nil
end
local function credit_message(message) credit(caller_of(message), created_charge(message) or 0) end
-- Charges the end of a job or of an attempt. Returns the fields to write to the claim.
local function charge_end(job, claim, fields)
  local bytes, before = bytes_of(fields), num(claim.kept_end)
  if bytes < kLeastEnd then bytes = 0 end
  if bytes == before then return {} end
  if bytes > before then charge(caller_of(job), bytes - before) else credit(caller_of(job), before - bytes) end
  claim.kept_end = dec(bytes)
  return {'kept_end', claim.kept_end}
end
local function credit_job(job, claim)
  credit(caller_of(job), num(claim.kept) + (created_charge(job) or 0) + num(claim.kept_end) + log_charge(num(claim.log_bytes)))
end
