-- Dispatch journals, anomalies and dead letters.

-- Records an anomaly, unless the newest anomaly has the same text.
local function add_anomaly(text)
  local newest = redis.call('XREVRANGE', kAnomaliesKey, '+', '-', 'COUNT', 1)[1]
  if newest and newest[2][2] == text then return end
  redis.call('XADD', kAnomaliesKey, 'MAXLEN', '~', 10000, '*', 'text', text)
end
-- Adds an entry to the list of dead letters. Returns the id of the dead letter.
local function add_dead_letter_entry(entry, queue, reason)
  return redis.call('XADD', kDeadLettersKey, 'MAXLEN', '~', 100000, '*', 'key', string.sub(entry, 1, 1024), 'queue', queue,
    'reason', reason)
end

-- Calls a command on an index that `doctor --rebuild` can restore from the facts of its jobs. If another client has
-- overwritten the key, an anomaly names the key, nil is returned, and the caller continues without that index.
local function call_index(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply) end
  add_anomaly(to_printable(key) .. ' is a ' .. key_type(key) .. ', which another client wrote: delete that key, then doctor --rebuild')
end
-- Reports a key that exists with another type than `expected_type` as an anomaly. Returns whether the type is wrong.
local function report_wrong_type(key, actual_type, expected_type)
  if actual_type == 'none' or actual_type == expected_type then return false end
  add_anomaly(to_printable(key) .. ' is a ' .. actual_type .. ' where a ' .. expected_type .. ' belongs: delete that key, then doctor --rebuild')
  return true
end
local function reports_wrong_type(key, expected_type) return report_wrong_type(key, key_type(key), expected_type) end
-- Returns whether the key exists with type `expected_type`. Another type is reported as an anomaly.
local function has_type(key, expected_type)
  local actual_type = key_type(key)
  report_wrong_type(key, actual_type, expected_type)
  return actual_type == expected_type
end
-- Returns the claim of a job, or nil if the key is not a hash, which is reported as an anomaly.
local function find_claim(job)
  local claim = read_claim(job)
  if not claim then reports_wrong_type(kClaimKey .. job, 'hash') end
  return claim
end

local heads = {}  -- the latest revision of each journal, by queue
-- Appends a fact to the journal of the queue; the revision is the number of the stream entry. Notes the revision in
-- `claim`, which the caller stores with set_claim(). If another client has overwritten the journal, an anomaly is
-- recorded and the caller continues without the fact.
local function add_fact(queue, job, claim, kind, ...)
  local key = kQueueJournalKey .. queue
  local head = heads[queue]
  if not head then
    local newest = redis.pcall('XREVRANGE', key, '+', '-', 'COUNT', '1')
    if newest.err then return add_anomaly(to_printable(key) .. ' is a ' .. key_type(key) .. ' where a stream belongs: delete it') end
    head = newest[1] and to_number(string.match(newest[1][1], '^%d+')) or 0
    if head == 0 then redis.call('SADD', kQueuesKey, queue) end
  end
  local added = redis.pcall('XADD', key, to_integer_text(head + 1) .. '-0', 'f', kind, 'j', job, 'at', to_integer_text(now_ms), ...)
  if type(added) == 'table' and added.err then
    if not string.find(added.err, 'equal or smaller', 1, true) then error(added) end
    -- Facts at the end of the journal were deleted with their retired jobs, so the last entry has a lower revision.
    local info = to_table(redis.call('XINFO', 'STREAM', key))
    head = to_number(string.match(info['last-generated-id'], '^%d+'))
    redis.call('XADD', key, to_integer_text(head + 1) .. '-0', 'f', kind, 'j', job, 'at', to_integer_text(now_ms), ...)
  end
  heads[queue] = head + 1
  if claim then claim.revs = (claim.revs and claim.revs .. ' ' or '') .. to_integer_text(head + 1) end
end
-- Returns {queue, revision, ...} for the journals to which this call has written.
local function written_heads()
  local list = {}
  for queue, head in pairs(heads) do
    list[#list + 1] = queue
    list[#list + 1] = to_integer_text(head)
  end
  return list
end
-- Sets the time of the last change of the job, by which lists of jobs are sorted. If another client has overwritten the
-- index, the job is missing in lists but continues.
local function update_change_time(job) call_index('ZADD', kJobsKey, to_integer_text(now_us), job) end
-- Writes fields of the claim together with the revisions of its facts.
local function write_claim(job, claim, ...) redis.call('HSET', kClaimKey .. job, 'revs', claim.revs or '', ...) end
local function set_claim(job, claim, ...)
  write_claim(job, claim, ...)
  update_change_time(job)
end

-- Returns the highest number that an entry of the job's log has had, or 0; nil if there is no log. The entry may have
-- been deleted since; Redis accepts only higher numbers.
local function find_last_log_seq(job)
  local key = kLogKey .. job
  if redis.call('EXISTS', key) == 0 then return nil end
  local info = redis.pcall('XINFO', 'STREAM', key)
  if not info.err then return to_number(string.match(to_table(info)['last-generated-id'], '^%d+')) end
  if not string.find(info.err, 'WRONGTYPE', 1, true) then error(info) end
  call_index('XREVRANGE', key, '+', '-', 'COUNT', '1')  -- reports the type
  return 0
end
local function get_last_log_seq(job) return find_last_log_seq(job) or 0 end

-- Returns the SHA-1 of the texts with their lengths. The digest of an end by the owner of a claim is another one:
-- compute_end_digest() of ../job_fields.h.
local function digest(fields)
  local parts = {}
  for i, text in ipairs(fields) do parts[i] = #text .. ':' .. text end
  return redis.sha1hex(table.concat(parts))
end
