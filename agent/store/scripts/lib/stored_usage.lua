-- Bytes that the jobs of each caller store in this Redis: field <caller> of mj:stored-bytes; field `all` is the sum over all
-- callers. A job is charged when its record is written, for its output and for its end, and credited when it is
-- deleted. The claim holds the charges: kept (record), kept_end and log_bytes. For a job that was created and never
-- queued, and for a message that a client created in this context, mj:stored-bytes-unqueued holds the charge.
-- The fields over, at, began, part and full of mj:stored-bytes are the state of the search for ended jobs to retire (tick.lua). The
-- field changes counts the changes; caller_max and context_max repeat the quotas for readers.
local kMinChargedBytes = 3072  -- minimum charge of a job in bytes: record, claim and facts
local kLineBytes = 32  -- overhead of a line of output in bytes
-- Pause between two checks of a job that waits because its caller exceeds a quota.
local kQuotaPauseMs, kMaxQuotaPauseMs = 10000, 60000
-- The quotas in bytes; 0 is unlimited. Scripts that receive the quotas in ARGV set them with read_quota().
local quota = {caller = 0, context = 0}
local function read_quota() quota = {caller = to_number(next_arg()), context = to_number(next_arg())} end

-- Returns the caller's id in the key of a job or message.
local function parse_caller(key) return string.match(key, '^%l+:(%d+):') end
local function sum_bytes(texts)
  local bytes = 0
  for _, text in ipairs(texts) do bytes = bytes + #text end
  return bytes
end
local function record_charge(fields, files) return math.max(kMinChargedBytes, sum_bytes(fields) + sum_bytes(files or {})) end
-- Returns the error for an uploaded file that the job cannot use. reference: "<upload id> <bytes>".
local function check_upload(job, sha256, reference)
  local id, bytes = string.match(reference, '^(%d+%.%x+) (%d+)$')
  local key = kUploadKey .. (id or '')
  local err = id and check_type(kUploadJobsKey .. id, 'set')
  if err then return err end
  local upload = id and key_type(key) == 'hash' and redis.call('HMGET', key, 'caller', 'bytes', 'sha256', 'stored') or {}
  if upload[1] and upload[1] ~= parse_caller(job) then
    return redis.error_reply('MJDENIED upload ' .. id .. ' belongs to another caller: upload the file as the caller of the job')
  end
  if upload[4] and upload[2] == bytes and upload[3] == sha256 then return end
  return redis.error_reply('MJNOTFOUND upload ' .. to_printable(id or reference) .. (upload[1] and not upload[4] and ' is not complete' or ' does not exist or has expired') .. ': upload the file again')
end
-- The contents of the files of a new job are a list {field of mj:job-files:<job key>, content, ...}. Returns the error
-- for a wrong type of this key, if the job has files, or for an uploaded file that the job cannot use.
local function check_job_files(job, files)
  local err = #files > 0 and check_type(kJobFilesKey .. job, 'hash') or nil
  for i = 1, err and 0 or #files, 2 do
    local sha256 = string.match(files[i], '^upload:(%x+)$')
    err = sha256 and check_upload(job, sha256, files[i + 1])
    if err then break end
  end
  return err or nil
end
-- Writes the contents, and removes those of an earlier job with the same key. An uploaded file is kept until the record
-- of the job is deleted. REQUIRES: check_job_files() has returned no error.
local kExaminedUploadJobs = 3
local function write_job_files(job, files)
  if #files == 0 then return end
  for i = 1, #files, 2 do
    if string.find(files[i], '^upload:') then
      local id = string.match(files[i + 1], '^%S+')
      files[i + 1] = files[i + 1] .. ' ' .. (redis.call('HGET', kUploadKey .. id, 'holder') or '')
      local jobs_key = kUploadJobsKey .. id
      redis.call('SADD', jobs_key, job)
      -- Each new job removes deleted jobs, so that about as many as existing jobs remain.
      for _, other in ipairs(redis.call('SRANDMEMBER', jobs_key, kExaminedUploadJobs)) do
        if other ~= job and redis.call('EXISTS', other) == 0 then redis.call('SREM', jobs_key, other) end
      end
    end
  end
  redis.call('UNLINK', kJobFilesKey .. job)
  redis.call('HSET', kJobFilesKey .. job, unpack(files))
end
local function log_charge(bytes) return bytes - bytes % kLogChargeStepBytes end

-- Returns the setting of the exceeded quota and its value, or nothing. The quotas are multiplied by eighths / 8. In a
-- full context a caller with little data (always_allowed_bytes) is still accepted, so that other callers cannot lock
-- the caller out; twice the quota of the context is never exceeded.
local function always_allowed_bytes() return (quota.caller > 0 and math.min(quota.caller, quota.context) or quota.context) / 16 end
-- Running jobs may exceed the quotas by one eighth when their ends are stored.
local kQuotaEighths, kEndQuotaEighths = 8, 9
local function find_exceeded_quota(caller_bytes, total_bytes, eighths)
  local factor = eighths / 8
  if quota.caller > 0 and caller_bytes > quota.caller * factor then return 'quota.caller_bytes', quota.caller end
  if quota.context == 0 or total_bytes <= quota.context * factor then return end
  if caller_bytes > always_allowed_bytes() or total_bytes > 2 * quota.context then return 'quota.context_bytes', quota.context end
end
-- Returns the result of find_exceeded_quota() for the present usage of a caller and extra_bytes, which are not
-- counted yet.
local function check_quota(caller, extra_bytes)
  if quota.caller == 0 and quota.context == 0 then return end
  local usage = call_index('HMGET', kStoredBytesKey, caller, 'all')
  if usage then return find_exceeded_quota(to_number(usage[1] or nil) + (extra_bytes or 0), to_number(usage[2] or nil) + (extra_bytes or 0), kQuotaEighths) end
