--# journal places ends
-- ended: nobody ran it and it has ended now. asked: its owner will be told. over: it had ended before. missing.
local job = arg()
local err = wrong_shared() or wrong(job, 'hash') or wrong('mj:claim:' .. job, 'hash')
if err then return err end
local claim = read_claim(job)
if claim.state == 'ended' then return 'over' end
if redis.call('EXISTS', job) == 0 then return 'missing' end
if claim.state == 'live' then
  redis.call('HSET', 'mj:claim:' .. job, 'cancel', dec(now_ms))
  -- A hint to its owner, whose next heartbeat would bring it anyway.
  local runner = 'runner:' .. (claim.runner or '')
  local topic = type_of(runner) == 'hash' and redis.call('HGET', runner, 'topic')
  redis.call('PUBLISH', topic or 'runner' .. (claim.runner or ''), 'cancel:' .. job)
  return 'asked'
end
local status = redis.call('HGET', job, 'status')
if not claim.state and (status == 'finished' or status == 'error') then return 'over' end
-- Its entry in the list is no anomaly: the claim drops it in silence.
local listed = not claim.state or (claim.state == 'queued' and not has_priority(claim))
finish(job, claim, failure('cancelled', num(claim.epoch) > 0 and 'cancelled' or 'cancelled before it ran'), false)
if listed then redis.call('HSET', 'mj:claim:' .. job, 'leftover', 1) end
return 'ended'
