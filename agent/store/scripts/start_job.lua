--# journal places
-- Queues a job whose record was written in no queue. Answers {missing | queued | known, record}; known: it is in a queue,
-- planned, runs or has run.
local job, queue = arg(), arg()
local err = wrong(job, 'hash') or wrong('mj:claim:' .. job, 'hash') or wrong(queue, 'list') or wrong_shared()
if err then return err end
if redis.call('EXISTS', job) == 0 then return {'missing', {}} end
local function known() return {'known', redis.call('HGETALL', job)} end
if redis.call('EXISTS', 'mj:claim:' .. job) == 1 or redis.call('HGET', job, 'status') ~= 'dispatched' then return known() end
local wish = to_table(redis.call('HGETALL', job))
if redis.call('LPOS', queue, job) then return known() end  -- another client has pushed it
local due = num(wish.run_at_ms)
local delayed = due > now_ms
redis.call('HSET', job, 'detail', delayed and 'delayed' or 'queued', 'updated_at', now_s, 'queued_ms', dec(now_ms))
local claim = {priority = valid_priority(wish.priority)}
if delayed then
  redis.call('ZADD', 'mj:delayed', dec(due), job)
  add_fact(queue, job, claim, 'scheduled', 'due', dec(due))
else
  push(job, claim, queue, false)
  add_fact(queue, job, claim, 'scheduled')
end
set_claim(job, claim, 'state', delayed and 'delayed' or 'queued', 'queue', queue, 'priority', claim.priority)
if wish.idempotency_key then redis.call('HSET', 'mj:claim:' .. job, 'idem', wish.idempotency_key) end
local wait = num(wish.queue_timeout_ms)
if wait > 0 then
  redis.call('ZADD', 'mj:overdue', dec(math.max(now_ms, due) + wait), job)
  redis.call('HSET', 'mj:claim:' .. job, 'overdue', 1)
end
return {'queued', redis.call('HGETALL', job)}
