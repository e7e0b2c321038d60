--# journal places
-- {taken, keys...}, {repeated, keys...}, {missing} or {exists, index, record}: that job is there and was not accepted.
local topic, message, queue, count = arg(), arg(), arg(), num(arg())
local list, mark = 'mj:topic:' .. topic, 'mj:message:' .. message
local err = wrong(list, 'list') or wrong(message, 'hash') or wrong(mark, 'hash') or wrong(queue, 'list') or wrong_shared()
if err then return err end

local jobs, keys, named = {}, {}, {}
for i = 1, count do
  local key, accepted = arg(), arg() == '1'
  if named[key] then return redis.error_reply('MJCONFLICT ' .. key .. ' stands twice in the message') end
  named[key] = true
  jobs[i] = {key = key, accepted = accepted, fields = list_arg()}
  keys[i] = key
end
if redis.call('EXISTS', message) == 0 then return {'missing'} end
local status = redis.call('HGET', message, 'status')
if redis.call('EXISTS', mark) == 1 or status == 'acknowledged' or status == 'processed' or status == 'error' then
  redis.call('LREM', list, 0, message)
  table.insert(keys, 1, 'repeated')
  return keys
end
local left, failed = 0, 0
for i, job in ipairs(jobs) do
  err = wrong(job.key, 'hash') or wrong('mj:claim:' .. job.key, 'hash')
  if err then return err end
  job.there = redis.call('EXISTS', job.key) == 1
  if job.there and not job.accepted then return {'exists', i, redis.call('HGETALL', job.key)} end
  job.claim = read_claim(job.key)
  if job.claim.message then
    return redis.error_reply('MJCONFLICT ' .. job.key .. ' belongs to ' .. shown(job.claim.message) .. ' already')
  end
  local word = job.there and not job.claim.state and redis.call('HGET', job.key, 'status')
  job.over = job.claim.state == 'ended' and (job.claim.status or 'error') or (word == 'finished' or word == 'error') and word
  if not job.over then left = left + 1 elseif job.over ~= 'finished' then failed = failed + 1 end
end

redis.call('HSET', mark, 'state', 'taken', 'left', left, 'failed', failed, 'taken_ms', dec(now_ms))
for _, job in ipairs(jobs) do
  if not job.over then
    local claim = job.claim
    if not job.there then
      redis.call('HSET', job.key, 'status', 'dispatched', 'detail', 'queued', 'created_at', now_s, 'updated_at', now_s,
        'queued_ms', dec(now_ms), unpack(job.fields))
    end
    if not claim.state then
      claim.priority = valid_priority(redis.call('HGET', job.key, 'priority') or '')
      push(job.key, claim, queue, false)
      add_fact(queue, job.key, claim, 'scheduled', 'm', message)
      set_claim(job.key, claim, 'state', 'queued', 'queue', queue, 'priority', claim.priority)
    end
    redis.call('HSET', 'mj:claim:' .. job.key, 'message', message)
  end
end
local after = left > 0 and 'acknowledged' or failed > 0 and 'error' or 'processed'
redis.call('HSET', message, 'status', after, 'updated_at', now_s)
redis.call('LREM', list, 0, message)
table.insert(keys, 1, 'taken')
return keys
