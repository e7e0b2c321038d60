-- Topics and their messages.

--# topic_send:
-- sent, or other: the message exists with other content.
local topic, message, fields = arg(), arg(), list_arg()
local list, mark = 'mj:topic:' .. topic, 'mj:message:' .. message
local err = wrong(list, 'list') or wrong(message, 'hash') or wrong(mark, 'hash')
if err then return err end
local there = redis.call('EXISTS', message) == 1
if there and #fields > 0 then
  local want, is = to_table(fields), to_table(redis.call('HGETALL', message))
  for _, name in ipairs({'message', 'message_type', 'job', 'flow'}) do
    if (want[name] or '') ~= (is[name] or '') then return 'other' end
  end
elseif #fields > 0 then
  redis.call('HSET', message, unpack(fields))
end
if redis.call('EXISTS', mark) == 0 and not redis.call('LPOS', list, message) then redis.call('LPUSH', list, message) end
redis.call('PUBLISH', topic, message)
return 'sent'

--# topic_pending:
-- Messages that wait on a topic and have a record, oldest first. An entry without one leaves the list at once, so that it
-- is in nobody's way; it is looked for again until it has been missing for wait_ms, and then forgotten. So many entries in
-- one call, so that no other client waits for long.
local topic, max, wait_ms = arg(), num(arg()), num(arg())
local list, missing = 'mj:topic:' .. topic, 'mj:topic-missing:' .. topic
local err = wrong(list, 'list') or wrong(missing, 'zset')
if err then return err end
local function is_message_key(key)
  return #key <= 64 and string.match(key, '^message:[1-9]%d*:[1-9]%d*$')
end
if redis.call('EXISTS', missing) == 1 then
  local waiting = redis.call('ZRANGE', missing, 0, max - 1, 'WITHSCORES')
  for i = 1, #waiting, 2 do
    local key, since = waiting[i], num(waiting[i + 1])
    local there = redis.call('EXISTS', key) == 1
    if there then redis.call('RPUSH', list, key) end
    if there or now_ms - since >= wait_ms or since > now_ms + wait_ms then redis.call('ZREM', missing, key) end
  end
end
local found = {}
local entries = redis.call('LRANGE', list, -max, -1)
for i = #entries, 1, -1 do
  local key = entries[i]
  if not is_message_key(key) then
    redis.call('LREM', list, -1, key)
  elseif redis.call('EXISTS', key) == 0 then
    redis.call('ZADD', missing, 'NX', dec(now_ms), key)
    redis.call('LREM', list, -1, key)
  else
    found[#found + 1] = key
  end
end
return found

--# take_message: journal places
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

--# refuse_message:
-- refused, over (it was taken or refused before) or missing.
local topic, message, reason = arg(), arg(), arg()
local list, mark = 'mj:topic:' .. topic, 'mj:message:' .. message
local err = wrong(list, 'list') or wrong(message, 'hash') or wrong(mark, 'hash')
if err then return err end
local answer = 'refused'
if redis.call('EXISTS', mark) == 1 then
  answer = 'over'
elseif redis.call('EXISTS', message) == 0 then
  answer = 'missing'
else
  redis.call('HSET', mark, 'state', 'refused', 'left', 0)
  redis.call('HSET', message, 'status', 'error', 'error', reason, 'updated_at', now_s)
end
redis.call('LREM', list, 0, message)
return answer
