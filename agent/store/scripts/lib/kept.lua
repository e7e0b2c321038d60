-- Bytes that the jobs of each caller store in this Redis: field <caller> of mj:kept; field `all` is the sum over all
-- callers. A job is charged when its record is written, for its output and for its end, and credited when it is
-- deleted. The claim holds the charges: kept (record), kept_end and log_bytes. For a job that was created and never
-- queued, and for a message that a client created in this context, mj:kept-created holds the charge.
-- The fields over, at, began and full of mj:kept are the state of the search for ended jobs to retire (tick.lua). The
-- field changes counts the changes; caller_max and context_max repeat the quotas for readers.
local kKept, kKeptCreated = 'mj:kept', 'mj:kept-created'
local kMinChargedBytes = 3072  -- minimum charge of a job in bytes: record, claim and facts
local kMinEndBytes = 2048  -- a shorter end is covered by the minimum charge
local kLogStep = 2048  -- output is charged in steps of this many bytes
local kLineBytes = 32  -- overhead of a line of output in bytes
-- Pause between two checks of a job that waits because its caller exceeds a quota.
local kQuotaPauseMs, kMaxQuotaPauseMs = 10000, 60000
-- The quotas in bytes; 0 is unlimited. Scripts that receive the quotas in ARGV set them with read_quota().
local quota = {caller = 0, context = 0}
local function read_quota() quota = {caller = to_number(arg()), context = to_number(arg())} end

-- Returns the caller's id in the key of a job or message.
local function caller_of(key) return string.match(key, '^%l+:(%d+):') end
local function bytes_of(texts)
  local bytes = 0
  for _, text in ipairs(texts) do bytes = bytes + #text end
  return bytes
end
local function record_charge(fields) return math.max(kMinChargedBytes, bytes_of(fields)) end
local function log_charge(bytes) return bytes - bytes % kLogStep end

-- Returns the setting of the exceeded quota and its value, or nothing. eighths: the allowed share of the quotas in
-- eighths. In a full context a caller with little data (small_share) is still accepted, so that other callers cannot
-- lock it out; twice the quota of the context is never exceeded.
local function small_share() return (quota.caller > 0 and math.min(quota.caller, quota.context) or quota.context) / 16 end
-- Running jobs may exceed the quotas by one eighth when their ends are stored.
local kAtQuota, kAtQuotaOfEnds = 8, 9
local function exceeded_quota(own, all, eighths)
  local times = eighths / 8
  if quota.caller > 0 and own > quota.caller * times then return 'quota.caller_bytes', quota.caller end
  if quota.context == 0 or all <= quota.context * times then return end
  if own > small_share() or all > 2 * quota.context then return 'quota.context_bytes', quota.context end
end
-- Returns the result of exceeded_quota() for the present usage of a caller. more: bytes that are not counted yet.
local function exceeded_now(caller, more)
  if quota.caller == 0 and quota.context == 0 then return end
  local now = call_index('HMGET', kKept, caller, 'all')
  if now then return exceeded_quota(to_number(now[1] or nil) + (more or 0), to_number(now[2] or nil) + (more or 0), kAtQuota) end
end
-- Returns whether the usage is so high that the oldest ended jobs are retired. Retiring them early keeps new jobs from
-- reaching the quota.
local function is_nearly_full(bytes, limit) return limit > 0 and bytes > limit - limit / 8 end

-- Requests that tick retires ended jobs of the caller. A running search for another caller is completed first.
local function ask_for_relief(caller) call_index('HSETNX', kKept, 'over', caller) end

-- Charges the caller. If the new total exceeds the given share of a quota, charges nothing and returns the setting and
-- its value. Without `eighths` the charge is never refused.
local function charge(caller, bytes, eighths)
  local now = bytes > 0 and call_index('HMGET', kKept, caller, 'all', 'changes')
  if not now then return end
  local own, all, changes = to_number(now[1] or nil) + bytes, to_number(now[2] or nil) + bytes, to_integer_text(to_number(now[3] or nil) + 1)
  local setting, limit
  if eighths then setting, limit = exceeded_quota(own, all, eighths) end
  if setting then
    ask_for_relief(caller)
    return setting, limit
  end
  redis.call('HSET', kKept, caller, to_integer_text(own), 'all', to_integer_text(all), 'changes', changes)
  if is_nearly_full(own, quota.caller) or is_nearly_full(all, quota.context) then ask_for_relief(caller) end
