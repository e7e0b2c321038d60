-- The object store. The caller computes the index entries of an object (store/objects/object_index.h). The entries are stored
-- with the object, so that the next write can remove them from the indexes. In all functions `kind` is
-- "<namespace>:<kind>".
local function object_key(kind, id) return kObjectKey .. kind .. ':' .. id end
local function ids_key(kind) return kObjectIdsKey .. kind end
local function kind_key(kind) return kObjectKindKey .. kind end
local function entry_key(kind, field)
  if field == '' then return kObjectWordsKey .. kind end
  return kObjectIndexKey .. kind .. ':' .. field
end
local function iterate_entries(entries) return string.gmatch(entries, '([^\2\3]*)\2([^\3]*)\3') end

-- Only one job writes objects at a time. writer_error() returns nil if the claim may write: it becomes the writer with
-- acquire_writer(). Otherwise it returns an error or the reply of the script: {'stale'} or {'busy', job}.
local function claim_is_live(job, claim_id)
  local claim = read_claim(job)
  return claim and claim.claim_id == claim_id and claim.state == kJobStateLive and now_ms <= to_number(claim.until_ms)
end
-- Returns the first entry of mj:osis:waiting with a live claim, and its job. Entries of other claims are removed.
local function next_writer()
  for _ = 1, 100 do
    local first_entry = redis.call('ZRANGE', kObjectWritersWaitingKey, 0, 0)[1]
    if not first_entry then return end
    local job, claim_id = string.match(first_entry, '^(%S+) (%S+)$')
    if job and claim_is_live(job, claim_id) then return first_entry, job end
    redis.call('ZREM', kObjectWritersWaitingKey, first_entry)
  end
end
local writer
local function writer_error(job, claim_id, token)
  local err = check_type(kObjectWriterKey, 'hash') or check_type(kObjectWritersWaitingKey, 'zset')
  if err then return err end
  if not is_live(read_claim(job), claim_id, token) then return {'stale'} end
  writer = to_table(redis.call('HGETALL', kObjectWriterKey))
  if writer.job == job and writer.claim_id == claim_id then return end
  local busy_job = writer.job and claim_is_live(writer.job, writer.claim_id) and writer.job
  if not busy_job then
    local first_entry, first_job = next_writer()
    -- It is this claim's turn. The entry is removed at once, so that no other job waits for a call that fails for
    -- another reason, such as a conflict.
    if first_entry == job .. ' ' .. claim_id then redis.call('ZREM', kObjectWritersWaitingKey, first_entry) end
    if not first_entry or first_entry == job .. ' ' .. claim_id then return end
    busy_job = first_job
  end
  local last_turn = redis.call('ZRANGE', kObjectWritersWaitingKey, -1, -1, 'WITHSCORES')[2]
  redis.call('ZADD', kObjectWritersWaitingKey, 'NX', to_integer_text(math.max(now_us, to_number(last_turn) + 1)), job .. ' ' .. claim_id)
  return {'busy', busy_job}
end
-- Makes the claim the writer, and stores call and answer for a repeat. This is the first write of every script that
-- adds data, so that a lack of memory is detected before any change.
local function acquire_writer(job, claim_id, call, answer)
  if writer.job ~= job or writer.claim_id ~= claim_id then
    redis.call('HSET', kObjectWriterKey, 'job', job, 'claim_id', claim_id, 'epoch', redis.call('HGET', kClaimKey .. job, 'epoch') or '0',
      'since_ms', to_integer_text(now_ms), 'call', call, 'answer', answer)
    redis.call('ZREM', kObjectWritersWaitingKey, job .. ' ' .. claim_id)
  elseif call ~= '' then
    redis.call('HSET', kObjectWriterKey, 'call', call, 'answer', answer)
  end
end

-- Returns the error for a key of the kind that has a wrong type.
local function check_kind_type(kind) return check_type(kind_key(kind), 'hash') or check_type(ids_key(kind), 'zset') or check_type(kObjectKindsKey, 'zset') end
local checked_keys = {}
-- Returns the error for an index of these entries that has a wrong type. Each key is checked once.
local function check_entry_types(kind, entries)
  for field in iterate_entries(entries) do
    local key = entry_key(kind, field)
    if not checked_keys[key] then
      local err = check_type(key, 'zset')
      if err then return err end
      checked_keys[key] = true
    end
  end
end

-- Calls the command with at most 1000 of the words at a time, since Lua limits the number of arguments.
local function call_in_batches(command, key, arguments)
  for first = 1, #arguments, 1000 do redis.call(command, key, unpack(arguments, first, math.min(first + 999, #arguments))) end
end
-- Changes the indexes from the old entries of an object to the new entries. Entries that are in both are left
-- unchanged.
local function set_entries(kind, id, old, new)
  if old == new then return end
  local old_keys, additions, removals = {}, {}, {}
  for field, value in iterate_entries(old) do old_keys[field .. '\2' .. value] = entry_key(kind, field) end
  for field, value in iterate_entries(new) do
    local entry = field .. '\2' .. value
    if old_keys[entry] then
      old_keys[entry] = nil
    else
      local key = entry_key(kind, field)
      local members = additions[key] or {}
      members[#members + 1] = '0'
      members[#members + 1] = value .. '\1' .. id
      additions[key] = members
    end
  end
  for entry, key in pairs(old_keys) do
    local members = removals[key] or {}
    members[#members + 1] = string.match(entry, '\2(.*)$') .. '\1' .. id
    removals[key] = members
  end
  for key, members in pairs(additions) do call_in_batches('ZADD', key, members) end
  for key, members in pairs(removals) do call_in_batches('ZREM', key, members) end
end
-- Returns {json, version, created_ms, updated_ms} of an object.
local function object_fields(kind, id)
  return redis.call('HMGET', object_key(kind, id), 'json', 'version', 'created_ms', 'updated_ms')
end

-- Reads the objects that the members of a sorted set name ("value \1 id", or the id alone), at most `limit` of them,
-- until they have max_bytes bytes. Returns {last member that was examined, or empty after the last member, {{id, json,
-- version, created_ms, updated_ms}...}}.
local function read_object_page(kind, members, limit, max_bytes)
  local items, bytes, last_member = {}, 0, ''
  for i, member in ipairs(members) do
    if i > limit or bytes >= max_bytes then return {last_member, items} end
    last_member = member
    local id = string.match(member, '\1(.*)$') or member
    if key_type(object_key(kind, id)) == 'hash' then
      local fields = object_fields(kind, id)
      if fields[1] and fields[2] then
        items[#items + 1] = {id, fields[1], fields[2], fields[3] or '0', fields[4] or '0'}
        bytes = bytes + #fields[1] + 128
      end
    end
  end
  return {'', items}
end
