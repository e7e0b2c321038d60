--# tick: journal places messages worlds kept ends
-- What time brings. Answers {due, settled, missing, overdue, retired, more, ms until the next delayed job}.
local missing_wait, keep_ms, keep_count, max = num(arg()), num(arg()), num(arg()), num(arg())
read_quota()
local err = wrong_shared() or wrong('mj:horizon', 'hash')
if err then return err end
local more = 0
local function bounded(list, step)
  if #list >= max * step then more = 1 end
  return list
end

local due = 0
for _, job in ipairs(bounded(redis.call('ZRANGEBYSCORE', 'mj:delayed', '-inf', dec(now_ms), 'LIMIT', 0, max), 1)) do
  local claim = find_claim(job)
  if claim and claim.state == 'delayed' then
    -- A job that its runner released without a run is the next one of its queue, as it was before.
    enqueue(job, claim, 'due', claim.reason == 'released')
    if claim.state == 'queued' then due = due + 1 end
  else
    redis.call('ZREM', 'mj:delayed', job)
  end
end

-- Dependents of a job that were too many for one step.
while settle_left > 0 do
  local dep = redis.call('LPOP', 'mj:settling')
  if not dep then break end
  settle_dependents(dep, end_of(dep) or 'error')
end
if redis.call('EXISTS', 'mj:settling') == 1 then more = 1 end

-- Held jobs, should the one that was let go before them stand in a queue that nobody serves.
if type_of('mj:holding') == 'set' then
  for _, key in ipairs(redis.call('SRANDMEMBER', 'mj:holding', max)) do
    local held = 'mj:held:' .. key
    local job = not is_foreign(held, 'zset') and redis.call('ZRANGE', held, 0, 0)[1]
    local claim = job and find_claim(job)
    if not job then
      redis.call('SREM', 'mj:holding', key)
    elseif not claim or claim.state ~= 'held' then
      redis.call('ZREM', held, job)
    else
      -- Where the record is none any more, the claim says so.
      local limit = has_type(job, 'hash') and num(redis.call('HGET', job, 'concurrency_limit')) or 0
      local running = call_index('SCARD', 'mj:running:' .. key)
      if running and running < math.max(1, limit) then enqueue(job, claim, 'held', true) end
    end
  end
end

-- Entries whose record was missing.
local missing = 0
local waiting = bounded(redis.call('ZRANGE', 'mj:missing', 0, max - 1, 'WITHSCORES'), 2)
for i = 1, #waiting, 2 do
  local member = waiting[i]
  local job, queue = string.match(member, '^(%S+) (.*)$')
  local is = job and type_of(job)
  local over = true
  if is == 'hash' and is_foreign(queue, 'list') then
    over = false
  elseif is == 'hash' then
    redis.call('RPUSH', queue, job)
  elseif is == 'none' and now_ms <= num(waiting[i + 1]) + missing_wait then
    over = false
  else
    local id = add_dead(job or member, queue or '', is == 'none' and 'no_record' or 'wrong_type')
    local claim = job and find_claim(job)
    if claim and claim.state == 'queued' then
      finish(job, claim, failure('dead_letter', 'another client deleted its record'), false)
      redis.call('HSET', 'mj:claim:' .. job, 'dead', id)
    end
  end
  if over then
    redis.call('ZREM', 'mj:missing', member)
    missing = missing + 1
  end
end

-- Jobs that plain clients have pushed are in no index. Twice a second at most a part of each list is searched for jobs whose
-- wait is limited: of the queues with a journal, and of those that a step of SCAN finds.
local kSearched = 50  -- entries of a list
local function limit_pushed(queue)
  if type_of(queue) ~= 'list' then return end
  local length = redis.call('LLEN', queue)
  local from = length > kSearched and now_us % length or 0  -- another part each time
  for _, job in ipairs(redis.call('LRANGE', queue, from, from + kSearched - 1)) do
    if is_job_key(job) and redis.call('EXISTS', 'mj:claim:' .. job) == 0 then
      local asked = redis.pcall('HMGET', job, 'queue_timeout_ms', 'queued_ms', 'run_at_ms', 'detail')
      if asked.err then is_foreign(job, 'hash') end
      local until_ms = not asked.err and asked[4] ~= 'created' and wait_limit(num(asked[1] or nil), num(asked[2] or nil), num(asked[3] or nil))
      if until_ms then redis.call('ZADD', 'mj:overdue', 'NX', dec(until_ms), job) end
    end
  end
end
local search = call_index('HMGET', 'mj:pushed', 'at', 'cursor')
if search and math.abs(now_ms - num(search[1] or nil)) >= 500 then
  local known = redis.call('SRANDMEMBER', 'mj:queues', 20)
  for _, queue in ipairs(known) do limit_pushed(queue) end
  local page = redis.call('SCAN', dec(num(search[2] or nil)), 'MATCH', 'queue:*', 'COUNT', 100)
  for _, queue in ipairs(page[2]) do limit_pushed(queue) end
  -- Nothing is written into a context without queues, which may have been deleted.
  if #known + #page[2] > 0 or page[1] ~= '0' then redis.call('HSET', 'mj:pushed', 'at', dec(now_ms), 'cursor', page[1]) end
end
local function is_waiting(job, claim)
  if claim.state then return claim.state ~= 'live' and claim.state ~= 'ended' end
  local record = redis.pcall('HMGET', job, 'status', 'queue_timeout_ms')
  return not record.err and num(record[2] or nil) > 0 and record[1] ~= 'finished' and record[1] ~= 'error'
end

