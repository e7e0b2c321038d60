-- 1: the lease that ends at until_ms has passed and the job is back on its queue (or has ended, if it was cancelled).
local job, until_ms = arg(), num(arg())
local err = wrong_shared()
if err then return err end
local claim = read_claim(job)
if not claim or claim.state ~= 'live' then
  redis.call('ZREM', 'mj:leases', job)  -- an entry that belongs to no claim
  return 0
end
if num(claim.until_ms) ~= until_ms or now_ms <= until_ms then return 0 end
return give_back(job, claim, 'expired', 'its lease ran out') or 1
