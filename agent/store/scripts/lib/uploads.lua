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
    for _, field in ipairs({upload[1], 'all'}) do
      local bytes = to_number(redis.call('HGET', kUploadBytesKey, field)) - count_upload_bytes(upload[2])
      if bytes > 0 then redis.call('HSET', kUploadBytesKey, field, to_integer_text(bytes)) else redis.call('HDEL', kUploadBytesKey, field) end
    end
  end
  redis.call('UNLINK', key, kUploadJobsKey .. id)
  redis.call('ZREM', kUploadsKey, id)
end