end
-- Returns whether the usage is so high that the oldest ended jobs are retired. Retiring them early keeps new jobs from
-- reaching the quota.
local function is_nearly_full(bytes, limit) return limit > 0 and bytes > limit - limit / 8 end

-- Makes tick retire ended jobs of the caller. A running search for another caller is completed first.
local function request_retirement(caller) call_index('HSETNX', kStoredBytesKey, 'over', caller) end

-- Charges the caller. If the new total exceeds the given share of a quota, charges nothing and returns the setting and
-- its value. Without `eighths` the charge is always accepted.
local function charge(caller, bytes, eighths)
  local usage = bytes > 0 and call_index('HMGET', kStoredBytesKey, caller, 'all', 'changes')
  if not usage then return end
  local caller_bytes, total_bytes, changes = to_number(usage[1] or nil) + bytes, to_number(usage[2] or nil) + bytes, to_integer_text(to_number(usage[3] or nil) + 1)
  local setting, limit
  if eighths then setting, limit = find_exceeded_quota(caller_bytes, total_bytes, eighths) end
  if setting then
    request_retirement(caller)
    return setting, limit
  end
  redis.call('HSET', kStoredBytesKey, caller, to_integer_text(caller_bytes), 'all', to_integer_text(total_bytes), 'changes', changes)
  if is_nearly_full(caller_bytes, quota.caller) or is_nearly_full(total_bytes, quota.context) then request_retirement(caller) end
end
-- Credits the caller. The sum is reduced by the same amount as the caller's counter, so that a counter that was too low
-- does not make the two disagree.
local function release_charge(caller, bytes)
  local usage = bytes > 0 and call_index('HMGET', kStoredBytesKey, caller, 'all', 'changes')
  if not usage then return end
  local caller_before = to_number(usage[1] or nil)
  local released_bytes = math.min(bytes, caller_before)
  local caller_bytes, total_bytes = caller_before - released_bytes, math.max(0, to_number(usage[2] or nil) - released_bytes)
  redis.call('HSET', kStoredBytesKey, caller, to_integer_text(caller_bytes), 'all', to_integer_text(total_bytes), 'changes', to_integer_text(to_number(usage[3] or nil) + 1))
  if caller_bytes == 0 then redis.call('HDEL', kStoredBytesKey, caller) end
  if total_bytes == 0 then redis.call('HDEL', kStoredBytesKey, 'all', 'changes', 'over', 'at', 'began', 'part', 'full', 'caller_max', 'context_max') end
end
local function excess_text(caller, setting, limit)
  return 'the jobs of caller ' .. caller .. ' keep more than ' .. setting .. ' allows, ' .. to_integer_text(limit) .. ' bytes'
end
-- Returns the error MJFULL for a new record that exceeds a quota.
local function quota_error(caller, setting, limit)
  return redis.error_reply('MJFULL the jobs of caller ' .. caller .. ' and their output keep as much in this Redis as the setting '
    .. setting .. ' allows, ' .. to_integer_text(limit) .. ' bytes: wait until some have ended, delete some (mycojobs job delete), or raise it')
end

-- Removes and returns the charge of a record if mj:stored-bytes-unqueued holds it.
local function pop_created_charge(key)
  local stored_charge = call_index('HGET', kStoredBytesUnqueuedKey, key)
  if stored_charge then redis.call('HDEL', kStoredBytesUnqueuedKey, key) end
  return stored_charge and to_number(stored_charge) or nil
end
local function release_message_charge(message) release_charge(parse_caller(message), pop_created_charge(message) or 0) end
-- Charges the end of a job or of an attempt. Returns the fields to write to the claim; or nil, the setting and its
-- value if the charge exceeds a quota multiplied by eighths / 8. Without `eighths` a charge is never refused.
local function charge_end(job, claim, fields, eighths)
  local bytes, charged_bytes = sum_bytes(fields), to_number(claim.kept_end)
  if bytes < kMinEndBytes then bytes = 0 end
  if bytes == charged_bytes then return claim.end_charge or {} end
  if bytes > charged_bytes then
    local setting, limit = charge(parse_caller(job), bytes - charged_bytes, eighths)
    if setting then return nil, setting, limit end
  else
    release_charge(parse_caller(job), charged_bytes - bytes)
  end
  claim.kept_end = to_integer_text(bytes)
  claim.end_charge = {'kept_end', claim.kept_end}  -- a second call for the same end returns the same fields
  return claim.end_charge
end
-- Returns whether an end exceeds the quotas of its caller. Such an end is stored without its result and long texts, and
-- a line in the job's log names the setting.
local function is_end_refused(job, claim, fields)
  local claim_fields, setting, limit = charge_end(job, claim, fields, kEndQuotaEighths)
  if claim_fields then return false end
  local text = 'its result is not kept, nor a long error: ' .. excess_text(parse_caller(job), setting, limit)
  local reply = redis.pcall('XADD', kLogKey .. job, to_integer_text(get_last_log_seq(job) + 1) .. '-0', 'ts', to_integer_text(now_ms), 'stream', 'system', 'text', text)
  if type(reply) == 'table' and reply.err then reports_wrong_type(kLogKey .. job, 'stream') end
  return true
end
-- Credits everything that was charged for a job.
local function release_job_charge(job, claim)
  release_charge(parse_caller(job), to_number(claim.kept) + (pop_created_charge(job) or 0) + to_number(claim.kept_end) + log_charge(to_number(claim.log_bytes)))
end
