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
local topic, message, fields = next_arg(), next_arg(), list_arg()
local list_key, mark_key = kTopicKey .. topic, kMessageKey .. message
local err = check_type(list_key, 'list') or check_type(message, 'hash') or check_type(mark_key, 'hash')
if err then return err end
local exists = redis.call('EXISTS', message) == 1
if exists and #fields > 0 then
  local values, record = to_table(fields), to_table(redis.call('HGETALL', message))
  for _, name in ipairs({'message', 'message_type', 'job', 'flow'}) do
    if (values[name] or '') ~= (record[name] or '') then return 'other' end
  end
elseif #fields > 0 then
  redis.call('HSET', message, unpack(fields))
end
if exists then redis.call('HDEL', message, 'detail') end  -- removes `created`
if redis.call('EXISTS', mark_key) == 0 and not redis.call('LPOS', list_key, message, 'MAXLEN', 1000) then redis.call('LPUSH', list_key, message) end
redis.call('PUBLISH', topic, message)
return 'sent'

--# post_message: messages
-- Adds a signed message to msg_out.
-- ARGV: message (key), signature (list of fields, may be empty).
-- Reply: posted; missing; or the status of a message that was sent before.
-- Repeat: safe; the reply is the status.
local message, signature = next_arg(), list_arg()
local err = check_type(message, 'hash') or check_type('msg_out', 'list')
if err then return err end
local record = redis.call('HMGET', message, 'status', 'transport_status')
if redis.call('EXISTS', message) == 0 then return 'missing' end
local status, transport = record[1] or '', record[2] or ''
if status ~= '' and status ~= kMessageStatusDispatched or transport ~= '' then return transport ~= '' and transport or status end
if #signature > 0 then redis.call('HSET', message, unpack(signature)) end
redis.call('HSET', message, 'transport_status', 'queued', 'updated_at', now_s)
redis.call('HDEL', message, 'detail')
redis.call('LPUSH', 'msg_out', message)
return 'posted'

--# pending_messages: dispatch_journal messages
-- Returns the messages in a list that have a record, oldest first. An entry without a record is moved to the index
-- missing_key, so that it does not block the list, and returns to the list when its record exists. The entry is dropped
-- after wait_ms. The number of entries in one call is limited, so that other clients of Redis do not wait long.
-- ARGV: source (list to move to `list` first, or empty), list, missing_key (sorted set), max, wait_ms.
-- Reply: keys of messages. They remain in the list until take_message, close_message, route_message or arrive_message
-- removes them.
-- Repeat: safe; the messages are still in the list.
local source, list, missing_key, max, wait_ms = next_arg(), next_arg(), next_arg(), to_number(next_arg()), to_number(next_arg())
local err = check_type(list, 'list') or check_type(missing_key, 'zset') or (source ~= '' and check_type(source, 'list'))
if err then return err end
for _ = 1, source ~= '' and max or 0 do
  if not redis.call('LMOVE', source, list, 'RIGHT', 'LEFT') then break end
end
if redis.call('EXISTS', missing_key) == 1 then
  local waiting = redis.call('ZRANGE', missing_key, 0, max - 1, 'WITHSCORES')
  for i = 1, #waiting, 2 do
    local key, since = waiting[i], to_number(waiting[i + 1])
    local exists = redis.call('EXISTS', key) == 1
    if exists then redis.call('RPUSH', list, key) end
    if exists or now_ms - since >= wait_ms or since > now_ms + wait_ms then redis.call('ZREM', missing_key, key) end
  end
