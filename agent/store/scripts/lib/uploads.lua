-- Records of uploaded files (../uploads.lua).
local kMinUploadBytes = 65536  -- accounted minimum of an upload
local function count_upload_bytes(bytes) return math.max(kMinUploadBytes, to_number(bytes)) end
local function check_upload_types(id)
  return check_type(kUploadsKey, 'zset') or check_type(kUploadBytesKey, 'hash') or check_type(kUploadKey .. id, 'hash')
    or check_type(kUploadJobsKey .. id, 'set')
end
-- Deletes the record of an upload and credits its caller. The coordinator deletes the file afterwards.
local function remove_upload(id)
  local key = kUploadKey .. id
  local upload = key_type(key) == 'hash' and redis.call('HMGET', key, 'caller', 'bytes') or {}
  if upload[1] then
    local bytes = math.max(0, to_number(redis.call('HGET', kUploadBytesKey, upload[1])) - count_upload_bytes(upload[2]))
    redis.call('HSET', kUploadBytesKey, upload[1], to_integer_text(bytes))
    if bytes == 0 then redis.call('HDEL', kUploadBytesKey, upload[1]) end
  end
  redis.call('UNLINK', key, kUploadJobsKey .. id)
  redis.call('ZREM', kUploadsKey, id)
end
