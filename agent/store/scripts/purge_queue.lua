--# journal places ends
-- Cancels what stands in a queue, the next to be taken first. Answers how many entries went.
local queue, max = arg(), num(arg())
local err = wrong_shared() or wrong(queue, 'list') or wrong('mj:priority:' .. queue, 'zset')
if err then return err end
local function settle(entry)
  local claim = is_job_key(entry) and read_claim(entry)
  if not claim then return end
  if claim.state == 'ended' then return redis.call('HDEL', 'mj:claim:' .. entry, 'leftover') end
  if type_of(entry) ~= 'hash' or (claim.state and (claim.state ~= 'queued' or claim.queue ~= queue)) then return end
  local status = redis.call('HGET', entry, 'status')
  if not claim.state and (status == 'finished' or status == 'error') then return end
  claim.queue = queue
  finish(entry, claim, failure('cancelled', 'cancelled: its queue was purged'), false)
end
local gone = 0
while gone < max do
  local entry = redis.call('LINDEX', queue, -1)
  if not entry then break end
  settle(entry)
  redis.call('RPOP', queue)
  gone = gone + 1
end
for _, entry in ipairs(redis.call('ZRANGE', 'mj:priority:' .. queue, 0, max - gone - 1)) do
  if gone >= max then break end
  settle(entry)
  redis.call('ZREM', 'mj:priority:' .. queue, entry)
  gone = gone + 1
end
return gone