end
local messages = {}
local entries = redis.call('LRANGE', list, -max, -1)
for i = #entries, 1, -1 do
  local key = entries[i]
  if not is_message_key(key) then
    redis.call('LREM', list, -1, key)
    add_anomaly(to_printable(list) .. ' held ' .. to_printable(key) .. ', which is not a message key')
  elseif check_type(key, 'hash') or check_type(kMessageKey .. key, 'hash') then
    redis.call('LREM', list, -1, key)
    add_anomaly(to_printable(list) .. ' held ' .. key .. ', and that key or its state key is not a hash: another client wrote it')
  elseif redis.call('EXISTS', key) == 0 then
    redis.call('ZADD', missing_key, 'NX', to_integer_text(now_ms), key)
    redis.call('LREM', list, -1, key)
  elseif redis.call('HGET', key, 'detail') == 'created' then
    -- Only topic_send and post_message may send such a message. Otherwise any client that may push to msg_out could
    -- send it.
    redis.call('LREM', list, -1, key)
    add_anomaly(to_printable(list) .. ' held ' .. key .. ', which was created but not sent; the entry was dropped')
  else
    messages[#messages + 1] = key
  end
end
return messages

--# take_message: dispatch_journal job_indexes messages
-- Queues the jobs of a message, and removes its entry from the list. The search for the entry begins at the end from
-- which messages are taken, so that a long list is not searched as a whole. A second entry of the message is removed by
-- a later call, whose reply is `repeated`.
-- ARGV: list (key), message (key), flow (id of the flow that the message has become, or empty), origins (keys of the
-- jobs where the message was sent, separated by blanks, or empty), holder (of the files of the message, or empty), jobs.
-- Reply: {taken, job keys...}; {repeated, job keys...} if the message was taken or closed before; {missing}; {exists,
-- index, record} if a record exists that was not accepted. Nothing is queued in the last two cases.
-- Errors: MJCONFLICT if a key occurs twice or a job belongs to another message.
-- Repeat: safe; the reply is repeated.
local list, message, flow, origins, holder = next_arg(), next_arg(), next_arg(), next_arg(), next_arg()
local count = to_number(next_arg())
local mark_key = kMessageKey .. message
local err = check_type(list, 'list') or check_message_types(message) or check_index_types() or (flow ~= '' and (check_type(kFlowKey .. flow, 'hash') or check_type('flow:' .. flow, 'hash')))
if err then return err end

local jobs, keys, duplicate_error = read_message_jobs(count)
if duplicate_error then return duplicate_error end
for _, job in ipairs(jobs) do
  err = check_type(job.queue, 'list')
  if err then return err end
end
if redis.call('EXISTS', message) == 0 then return {'missing'} end
local status, state = redis.call('HGET', message, 'status'), redis.call('HGET', mark_key, 'state')
-- Only the mark counts for a message in state `arrived`, since another client may have changed the record.
if state and state ~= kMessageStateArrived
  or not state and (status == kMessageStatusAcknowledged or status == kMessageStatusProcessed or status == kMessageStatusError) then
  redis.call('LREM', list, -1, message)
  redis.call('ZREM', kInboxKey, message)
  table.insert(keys, 1, 'repeated')
  return keys
end
local open_jobs, failed_jobs = 0, 0
for i, job in ipairs(jobs) do
  local reply = check_existing_job(i, job)
  if reply then return reply end
  if job.claim.message then
    return redis.error_reply('MJCONFLICT ' .. job.key .. ' belongs to ' .. to_printable(job.claim.message) .. ' already')
  end
  local record_status = job.exists and not job.claim.state and redis.call('HGET', job.key, 'status')
  job.priority = valid_priority(job.exists and redis.call('HGET', job.key, 'priority') or to_table(job.fields).priority)
  err = check_queue_types(job.queue, job.priority)
  if err then return err end
  job.end_status = job.claim.state == kJobStateEnded and (job.claim.status or kJobStatusError)
    or (record_status == kJobStatusFinished or record_status == kJobStatusError) and record_status
  if not job.end_status then open_jobs = open_jobs + 1 elseif job.end_status ~= kJobStatusFinished then failed_jobs = failed_jobs + 1 end
end

redis.call('HSET', mark_key, 'state', kMessageStateTaken, 'left', open_jobs, 'failed', failed_jobs, 'taken_ms', to_integer_text(now_ms))
redis.call('HSET', mark_key, 'jobs', table.concat(keys, ' '), 'flow', flow)
if state == kMessageStateArrived then redis.call('HSET', mark_key, 'origins', origins) end
for _, job in ipairs(jobs) do
  if not job.end_status then
    local claim = job.claim
    if not job.exists then
      redis.call('HSET', job.key, 'status', kJobStatusDispatched, 'detail', 'queued', 'created_at', now_s, 'updated_at', now_s,
        'queued_ms', to_integer_text(now_ms), unpack(job.fields))
    end
    if to_table(job.fields).given then set_files_holder(job.key, holder) end
    if not claim.state then
      claim.priority = job.priority
      push_job(job.key, claim, job.queue, false)
      add_fact(job.queue, job.key, claim, kFactKindScheduled, kFactMessageField, message)
      set_claim(job.key, claim, 'state', kJobStateQueued, 'queue', job.queue, 'priority', claim.priority)
    end
    redis.call('HSET', kClaimKey .. job.key, 'message', message)
  end
end
redis.call('LREM', list, -1, message)
redis.call('ZREM', kInboxKey, message)
redis.call('HSET', message, 'status', kMessageStatusAcknowledged, 'updated_at', now_s)
if state == kMessageStateArrived and redis.call('HGET', mark_key, 'stream') then
  redis.call('ZADD', kOutboxKey, to_integer_text(now_ms + 500), 'logs ' .. message)
end
if flow ~= '' then
  local flow_mark = to_table(redis.call('HGETALL', kFlowKey .. flow))
  redis.call('HSET', kFlowKey .. flow, 'message', message)
  if flow_mark.state == kFlowStateEnded then record_flow_end(message, redis.call('HGET', 'flow:' .. flow, 'status') or kFlowStatusError) end
elseif open_jobs == 0 then
  end_message(message, failed_jobs > 0 and failed_jobs .. ' of its jobs failed' or '')
end
table.insert(keys, 1, 'taken')
return keys

--# close_message: dispatch_journal messages
-- Closes a message without jobs: with a reason it is refused; without a reason it is a chat message or mail and is
-- complete.
-- ARGV: list (key), message (key), reason (or empty).
-- Reply: refused (also without a reason); over if it was taken or refused before; missing.
-- Repeat: safe; the reply is over.
local list, message, reason = next_arg(), next_arg(), next_arg()
local mark_key = kMessageKey .. message
local err = check_type(list, 'list') or check_type(mark_key, 'hash') or check_mailbox_types()
if err then return err end
local state = redis.call('HGET', mark_key, 'state')
local reply = 'refused'
if state and state ~= kMessageStateArrived then
  reply = 'over'
elseif not state and key_type(message) ~= 'hash' then
  reply = 'missing'
else
  redis.call('HSET', mark_key, 'state', reason == '' and kMessageStateTaken or kMessageStateRefused, 'left', 0)
  end_message(message, reason)
end
if reason ~= '' or not state then redis.call('LREM', list, -1, message) end
redis.call('ZREM', kInboxKey, message)
return reply

--# arrive_message: dispatch_journal messages
-- Stores a verified message that was received from another context or host.
-- ARGV: message (key), content (hash of its content), written (flag: its record exists), max (number of waiting
-- messages), max_per_caller (number of waiting messages of one caller), fields (list), origin (list of fields of the
-- mark that name the sender).
-- Reply: stored; known if it was received before, under this key or another; other if the same sender has used this key
-- for other content; taken if another sender or a client has used this key; full; sender_full.
-- Repeat: safe; the reply is known.
local message, content, written, max, max_per_caller = next_arg(), next_arg(), next_arg() == '1', to_number(next_arg()), to_number(next_arg())
local fields, origin = list_arg(), list_arg()
local mark_key = kMessageKey .. message
local err = check_message_types(message) or check_type('msg_out_coordinator', 'list') or check_type(kReceivedKey, 'hash')
  or check_type(kInboxTurnsKey, 'hash')
if err then return err end
local earlier_key = not written and redis.call('HGET', kReceivedKey, content)
err = earlier_key and check_type(kMessageKey .. earlier_key, 'hash')
if err then return err end
if earlier_key and redis.call('HGET', kMessageKey .. earlier_key, 'content') == content then
  return 'known'
end
if redis.call('EXISTS', mark_key) == 1 then
  local mark_fields, sender_fields = to_table(redis.call('HGETALL', mark_key)), to_table(origin)
  if not written and (mark_fields.origin ~= sender_fields.origin or mark_fields.from ~= sender_fields.from) then return 'taken' end
  -- A message that was sent from here is not accepted under the same key.
  if mark_fields.content ~= content or mark_fields.state == kMessageStateAway or mark_fields.state == kMessageStateOver then return 'other' end
  redis.call('LREM', 'msg_out_coordinator', 0, message)
  return 'known'
end
if not written and redis.call('EXISTS', message) == 1 then return 'taken' end
local waiting = redis.call('ZCARD', kInboxKey)
-- Start-time fair queueing: each caller has a next turn, and each of its messages adds to it. So a message waits behind
-- the messages of its own caller, and not behind the many messages of another caller. A large message takes several
-- turns, so that turns also limit the memory that a caller uses. A next turn beyond all turns that may wait was set
-- before the clock was set back, and is ignored.
local kTurnMs, kTurnBytes, kMaxTurns = 1 / 1024, 16384, 128
local caller, bytes = string.match(message, '^message:(%d+):'), 0
for _, text in ipairs(fields) do bytes = bytes + #text end
local turns = math.max(1, math.min(kMaxTurns, math.ceil(bytes / kTurnBytes)))
local first_turn = tonumber(redis.call('ZRANGE', kInboxKey, 0, 0, 'WITHSCORES')[2] or '') or now_ms
first_turn = math.max(0, math.min(first_turn, now_ms))
local turn = tonumber(redis.call('HGET', kInboxTurnsKey, caller) or '') or 0
if not (turn >= first_turn and turn <= now_ms + (max_per_caller + kMaxTurns) * kTurnMs) then turn = first_turn end
if waiting >= max then return 'full' end
if turn - first_turn >= max_per_caller * kTurnMs then return 'sender_full' end
redis.call('HSET', mark_key, 'state', kMessageStateArrived, 'content', content, 'left', 0, 'came_ms', to_integer_text(now_ms), unpack(origin))
if not written then
  redis.call('HSET', message, 'status', kMessageStatusDispatched, 'updated_at', now_s, unpack(fields))
  redis.call('HSET', kReceivedKey, content, message)
end
redis.call('ZADD', kInboxKey, string.format('%.17g', turn), message)
if waiting == 0 then redis.call('DEL', kInboxTurnsKey) end
redis.call('HSET', kInboxTurnsKey, caller, string.format('%.17g', turn + turns * kTurnMs))
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
local message, content, deliver_ms, result_ms = next_arg(), next_arg(), to_number(next_arg()), to_number(next_arg())
local target, count = list_arg(), to_number(next_arg())
local mark_key = kMessageKey .. message
local err = check_message_types(message) or check_type('msg_out_coordinator', 'list') or check_index_types()
if err then return err end
local jobs, keys, duplicate_error = read_message_jobs(count)
if duplicate_error then return duplicate_error end
if redis.call('EXISTS', message) == 0 then return {'missing'} end
if redis.call('EXISTS', mark_key) == 1 then
  redis.call('LREM', 'msg_out_coordinator', -1, message)
  table.insert(keys, 1, 'repeated')
  return keys
end
for i, job in ipairs(jobs) do
  local reply = check_existing_job(i, job)
  if reply then return reply end
  local detail = job.exists and redis.call('HGET', job.key, 'detail')
  if job.claim.state or get_end_status(job.key) or not is_only_created(job.key, job.claim, detail) and is_in_recent_entries(job.queue, job.key) then
    return redis.error_reply('MJCONFLICT ' .. job.key .. ' is or was in a queue of this context: it cannot be sent')
  end
end
redis.call('HSET', mark_key, 'state', kMessageStateAway, 'content', content, 'left', #jobs, 'failed', 0, 'taken_ms', to_integer_text(now_ms),
  'jobs', table.concat(keys, ' '), unpack(target))
if deliver_ms > 0 then redis.call('HSET', mark_key, 'deliver_until', to_integer_text(now_ms + deliver_ms)) end
if result_ms > 0 then redis.call('HSET', mark_key, 'result_ms', to_integer_text(result_ms)) end
for _, job in ipairs(jobs) do
  if not job.exists then
    redis.call('HSET', job.key, 'created_at', now_s, unpack(job.fields))
  end
  redis.call('HSET', job.key, 'status', kJobStatusWaitingForPrerequisites, 'detail', 'away', 'updated_at', now_s)
  add_fact(job.queue, job.key, job.claim, kFactKindPlanned, kFactMessageField, message)
  set_claim(job.key, job.claim, 'state', kJobStatePlanned, 'queue', job.queue, 'message', message, 'priority', '0')
end
redis.call('HSET', message, 'status', kMessageStatusDispatched, 'transport_status', 'queued', 'updated_at', now_s)
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
local max, hold_ms, clock_went_back = to_number(next_arg()), to_number(next_arg()), next_arg() == '1'
local err = check_type(kOutboxKey, 'zset') or check_type(kInboxKey, 'zset') or check_type('msg_in', 'list')
if err then return err end
local outbox_entries, messages = {}, {}
for _, index in ipairs(clock_went_back and {kOutboxKey, kInboxKey} or {}) do
  for _, entry in ipairs(redis.call('ZRANGEBYSCORE', index, '(' .. to_integer_text(now_ms + hold_ms), '+inf', 'LIMIT', 0, 10000)) do
    if not string.find(entry, '^expire ') then redis.call('ZADD', index, to_integer_text(now_ms), entry) end
  end
end
for _, entry in ipairs(redis.call('ZRANGEBYSCORE', kOutboxKey, '-inf', to_integer_text(now_ms), 'LIMIT', 0, max)) do
  local message = string.match(entry, '^%l+ (message:%d+:%d+)$')
  if message and has_type(kMessageKey .. message, 'hash') then
    redis.call('ZADD', kOutboxKey, to_integer_text(now_ms + hold_ms), entry)
    outbox_entries[#outbox_entries + 1] = {entry, redis.call('HGETALL', kMessageKey .. message)}
  else
    redis.call('ZREM', kOutboxKey, entry)
  end
end
-- Turns are fractions of a millisecond; 10 ms later includes all turns of the present moment.
for _, message in ipairs(redis.call('ZRANGEBYSCORE', kInboxKey, '-inf', to_integer_text(now_ms + 10), 'LIMIT', 0, max)) do
  if has_type(kMessageKey .. message, 'hash') then
    redis.call('ZADD', kInboxKey, to_integer_text(now_ms + hold_ms), message)
    messages[#messages + 1] = message
  else
    redis.call('ZREM', kInboxKey, message)
  end
end
for _, message in ipairs(redis.call('LRANGE', 'msg_in', 0, 31)) do
  if is_message_key(message) and redis.call('EXISTS', kMessageKey .. message) == 0 and key_type(message) == 'hash' then
    messages[#messages + 1] = message
  end
end
local next_due = 0
for _, index in ipairs({kOutboxKey, kInboxKey}) do
  local due = to_number(redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')[2])
  if due > 0 then
    due = math.max(1, due - now_ms)
    next_due = next_due == 0 and due or math.min(next_due, due)
  end
end
return {outbox_entries, messages, to_integer_text(next_due), to_integer_text(now_ms)}

--# settle_mail: dispatch_journal job_indexes messages deployments stored_usage job_ends
-- Stores the result of processing an entry of the outbox.
-- ARGV: entry ("<kind> <message>"), result (delivered, later, failed or over), pause_ms (of later: until the next try),
-- detail (of failed: for the jobs of the message), reason (of later and failed), extra_fields (list, for
-- the mark).
-- Reply: gone if the entry does not exist, because another coordinator was faster; otherwise the result.
-- Repeat: safe; the reply is gone, except after later.
local entry, result, pause_ms, detail, reason, extra_fields = next_arg(), next_arg(), to_number(next_arg()), next_arg(), next_arg(), list_arg()
local kind, message = string.match(entry, '^(%l+) (message:%d+:%d+)$')
local mark_key = kMessageKey .. (message or '')
local err = check_type(mark_key, 'hash') or check_mailbox_types() or check_index_types()
if err then return err end
if not message or not redis.call('ZSCORE', kOutboxKey, entry) then return 'gone' end
local mark_fields = to_table(redis.call('HGETALL', mark_key))
if not mark_fields.state then
  redis.call('ZREM', kOutboxKey, entry)
  return 'gone'
end
if #extra_fields > 0 then redis.call('HSET', mark_key, unpack(extra_fields)) end
if result == 'later' then
  redis.call('ZADD', kOutboxKey, to_integer_text(now_ms + pause_ms), entry)
  if reason ~= '' then
    redis.call('HSET', mark_key, 'why', reason, 'tries', to_integer_text(to_number(mark_fields.tries) + 1))
    if kind == 'send' and has_type(message, 'hash') then
      redis.call('HSET', message, 'transport_status', 'queued', 'updated_at', now_s)
    end
  end
  return 'later'
end
redis.call('ZREM', kOutboxKey, entry)
if kind == 'cancel' then return result end
local remote_id = kind == 'send' and result == 'delivered' and redis.call('HGET', mark_key, 'there')
if remote_id and has_type(message, 'hash') then redis.call('HSET', message, 'transport_id', remote_id) end
if mark_fields.state ~= kMessageStateAway then
  if kind == 'logs' and result == 'failed' then redis.call('HSET', mark_key, 'stream', '') end  -- the receiver does not want log lines
  if kind == 'answer' then
    redis.call('ZREM', kOutboxKey, 'logs ' .. message)
    redis.call('ZADD', kMessagesKey, 'NX', to_integer_text(now_ms), message)
    redis.call('HSET', mark_key, 'answer', result == 'failed' and kAnswerStateLost or kAnswerStateGiven)
    if result == 'failed' then add_anomaly('the answer to ' .. message .. ' is given up: ' .. to_printable(reason)) end
  end
  return result
end
if kind ~= 'send' and kind ~= 'expire' then return result end  -- other kinds do not decide about the message
if result == 'delivered' then
  redis.call('HSET', mark_key, 'delivered_ms', to_integer_text(now_ms))
  if has_type(message, 'hash') then
    redis.call('HSET', message, 'status', kMessageStatusAcknowledged, 'transport_status', 'delivered', 'updated_at', now_s)
  end
  if mark_fields.result_ms then redis.call('ZADD', kOutboxKey, to_integer_text(now_ms + to_number(mark_fields.result_ms)), 'expire ' .. message) end
elseif result == 'failed' then
  -- The receiver may have refused this request after it accepted an earlier one, if the reply to that one was lost. So
  -- the message is cancelled there.
  enqueue_outbox('cancel ' .. message)
  if not mark_fields.delivered_ms and has_type(message, 'hash') then redis.call('HSET', message, 'transport_status', 'failed') end
  end_remote_jobs(message, mark_fields, detail, reason)
end
return result

--# answer_message: dispatch_journal job_indexes messages deployments stored_usage job_ends
-- Ends the jobs of a sent message with the ends in its answer. After the last part of the answer the message ends, and
-- jobs that the answer does not contain end as lost.
-- ARGV: message (key), content (hash of its content), reason (error of the message, or empty), fields (list, for the
-- record), router_answer (JSON for the router about the job that it sent; stored in the mark, since clients may write
-- to the record), is_last (flag), holder (of the files of the jobs, or empty), count, the quotas in bytes of a caller and
-- of the context, then for each job: key, further fields (list), fields of its end (list).
-- Reply: done; known if the message is over; other if no such message was sent.
-- Repeat: safe; jobs that have ended are skipped.
local message, content, reason, fields, router_answer = next_arg(), next_arg(), next_arg(), list_arg(), next_arg()
local is_last, holder, count = next_arg() == '1', next_arg(), to_number(next_arg())
read_quota()
local mark_key = kMessageKey .. message
local err = check_type(mark_key, 'hash') or check_mailbox_types() or check_index_types()
if err then return err end
local mark_fields = to_table(redis.call('HGETALL', mark_key))
if mark_fields.content ~= content or (mark_fields.state ~= kMessageStateAway and mark_fields.state ~= kMessageStateOver) then return 'other' end
if mark_fields.state == kMessageStateOver then return 'known' end
for _ = 1, count do
  local job, extra_fields, end_fields = next_arg(), list_arg(), list_arg()
  local claim = find_claim(job)
  -- The router ends a job of a flow with this answer later.
  if to_table(end_fields).artifacts and has_type(job, 'hash') then set_files_holder(job, holder) end
  if claim and claim.message == message and claim.state == kJobStatePlanned then
    if #extra_fields > 0 and has_type(job, 'hash') then redis.call('HSET', job, unpack(extra_fields)) end
    end_job(job, claim, is_end_refused(job, claim, end_fields) and strip_result(end_fields) or end_fields, false)
  end
end
if not is_last then return 'done' end
-- The answer may be received before the confirmation of the delivery.
if has_type(message, 'hash') then redis.call('HSET', message, 'transport_status', 'read') end
end_remote_jobs(message, mark_fields, 'lost', reason ~= '' and reason or 'the answer does not name it', reason == '')
if #fields > 0 and has_type(message, 'hash') then redis.call('HSET', message, unpack(fields)) end
if router_answer ~= '' then redis.call('HSET', mark_key, 'carried_answer', router_answer) end
return 'done'

--# cancel_message: dispatch_journal job_indexes messages deployments stored_usage job_ends
-- Cancels a message and all of its jobs and its flow. A message that was not taken yet ends at once.
-- ARGV: message (key).
-- Reply: ended; asked if jobs, the flow or the receiver must end first; over; missing.
-- Repeat: safe; jobs that have ended are skipped, and a pending cancellation is requested again.
local message = next_arg()
local mark_key = kMessageKey .. message
local err = check_message_types(message) or check_mailbox_types() or check_index_types()
if err then return err end
local mark_fields = to_table(redis.call('HGETALL', mark_key))
if not mark_fields.state then
  if key_type(message) ~= 'hash' then return 'missing' end
  local status = redis.call('HGET', message, 'status')
  if status == kMessageStatusProcessed or status == kMessageStatusError then return 'over' end
end
if not mark_fields.state or mark_fields.state == kMessageStateArrived then
  -- The mark makes a coordinator that has read the message from a list close it.
  redis.call('HSET', mark_key, 'state', kMessageStateRefused, 'left', 0)
  redis.call('ZREM', kInboxKey, message)
  end_message(message, 'cancelled before it was taken')
  return 'ended'
end
if mark_fields.state ~= kMessageStateAway and mark_fields.state ~= kMessageStateTaken then return 'over' end
redis.call('HSET', mark_key, 'cancelled', to_integer_text(now_ms))  -- before the jobs end, since end_message() reads this field
local is_pending = mark_fields.state == kMessageStateAway
for job in string.gmatch(mark_fields.jobs or '', '%S+') do
  local claim = find_claim(job)
  if claim and claim.message == message and (claim.state == kJobStatePlanned or mark_fields.state == kMessageStateTaken) then
    is_pending = cancel_job(job, claim) ~= 'over' or is_pending
  end
end
if mark_fields.state == kMessageStateTaken then
  if (mark_fields.flow or '') == '' or mark_fields.flow_ended then return is_pending and 'asked' or 'over' end
elseif not mark_fields.delivered_ms then
  -- A delivery that is under way may succeed. Its coordinator stores the result.
  redis.call('HSET', mark_key, 'deliver_until', to_integer_text(now_ms), 'limit', 'cancelled')
end
enqueue_outbox('cancel ' .. message)
return 'asked'

--# follow_log: dispatch_journal messages stored_usage
-- Stores log lines of a job that runs elsewhere for a message. Lines beyond kMaxFollowed bytes of all jobs of the
-- message, or beyond the quotas of the job's caller, are not stored.
-- ARGV: message (key), content (hash of its content), job (key), lines (list: number, stream, text, time in ms,
-- Log::size, and 1 or empty for Log::begins_run, of each line), the quotas in bytes of a caller and of the context.
-- Reply: the number of the last stored line; 0 if the message is not away or the job is not one of its planned jobs.
-- Repeat: safe; lines up to the last stored number are skipped.
local kMaxFollowed, kMaxSeq = 64 * 1024 * 1024, 2 ^ 52
local message, content, job, lines = next_arg(), next_arg(), next_arg(), list_arg()
read_quota()
local log = kLogKey .. job
local err = check_message_types(message) or check_type(log, 'stream') or check_type(kClaimKey .. job, 'hash')
if err then return err end
local mark_fields, claim = to_table(redis.call('HGETALL', kMessageKey .. message)), read_claim(job)
if mark_fields.content ~= content or mark_fields.state ~= kMessageStateAway or claim.message ~= message
  or claim.state ~= kJobStatePlanned then return to_integer_text(0) end
local last_seq, bytes, job_bytes = get_last_log_seq(job), to_number(mark_fields.log_bytes), to_number(claim.log_bytes)
local is_full
for i = 1, #lines, 6 do
  local seq, size = to_number(lines[i]), to_number(lines[i + 4])
  if seq > last_seq and seq <= kMaxSeq then
    local line_bytes = #lines[i + 2] + 64
    if bytes + line_bytes > kMaxFollowed then break end
    is_full = charge(parse_caller(job), log_charge(job_bytes + line_bytes) - log_charge(job_bytes), kQuotaEighths)
    if is_full then break end
    bytes, job_bytes = bytes + line_bytes, job_bytes + line_bytes
    local fields = {'ts', lines[i + 3], 'stream', lines[i + 1], 'text', lines[i + 2]}
    -- The size is limited to the numbers after the previous line.
    if size > 0 then fields[7], fields[8] = 'size', to_integer_text(math.min(size, seq - last_seq)) end
    if lines[i + 5] ~= '' then fields[#fields + 1], fields[#fields + 2] = 'run', lines[i + 5] end
    redis.call('XADD', log, to_integer_text(seq) .. '-0', unpack(fields))
    last_seq = seq
  end
end
redis.call('HSET', kMessageKey .. message, 'log_bytes', to_integer_text(bytes))
redis.call('HSET', kClaimKey .. job, 'log_bytes', to_integer_text(job_bytes))
if is_full then
  redis.call('HSET', kClaimKey .. job, 'log_full', 1)
elseif claim.log_full == '1' then
  redis.call('HSET', kClaimKey .. job, 'log_full', 0)
end
return to_integer_text(last_seq)

--# reserve_jobs: ids
-- Allocates consecutive free job ids of a caller.
-- ARGV: caller (id), count.
-- Reply: the first id.
-- Errors: MJFULL if no such ids are free.
-- Repeat: safe; a repeat allocates further ids.
local caller, count = next_arg(), to_number(next_arg())
local counter = kNextIdKey .. caller
local err = check_type(counter, 'string')
if err then return err end
local first = find_free_ids(to_number(redis.call('GET', counter)), count, function(id)
  return is_used('job:' .. caller .. ':' .. to_integer_text(id))
end)
if not first then return redis.error_reply('MJFULL caller ' .. caller .. ' has no free job id left') end
redis.call('SET', counter, to_integer_text(first + count - 1))
return to_integer_text(first)

--# retire_messages: dispatch_journal messages stored_usage
-- Deletes messages that ended more than keep_ms ago, with their marks. The mark of a received message remains until the
-- message is too old to be accepted again, so that a repeat is recognised.
-- ARGV: keep_ms, max.
-- Reply: number of deleted messages.
-- Repeat: safe; a repeat deletes further messages.
local keep_ms, max = to_number(next_arg()), to_number(next_arg())
local err = check_type(kMessagesKey, 'zset')
if err then return err end
local deleted = 0
for _, message in ipairs(redis.call('ZRANGEBYSCORE', kMessagesKey, '-inf', to_integer_text(math.max(0, now_ms - keep_ms)), 'LIMIT', 0, max)) do
  local mark_key = kMessageKey .. message
  local mark_fields = has_type(mark_key, 'hash') and to_table(redis.call('HGETALL', mark_key)) or {}
  local expires_ms = to_number(mark_fields.fresh_until)
  if mark_fields.answer == kAnswerStateDue or to_number(mark_fields.left) > 0 then
    redis.call('ZADD', kMessagesKey, to_integer_text(now_ms), message)
  elseif expires_ms > now_ms then
    release_message_charge(message)
    redis.call('UNLINK', message)
    redis.call('ZADD', kMessagesKey, to_integer_text(expires_ms), message)
  else
    release_message_charge(message)
    redis.call('UNLINK', message, mark_key)
    redis.call('ZREM', kMessagesKey, message)
    if mark_fields.content and call_index('HGET', kReceivedKey, mark_fields.content) == message then redis.call('HDEL', kReceivedKey, mark_fields.content) end
    deleted = deleted + 1
  end
end
return deleted
