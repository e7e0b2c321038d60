-- The mark of a message, mj:message:<key>, holds its state (message_state in agent/model/states.toml) and the state of
-- its answer (answer_state).
local function is_message_key(key)
  return #key <= 64 and string.match(key, '^message:[1-9]%d*:[1-9]%d*$')
end
-- Returns the error for a shared index of messages that has a wrong type.
local function check_mailbox_types()
  return check_type(kOutboxKey, 'zset') or check_type(kInboxKey, 'zset') or check_type(kMessagesKey, 'zset')
end
local function check_message_types(message)
  return check_type(message, 'hash') or check_type(kMessageKey .. message, 'hash') or check_mailbox_types()
end
-- Reads the jobs of a message from ARGV: for each its key, '1' if its existing record was accepted, its queue and its
-- fields (list). Returns the jobs and their keys, or nil, nil and the error MJCONFLICT if a key occurs twice.
local function read_message_jobs(count)
  local jobs, keys, seen_keys = {}, {}, {}
  for i = 1, count do
    local key, accepted, queue = next_arg(), next_arg() == '1', next_arg()
    if seen_keys[key] then return nil, nil, redis.error_reply('MJCONFLICT ' .. key .. ' is listed twice in the message') end
    seen_keys[key] = true
    jobs[i] = {key = key, accepted = accepted, queue = queue, fields = list_arg()}
    keys[i] = key
  end
  return jobs, keys
end
-- Reads the existing record and claim of a job of the message into `job`. Returns nil, or the reply of the script: an
-- error, or {'exists', index, record} if a record exists that was not accepted.
local function check_existing_job(index, job)
  local err = check_type(job.key, 'hash') or check_type(kClaimKey .. job.key, 'hash')
  if err then return err end
  job.exists = redis.call('EXISTS', job.key) == 1
  if job.exists and not job.accepted then return {'exists', index, redis.call('HGETALL', job.key)} end
  job.claim = read_claim(job.key)
end
-- Records the coordinator whose folder has the files of a job. An empty name changes nothing.
local function set_files_holder(job, holder)
  if holder ~= '' and not check_type(kJobFilesKey .. job, 'hash') then redis.call('HSET', kJobFilesKey .. job, 'holder', holder) end
end
-- Publishes a hint that the outbox or the inbox has changed.
local function publish_mailbox_change() redis.call('PUBLISH', kMailboxChangedChannel, '') end
-- Adds an entry to the outbox, due now, and stores the time in due_ms of the mark. If another client has overwritten
-- the outbox, an anomaly is recorded, so that the end of a job does not fail.
local function enqueue_outbox(entry)
  if check_type(kOutboxKey, 'zset') then
    return add_anomaly(kOutboxKey .. ' is not a sorted set, so no peer is notified: ' .. entry .. ': delete that key, then doctor --rebuild')
  end
  local mark_key = kMessageKey .. string.match(entry, '%S+$')
  if has_type(mark_key, 'hash') then redis.call('HSET', mark_key, 'due_ms', to_integer_text(now_ms)) end
  redis.call('ZADD', kOutboxKey, to_integer_text(now_ms), entry)
  publish_mailbox_change()
end
-- Adds a message to msg_in for clients that read it. A list with more than kMaxInboxEntries entries loses its oldest.
local kMaxInboxEntries = 10000
local function enqueue_inbox(message)
  if check_type('msg_in', 'list') then
    return add_anomaly('msg_in is not a list, so no process receives ' .. message .. ': delete that key')
  end
  redis.call('LREM', 'msg_in', 0, message)
  if redis.call('LPUSH', 'msg_in', message) > kMaxInboxEntries then redis.call('RPOP', 'msg_in') end
end
-- Ends a message: as processed, or as error with a reason. Makes the answer due if the sender waits for it. The message
-- ends even if another client has deleted its record. After a cancellation the error begins with "cancelled"; readers
-- recognise a cancelled message by this (service/message_service.cpp).
local function end_message(message, reason)
  local mark_key = kMessageKey .. message
  if reason ~= '' and redis.call('HGET', mark_key, 'cancelled') and not string.find(reason, '^cancelled') then reason = 'cancelled: ' .. reason end
  if key_type(message) ~= 'hash' then
    add_anomaly(to_printable(message) .. ' has ended, and its record is missing')
  elseif reason == '' then
    redis.call('HSET', message, 'status', kMessageStatusProcessed, 'updated_at', now_s)
    redis.call('HDEL', message, 'error')
  else
    redis.call('HSET', message, 'status', kMessageStatusError, 'error', reason, 'updated_at', now_s)
  end
  call_index('ZADD', kMessagesKey, to_integer_text(now_ms), message)
  if redis.call('HGET', mark_key, 'answer') == kAnswerStateWanted then
    redis.call('HSET', mark_key, 'answer', kAnswerStateDue)
    enqueue_outbox('answer ' .. message)
  elseif redis.call('HGET', mark_key, 'own') then
    enqueue_inbox(message)
  end
end
-- Counts the end of one job of a message. After the last job, and the end of the flow that the message has become, the
-- message ends. A message in state `away` ends with its answer instead.
local function count_ended_job(message, status)
  local mark_key = kMessageKey .. message
  if not has_type(mark_key, 'hash') then return end
  local mark_fields = to_table(redis.call('HGETALL', mark_key))
  local open_jobs, failed_jobs = to_number(mark_fields.left), to_number(mark_fields.failed)
  if open_jobs == 0 then return end
  if status ~= kJobStatusFinished then failed_jobs = failed_jobs + 1 end
  redis.call('HSET', mark_key, 'left', open_jobs - 1, 'failed', failed_jobs)
  if open_jobs > 1 or mark_fields.state == kMessageStateAway then return end
  if (mark_fields.flow or '') ~= '' and not mark_fields.flow_ended then return end
  end_message(message, failed_jobs > 0 and failed_jobs .. ' of its jobs failed' or '')
end
-- Returns ": <error of the flow's record>" as a suffix for an error text, or an empty text.
local function flow_error_suffix(flow)
  local flow_key = 'flow:' .. (flow or '')
  local error_text = key_type(flow_key) == 'hash' and redis.call('HGET', flow_key, 'error') or ''
  return error_text == '' and '' or ': ' .. to_printable(error_text)
end
-- Notes the end of the flow that the message has become. The message ends if none of its jobs is left.
local function record_flow_end(message, status)
  local mark_key = kMessageKey .. message
  if not has_type(mark_key, 'hash') or redis.call('HGET', mark_key, 'flow_ended') then return end
  redis.call('HSET', mark_key, 'flow_ended', status)
  if to_number(redis.call('HGET', mark_key, 'left')) == 0 then end_message(message, status == kFlowStatusFinished and '' or 'its flow failed' .. flow_error_suffix(redis.call('HGET', mark_key, 'flow'))) end
end
