-- Messages: their marks (mj:message:<key>), and what becomes of them. States of a mark:
--   taken     its jobs are in their queues, or it is a line or mail for whoever reads msg_in
--   refused   it could not be used
--   arrived   it has come from elsewhere, and is to be taken (mj:inbox)
--   away      it has left for elsewhere, or is to (mj:outbox); its jobs end with its answer
--   over      it was away
-- `answer`: wanted (whoever sent it waits for it), due (it is to be sent), given, lost.
local function is_message_key(key)
  return #key <= 64 and string.match(key, '^message:[1-9]%d*:[1-9]%d*$')
end
local function wrong_mail()
  return wrong('mj:outbox', 'zset') or wrong('mj:inbox', 'zset') or wrong('mj:messages', 'zset')
end
local function wrong_message(message)
  return wrong(message, 'hash') or wrong('mj:message:' .. message, 'hash') or wrong_mail()
end
-- The jobs of a message as arguments, and their keys; the third: the error to answer with.
local function message_jobs(count)
  local jobs, keys, named = {}, {}, {}
  for i = 1, count do
    local key, accepted, queue = arg(), arg() == '1', arg()
    if named[key] then return nil, nil, redis.error_reply('MJCONFLICT ' .. key .. ' is listed twice in the message') end
    named[key] = true
    jobs[i] = {key = key, accepted = accepted, queue = queue, fields = list_arg()}
    keys[i] = key
  end
  return jobs, keys
end
-- What there is of one of them already. Nothing, or what to answer with.
local function meet_job(index, job)
  local err = wrong(job.key, 'hash') or wrong('mj:claim:' .. job.key, 'hash')
  if err then return err end
  job.there = redis.call('EXISTS', job.key) == 1
  if job.there and not job.accepted then return {'exists', index, redis.call('HGETALL', job.key)} end
  job.claim = read_claim(job.key)
end
local function mail_moves() redis.call('PUBLISH', 'mj:mail', '') end
-- Something is to be sent elsewhere, now; due_ms: since when. A job's end goes on whatever another client has made of the index.
local function put_out(entry)
  if wrong('mj:outbox', 'zset') then
    return add_anomaly('mj:outbox is not a sorted set, so no peer is notified: ' .. entry .. ': delete that key, then doctor --rebuild')
  end
  local mark = 'mj:message:' .. string.match(entry, '%S+$')
  if has_type(mark, 'hash') then redis.call('HSET', mark, 'due_ms', dec(now_ms)) end
  redis.call('ZADD', 'mj:outbox', dec(now_ms), entry)
  mail_moves()
end
-- For whoever reads what comes in, once; who never reads loses the oldest.
local kMostIn = 10000
local function put_in(message)
  if wrong('msg_in', 'list') then
    return add_anomaly('msg_in is not a list, so no process receives ' .. message .. ': delete that key')
  end
  redis.call('LREM', 'msg_in', 0, message)
  if redis.call('LPUSH', 'msg_in', message) > kMostIn then redis.call('RPOP', 'msg_in') end
end
-- The message is processed, or an error with this reason; who sent it is to hear of it, also if another client has deleted
-- its record. What failed of one that was cancelled was meant to: its error begins so (service/messages.cpp).
local function end_message(message, reason)
  local mark = 'mj:message:' .. message
  if reason ~= '' and redis.call('HGET', mark, 'cancelled') and not string.find(reason, '^cancelled') then reason = 'cancelled: ' .. reason end
  if type_of(message) ~= 'hash' then
    add_anomaly(shown(message) .. ' has ended, and its record is missing')
  elseif reason == '' then
    redis.call('HSET', message, 'status', 'processed', 'updated_at', now_s)
    redis.call('HDEL', message, 'error')
  else
    redis.call('HSET', message, 'status', 'error', 'error', reason, 'updated_at', now_s)
  end
  call_index('ZADD', 'mj:messages', dec(now_ms), message)
  if redis.call('HGET', mark, 'answer') == 'wanted' then
    redis.call('HSET', mark, 'answer', 'due')
    put_out('answer ' .. message)
  elseif redis.call('HGET', mark, 'own') then
    put_in(message)
  end
end
-- One job of a message has ended.
local function settle_message(message, status)
  local mark = 'mj:message:' .. message
  if not has_type(mark, 'hash') then return end
  local is = to_table(redis.call('HGETALL', mark))
  local left, failed = num(is.left), num(is.failed)
  if left == 0 then return end
  if status ~= 'finished' then failed = failed + 1 end
  redis.call('HSET', mark, 'left', left - 1, 'failed', failed)
  if left > 1 or is.state == 'away' then return end
  if (is.flow or '') ~= '' and not is.flow_ended then return end
  end_message(message, failed > 0 and failed .. ' of its jobs failed' or '')
end
-- ": node b failed: ...", as its record says.
local function why_of(flow)
  local key = 'flow:' .. (flow or '')
  local why = type_of(key) == 'hash' and redis.call('HGET', key, 'error') or ''
  return why == '' and '' or ': ' .. shown(why)
end
-- The flow that it has become has ended.
local function settle_flow(message, status)
  local mark = 'mj:message:' .. message
  if not has_type(mark, 'hash') or redis.call('HGET', mark, 'flow_ended') then return end
  redis.call('HSET', mark, 'flow_ended', status)
  if num(redis.call('HGET', mark, 'left')) == 0 then end_message(message, status == 'finished' and '' or 'its flow failed' .. why_of(redis.call('HGET', mark, 'flow'))) end
end
