--# objects
-- The list of a kind's objects is brought in line with what there is of these ids.
local of = arg()
local ids = list_arg()
local err = wrong_kind(of)
if err then return err end
for _, id in ipairs(ids) do
  if type_of(object_key(of, id)) == 'hash' then
    redis.call('ZADD', 'mj:osis:kinds', '0', of)
    redis.call('ZADD', ids_key(of), '0', id)
  else
    redis.call('ZREM', ids_key(of), id)
  end
end
return 1
