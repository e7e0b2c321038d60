--#
-- 1: this instance leads now. The end of a time that is further off than it is long only says that the clock went back.
local instance, where, ttl = arg(), arg(), num(arg())
local key = 'mj:coordinator'
local err = wrong(key, 'hash')
if err then return err end
local held = to_table(redis.call('HGETALL', key))
local left = num(held.until_ms) - now_ms
if held.instance and held.instance ~= instance and left >= 0 and left <= num(held.ttl_ms) then return 0 end
redis.call('HSET', key, 'instance', instance, 'where', where, 'until_ms', dec(now_ms + ttl), 'ttl_ms', dec(ttl))
return 1
