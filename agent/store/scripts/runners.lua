-- Who holds the id of a runner.

--# hold_runner:
-- {held}; {taken, instance, host, boot_id, pid}: of the present holder; or {key, public key}: the record has a key that the
-- caller, whose key is `pubkey`, does not hold. once: fields that the record gets only if it does not have them.
local id, instance, host, boot_id, pid, replaces = arg(), arg(), arg(), arg(), arg(), arg()
local ttl_ms, pubkey, fields, once = num(arg()), arg(), list_arg(), list_arg()
local key, record = 'mj:hold:runner:' .. id, 'runner:' .. id
local err = wrong(key, 'hash') or wrong(record, 'hash') or wrong('mj:runners', 'zset')
if err then return err end
local held = to_table(redis.call('HGETALL', key))
if held.instance and held.instance ~= instance and held.instance ~= replaces and now_ms <= num(held.until_ms) then
  return {'taken', held.instance, held.host or '', held.boot_id or '', dec(num(held.pid))}
end
local registered = redis.call('HGET', record, 'pubkey') or ''
if registered ~= '' and registered ~= pubkey then return {'key', registered} end
redis.call('HSET', key, 'instance', instance, 'host', host, 'boot_id', boot_id, 'pid', pid,
  'until_ms', dec(now_ms + ttl_ms))
redis.call('ZADD', 'mj:runners', 'NX', 0, id)
redis.call('HSETNX', record, 'created_at', now_s)
redis.call('HSET', record, 'updated_at', now_s, 'seen_ms', dec(now_ms), unpack(fields))
for i = 1, #once, 2 do
  if (redis.call('HGET', record, once[i]) or '') == '' then redis.call('HSET', record, once[i], once[i + 1]) end
end
return {'held'}

--# release_runner:
local id, instance = arg(), arg()
local key = 'mj:hold:runner:' .. id
local err = wrong(key, 'hash')
if err then return err end
if redis.call('HGET', key, 'instance') == instance then redis.call('DEL', key) end
return 0
