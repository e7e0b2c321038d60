-- Registration of runner ids. The scripts have no KEYS, and fail with MJTYPE if a key has a wrong type.

--# hold_runner:
-- Acquires or renews the id of a runner for one process, and writes its record.
-- ARGV: id, instance, host, boot_id, pid, replaces (instance that may be replaced, or empty), ttl_ms, pubkey (of the
-- caller), fields (count, then name, value, ...), initial_fields (the same; written only where the record has no
-- value).
-- Reply: {held}; {taken, instance, host, boot_id, pid} of the present holder; or {key, public key} if the record
-- contains another public key.
-- Repeat: safe; the same instance renews.
local id, instance, host, boot_id, pid, replaces = next_arg(), next_arg(), next_arg(), next_arg(), next_arg(), next_arg()
local ttl_ms, pubkey, fields, initial_fields = to_number(next_arg()), next_arg(), list_arg(), list_arg()
local key, record = kRunnerOwnerKey .. id, 'runner:' .. id
local err = check_type(key, 'hash') or check_type(record, 'hash') or check_type(kRunnersKey, 'zset')
if err then return err end
local holder = to_table(redis.call('HGETALL', key))
if holder.instance and holder.instance ~= instance and holder.instance ~= replaces and now_ms <= to_number(holder.until_ms) then
  return {'taken', holder.instance, holder.host or '', holder.boot_id or '', to_integer_text(to_number(holder.pid))}
end
local registered = redis.call('HGET', record, 'pubkey') or ''
if registered ~= '' and registered ~= pubkey then return {'key', registered} end
redis.call('HSET', key, 'instance', instance, 'host', host, 'boot_id', boot_id, 'pid', pid,
  'until_ms', to_integer_text(now_ms + ttl_ms))
redis.call('ZADD', kRunnersKey, 'NX', 0, id)
redis.call('HSETNX', record, 'created_at', now_s)
redis.call('HSET', record, 'updated_at', now_s, 'seen_ms', to_integer_text(now_ms), unpack(fields))
for i = 1, #initial_fields, 2 do
  if (redis.call('HGET', record, initial_fields[i]) or '') == '' then redis.call('HSET', record, initial_fields[i], initial_fields[i + 1]) end
end
return {'held'}

--# release_runner:
-- Releases the id of a runner if this instance holds it. ARGV: id, instance. Reply: 0. Repeat: safe; an id of another
-- instance is not released.
local id, instance = next_arg(), next_arg()
local key = kRunnerOwnerKey .. id
local err = check_type(key, 'hash')
if err then return err end
if redis.call('HGET', key, 'instance') == instance then redis.call('DEL', key) end
return 0

--# silent_runners:
-- Finds runners without heartbeats. Only the index of runners is read, so that the cost does
-- not depend on the number of keys: a server may hold a million queued jobs.
-- ARGV: lost (detail of runners that were marked already, which are left out).
-- Reply: {number of runners with heartbeats, {id, instance, host, pid}...}.
-- Repeat: safe; read-only.
local lost = next_arg()
local err = check_type(kRunnersKey, 'zset')
if err then return err end
local live, silent = 0, {}
for _, id in ipairs(redis.call('ZRANGE', kRunnersKey, 0, -1)) do
  local holder = string.find(id, '^[1-9]%d*$') and redis.pcall('HMGET', kRunnerOwnerKey .. id, 'instance', 'until_ms', 'host', 'pid') or {}
  if holder[1] and not holder.err and now_ms < to_number(holder[2] or nil) then
    live = live + 1
  elseif holder[1] and not holder.err then
    local record = redis.pcall('HMGET', 'runner:' .. id, 'updated_at', 'detail')
    if record[1] and not record.err and record[2] ~= lost then silent[#silent + 1] = {id, holder[1], holder[3] or '', holder[4] or ''} end
  end
end
return {live, silent}
