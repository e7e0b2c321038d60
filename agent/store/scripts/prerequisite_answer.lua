--# journal places ends
-- Somebody approves what a job outside of a flow waits for, or rejects it (reason): then it ends. told: who and why, which
-- the job's log repeats. ok; again: it was approved before; missing; over: it has ended; met: they were met; early: nobody has looked
-- at it yet; unasked; or the id of the flow that decides.
local job, name, told, reason = arg(), arg(), arg(), arg()
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
redis.call('HSET', 'mj:claim:' .. job, 'approved:' .. name, told)
-- Fails if another client has written a log of its own: the answer stands all the same.
redis.pcall('XADD', 'mj:log:' .. job, dec(last_seq(job) + 1) .. '-0', 'ts', dec(now_ms), 'stream', 'system', 'text', told .. '\n')
if claim.state == 'prerequisites' then redis.call('ZADD', 'mj:prerequisites', dec(now_ms), job) end
return 'ok'
