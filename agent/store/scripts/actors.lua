-- Whose key it is. Database 0.

--# actor_of_key: actors
-- {how many name it, their id, began, due, the record's fields}. began: the moment at which the last look through all
-- records began that was ended, 0: there was none. due: the moment of a look that the caller is to make now, or empty:
-- plain clients write records, too. A look takes a hundredth of the time at most, however many ask.
local pubkey = arg()
local err = wrong('mj:actor-keys', 'hash') or wrong('mj:actor-looks', 'hash')
if err then return err end
local looks = to_table(redis.call('HGETALL', 'mj:actor-looks'))
local started, began, ended = num(looks.started), num(looks.began), num(looks.ended)
local owners = owners_of(pubkey)
local rest_ms = math.max(#owners == 0 and 1000 or 60000, 100 * (ended - began))
local due = started == 0 or now_ms < started or now_ms < ended
if started > began then
  due = due or now_ms > started + 30000  -- whoever looked has gone
else
  due = due or now_ms >= ended + rest_ms
end
if due then redis.call('HSET', 'mj:actor-looks', 'started', dec(now_ms)) end
if #owners == 0 and redis.call('HEXISTS', 'mj:actor-keys', pubkey) == 1 then redis.call('HDEL', 'mj:actor-keys', pubkey) end
return {#owners, owners[1] or '', dec(began), due and dec(now_ms) or '',
  #owners == 1 and redis.call('HGETALL', 'actor:' .. owners[1]) or {}}

--# index_actors: actors
-- A part of a look through all records. The next cursor; "0": that was the last part.
local cursor, due = arg(), arg()
local err = wrong('mj:actor-keys', 'hash') or wrong('mj:actor-looks', 'hash')
if err then return err end
local page = redis.call('SCAN', cursor, 'MATCH', 'actor:*', 'COUNT', '1000')
for _, key in ipairs(page[2]) do
  local id = actor_id(key)
  local pubkey = id and redis.pcall('HGET', key, 'pubkey')
  if type(pubkey) == 'string' and pubkey ~= '' and #pubkey <= 200 then own_key(pubkey, id) end
end
if page[1] == '0' and due ~= '' and redis.call('HGET', 'mj:actor-looks', 'started') == due then
  redis.call('HSET', 'mj:actor-looks', 'began', due, 'ended', dec(now_ms))
end
return page[1]
