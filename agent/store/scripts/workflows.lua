-- Worlds of workflows: journal, manifests, blobs, inbox. What the bytes mean is not known here.

--# world_put_manifest:
-- put, or other: there is another text of that hash.
local world, hash, text = arg(), arg(), arg()
local key = 'mj:world-manifests:' .. world
local err = wrong(key, 'hash') or wrong('mj:worlds', 'set')
if err then return err end
local there = redis.call('HGET', key, hash)
if there and there ~= text then return 'other' end
redis.call('HSET', key, hash, text)
redis.call('SADD', 'mj:worlds', world)
return 'put'

--# world_read: journal flows
-- {height, height of the latest snapshot, its hash, {facts after a height}}.
local world, after, most = arg(), num(arg()), arg()
local journal, snapshot = 'mj:world:' .. world, 'mj:world-snapshot:' .. world
local err = wrong(journal, 'stream') or wrong(snapshot, 'hash')
if err then return err end
local head = head_of(journal)
if not head then return strange_head(journal) end
local taken = redis.call('HMGET', snapshot, 'height', 'hash')
local facts = {}
if head > after then
  for _, entry in ipairs(redis.call('XRANGE', journal, dec(after + 1) .. '-0', '+', 'COUNT', most)) do
    facts[#facts + 1] = to_table(entry[2]).f or ''
  end
end
return {dec(head), taken[1] or '0', taken[2] or '', facts}

--# world_commit: journal flows
-- {done} or {conflict, height}.
local context, world, base, due = arg(), arg(), num(arg()), num(arg())
local facts, blobs, done, snapshot = list_arg(), list_arg(), list_arg(), arg()
local journal, inbox, store = 'mj:world:' .. world, 'mj:world-in:' .. world, 'mj:world-blobs:' .. world
local err = wrong(journal, 'stream') or wrong(inbox, 'stream') or wrong(store, 'hash') or wrong('mj:worlds:due', 'zset')
  or wrong('mj:world-snapshot:' .. world, 'hash')
if err then return err end
local head = head_of(journal)
if not head then return strange_head(journal) end
if head ~= base then return {'conflict', dec(head)} end
if #blobs > 0 then redis.call('HSET', store, unpack(blobs)) end
for i, fact in ipairs(facts) do redis.call('XADD', journal, dec(base + i) .. '-0', 'f', fact) end
for i = 1, #done, 100 do redis.call('XDEL', inbox, unpack(done, i, math.min(i + 99, #done))) end
if snapshot ~= '' then
  redis.call('HSET', 'mj:world-snapshot:' .. world, 'height', dec(base + #facts), 'hash', snapshot)
end
if redis.call('XLEN', inbox) > 0 then
  redis.call('ZADD', 'mj:worlds:due', dec(now_ms), world)
elseif due > 0 then
  redis.call('ZADD', 'mj:worlds:due', dec(due), world)
else
  redis.call('ZREM', 'mj:worlds:due', world)
end
if #facts > 0 then redis.call('PUBLISH', 'mj:worlds', context .. ' ' .. world) end
return {'done'}

--# world_post: worlds
-- posted, none (there is no such world) or full.
local context, world, max, fields = arg(), arg(), num(arg()), list_arg()
local err = wrong('mj:worlds', 'set') or wrong('mj:world-in:' .. world, 'stream') or wrong('mj:worlds:due', 'zset')
if err then return err end
if redis.call('SISMEMBER', 'mj:worlds', world) == 0 then return 'none' end
if redis.call('XLEN', 'mj:world-in:' .. world) >= max then return 'full' end
post_to_world(context, world, fields)
return 'posted'

--# world_due:
-- {worlds..., ms until the next one or 0}.
local most = arg()
local err = wrong('mj:worlds:due', 'zset')
if err then return err end
local due = redis.call('ZRANGEBYSCORE', 'mj:worlds:due', '-inf', dec(now_ms), 'LIMIT', 0, most)
local later = redis.call('ZRANGE', 'mj:worlds:due', 0, 0, 'WITHSCORES')[2]
return {due, later and #due == 0 and dec(math.max(1, num(later) - now_ms)) or '0'}
