--# objects
-- Some objects of a kind are indexed by its present fields. Each: id, the version that its entries were worked out from,
-- entries. Another version has been written since, by the present fields. Answers 1, or 0: the fields have changed.
local of, rev, after = arg(), arg(), arg()
local items = list_arg()
local err = wrong_kind(of)
if err then return err end
local key = kind_key(of)
if redis.call('HGET', key, 'rev') ~= rev then return 0 end
for i = 1, #items, 3 do
  err = wrong(object_key(of, items[i]), 'hash')
    or wrong_entries(of, redis.call('HGET', object_key(of, items[i]), 'entries') or '') or wrong_entries(of, items[i + 2])
  if err then return err end
end
for i = 1, #items, 3 do
  local object = object_key(of, items[i])
  if redis.call('HGET', object, 'version') == items[i + 1] then
    local old = redis.call('HGET', object, 'entries') or ''
    redis.call('HSET', object, 'entries', items[i + 2])
    set_entries(of, items[i], old, '')  -- both in full: the indexes may have been emptied
    set_entries(of, items[i], '', items[i + 2])
  end
end
if redis.call('HEXISTS', key, 'backfill') == 1 then
  if after == '' then redis.call('HDEL', key, 'backfill') else redis.call('HSET', key, 'backfill', after) end
end
return 1
