--# objects
-- The indexes of a kind are to be derived again: these of its fields ('': words) are emptied, and each object is indexed
-- anew when its turn comes (see object_index.lua).
local of = arg()
local fields = list_arg()
local err = wrong_kind(of)
if err then return err end
local key = kind_key(of)
redis.call('HSET', key, 'rev', dec(math.max(num(redis.call('HGET', key, 'rev')) + 1, now_us)), 'backfill', '')
for _, field in ipairs(fields) do redis.call('UNLINK', entry_key(of, field)) end
return 1
