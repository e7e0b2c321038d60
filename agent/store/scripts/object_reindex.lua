--# objects
-- The indexes of a kind are to be derived again: they are emptied, and each object forgets its entries when its turn
-- comes (see object_index.lua).
local of = arg()
local err = wrong_kind(of)
if err then return err end
local key = kind_key(of)
if type_of(key) == 'none' then return 0 end
redis.call('HSET', key, 'rev', dec(math.max(num(redis.call('HGET', key, 'rev')) + 1, now_us)), 'backfill', '')
for _, name in ipairs(redis.call('HKEYS', key)) do
  local sort, field = string.match(name, '^([it]) (.*)$')
  if sort == 'i' then redis.call('UNLINK', entry_key(of, field)) end
end
redis.call('UNLINK', entry_key(of, ''))
return 1
