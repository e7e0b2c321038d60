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
