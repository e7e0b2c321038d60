-- Who holds the id of a runner.

--# hold_runner:
-- Empty, or the present holder: {instance, host, boot_id, pid}.
local id, instance, host, boot_id, pid, replaces = arg(), arg(), arg(), arg(), arg(), arg()
local ttl_ms, fields = num(arg()), list_arg()
local key, record = 'mj:hold:runner:' .. id, 'runner:' .. id
local err = wrong(key, 'hash') or wrong(record, 'hash') or wrong('mj:runners', 'zset')
if err then return err end
local held = to_table(redis.call('HGETALL', key))
if held.instance and held.instance ~= instance and held.instance ~= replaces and now_ms <= num(held.until_ms) then
  return {held.instance, held.host or '', held.boot_id or '', dec(num(held.pid))}
end
redis.call('HSET', key, 'instance', instance, 'host', host, 'boot_id', boot_id, 'pid', pid,
  'until_ms', dec(now_ms + ttl_ms))
redis.call('ZADD', 'mj:runners', 'NX', 0, id)
redis.call('HSETNX', record, 'created_at', now_s)
redis.call('HSET', record, 'updated_at', now_s, 'seen_ms', dec(now_ms), unpack(fields))
return {}

--# release_runner:
local id, instance = arg(), arg()
local key = 'mj:hold:runner:' .. id
local err = wrong(key, 'hash')
if err then return err end
if redis.call('HGET', key, 'instance') == instance then redis.call('DEL', key) end
return 0
