--# journal places ends
-- For each claim 0 stale, 1 renewed, 2 renewed and somebody wants the job cancelled.
local lease_ms, count = num(arg()), num(arg())
local err = wrong_shared()
if err then return err end
local answers = {}
for i = 1, count do
  local job, claim_id, token = arg(), arg(), arg()
  local claim = read_claim(job)
  if is_live(claim, claim_id, token) then
    -- Always later than before, also after a step back of the clock: whoever observes the lease must see the renewal.
    local until_ms = dec(math.max(num(claim.until_ms) + 1, now_ms + lease_ms))
    -- Of a long run some heartbeats become facts: the first after a minute, then each time it has run twice as long.
    local next_fact = claim.beat and num(claim.beat) or num(claim.began) + 60000
    if now_ms >= next_fact then
      add_fact(claim.queue, job, claim, 'heartbeat', 'c', claim_id)
      set_claim(job, claim, 'beat', dec(now_ms + now_ms - num(claim.began)))
    end
    redis.call('HSET', 'mj:claim:' .. job, 'until_ms', until_ms, 'lease_ms', dec(lease_ms))
    redis.call('ZADD', 'mj:leases', until_ms, job)
    if type_of(job) == 'hash' then redis.call('HSET', job, 'lease_until_ms', until_ms) end
    answers[i] = claim.cancel and 2 or 1
  elseif not owns(claim, claim_id, token) or claim.state == 'live' or claim.reason == 'expired' then
    add_anomaly(job .. ': a renewal by claim ' .. shown(claim_id) .. ' came too late')
    answers[i] = 0
  else
    answers[i] = 0  -- its own end, or release, has overtaken it
  end
end
return answers