end
-- Credits the caller. The sum is reduced by the same amount as the caller's counter, so that a counter that was too low
-- does not make the two disagree.
local function release_charge(caller, bytes)
  local now = bytes > 0 and call_index('HMGET', kKept, caller, 'all', 'changes')
  if not now then return end
  local before = to_number(now[1] or nil)
  local less = math.min(bytes, before)
  local own, all = before - less, math.max(0, to_number(now[2] or nil) - less)
  redis.call('HSET', kKept, caller, to_integer_text(own), 'all', to_integer_text(all), 'changes', to_integer_text(to_number(now[3] or nil) + 1))
  if own == 0 then redis.call('HDEL', kKept, caller) end
  if all == 0 then redis.call('HDEL', kKept, 'all', 'changes', 'over', 'at', 'began', 'full', 'caller_max', 'context_max') end
end
local function text_of_excess(caller, setting, limit)
  return 'the jobs of caller ' .. caller .. ' keep more than ' .. setting .. ' allows, ' .. to_integer_text(limit) .. ' bytes'
end
-- Returns the error MJFULL for a new record that exceeds a quota.
local function quota_error(caller, setting, limit)
  return redis.error_reply('MJFULL the jobs of caller ' .. caller .. ' and their output keep as much in this Redis as the setting '
    .. setting .. ' allows, ' .. to_integer_text(limit) .. ' bytes: wait until some have ended, delete some (mycojobs job delete), or raise it')
end

-- Removes and returns the charge of a record if mj:kept-created holds it.
local function pop_created_charge(key)
  local noted = call_index('HGET', kKeptCreated, key)
  if noted then redis.call('HDEL', kKeptCreated, key) end
  return noted and to_number(noted) or nil
end
local function release_message_charge(message) release_charge(caller_of(message), pop_created_charge(message) or 0) end
-- Charges the end of a job or of an attempt. Returns the fields to write to the claim; or nil, the setting and its
-- value if the charge exceeds the given share of a quota (eighths; nil: never refused).
local function charge_end(job, claim, fields, eighths)
  local bytes, before = bytes_of(fields), to_number(claim.kept_end)
  if bytes < kMinEndBytes then bytes = 0 end
  if bytes == before then return claim.end_charge or {} end
  if bytes > before then
    local setting, limit = charge(caller_of(job), bytes - before, eighths)
    if setting then return nil, setting, limit end
  else
    release_charge(caller_of(job), before - bytes)
  end
  claim.kept_end = to_integer_text(bytes)
  claim.end_charge = {'kept_end', claim.kept_end}  -- a second call for the same end returns the same fields
  return claim.end_charge
end
-- Returns whether an end exceeds the quotas of its caller. Such an end is stored without its result and long texts, and
-- a line in the job's log names the setting.
local function is_end_refused(job, claim, fields)
  local charged, setting, limit = charge_end(job, claim, fields, kAtQuotaOfEnds)
  if charged then return false end
  local text = 'its result is not kept, nor a long error: ' .. text_of_excess(caller_of(job), setting, limit)
  local logged = redis.pcall('XADD', 'mj:log:' .. job, to_integer_text(last_seq(job) + 1) .. '-0', 'ts', to_integer_text(now_ms), 'stream', 'system', 'text', text)
  if type(logged) == 'table' and logged.err then reports_wrong_type('mj:log:' .. job, 'stream') end
  return true
end
-- Credits everything that was charged for a job.
local function release_job_charge(job, claim)
  release_charge(caller_of(job), to_number(claim.kept) + (pop_created_charge(job) or 0) + to_number(claim.kept_end) + log_charge(to_number(claim.log_bytes)))
end
