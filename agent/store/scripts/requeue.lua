--# journal places ends
-- Empty, missing, or why not.
local job = arg()
local err = wrong_shared() or wrong(job, 'hash') or wrong('mj:claim:' .. job, 'hash')
if err then return err end
if redis.call('EXISTS', job) == 0 and redis.call('EXISTS', 'mj:claim:' .. job) == 0 then return 'missing' end
return reopen(job, read_claim(job)) or ''
