--# objects
-- The objects that members of a sorted set name, between two bounds. field: must be declared ("i city"), or is ''.
-- Answers ok and a page; or indexing, undeclared.
local of, field, key, low, high, limit, max_bytes = arg(), arg(), arg(), arg(), arg(), num(arg()), num(arg())
local err = wrong_kind(of) or wrong(key, 'zset')
if err then return err end
if field ~= '' then
  if redis.call('HEXISTS', kind_key(of), field) == 0 then return {'undeclared'} end
  if redis.call('HEXISTS', kind_key(of), 'backfill') == 1 then return {'indexing'} end
end
local members = redis.call('ZRANGEBYLEX', key, low, high, 'LIMIT', 0, limit + 1)
return {'ok', page_of(of, members, limit, max_bytes)}
