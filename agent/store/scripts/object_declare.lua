--# objects
-- Adds fields to a kind: names "i <field>" (found by value), "t <field>" (found by words). Objects that are there are to
-- be indexed again. Answers ok, 1 if there are any; or stale, busy, full (kinds), fields.
local job, claim_id, token, of, most = arg(), arg(), arg(), arg(), num(arg())
local names = list_arg()
local refused = refuse_writer(job, claim_id, token) or wrong_kind(of)
if refused then return refused end
local key = kind_key(of)
local new, have = {}, 0
for _, name in ipairs(redis.call('HKEYS', key)) do
  if string.match(name, '^[it] ') then have = have + 1 end
end
for _, name in ipairs(names) do
  if redis.call('HEXISTS', key, name) == 0 then
    new[#new + 1] = name
    new[#new + 1] = '1'
  end
end
local indexing = redis.call('HEXISTS', key, 'backfill')
if #new == 0 then return {'ok', indexing} end
if have + #new / 2 > most then return {'fields', have} end
if not redis.call('ZSCORE', 'mj:osis:kinds', of) and redis.call('ZCARD', 'mj:osis:kinds') >= 1000 then return {'full'} end

become_writer(job, claim_id, '', '')
local rev = math.max(num(redis.call('HGET', key, 'rev')) + 1, now_us)
redis.call('ZADD', 'mj:osis:kinds', '0', of)
redis.call('HSET', key, 'rev', dec(rev), unpack(new))
if redis.call('ZCARD', ids_key(of)) > 0 then
  redis.call('HSET', key, 'backfill', '')
  indexing = 1
end
return {'ok', indexing}