-- Jobs that waited longer than they may.
local overdue = 0
for _, job in ipairs(bounded(redis.call('ZRANGEBYSCORE', 'mj:overdue', '-inf', dec(now_ms), 'LIMIT', 0, max), 1)) do
  local claim = find_claim(job)
  if claim and is_waiting(job, claim) then
    local listed = not claim.state or claim.state == 'queued' and not has_priority(claim)
    finish(job, claim, failure('timeout', 'it waited longer than its queue_timeout_ms allows'), false)
    if listed then redis.call('HSET', 'mj:claim:' .. job, 'leftover', 1) end
    overdue = overdue + 1
  end
  redis.call('ZREM', 'mj:overdue', job)
end

-- Ended jobs past retention leave with their record, log and facts. The score of a job that is kept (is_kept) is the
-- negated moment of the next look at it: a later moment would count as one more end.
local retired = 0
local kept_until = dec(-(now_ms + math.min(keep_ms > 0 and keep_ms or 1000, 600000)))
local function retire(job)
  local claim = find_claim(job)
  if not claim or claim.state ~= 'ended' then return redis.call('ZREM', 'mj:ended', job) end
  if is_kept(job, claim) then return redis.call('ZADD', 'mj:ended', kept_until, job) end
  retire_job(job, claim)
  retired = retired + 1
end
for _, job in ipairs(redis.call('ZRANGEBYSCORE', 'mj:ended', dec(-now_ms), '(0', 'LIMIT', 0, max)) do
  local claim = find_claim(job)
  local is_still_kept = claim and claim.state == 'ended' and is_kept(job, claim)
  redis.call('ZADD', 'mj:ended', is_still_kept and kept_until or dec(num(claim and claim.ended_ms)), job)
end
if keep_ms > 0 then
  for _, job in ipairs(bounded(redis.call('ZRANGEBYSCORE', 'mj:ended', '0', dec(math.max(0, now_ms - keep_ms)), 'LIMIT', 0, max), 1)) do
    retire(job)
  end
end
local excess = keep_count > 0 and redis.call('ZCARD', 'mj:ended') - keep_count or 0
if excess > 0 then
  local before = retired
  for _, job in ipairs(redis.call('ZRANGEBYSCORE', 'mj:ended', '0', '+inf', 'LIMIT', 0, math.min(excess, max))) do
    retire(job)
  end
  if excess >= max and retired > before then more = 1 end
end

-- Returns the caller whose oldest ended jobs are retired, and whether the quota of the context is the reason. A caller that
-- keeps almost as much as its own quota is retired down to three quarters of that quota. When the context is almost full, the
-- jobs of the caller that keeps most are retired until all callers together keep three quarters of the context's quota.
local function caller_in_excess()
  local now = call_index('HMGET', kKept, 'over', 'all', 'caller_max', 'context_max')
  if now and now[2] and (num(now[3] or nil) ~= quota.caller or num(now[4] or nil) ~= quota.context) then
    redis.call('HSET', kKept, 'caller_max', dec(quota.caller), 'context_max', dec(quota.context))
  end
  if not now or not now[1] then return end
  if not is_almost(num(now[2] or nil), quota.context) then return now[1], false end
  local most, caller = 0, now[1]
  if redis.call('HLEN', kKept) <= 10000 then
    local all = redis.call('HGETALL', kKept)
    for i = 1, #all, 2 do
      if string.find(all[i], '^%d+$') and num(all[i + 1]) > most then most, caller = num(all[i + 1]), all[i] end
    end
  end
  return caller, true
end
local excess_of, is_context_full = caller_in_excess()
local function is_relieved(own, all)
  if is_context_full then return quota.context == 0 or all <= quota.context * 3 / 4 end
  return quota.caller == 0 or own <= quota.caller * 3 / 4
end
local function relieve(caller)
  local now = redis.call('HMGET', kKept, caller, 'all', 'at')
  local from, kept_ms = num(now[3] or nil), nil
  local page = redis.call('ZRANGEBYSCORE', 'mj:ended', dec(from), '+inf', 'WITHSCORES', 'LIMIT', 0, 4 * max)
  local first, left = page[2], max
  for i = 1, #page, 2 do
    if left == 0 or is_relieved(num(now[1] or nil), num(now[2] or nil)) then return true, page[i + 1] end
    if caller_of(page[i]) == caller then
      local before = retired
      retire(page[i])
      left = left - (retired - before)
      now = redis.call('HMGET', kKept, caller, 'all')
    end
    kept_ms = page[i + 1]
  end
  -- Many that ended in one millisecond: the next search begins behind them.
  if kept_ms and kept_ms == first then kept_ms = dec(num(kept_ms) + 1) end
  return #page == 8 * max, kept_ms
end
if excess_of then
  local goes_on, at = relieve(excess_of)
  local now = redis.call('HMGET', kKept, excess_of, 'all')
  if not goes_on or is_relieved(num(now[1] or nil), num(now[2] or nil)) then
    redis.call('HDEL', kKept, 'over', 'at')
  else
    redis.call('HSET', kKept, 'at', at or '0')
    more = 1
  end
end

-- Records that another client has deleted before anybody took them up: in time they are the oldest of all.
if has_type('mj:jobs', 'zset') then
  for _, job in ipairs(redis.call('ZRANGE', 'mj:jobs', 0, 9)) do
    if redis.call('EXISTS', job, 'mj:claim:' .. job) == 0 then redis.call('ZREM', 'mj:jobs', job) end
  end
end

local next_due = redis.call('ZRANGE', 'mj:delayed', 0, 0, 'WITHSCORES')[2]
return {due, settled, missing, overdue, retired, more, next_due and math.max(1, num(next_due) - now_ms) or 0}
