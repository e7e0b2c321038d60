--# objects
-- The claim's job is the writer no more, and waits no more.
local job, claim_id = arg(), arg()
local err = wrong(kWriter, 'hash') or wrong(kWaiting, 'zset')
if err then return err end
redis.call('ZREM', kWaiting, job .. ' ' .. claim_id)
local is = redis.call('HMGET', kWriter, 'job', 'claim_id')
if is[1] ~= job or is[2] ~= claim_id then return 0 end
return redis.call('DEL', kWriter)
