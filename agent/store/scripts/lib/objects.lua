-- The object store. The caller has worked out what an object's indexes hold (domain/object_index.h): its entries, which
-- are kept beside it, so that the next write can take them away.
local function object_key(of, id) return 'mj:osis:object:' .. of .. ':' .. id end
local function ids_key(of) return 'mj:osis:ids:' .. of end  -- of: "<namespace>:<kind>"
local function kind_key(of) return 'mj:osis:kind:' .. of end
local function entry_key(of, field)
  if field == '' then return 'mj:osis:words:' .. of end
  return 'mj:osis:index:' .. of .. ':' .. field
end
local function each_entry(entries) return string.gmatch(entries, '([^\2\3]*)\2([^\3]*)\3') end

-- One writer at a time. An error table, or {answer} if the caller may not write now; nil: it is the writer, once
-- become_writer() has been called.
local kWriter, kWaiting = 'mj:osis:writer', 'mj:osis:waiting'
local function claim_is_live(job, claim_id)
  local claim = read_claim(job)
  return claim and claim.claim_id == claim_id and claim.state == 'live' and now_ms <= num(claim.until_ms)
end
local function first_waiting()  -- whose claim is live; the others are struck off
  for _ = 1, 100 do
    local first = redis.call('ZRANGE', kWaiting, 0, 0)[1]
    if not first then return end
    local job, claim_id = string.match(first, '^(%S+) (%S+)$')
    if job and claim_is_live(job, claim_id) then return first, job end
    redis.call('ZREM', kWaiting, first)
  end
end
local writer
local function refuse_writer(job, claim_id, token)
  local err = wrong(kWriter, 'hash') or wrong(kWaiting, 'zset')
  if err then return err end
  if not is_live(read_claim(job), claim_id, token) then return {'stale'} end
  writer = to_table(redis.call('HGETALL', kWriter))
  if writer.job == job and writer.claim_id == claim_id then return end
  local busy = writer.job and claim_is_live(writer.job, writer.claim_id) and writer.job
  if not busy then
    local first, first_job = first_waiting()
    -- Its turn has come: a call that is refused after all, for a conflict say, leaves nobody waiting for it.
    if first == job .. ' ' .. claim_id then redis.call('ZREM', kWaiting, first) end
    if not first or first == job .. ' ' .. claim_id then return end
    busy = first_job
  end
  local last = redis.call('ZRANGE', kWaiting, -1, -1, 'WITHSCORES')[2]
  redis.call('ZADD', kWaiting, 'NX', dec(math.max(now_us, num(last) + 1)), job .. ' ' .. claim_id)
  return {'busy', busy}
end
-- The first write of every script that puts something: what fails for want of memory fails here.
local function become_writer(job, claim_id, call, answer)
  if writer.job ~= job or writer.claim_id ~= claim_id then
    redis.call('HSET', kWriter, 'job', job, 'claim_id', claim_id, 'epoch', redis.call('HGET', 'mj:claim:' .. job, 'epoch') or '0',
      'since_ms', dec(now_ms), 'call', call, 'answer', answer)
    redis.call('ZREM', kWaiting, job .. ' ' .. claim_id)
  elseif call ~= '' then
    redis.call('HSET', kWriter, 'call', call, 'answer', answer)
  end
end

local function wrong_kind(of) return wrong(kind_key(of), 'hash') or wrong(ids_key(of), 'zset') or wrong('mj:osis:kinds', 'zset') end
local checked_keys = {}
local function wrong_entries(of, entries)
  for field in each_entry(entries) do
    local key = entry_key(of, field)
    if not checked_keys[key] then
      local err = wrong(key, 'zset')
      if err then return err end
      checked_keys[key] = true
    end
  end
end

local function in_parts(command, key, words)
  for first = 1, #words, 1000 do redis.call(command, key, unpack(words, first, math.min(first + 999, #words))) end
end
-- Brings the indexes from the old entries of an object to the new ones; what is in both stays.
local function set_entries(of, id, old, new)
  if old == new then return end
  local had, added, gone = {}, {}, {}
  for field, value in each_entry(old) do had[field .. '\2' .. value] = entry_key(of, field) end
  for field, value in each_entry(new) do
    local entry = field .. '\2' .. value
    if had[entry] then
      had[entry] = nil
    else
      local key = entry_key(of, field)
      local words = added[key] or {}
      words[#words + 1] = '0'
      words[#words + 1] = value .. '\1' .. id
      added[key] = words
    end
  end
  for entry, key in pairs(had) do
    local words = gone[key] or {}
    words[#words + 1] = string.match(entry, '\2(.*)$') .. '\1' .. id
    gone[key] = words
  end
  for key, words in pairs(added) do in_parts('ZADD', key, words) end
  for key, words in pairs(gone) do in_parts('ZREM', key, words) end
end
local function object_fields(of, id)  -- json, version, created_ms, updated_ms
  return redis.call('HMGET', object_key(of, id), 'json', 'version', 'created_ms', 'updated_ms')
end

-- The objects that members of a sorted set name ("value \1 id", or the id alone), as far as max_bytes goes. Answers
-- {last member that was looked at, or '' if that was all of them, {id, json, version, created_ms, updated_ms}...}.
local function page_of(of, members, limit, max_bytes)
  local items, bytes, last = {}, 0, ''
  for i, member in ipairs(members) do
    if i > limit or bytes >= max_bytes then return {last, items} end
    last = member
    local id = string.match(member, '\1(.*)$') or member
    if type_of(object_key(of, id)) == 'hash' then
      local found = object_fields(of, id)
      if found[1] and found[2] then
        items[#items + 1] = {id, found[1], found[2], found[3] or '0', found[4] or '0'}
        bytes = bytes + #found[1] + 128
      end
    end
  end
  return {'', items}
end
