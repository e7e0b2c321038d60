-- Messages: topics, the intake of received messages, and the exchange with other contexts and hosts.
-- Conventions: the scripts have no KEYS. ARGV is listed in order; a list is a count followed by that many texts, and a
-- flag is "1" or "0". If a key has a wrong type, a script fails with MJTYPE before its first write, unless stated
-- otherwise. The states of a message are in lib/messages.lua.
-- The jobs of a message in ARGV: their number, then for each job: key, accepted (flag: its existing record has the same
-- content), queue, fields (list).

--# topic_send:
-- Writes a message and adds it to the list of a topic.
-- ARGV: topic, message (key), fields (list; empty: the record exists).
-- Reply: sent; or other if the message exists with other content, and nothing is written.
-- Repeat: safe; a message that is in the list, or was taken from it, is not added again.
local topic, message, fields = arg(), arg(), list_arg()
local list, mark = 'mj:topic:' .. topic, 'mj:message:' .. message
local err = check_type(list, 'list') or check_type(message, 'hash') or check_type(mark, 'hash')
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
if there then redis.call('HDEL', message, 'detail') end  -- removes `created`
if redis.call('EXISTS', mark) == 0 and not redis.call('LPOS', list, message, 'MAXLEN', 1000) then redis.call('LPUSH', list, message) end
redis.call('PUBLISH', topic, message)
return 'sent'

--# post_message: messages
-- Puts a signed message into msg_out.
-- ARGV: message (key), signature (list of fields, may be empty).
-- Reply: posted; missing; or the status of a message that was sent before.
-- Repeat: safe; the reply is the status.
local message, signature = arg(), list_arg()
local err = check_type(message, 'hash') or check_type('msg_out', 'list')
if err then return err end
local record = redis.call('HMGET', message, 'status', 'transport_status')
if redis.call('EXISTS', message) == 0 then return 'missing' end
local status, transport = record[1] or '', record[2] or ''
if status ~= '' and status ~= 'dispatched' or transport ~= '' then return transport ~= '' and transport or status end
if #signature > 0 then redis.call('HSET', message, unpack(signature)) end
redis.call('HSET', message, 'transport_status', 'queued', 'updated_at', now_s)
redis.call('HDEL', message, 'detail')
redis.call('LPUSH', 'msg_out', message)
return 'posted'

--# pending_messages: dispatch_journal messages
-- Returns the messages in a list that have a record, oldest first. An entry without a record is moved to the index
-- `missing`, so that it does not block the list, and returns to the list when its record exists. It is forgotten after
-- wait_ms. The number of entries in one call is limited, so that other clients of Redis do not wait long.
-- ARGV: from (list to move to `list` first, or empty), list, missing (key of a sorted set), max, wait_ms.
-- Reply: keys of messages. They remain in the list until take_message, close_message, route_message or arrive_message
-- removes them.
-- Repeat: safe; the messages are still in the list.
local from, list, missing, max, wait_ms = arg(), arg(), arg(), to_number(arg()), to_number(arg())
local err = check_type(list, 'list') or check_type(missing, 'zset') or (from ~= '' and check_type(from, 'list'))
if err then return err end
for _ = 1, from ~= '' and max or 0 do
  if not redis.call('LMOVE', from, list, 'RIGHT', 'LEFT') then break end
