-- Coordinators that send files, and files that clients have uploaded to them. The scripts have no KEYS, and fail with
-- MJTYPE if a key has a wrong type. The coordinator has the files on its disk (agent/artifacts/uploads/).

--# hold_files:
-- Registers a coordinator as a holder of files.
-- ARGV: name, ttl_ms (0 ends the registration).
-- Reply: 0. Repeat: safe; a repeat renews.
local kForgottenMs = 30 * 24 * 3600 * 1000
local name, ttl_ms = next_arg(), to_number(next_arg())
local err = check_type(kFileHoldersKey, 'hash')
if err then return err end
if ttl_ms == 0 then
  redis.call('HDEL', kFileHoldersKey, name)
  return 0
end
redis.call('HSET', kFileHoldersKey, name, to_integer_text(now_ms + ttl_ms))
if redis.call('HLEN', kFileHoldersKey) > 100 then
  for holder, until_ms in pairs(to_table(redis.call('HGETALL', kFileHoldersKey))) do
    if to_number(until_ms) + kForgottenMs < now_ms then redis.call('HDEL', kFileHoldersKey, holder) end
  end
end
return 0

--# upload_begin: uploads
-- Reserves an upload. It expires unless upload_complete follows.
-- ARGV: id, caller, bytes, sha256, holder, ttl_ms, the quota in bytes of a caller.
-- Reply: new; or full with the bytes of the caller's uploads; or all_full with the bytes of all uploads.
-- Repeat: safe; an upload that exists is not changed.
local id, caller, bytes, sha256, holder = next_arg(), next_arg(), next_arg(), next_arg(), next_arg()
local ttl_ms, max_bytes = to_number(next_arg()), to_number(next_arg())
local err = check_upload_types(id)
if err then return err end
if redis.call('EXISTS', kUploadKey .. id) == 1 then return {'new'} end
local kMaxUploadQuotas = 16  -- the uploads of all callers together, in quotas of a caller
local usage, new_bytes = redis.call('HMGET', kUploadBytesKey, caller, 'all'), count_upload_bytes(bytes)
local used_bytes, all_bytes = to_number(usage[1] or nil), to_number(usage[2] or nil)
if used_bytes + new_bytes > max_bytes then return {'full', to_integer_text(used_bytes)} end
if all_bytes + new_bytes > kMaxUploadQuotas * max_bytes then return {'all_full', to_integer_text(all_bytes)} end
redis.call('ZADD', kUploadsKey, to_integer_text(now_ms + ttl_ms), id)
redis.call('HSET', kUploadBytesKey, caller, to_integer_text(used_bytes + new_bytes), 'all', to_integer_text(all_bytes + new_bytes))
redis.call('HSET', kUploadKey .. id, 'caller', caller, 'bytes', bytes, 'sha256', sha256, 'holder', holder)
return {'new'}

--# upload_complete: uploads
-- Marks an upload as complete. ARGV: id, ttl_ms. Reply: the time of its expiry in ms; 0 if it does not exist any more.
-- Repeat: safe.
local id, ttl_ms = next_arg(), to_number(next_arg())
local err = check_upload_types(id)
if err then return err end
if redis.call('EXISTS', kUploadKey .. id) == 0 then return to_integer_text(0) end
redis.call('HSET', kUploadKey .. id, 'stored', 1)
redis.call('ZADD', kUploadsKey, to_integer_text(now_ms + ttl_ms), id)
return to_integer_text(now_ms + ttl_ms)

--# upload_expire: uploads
-- Deletes uploads that have expired and that no job uses. An upload with jobs is checked again after an hour.
-- ARGV: max (uploads to examine).
-- Reply: the number of examined uploads; max if others are due.
-- Repeat: safe; a repeat examines further uploads.
local kCheckPauseMs, kMaxJobs, kMaxAllJobs = 3600000, 200, 2000
local max = to_number(next_arg())
local err = check_type(kUploadsKey, 'zset') or check_type(kUploadBytesKey, 'hash')
if err then return err end
local ids = redis.call('ZRANGEBYSCORE', kUploadsKey, '-inf', to_integer_text(now_ms), 'LIMIT', 0, max)
local job_count, examined = 0, 0
for _, id in ipairs(ids) do
  if job_count >= kMaxAllJobs then break end
  examined = examined + 1
  local jobs_key, is_used = kUploadJobsKey .. id, false
  local jobs = key_type(jobs_key) == 'set' and redis.call('SRANDMEMBER', jobs_key, kMaxJobs) or {}
  job_count = job_count + #jobs
  for _, job in ipairs(jobs) do
    if redis.call('EXISTS', job) == 1 then
      is_used = true
    else
      redis.call('SREM', jobs_key, job)
    end
  end
  if is_used then
    redis.call('ZADD', kUploadsKey, to_integer_text(now_ms + kCheckPauseMs), id)
  elseif key_type(jobs_key) ~= 'set' then
    remove_upload(id)
  end
end
return to_integer_text(examined < #ids and max or examined)
