-- Deployments of workflows ("world" in names): journal, manifests, blobs and inbox. Facts, blobs and manifests are
-- opaque bytes here.
-- Conventions: the scripts have no KEYS. ARGV is listed in order; a list is a count followed by that many texts, and a
-- flag is "1" or "0". If a key has a wrong type, a script fails with MJTYPE before its first write, unless stated
-- otherwise.

--# world_put_manifest:
-- Stores a manifest under its hash, and registers the deployment.
-- ARGV: world, hash, text.
-- Reply: put; or other if another text is stored under this hash.
-- Repeat: safe; the same text is stored again.
local world, hash, text = arg(), arg(), arg()
local key = 'mj:world-manifests:' .. world
local err = check_type(key, 'hash') or check_type('mj:worlds', 'set')
if err then return err end
local there = redis.call('HGET', key, hash)
if there and there ~= text then return 'other' end
redis.call('HSET', key, hash, text)
redis.call('SADD', 'mj:worlds', world)
return 'put'

--# world_read: dispatch_journal flows
-- Reads facts of a deployment and its head.
-- ARGV: world, after (height), most (number of facts).
-- Reply: {height, height of the latest snapshot, its hash, {facts after the given height}, hash of the manifest in
-- force}.
-- Repeat: safe; read-only.
local kMaxBytes, kAtOnce = 8388608, 16  -- a single fact may have several MiB
local world, after, most = arg(), to_number(arg()), to_number(arg())
local journal, heads = 'mj:world:' .. world, 'mj:world-head:' .. world
local err = check_type(journal, 'stream') or check_type(heads, 'hash')
if err then return err end
local head = head_of(journal)
if not head then return check_journal_head(journal) end
local taken = redis.call('HMGET', heads, 'height', 'hash', 'manifest')
local facts, bytes = {}, 0
while after + #facts < head and #facts < most and bytes < kMaxBytes do
  local page = redis.call('XRANGE', journal, to_integer_text(after + #facts + 1) .. '-0', '+', 'COUNT', to_integer_text(math.min(kAtOnce, most - #facts)))
  if #page == 0 then break end
  for _, entry in ipairs(page) do
    if bytes >= kMaxBytes then break end
    local fact = to_table(entry[2]).f or ''
    facts[#facts + 1], bytes = fact, bytes + #fact
  end
end
return {to_integer_text(head), taken[1] or '0', taken[2] or '', facts, taken[3] or ''}

--# world_commit: dispatch_journal flows
-- Commits a change of a deployment at the height on which it is based, in one step, or nothing.
-- ARGV: context (id), world, base (height), due (ms; 0: not due), facts (list), blobs (list of hash, bytes, ...), done
-- (list of processed inbox entries), snapshot (hash, or empty), manifest (hash that comes into force, or empty), alone
-- (flag: only with an empty inbox), flag and list of the instances with a full mailbox (the list only if the flag is
-- 1), applies (value of mj:world-applies on which the manifest was checked; "*": not checked).
-- Reply: {done}; {conflict, height}; {busy, number of inbox entries}; {applied} if another manifest of the context has
-- come into force since the check.
-- Repeat: safe for a commit with facts; the reply is a conflict.
local context, world, base, due = arg(), arg(), to_number(arg()), to_number(arg())
local facts, blobs, done, snapshot, manifest, alone = list_arg(), list_arg(), list_arg(), arg(), arg(), arg() == '1'
local full = arg() == '1' and list_arg()
local applies, counter = arg(), 'mj:world-applies'
local journal, inbox, store, closed = 'mj:world:' .. world, 'mj:world-in:' .. world, 'mj:world-blobs:' .. world, 'mj:world-full:' .. world
local err = check_type(journal, 'stream') or check_type(inbox, 'stream') or check_type(store, 'hash') or check_type('mj:worlds:due', 'zset')
  or check_type('mj:world-head:' .. world, 'hash') or check_type(closed, 'set') or (manifest ~= '' and check_type(counter, 'hash'))
if err then return err end
local head = head_of(journal)
if not head then return check_journal_head(journal) end
if head ~= base then return {'conflict', to_integer_text(head)} end
local applied = manifest ~= '' and redis.call('HGET', counter, 'count') or ''
if manifest ~= '' and applies ~= applied and applies ~= '*' then return {'applied'} end
local waiting = redis.call('XLEN', inbox)
if alone and waiting > 0 then return {'busy', to_integer_text(waiting)} end
for i = 1, #blobs, 2 do redis.call('HSET', store, blobs[i], blobs[i + 1]) end
for i, fact in ipairs(facts) do redis.call('XADD', journal, to_integer_text(base + i) .. '-0', 'f', fact) end
for i = 1, #done, 100 do redis.call('XDEL', inbox, unpack(done, i, math.min(i + 99, #done))) end
if snapshot ~= '' then
  redis.call('HSET', 'mj:world-head:' .. world, 'height', to_integer_text(base + #facts), 'hash', snapshot)
end
if manifest ~= '' then
  redis.call('HSET', 'mj:world-head:' .. world, 'manifest', manifest)
  redis.call('HSET', counter, 'count', to_integer_text(to_number(applied) + 1))
end
if full then
  redis.call('DEL', closed)
  for i = 1, #full, 100 do redis.call('SADD', closed, unpack(full, i, math.min(i + 99, #full))) end
end
if redis.call('XLEN', inbox) > 0 then
  redis.call('ZADD', 'mj:worlds:due', to_integer_text(now_ms), world)
elseif due > 0 then
  redis.call('ZADD', 'mj:worlds:due', to_integer_text(due), world)
else
  redis.call('ZREM', 'mj:worlds:due', world)
end
if #facts > 0 then redis.call('PUBLISH', 'mj:worlds', context .. ' ' .. world) end
return {'done'}

--# world_post: deployments
-- Adds an event to the inbox of a deployment.
-- ARGV: context (id), world, max (number of inbox entries), manifest (hash by which the event was checked, or empty),
-- key (idempotency key, or empty), content (hash of the event), keep_ms (how long keys are kept), most_keys (number of
-- keys that are kept), targets (list of instances), fields (list).
-- Reply: {posted, id}; {repeated, id} for the same key and content; {used, id} for the same key with other content;
-- {none} if the deployment does not exist; {other} if another manifest is in force; {full} if the inbox is full; {busy,
-- index} with the index, from 0, of a target with a full mailbox.
-- Repeat: safe with an idempotency key, which is stored in the same step as the event.
local context, world, max, manifest, key, content, keep_ms, most_keys = arg(), arg(), to_number(arg()), arg(), arg(), arg(), to_number(arg()), to_number(arg())
local targets, fields = list_arg(), list_arg()
local closed, keys, ages = 'mj:world-full:' .. world, 'mj:world-keys:' .. world, 'mj:world-key-ages:' .. world
local kMaxForgottenBatch, kMaxInboxBytes, kMeasureMs, kEntryBytes = 20, 268435456, 1000, 100
local heads, inbox = 'mj:world-head:' .. world, 'mj:world-in:' .. world
local function drop_event_key(some)
  for _, each in ipairs(some) do
    redis.call('HDEL', keys, each)
    redis.call('ZREM', ages, each)
  end
end
local err = check_type('mj:world-head:' .. world, 'hash') or check_type('mj:worlds', 'set') or check_type('mj:world-in:' .. world, 'stream') or check_type('mj:worlds:due', 'zset')
  or check_type(closed, 'set') or check_type(keys, 'hash') or check_type(ages, 'zset')
if err then return err end
if redis.call('SISMEMBER', 'mj:worlds', world) == 0 then return {'none'} end
if key ~= '' then
  local id, first = string.match(redis.call('HGET', keys, key) or '', '^(%d+%-%d+) (%S+)$')
  if id then return {first == content and 'repeated' or 'used', id} end
end
local head = redis.call('HMGET', heads, 'manifest', 'in_bytes', 'measured_ms')
local in_force = head[1]
if manifest ~= '' and in_force and manifest ~= in_force then return {'other'} end
local waiting = redis.call('XLEN', inbox)
if waiting >= max then return {'full'} end
-- in_bytes counts the bytes of posted events since the inbox was last empty or measured. Entries of other scripts (one
-- for the end of an effect) are not counted. A measurement reads all entries, so there is at most one per second.
local bytes = kEntryBytes
for _, text in ipairs(fields) do bytes = bytes + #text end
local inbox_bytes = waiting == 0 and 0 or head[2] and to_number(head[2]) or kMaxInboxBytes
if inbox_bytes + bytes > kMaxInboxBytes then
  if math.abs(now_ms - to_number(head[3] or nil)) < kMeasureMs then return {'full'} end
  inbox_bytes = redis.call('MEMORY', 'USAGE', inbox, 'SAMPLES', '0') or 0
  redis.call('HSET', heads, 'in_bytes', to_integer_text(inbox_bytes), 'measured_ms', to_integer_text(now_ms))
  if inbox_bytes + bytes > kMaxInboxBytes then return {'full'} end
end
for i, target in ipairs(targets) do
  if redis.call('SISMEMBER', closed, target) == 1 then return {'busy', to_integer_text(i - 1)} end
end
local id = post_to_inbox(context, world, fields)
redis.call('HSET', heads, 'in_bytes', to_integer_text(inbox_bytes + bytes))
if key ~= '' then
  redis.call('HSET', keys, key, id .. ' ' .. content)
  redis.call('ZADD', ages, to_integer_text(now_ms), key)
  drop_event_key(redis.call('ZRANGEBYSCORE', ages, '-inf', to_integer_text(math.max(0, now_ms - keep_ms)), 'LIMIT', '0', to_integer_text(kMaxForgottenBatch)))
  local more = redis.call('ZCARD', ages) - most_keys
  if more > 0 then drop_event_key(redis.call('ZRANGE', ages, 0, math.min(more, kMaxForgottenBatch) - 1)) end
end
return {'posted', id}

--# world_mail:
-- Reads the oldest entries of the inbox.
-- ARGV: world, most (number of entries), most_bytes, after (id; empty: begin).
-- Reply: entries in the form of XRANGE, until they have most_bytes bytes.
-- Repeat: safe; read-only.
local inbox, most, most_bytes, after = 'mj:world-in:' .. arg(), to_number(arg()), to_number(arg()), arg()
local err = check_type(inbox, 'stream')
if err then return err end
local entries, bytes, from = {}, 0, after == '' and '-' or '(' .. after
while #entries < most and bytes < most_bytes do
  local page = redis.call('XRANGE', inbox, from, '+', 'COUNT', '8')
  if #page == 0 then break end
  for _, entry in ipairs(page) do
    if #entries >= most or bytes >= most_bytes then break end
    for _, text in ipairs(entry[2]) do bytes = bytes + #text end
    entries[#entries + 1], from = entry, '(' .. entry[1]
  end
end
return entries

--# world_due:
-- Returns the deployments that are due.
-- ARGV: most.
-- Reply: {{worlds...}, ms until the next one, or 0 if some are due or none is registered}.
-- Repeat: safe; read-only.
local most = arg()
local err = check_type('mj:worlds:due', 'zset')
if err then return err end
local due = redis.call('ZRANGEBYSCORE', 'mj:worlds:due', '-inf', to_integer_text(now_ms), 'LIMIT', 0, most)
local later = redis.call('ZRANGE', 'mj:worlds:due', 0, 0, 'WITHSCORES')[2]
return {due, later and #due == 0 and to_integer_text(math.max(1, to_number(later) - now_ms)) or '0'}

--# world_glance:
-- Checks deployments for lost notifications.
-- ARGV: count, then for each deployment: world, keys of the jobs and flows that perform its effects (list).
-- Reply: {time in ms, {{number of inbox entries, due time in ms or 0, {positions, from 0, of the keys of jobs and flows
-- that have ended or do not exist}}...}}.
-- Repeat: safe; read-only.
local rows = {}
local err = check_type('mj:worlds:due', 'zset')
if err then return err end
for _ = 1, to_number(arg()) do
  local world, ended = arg(), {}
  for place, carrier in ipairs(list_arg()) do
    -- Any client may write to the record, so the record counts only if there is no claim or mark with a state.
    local mark, is = state_key(carrier), type_of(carrier)
    local state = type_of(mark) == 'hash' and redis.call('HGET', mark, 'state')
    local status = not state and is == 'hash' and redis.call('HGET', carrier, 'status')
    if is == 'none' or state == 'ended' or status == 'finished' or status == 'error' then ended[#ended + 1] = place - 1 end
  end
  local inbox, due = 'mj:world-in:' .. world, redis.call('ZSCORE', 'mj:worlds:due', world)
  rows[#rows + 1] = {type_of(inbox) == 'stream' and redis.call('XLEN', inbox) or 0, due and to_integer_text(math.max(1, to_number(due))) or '0', ended}
end
return {to_integer_text(now_ms), rows}

--# world_collect: dispatch_journal flows
-- Deletes blobs to which no fact refers.
-- ARGV: world, base (height), hashes (list).
-- Reply: gone; or conflict if the height has changed, since the new facts may refer to one of the blobs.
-- Repeat: safe; deleted blobs are ignored.
local world, base, hashes = arg(), to_number(arg()), list_arg()
local journal, store = 'mj:world:' .. world, 'mj:world-blobs:' .. world
local err = check_type(journal, 'stream') or check_type(store, 'hash')
if err then return err end
if head_of(journal) ~= base then return 'conflict' end
for i = 1, #hashes, 100 do redis.call('HDEL', store, unpack(hashes, i, math.min(i + 99, #hashes))) end
return 'gone'

--# world_places: dispatch_journal flows
-- Inspects the keys of a deployment.
-- ARGV: world.
-- Reply: {height, height of the latest snapshot, its hash, hash of the manifest in force, 1 if it is registered, due
-- time in ms or 0, number of inbox entries, time in ms, {instances with a full mailbox}}.
-- Repeat: safe; read-only.
local world = arg()
local journal, heads, inbox, closed = 'mj:world:' .. world, 'mj:world-head:' .. world, 'mj:world-in:' .. world, 'mj:world-full:' .. world
local err = check_type(journal, 'stream') or check_type(heads, 'hash') or check_type(inbox, 'stream') or check_type(closed, 'set') or check_type('mj:worlds', 'set')
  or check_type('mj:worlds:due', 'zset')
if err then return err end
local head = head_of(journal)
if not head then return check_journal_head(journal) end
local taken = redis.call('HMGET', heads, 'height', 'hash', 'manifest')
local due = redis.call('ZSCORE', 'mj:worlds:due', world)
return {to_integer_text(head), to_integer_text(to_number(taken[1])), taken[2] or '', taken[3] or '', redis.call('SISMEMBER', 'mj:worlds', world),
  due and to_integer_text(math.max(1, to_number(due))) or '0', redis.call('XLEN', inbox), to_integer_text(now_ms), redis.call('SMEMBERS', closed)}

--# world_repair: dispatch_journal flows deployments
-- Applies repair steps to a deployment if its height is the one that the inspection has found. The steps are chosen in
-- inspect/deployment_invariants.cpp.
-- ARGV: context (id), world, height, count, then three texts for each step: its name in `mend` and the two arguments.
-- Reply: done; or moved if the height has changed, and nothing was written.
-- Repeat: safe; a repeated `notice` adds a second entry to the inbox, and an effect is settled only once.
local context, world, height, count = arg(), arg(), to_number(arg()), to_number(arg())
local heads, closed = 'mj:world-head:' .. world, 'mj:world-full:' .. world
local err = check_type('mj:world:' .. world, 'stream') or check_type(heads, 'hash') or check_type(closed, 'set') or check_type('mj:worlds', 'set')
  or check_type('mj:worlds:due', 'zset') or check_type('mj:world-in:' .. world, 'stream')
if err then return err end
if head_of('mj:world:' .. world) ~= height then return 'moved' end
local mend = {
  list = function() redis.call('SADD', 'mj:worlds', world) end,
  due = function()
    redis.call('ZADD', 'mj:worlds:due', to_integer_text(now_ms), world)
    redis.call('PUBLISH', 'mj:worlds', context .. ' ' .. world)
  end,
  head = function(what) redis.call('HSET', heads, 'manifest', what) end,
  snapshot = function() redis.call('HDEL', heads, 'height', 'hash') end,
  open = function(what) redis.call('SREM', closed, what) end,
  notice = function(what, of) post_to_inbox(context, world, {'kind', what, 'key', of}) end,
  mark = function(_, of)
    if has_type(of, 'hash') then redis.call('HSET', of, 'effect_of', context .. ' ' .. world) end
  end,
}
for _ = 1, count do
  local kind, what, of = arg(), arg(), arg()
  mend[kind](what, of)
end
return 'done'
