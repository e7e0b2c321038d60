--# journal places
-- Queues a job whose record was written in no queue. Answers {missing | queued | known, record}; known: it is in a queue,
-- planned, runs or has run.
local job, queue = arg(), arg()
local err = wrong(job, 'hash') or wrong('mj:claim:' .. job, 'hash') or wrong(queue, 'list') or wrong_shared()
if err then return err end
if redis.call('EXISTS', job) == 0 then return {'missing', {}} end
local function known() return {'known', redis.call('HGETALL', job)} end
if redis.call('EXISTS', 'mj:claim:' .. job) == 1 or redis.call('HGET', job, 'status') ~= 'dispatched' then return known() end
local wanted = to_table(redis.call('HGETALL', job))
if was_pushed(queue, job) then return known() end
local delayed = num(wanted.run_at_ms) > now_ms
redis.call('HSET', job, 'detail', delayed and 'delayed' or 'queued', 'updated_at', now_s, 'queued_ms', dec(now_ms))
place_new(job, queue, wanted)
return {'queued', redis.call('HGETALL', job)}