end
if redis.call('EXISTS', missing) == 1 then
  local waiting = redis.call('ZRANGE', missing, 0, max - 1, 'WITHSCORES')
  for i = 1, #waiting, 2 do
    local key, since = waiting[i], to_number(waiting[i + 1])
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
    add_anomaly(to_printable(list) .. ' held ' .. to_printable(key) .. ', which is not a message key')
  elseif check_type(key, 'hash') or check_type('mj:message:' .. key, 'hash') then
    redis.call('LREM', list, -1, key)
    add_anomaly(to_printable(list) .. ' held ' .. key .. ', and that key or its state key is not a hash: another client wrote it')
  elseif redis.call('EXISTS', key) == 0 then
    redis.call('ZADD', missing, 'NX', to_integer_text(now_ms), key)
    redis.call('LREM', list, -1, key)
  elseif redis.call('HGET', key, 'detail') == 'created' then
    -- Only topic_send and post_message may send such a message. Otherwise any client that may push to msg_out could
    -- send it.
    redis.call('LREM', list, -1, key)
    add_anomaly(to_printable(list) .. ' held ' .. key .. ', which was created but not sent; the entry was dropped')
  else
    found[#found + 1] = key
  end
end
return found

--# take_message: dispatch_journal job_indexes messages
-- Queues the jobs of a message, and removes its entry from the list. The search for the entry begins at the end from
-- which messages are taken, so that a long list is not searched as a whole. A second entry of the message is removed by
-- a later call, whose reply is `repeated`.
-- ARGV: list (key), message (key), flow (id of the flow that the message has become, or empty), origins (keys of the
-- jobs where the message was sent, separated by blanks, or empty), jobs.
-- Reply: {taken, job keys...}; {repeated, job keys...} if the message was taken or closed before; {missing}; {exists,
-- index, record} if a record exists that was not accepted. Nothing is queued in the last two cases.
-- Errors: MJCONFLICT if a key occurs twice or a job belongs to another message.
-- Repeat: safe; the reply is repeated.
local list, message, flow, origins, count = arg(), arg(), arg(), arg(), to_number(arg())
local mark = 'mj:message:' .. message
local err = check_type(list, 'list') or check_message_types(message) or check_shared_types() or (flow ~= '' and (check_type('mj:flow:' .. flow, 'hash') or check_type('flow:' .. flow, 'hash')))
if err then return err end

local jobs, keys, twice = message_jobs(count)
if twice then return twice end
for _, job in ipairs(jobs) do
  err = check_type(job.queue, 'list')
  if err then return err end
end
if redis.call('EXISTS', message) == 0 then return {'missing'} end
local status, state = redis.call('HGET', message, 'status'), redis.call('HGET', mark, 'state')
-- For a message in state `arrived` only the mark counts, since another client may have changed the record.
if state and state ~= 'arrived' or not state and (status == 'acknowledged' or status == 'processed' or status == 'error') then
  redis.call('LREM', list, -1, message)
  redis.call('ZREM', 'mj:inbox', message)
  table.insert(keys, 1, 'repeated')
  return keys
end
local left, failed = 0, 0
for i, job in ipairs(jobs) do
  local answer = check_existing_job(i, job)
  if answer then return answer end
  if job.claim.message then
    return redis.error_reply('MJCONFLICT ' .. job.key .. ' belongs to ' .. to_printable(job.claim.message) .. ' already')
  end
  local word = job.there and not job.claim.state and redis.call('HGET', job.key, 'status')
  job.priority = valid_priority(job.there and redis.call('HGET', job.key, 'priority') or to_table(job.fields).priority)
  err = check_queue_types(job.queue, job.priority)
  if err then return err end
  job.over = job.claim.state == 'ended' and (job.claim.status or 'error') or (word == 'finished' or word == 'error') and word
  if not job.over then left = left + 1 elseif job.over ~= 'finished' then failed = failed + 1 end
end

redis.call('HSET', mark, 'state', 'taken', 'left', left, 'failed', failed, 'taken_ms', to_integer_text(now_ms))
redis.call('HSET', mark, 'jobs', table.concat(keys, ' '), 'flow', flow)
if state == 'arrived' then redis.call('HSET', mark, 'origins', origins) end
for _, job in ipairs(jobs) do
  if not job.over then
    local claim = job.claim
    if not job.there then
      redis.call('HSET', job.key, 'status', 'dispatched', 'detail', 'queued', 'created_at', now_s, 'updated_at', now_s,
        'queued_ms', to_integer_text(now_ms), unpack(job.fields))
    end
    if not claim.state then
      claim.priority = job.priority
      push(job.key, claim, job.queue, false)
      add_fact(job.queue, job.key, claim, 'scheduled', 'm', message)
      set_claim(job.key, claim, 'state', 'queued', 'queue', job.queue, 'priority', claim.priority)
    end
    redis.call('HSET', 'mj:claim:' .. job.key, 'message', message)
  end
end
redis.call('LREM', list, -1, message)
redis.call('ZREM', 'mj:inbox', message)
redis.call('HSET', message, 'status', 'acknowledged', 'updated_at', now_s)
if state == 'arrived' and redis.call('HGET', mark, 'stream') then
  redis.call('ZADD', 'mj:outbox', to_integer_text(now_ms + 500), 'logs ' .. message)
end
if flow ~= '' then
  local is = to_table(redis.call('HGETALL', 'mj:flow:' .. flow))
  redis.call('HSET', 'mj:flow:' .. flow, 'message', message)
  if is.state == 'ended' then end_message_of_flow(message, redis.call('HGET', 'flow:' .. flow, 'status') or 'error') end
elseif left == 0 then
  end_message(message, failed > 0 and failed .. ' of its jobs failed' or '')
end
table.insert(keys, 1, 'taken')
return keys

--# close_message: dispatch_journal messages
-- Closes a message without jobs: with a reason it is refused; without a reason it is a chat message or mail and is
-- complete.
-- ARGV: list (key), message (key), reason (or empty).
-- Reply: refused (also without a reason); over if it was taken or refused before; missing.
-- Repeat: safe; the reply is over.
local list, message, reason = arg(), arg(), arg()
local mark = 'mj:message:' .. message
local err = check_type(list, 'list') or check_type(mark, 'hash') or check_mailbox_types()
if err then return err end
local state = redis.call('HGET', mark, 'state')
local answer = 'refused'
if state and state ~= 'arrived' then
  answer = 'over'
elseif not state and type_of(message) ~= 'hash' then
  answer = 'missing'
else
  redis.call('HSET', mark, 'state', reason == '' and 'taken' or 'refused', 'left', 0)
  end_message(message, reason)
end
if reason ~= '' or not state then redis.call('LREM', list, -1, message) end
redis.call('ZREM', 'mj:inbox', message)
return answer

--# arrive_message: dispatch_journal messages
-- Stores a verified message that was received from another context or host.
-- ARGV: message (key), content (hash of its content), written (flag: its record exists), max (number of waiting
-- messages), max_of_one (number of waiting messages of one caller), fields (list), origin (list of fields of the mark
-- that name the sender).
-- Reply: stored; known if it was received before, under this key or another; other if the same sender has used this key
-- for other content; taken if another sender or a client has used this key; full; sender_full.
-- Repeat: safe; the reply is known.
local message, content, written, max, max_of_one = arg(), arg(), arg() == '1', to_number(arg()), to_number(arg())
local fields, origin = list_arg(), list_arg()
local mark = 'mj:message:' .. message
local err = check_message_types(message) or check_type('msg_out_coordinator', 'list') or check_type('mj:came', 'hash')
  or check_type('mj:inbox-turns', 'hash')
if err then return err end
local came = not written and redis.call('HGET', 'mj:came', content)
err = came and check_type('mj:message:' .. came, 'hash')
if err then return err end
if came and redis.call('HGET', 'mj:message:' .. came, 'content') == content then
  return 'known'
end
if redis.call('EXISTS', mark) == 1 then
  local is, of = to_table(redis.call('HGETALL', mark)), to_table(origin)
  if not written and (is.origin ~= of.origin or is.from ~= of.from) then return 'taken' end
  -- A message that was sent from here is not accepted under the same key.
  if is.content ~= content or is.state == 'away' or is.state == 'over' then return 'other' end
  redis.call('LREM', 'msg_out_coordinator', 0, message)
  return 'known'
end
if not written and redis.call('EXISTS', message) == 1 then return 'taken' end
local waiting = redis.call('ZCARD', 'mj:inbox')
-- Start-time fair queueing: each caller has a next turn, and each of its messages adds to it. So a message waits behind
-- the messages of its own caller, and not behind the many messages of another caller. A large message takes several
-- turns, so that turns also limit the memory that a caller uses. A next turn beyond all turns that may wait was set
-- before the clock was set back, and is ignored.
local kTurnMs, kTurnBytes, kMaxTurns = 1 / 1024, 16384, 128
local caller, bytes = string.match(message, '^message:(%d+):'), 0
for _, each in ipairs(fields) do bytes = bytes + #each end
local turns = math.max(1, math.min(kMaxTurns, math.ceil(bytes / kTurnBytes)))
local first = tonumber(redis.call('ZRANGE', 'mj:inbox', 0, 0, 'WITHSCORES')[2] or '') or now_ms
first = math.max(0, math.min(first, now_ms))
local at = tonumber(redis.call('HGET', 'mj:inbox-turns', caller) or '') or 0
if not (at >= first and at <= now_ms + (max_of_one + kMaxTurns) * kTurnMs) then at = first end
if waiting >= max then return 'full' end
if at - first >= max_of_one * kTurnMs then return 'sender_full' end
redis.call('HSET', mark, 'state', 'arrived', 'content', content, 'left', 0, 'came_ms', to_integer_text(now_ms), unpack(origin))
if not written then
  redis.call('HSET', message, 'status', 'dispatched', 'updated_at', now_s, unpack(fields))
  redis.call('HSET', 'mj:came', content, message)
end
redis.call('ZADD', 'mj:inbox', string.format('%.17g', at), message)
if waiting == 0 then redis.call('DEL', 'mj:inbox-turns') end
redis.call('HSET', 'mj:inbox-turns', caller, string.format('%.17g', at + turns * kTurnMs))
enqueue_inbox(message)
redis.call('LREM', 'msg_out_coordinator', 0, message)
publish_mailbox_change()
return 'stored'

--# route_message: dispatch_journal job_indexes messages
-- Prepares a message for sending to another context or host. Its jobs are planned here, in no queue, until their ends
-- are received.
-- ARGV: message (key), content (hash of its content), deliver_ms and result_ms (time limits for delivery and result; 0:
-- none), target (list of fields of the mark that name the receiver), jobs.
-- Reply: {routed, job keys...}; {repeated, job keys...} if the message has a mark; {missing}; {exists, index, record}
-- if a record exists that was not accepted.
-- Errors: MJCONFLICT if a key occurs twice, or a job is or was in a queue here.
-- Repeat: safe; the reply is repeated.
local message, content, deliver_ms, result_ms = arg(), arg(), to_number(arg()), to_number(arg())
local target, count = list_arg(), to_number(arg())
local mark = 'mj:message:' .. message
local err = check_message_types(message) or check_type('msg_out_coordinator', 'list') or check_shared_types()
if err then return err end
local jobs, keys, twice = message_jobs(count)
if twice then return twice end
if redis.call('EXISTS', message) == 0 then return {'missing'} end
if redis.call('EXISTS', mark) == 1 then
  redis.call('LREM', 'msg_out_coordinator', -1, message)
  table.insert(keys, 1, 'repeated')
  return keys
end
for i, job in ipairs(jobs) do
  local answer = check_existing_job(i, job)
  if answer then return answer end
  local detail = job.there and redis.call('HGET', job.key, 'detail')
  if job.claim.state or end_of(job.key) or not is_only_created(job.key, job.claim, detail) and is_in_recent_entries(job.queue, job.key) then
    return redis.error_reply('MJCONFLICT ' .. job.key .. ' is or was in a queue of this context: it cannot be sent')
  end
end
redis.call('HSET', mark, 'state', 'away', 'content', content, 'left', #jobs, 'failed', 0, 'taken_ms', to_integer_text(now_ms),
  'jobs', table.concat(keys, ' '), unpack(target))
if deliver_ms > 0 then redis.call('HSET', mark, 'deliver_until', to_integer_text(now_ms + deliver_ms)) end
if result_ms > 0 then redis.call('HSET', mark, 'result_ms', to_integer_text(result_ms)) end
for _, job in ipairs(jobs) do
  if not job.there then
    redis.call('HSET', job.key, 'created_at', now_s, unpack(job.fields))
  end
  redis.call('HSET', job.key, 'status', 'waiting_for_prerequisites', 'detail', 'away', 'updated_at', now_s)
  add_fact(job.queue, job.key, job.claim, 'planned', 'm', message)
  set_claim(job.key, job.claim, 'state', 'planned', 'queue', job.queue, 'message', message, 'priority', '0')
end
redis.call('HSET', message, 'status', 'dispatched', 'transport_status', 'queued', 'updated_at', now_s)
redis.call('LREM', 'msg_out_coordinator', -1, message)
enqueue_outbox('send ' .. message)
table.insert(keys, 1, 'routed')
return keys

--# mail_due: dispatch_journal messages
-- Returns the due entries of the outbox and the inbox. Each entry that is returned is postponed by hold_ms, so that
-- another coordinator does not process it at the same time.
-- ARGV: max, hold_ms, clock_went_back (flag: the clock of Redis was set back). With the flag, entries beyond hold_ms
-- become due now, except `expire` entries, which may be that far away.
-- Reply: {{{entry of the outbox, mark}...}, {keys of received messages...}, ms until the next entry or 0, time in ms}.
-- The received messages include the latest keys in msg_in that another client has pushed.
-- Repeat: safe; postponed entries become due again.
local max, hold_ms, clock_went_back = to_number(arg()), to_number(arg()), arg() == '1'
local err = check_type('mj:outbox', 'zset') or check_type('mj:inbox', 'zset') or check_type('msg_in', 'list')
if err then return err end
local out, arrived = {}, {}
for _, index in ipairs(clock_went_back and {'mj:outbox', 'mj:inbox'} or {}) do
  for _, entry in ipairs(redis.call('ZRANGEBYSCORE', index, '(' .. to_integer_text(now_ms + hold_ms), '+inf', 'LIMIT', 0, 10000)) do
    if not string.find(entry, '^expire ') then redis.call('ZADD', index, to_integer_text(now_ms), entry) end
  end
end
for _, entry in ipairs(redis.call('ZRANGEBYSCORE', 'mj:outbox', '-inf', to_integer_text(now_ms), 'LIMIT', 0, max)) do
  local message = string.match(entry, '^%l+ (message:%d+:%d+)$')
  if message and has_type('mj:message:' .. message, 'hash') then
    redis.call('ZADD', 'mj:outbox', to_integer_text(now_ms + hold_ms), entry)
    out[#out + 1] = {entry, redis.call('HGETALL', 'mj:message:' .. message)}
  else
    redis.call('ZREM', 'mj:outbox', entry)
  end
end
-- Turns are fractions of a millisecond; 10 ms later includes all turns of the present moment.
for _, message in ipairs(redis.call('ZRANGEBYSCORE', 'mj:inbox', '-inf', to_integer_text(now_ms + 10), 'LIMIT', 0, max)) do
  if has_type('mj:message:' .. message, 'hash') then
    redis.call('ZADD', 'mj:inbox', to_integer_text(now_ms + hold_ms), message)
    arrived[#arrived + 1] = message
  else
    redis.call('ZREM', 'mj:inbox', message)
  end
end
for _, message in ipairs(redis.call('LRANGE', 'msg_in', 0, 31)) do
  if is_message_key(message) and redis.call('EXISTS', 'mj:message:' .. message) == 0 and type_of(message) == 'hash' then
    arrived[#arrived + 1] = message
  end
end
local next_due = 0
for _, index in ipairs({'mj:outbox', 'mj:inbox'}) do
  local due = to_number(redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')[2])
  if due > 0 then
    due = math.max(1, due - now_ms)
    next_due = next_due == 0 and due or math.min(next_due, due)
  end
end
return {out, arrived, to_integer_text(next_due), to_integer_text(now_ms)}

--# settle_mail: dispatch_journal job_indexes messages deployments kept job_ends
-- Stores the result of processing an entry of the outbox.
-- ARGV: entry ("<kind> <message>"), result (delivered, later, failed or over), pause_ms (of later: until the next try),
-- detail (of failed: for the jobs of the message), why (of later and failed: the reason), more (list of fields for the
-- mark).
-- Reply: gone if the entry does not exist, because another coordinator was faster; otherwise the result.
-- Repeat: safe; the reply is gone, except after later.
local entry, what, pause_ms, detail, why, more = arg(), arg(), to_number(arg()), arg(), arg(), list_arg()
local kind, message = string.match(entry, '^(%l+) (message:%d+:%d+)$')
local mark = 'mj:message:' .. (message or '')
local err = check_type(mark, 'hash') or check_mailbox_types() or check_shared_types()
if err then return err end
if not message or not redis.call('ZSCORE', 'mj:outbox', entry) then return 'gone' end
local is = to_table(redis.call('HGETALL', mark))
if not is.state then
  redis.call('ZREM', 'mj:outbox', entry)
  return 'gone'
end
if #more > 0 then redis.call('HSET', mark, unpack(more)) end
if what == 'later' then
  redis.call('ZADD', 'mj:outbox', to_integer_text(now_ms + pause_ms), entry)
  if why ~= '' then
    redis.call('HSET', mark, 'why', why, 'tries', to_integer_text(to_number(is.tries) + 1))
    if kind == 'send' and has_type(message, 'hash') then
      redis.call('HSET', message, 'transport_status', 'queued', 'updated_at', now_s)
    end
  end
  return 'later'
end
redis.call('ZREM', 'mj:outbox', entry)
if kind == 'cancel' then return what end
local there = kind == 'send' and what == 'delivered' and redis.call('HGET', mark, 'there')
if there and has_type(message, 'hash') then redis.call('HSET', message, 'transport_id', there) end
if is.state ~= 'away' then
  if kind == 'logs' and what == 'failed' then redis.call('HSET', mark, 'stream', '') end  -- the receiver does not want log lines
  if kind == 'answer' then
    redis.call('ZREM', 'mj:outbox', 'logs ' .. message)
    redis.call('ZADD', 'mj:messages', 'NX', to_integer_text(now_ms), message)
    redis.call('HSET', mark, 'answer', what == 'failed' and 'lost' or 'given')
    if what == 'failed' then add_anomaly('the answer to ' .. message .. ' is given up: ' .. to_printable(why)) end
  end
  return what
end
if kind ~= 'send' and kind ~= 'expire' then return what end  -- other kinds do not decide about the message
if what == 'delivered' then
  redis.call('HSET', mark, 'delivered_ms', to_integer_text(now_ms))
  if has_type(message, 'hash') then
    redis.call('HSET', message, 'status', 'acknowledged', 'transport_status', 'delivered', 'updated_at', now_s)
  end
  if is.result_ms then redis.call('ZADD', 'mj:outbox', to_integer_text(now_ms + to_number(is.result_ms)), 'expire ' .. message) end
elseif what == 'failed' then
  -- The receiver may have refused this request after it accepted an earlier one, if the reply to that one was lost. So
  -- the message is cancelled there.
  enqueue_outbox('cancel ' .. message)
  if not is.delivered_ms and has_type(message, 'hash') then redis.call('HSET', message, 'transport_status', 'failed') end
  end_remote_jobs(message, is, detail, why)
end
return what

--# answer_message: dispatch_journal job_indexes messages deployments kept job_ends
-- Ends the jobs of a sent message with the ends in its answer. After the last part of the answer the message ends, and
-- jobs that the answer does not contain end as lost.
-- ARGV: message (key), content (hash of its content), reason (error of the message, or empty), fields (list, for the
-- record), carried (JSON for the router about the job that it sent; stored in the mark, since clients may write to the
-- record), is_last (flag), count, the quotas in bytes of a caller and of the context, then for each job: key, further
-- fields (list), fields of its end (list).
-- Reply: done; known if the message is over; other if no such message was sent.
-- Repeat: safe; jobs that have ended are skipped.
local message, content, reason, fields, carried = arg(), arg(), arg(), list_arg(), arg()
local is_last, count = arg() == '1', to_number(arg())
read_quota()
local mark = 'mj:message:' .. message
local err = check_type(mark, 'hash') or check_mailbox_types() or check_shared_types()
if err then return err end
local is = to_table(redis.call('HGETALL', mark))
if is.content ~= content or (is.state ~= 'away' and is.state ~= 'over') then return 'other' end
if is.state == 'over' then return 'known' end
for _ = 1, count do
  local job, more, ended = arg(), list_arg(), list_arg()
  local claim = find_claim(job)
  if claim and claim.message == message and claim.state == 'planned' then
    if #more > 0 and has_type(job, 'hash') then redis.call('HSET', job, unpack(more)) end
    finish(job, claim, is_end_refused(job, claim, ended) and without_result(ended) or ended, false)
  end
end
if not is_last then return 'done' end
-- The answer may be received before the confirmation of the delivery.
if has_type(message, 'hash') then redis.call('HSET', message, 'transport_status', 'read') end
end_remote_jobs(message, is, 'lost', reason ~= '' and reason or 'the answer does not name it', reason == '')
if #fields > 0 and has_type(message, 'hash') then redis.call('HSET', message, unpack(fields)) end
if carried ~= '' then redis.call('HSET', mark, 'carried_answer', carried) end
return 'done'

--# cancel_message: dispatch_journal job_indexes messages deployments kept job_ends
-- Cancels a message and all of its jobs and its flow. A message that was not taken yet ends at once.
-- ARGV: message (key).
-- Reply: ended; asked if jobs, the flow or the receiver must end first; over; missing.
-- Repeat: safe; jobs that have ended are skipped, and a pending cancellation is requested again.
local message = arg()
local mark = 'mj:message:' .. message
local err = check_message_types(message) or check_mailbox_types() or check_shared_types()
if err then return err end
local is = to_table(redis.call('HGETALL', mark))
if not is.state then
  if type_of(message) ~= 'hash' then return 'missing' end
  local status = redis.call('HGET', message, 'status')
  if status == 'processed' or status == 'error' then return 'over' end
end
if not is.state or is.state == 'arrived' then
  -- The mark makes a coordinator that has read the message from a list close it.
  redis.call('HSET', mark, 'state', 'refused', 'left', 0)
  redis.call('ZREM', 'mj:inbox', message)
  end_message(message, 'cancelled before it was taken')
  return 'ended'
end
if is.state ~= 'away' and is.state ~= 'taken' then return 'over' end
redis.call('HSET', mark, 'cancelled', to_integer_text(now_ms))  -- before the jobs end, since end_message() reads this field
local asked = is.state == 'away'
for job in string.gmatch(is.jobs or '', '%S+') do
  local claim = find_claim(job)
  if claim and claim.message == message and (claim.state == 'planned' or is.state == 'taken') then
    asked = cancel_job(job, claim) ~= 'over' or asked
  end
end
if is.state == 'taken' then
  if (is.flow or '') == '' or is.flow_ended then return asked and 'asked' or 'over' end
elseif not is.delivered_ms then
  -- A delivery that is under way may succeed. Its coordinator stores the result.
  redis.call('HSET', mark, 'deliver_until', to_integer_text(now_ms), 'limit', 'cancelled')
end
enqueue_outbox('cancel ' .. message)
return 'asked'

--# follow_log: dispatch_journal messages kept
-- Stores log lines of a job that runs elsewhere for a message. Lines beyond kMaxFollowed bytes of all jobs of the
-- message, or beyond the quotas of the job's caller, are not stored.
-- ARGV: message (key), content (hash of its content), job (key), lines (list: number, stream, text and time in ms of
-- each line), the quotas in bytes of a caller and of the context.
-- Reply: the number of the last stored line; 0 if the message is not away or the job is not one of its planned jobs.
-- Repeat: safe; lines up to the last stored number are skipped.
local kMaxFollowed, kMaxSeq = 64 * 1024 * 1024, 4294967295
local message, content, job, lines = arg(), arg(), arg(), list_arg()
read_quota()
local log = 'mj:log:' .. job
local err = check_message_types(message) or check_type(log, 'stream') or check_type('mj:claim:' .. job, 'hash')
if err then return err end
local is, claim = to_table(redis.call('HGETALL', 'mj:message:' .. message)), read_claim(job)
if is.content ~= content or is.state ~= 'away' or claim.message ~= message or claim.state ~= 'planned' then return to_integer_text(0) end
local last, bytes, of_job = last_seq(job), to_number(is.log_bytes), to_number(claim.log_bytes)
local is_full
for i = 1, #lines, 4 do
  local seq = to_number(lines[i])
  if seq > last and seq <= kMaxSeq then
    local more = #lines[i + 2] + 64
    if bytes + more > kMaxFollowed then break end
    is_full = charge(caller_of(job), log_charge(of_job + more) - log_charge(of_job), kAtQuota)
    if is_full then break end
    bytes, of_job = bytes + more, of_job + more
    redis.call('XADD', log, to_integer_text(seq) .. '-0', 'ts', lines[i + 3], 'stream', lines[i + 1], 'text', lines[i + 2])
    last = seq
  end
end
redis.call('HSET', 'mj:message:' .. message, 'log_bytes', to_integer_text(bytes))
redis.call('HSET', 'mj:claim:' .. job, 'log_bytes', to_integer_text(of_job))
if is_full then
  redis.call('HSET', 'mj:claim:' .. job, 'log_full', 1)
elseif claim.log_full == '1' then
  redis.call('HSET', 'mj:claim:' .. job, 'log_full', 0)
end
return to_integer_text(last)

--# reserve_jobs: ids
-- Allocates consecutive free job ids of a caller.
-- ARGV: caller (id), count.
-- Reply: the first id.
-- Errors: MJFULL if no such ids are free.
-- Repeat: safe; a repeat allocates further ids.
local caller, count = arg(), to_number(arg())
local counter = 'mj:next:' .. caller
local err = check_type(counter, 'string')
if err then return err end
local first = free_ids(to_number(redis.call('GET', counter)), count, function(id)
  return is_used('job:' .. caller .. ':' .. to_integer_text(id))
end)
if not first then return redis.error_reply('MJFULL caller ' .. caller .. ' has no free job id left') end
redis.call('SET', counter, to_integer_text(first + count - 1))
return to_integer_text(first)

--# retire_messages: dispatch_journal messages kept
-- Deletes messages that ended more than keep_ms ago, with their marks. The mark of a received message remains until the
-- message is too old to be accepted again, so that a repeat is recognised.
-- ARGV: keep_ms, max.
-- Reply: number of deleted messages.
-- Repeat: safe; a repeat deletes further messages.
local keep_ms, max = to_number(arg()), to_number(arg())
local err = check_type('mj:messages', 'zset')
if err then return err end
local gone = 0
for _, message in ipairs(redis.call('ZRANGEBYSCORE', 'mj:messages', '-inf', to_integer_text(math.max(0, now_ms - keep_ms)), 'LIMIT', 0, max)) do
  local mark = 'mj:message:' .. message
  local is = has_type(mark, 'hash') and to_table(redis.call('HGETALL', mark)) or {}
  local again = to_number(is.fresh_until)
  if is.answer == 'due' or to_number(is.left) > 0 then
    redis.call('ZADD', 'mj:messages', to_integer_text(now_ms), message)
  elseif again > now_ms then
    release_message_charge(message)
    redis.call('UNLINK', message)
    redis.call('ZADD', 'mj:messages', to_integer_text(again), message)
  else
    release_message_charge(message)
    redis.call('UNLINK', message, mark)
    redis.call('ZREM', 'mj:messages', message)
    if is.content and call_index('HGET', 'mj:came', is.content) == message then redis.call('HDEL', 'mj:came', is.content) end
    gone = gone + 1
  end
end
return gone
