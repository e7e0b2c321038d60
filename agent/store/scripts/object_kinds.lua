--# objects
-- All kinds: {"<namespace>:<kind>", how many objects, {names of the kind's hash}}.
local err = wrong('mj:osis:kinds', 'zset')
if err then return err end
local all = {}
for i, of in ipairs(redis.call('ZRANGE', 'mj:osis:kinds', 0, 999)) do
  err = wrong_kind(of)
  if err then return err end
  all[i] = {of, redis.call('ZCARD', ids_key(of)), redis.call('HKEYS', kind_key(of))}
end
return all
