-- What jobs wait for outside, and what people say to it.

--# prerequisites_due: journal places
-- {job, its prerequisites, for how long it has waited, 1 if it is of a flow, approvals that were given}... : each is given
-- out once in again_ms.
local max, again_ms, looker = num(arg()), num(arg()), arg()
local err = wrong('mj:prerequisites', 'zset')
if err then return err end
local looked = redis.pcall('HGET', 'mj:looking', 'at')  -- by a coordinator, when
looked = type(looked) == 'string' and num(looked) or 0
-- Agents leave them to coordinators where one has looked lately.
if looker == 'coordinator' then
  if math.abs(now_ms - looked) >= 1000 then redis.pcall('HSET', 'mj:looking', 'at', dec(now_ms)) end
elseif math.abs(now_ms - looked) < 5000 then
  return {}
end
local found = {}
for _, job in ipairs(redis.call('ZRANGEBYSCORE', 'mj:prerequisites', '-inf', dec(now_ms), 'LIMIT', 0, max)) do
  local claim = find_claim(job)
  if claim and claim.state == 'prerequisites' and has_type(job, 'hash') then
    redis.call('ZADD', 'mj:prerequisites', dec(now_ms + again_ms), job)
    local given = {}
    for name in pairs(claim) do
      if string.sub(name, 1, 9) == 'approved:' then given[#given + 1] = string.sub(name, 10) end
    end
    found[#found + 1] = {job, redis.call('HGET', job, 'prerequisites') or '', dec(math.max(0, now_ms - num(claim.waiting_since))),
      claim.flow and '1' or '', given, looked > 0 and '1' or ''}
  else
    redis.call('ZREM', 'mj:prerequisites', job)
  end
end
return found

--# prerequisites_settled: journal places messages worlds kept ends
-- Met, or with a reason: never. 0: the job does not wait for them.
local job, impossible = arg(), arg()
local err = wrong_shared()
if err then return err end
local claim = find_claim(job)
if not claim or claim.state ~= 'prerequisites' then return 0 end
if impossible ~= '' then
  finish(job, claim, failure('prerequisite', impossible), false)
else
  set_claim(job, claim, 'prerequisites', 'met')
  enqueue(job, claim, 'prerequisite', false)
end
return 1

--# prerequisite_answer: journal places messages worlds kept ends
-- Somebody approves what a job outside of a flow waits for, or rejects it (reason): then it ends. line: who and why, for
-- the job's log. ok; again: it was approved before; missing; over: it has ended; met: they were met; early: nobody has looked
-- at it yet; unasked; or the id of the flow that decides.
local job, name, line, reason = arg(), arg(), arg(), arg()
local err = wrong_shared() or wrong(job, 'hash') or wrong('mj:claim:' .. job, 'hash')
if err then return err end
if redis.call('EXISTS', job) == 0 then return 'missing' end
local claim, values = read_claim(job), redis.call('HMGET', job, 'prerequisites', 'status')
local asked, status = values[1] or '', values[2] or ''
if claim.flow then return string.match(claim.flow, '(%d+)$') or 'missing' end
if claim.state == 'ended' or (not claim.state and (status == 'finished' or status == 'error')) then return 'over' end
if not string.find(asked, '"approval:' .. name .. '"', 1, true) then return 'unasked' end
if claim.state == 'live' or claim.prerequisites == 'met' then return 'met' end
if not claim.state then return 'early' end

if reason ~= '' then
  local listed = claim.state == 'queued' and not has_priority(claim)
  finish(job, claim, failure('prerequisite', reason), false)
  if listed then redis.call('HSET', 'mj:claim:' .. job, 'leftover', 1) end
  return 'ok'
end
if claim['approved:' .. name] then return 'again' end
redis.call('HSET', 'mj:claim:' .. job, 'approved:' .. name, line)
-- Fails if another client has written a log of its own: the answer stands all the same.
local logged = redis.pcall('XADD', 'mj:log:' .. job, dec(last_seq(job) + 1) .. '-0', 'ts', dec(now_ms), 'stream', 'system', 'text', line .. '\n')
if type(logged) == 'table' and logged.err then is_foreign('mj:log:' .. job, 'stream') end
if claim.state == 'prerequisites' then redis.call('ZADD', 'mj:prerequisites', dec(now_ms), job) end
return 'ok'
