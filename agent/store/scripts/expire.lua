--# journal places ends
-- 1: the lease that ends at until_ms has passed and the job is back on its queue (or has ended, if it was cancelled).
local job, until_ms = arg(), num(arg())
local err = wrong_shared()
if err then return err end
local claim = read_claim(job)
if claim and not claim.state and type_of(job) == 'hash' and redis.call('HGET', job, 'status') == 'started' then
  -- Somebody has deleted the claim. Its owner was refused since then and has killed the run; the job must not be stranded:
  -- an observer whose clock is a little ahead comes again.
  if now_ms <= until_ms then return 0 end
  local queue = queue_of(job)
  err = wrong(queue, 'list')
  if err then return err end
  redis.call('RPUSH', queue, job)
  add_anomaly(job .. ' had a lease without a claim: back on ' .. shown(queue))
  redis.call('HSET', job, 'status', 'dispatched', 'detail', 'queued', 'updated_at', now_s)
  redis.call('ZREM', 'mj:leases', job)
  return 1
end
if not claim or claim.state ~= 'live' then
  redis.call('ZREM', 'mj:leases', job)  -- an entry that belongs to no claim
  return 0
end
if num(claim.until_ms) ~= until_ms then return 0 end
-- Whoever asks has seen it unrenewed for a whole lease. An end further off than that only says that the clock went back.
local left_ms = until_ms - now_ms
if left_ms >= 0 and left_ms <= num(claim.lease_ms) then return 0 end
return give_back(job, claim, 'expired', 'its lease ran out') or 1
