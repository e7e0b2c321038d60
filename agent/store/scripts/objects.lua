-- The object store of scripts: writes, declared fields, indexes and queries.
-- Conventions: the scripts have no KEYS. ARGV is listed in order; a list is a count followed by that many texts. `kind`
-- is "<namespace>:<kind>". If a key has a wrong type, a script fails with MJTYPE before its first write. Scripts that
-- write for a job also reply {stale} if the claim is not live, and {busy, job} while another job is the writer; the job
-- waits for its turn then.

--# object_write: objects
-- Applies the operations of one write, all of them or none.
-- ARGV: job (key), claim_id, token, call (id of this call), count, then for each operation: verb (put, remove or
-- another, which only checks the version), kind, id, version (expected; empty: any), rev (revision of the declared
-- fields), json, entries (of the indexes).
-- Reply: {ok, stamps}, where a stamp is "version,created_ms,updated_ms" and stamps are separated by ";"; {stale};
-- {busy, job}; {conflict, index, version}; {missing, index}; {schema, index} if rev is outdated; {full} if there are
-- too many kinds.
-- Repeat: safe; while the job is the writer, a repeat of its last call gets the stored reply.
local job, claim_id, token, call, count = next_arg(), next_arg(), next_arg(), next_arg(), to_number(next_arg())
local refusal = writer_error(job, claim_id, token)
if refusal then return refusal end
if writer.job == job and writer.claim_id == claim_id and writer.call == call then return {'ok', writer.answer or ''} end

local ops, stamps, puts, new_kinds, kinds_seen = {}, {}, false, 0, {}
for i = 1, count do
  local op = {verb = next_arg(), kind = next_arg(), id = next_arg(), version = next_arg(), rev = next_arg(), json = next_arg(), entries = next_arg()}
  local key = object_key(op.kind, op.id)
  local err = check_type(key, 'hash') or check_kind_type(op.kind)
  if err then return err end
  local old_fields = redis.call('HMGET', key, 'version', 'created_ms', 'updated_ms', 'entries')
  local version = to_number(old_fields[1])
  op.old, op.existed = old_fields[4] or '', version > 0
  if op.version ~= '' and to_number(op.version) ~= version then return {'conflict', i, version} end
  if op.verb == 'remove' and not op.existed then return {'missing', i} end
  err = check_entry_types(op.kind, op.old) or check_entry_types(op.kind, op.entries)
  if err then return err end
  if op.verb == 'put' then
    puts = true
    if (redis.call('HGET', kind_key(op.kind), 'rev') or '0') ~= op.rev then return {'schema', i} end
    if not kinds_seen[op.kind] and not redis.call('ZSCORE', kObjectKindsKey, op.kind) then new_kinds = new_kinds + 1 end
    kinds_seen[op.kind] = true
    op.stamp = {to_integer_text(version + 1), op.existed and old_fields[2] or to_integer_text(now_ms), to_integer_text(now_ms)}
  else
    op.stamp = {to_integer_text(version), old_fields[2] or '0', old_fields[3] or '0'}
  end
  ops[i], stamps[i] = op, table.concat(op.stamp, ',')
end
if new_kinds > 0 and redis.call('ZCARD', kObjectKindsKey) + new_kinds > 1000 then return {'full'} end

local reply = table.concat(stamps, ';')
-- The answer is stored for a repeat. If there is no memory left, a call that only removes objects continues without
-- this.
if puts or writer.job ~= job or writer.claim_id ~= claim_id then
  acquire_writer(job, claim_id, call, reply)
else
  redis.pcall('HSET', kObjectWriterKey, 'call', call, 'answer', reply)
end
for _, op in ipairs(ops) do
  local key = object_key(op.kind, op.id)
  if op.verb == 'put' then
    redis.call('HSET', key, 'json', op.json, 'version', op.stamp[1], 'created_ms', op.stamp[2], 'updated_ms', op.stamp[3],
      'entries', op.entries)
    if not op.existed then redis.call('ZADD', ids_key(op.kind), '0', op.id) end
    redis.call('ZADD', kObjectKindsKey, '0', op.kind)
    if redis.call('HEXISTS', kind_key(op.kind), 'backfill') == 1 then  -- the indexes may not contain the old entries yet
      set_entries(op.kind, op.id, op.old, '')
      op.old = ''
    end
    set_entries(op.kind, op.id, op.old, op.entries)
  elseif op.verb == 'remove' then
    set_entries(op.kind, op.id, op.old, '')
    redis.call('ZREM', ids_key(op.kind), op.id)
    redis.call('DEL', key)
    if redis.call('ZCARD', ids_key(op.kind)) == 0 and key_type(kind_key(op.kind)) == 'none' then
      redis.call('ZREM', kObjectKindsKey, op.kind)
    end
  end
end
return {'ok', reply}

--# object_declare: objects
-- Adds declared fields to a kind. If the kind has objects, these must be indexed again with object_index.
-- ARGV: job (key), claim_id, token, kind, max_fields, names (list of "i <field>", indexed by value,
-- and "t <field>", indexed by words).
-- Reply: {ok, 1 if objects must be indexed}; {stale}; {busy, job}; {fields, present number} if there would be too many
-- fields; {full} if there are too many kinds.
-- Repeat: safe; declared fields are left unchanged.
local job, claim_id, token, kind, max_fields = next_arg(), next_arg(), next_arg(), next_arg(), to_number(next_arg())
local names = list_arg()
local refusal = writer_error(job, claim_id, token) or check_kind_type(kind)
if refusal then return refusal end
local key = kind_key(kind)
local new_fields, field_count = {}, 0
for _, name in ipairs(redis.call('HKEYS', key)) do
  if string.match(name, '^[it] ') then field_count = field_count + 1 end
end
for _, name in ipairs(names) do
  if redis.call('HEXISTS', key, name) == 0 then
    new_fields[#new_fields + 1] = name
    new_fields[#new_fields + 1] = '1'
  end
end
local indexing = redis.call('HEXISTS', key, 'backfill')
if #new_fields == 0 then return {'ok', indexing} end
if field_count + #new_fields / 2 > max_fields then return {'fields', field_count} end
if not redis.call('ZSCORE', kObjectKindsKey, kind) and redis.call('ZCARD', kObjectKindsKey) >= 1000 then return {'full'} end

acquire_writer(job, claim_id, '', '')
local rev = math.max(to_number(redis.call('HGET', key, 'rev')) + 1, now_us)
redis.call('ZADD', kObjectKindsKey, '0', kind)
redis.call('HSET', key, 'rev', to_integer_text(rev), unpack(new_fields))
if redis.call('ZCARD', ids_key(kind)) > 0 then
  redis.call('HSET', key, 'backfill', '')
  indexing = 1
end
return {'ok', indexing}

--# object_index: objects
-- Indexes some objects of a kind again, with its present declared fields.
-- ARGV: kind, rev (revision of the declared fields), cursor (position to continue from; empty: complete), items (list
-- of id, version from which the entries were computed, entries). An object with another version is skipped, since its
-- write has used the present fields.
-- Reply: 1; 0 if the declared fields have changed.
-- Repeat: safe; the entries of an object are replaced as a whole.
local kind, rev, cursor = next_arg(), next_arg(), next_arg()
local items = list_arg()
local err = check_kind_type(kind)
if err then return err end
local key = kind_key(kind)
if redis.call('HGET', key, 'rev') ~= rev then return 0 end
for i = 1, #items, 3 do
  err = check_type(object_key(kind, items[i]), 'hash')
    or check_entry_types(kind, redis.call('HGET', object_key(kind, items[i]), 'entries') or '') or check_entry_types(kind, items[i + 2])
  if err then return err end
end
for i = 1, #items, 3 do
  local object = object_key(kind, items[i])
  if redis.call('HGET', object, 'version') == items[i + 1] then
    local old = redis.call('HGET', object, 'entries') or ''
    redis.call('HSET', object, 'entries', items[i + 2])
    set_entries(kind, items[i], old, '')  -- removes and adds all entries: the indexes may have been emptied
    set_entries(kind, items[i], '', items[i + 2])
  end
end
if redis.call('HEXISTS', key, 'backfill') == 1 then
  if cursor == '' then redis.call('HDEL', key, 'backfill') else redis.call('HSET', key, 'backfill', cursor) end
end
return 1

--# object_reindex: objects
-- Empties indexes of a kind, so that object_index adds all objects again.
-- ARGV: kind, fields (list of the indexes; an empty field is the index of words).
-- Reply: 1.
-- Repeat: safe; indexing begins again.
local kind = next_arg()
local fields = list_arg()
local err = check_kind_type(kind)
if err then return err end
local key = kind_key(kind)
redis.call('HSET', key, 'rev', to_integer_text(math.max(to_number(redis.call('HGET', key, 'rev')) + 1, now_us)), 'backfill', '')
for _, field in ipairs(fields) do redis.call('UNLINK', entry_key(kind, field)) end
return 1

--# object_release: objects
-- Ends the right of a claim to write, and its wait for this right.
-- ARGV: job (key), claim_id.
-- Reply: 1 if the claim was the writer, otherwise 0.
-- Repeat: safe; the reply is 0.
local job, claim_id = next_arg(), next_arg()
local err = check_type(kObjectWriterKey, 'hash') or check_type(kObjectWritersWaitingKey, 'zset')
if err then return err end
redis.call('ZREM', kObjectWritersWaitingKey, job .. ' ' .. claim_id)
local writer_fields = redis.call('HMGET', kObjectWriterKey, 'job', 'claim_id')
if writer_fields[1] ~= job or writer_fields[2] ~= claim_id then return 0 end
return redis.call('DEL', kObjectWriterKey)

--# object_search: objects
-- Finds the objects that contain all of the words, in the order of their ids. The ids of the rarest word are checked
-- against the other words.
-- ARGV: kind, cursor (id; empty: begin), limit (objects), max_bytes, max_examined (ids to examine in one call), words
-- (list).
-- Reply: {ok, page} (read_object_page); {indexing} while objects are indexed again; {undeclared} if no field is indexed
-- by words.
-- Repeat: safe; read-only.
local kind, cursor, limit, max_bytes, max_examined = next_arg(), next_arg(), to_number(next_arg()), to_number(next_arg()), to_number(next_arg())
local words = list_arg()
local key = entry_key(kind, '')
local err = check_kind_type(kind) or check_type(key, 'zset')
if err then return err end
local declared = false
for _, name in ipairs(redis.call('HKEYS', kind_key(kind))) do declared = declared or string.sub(name, 1, 2) == 't ' end
if not declared then return {'undeclared'} end
if redis.call('HEXISTS', kind_key(kind), 'backfill') == 1 then return {'indexing'} end

local rarest, fewest
for _, word in ipairs(words) do
  local count = redis.call('ZLEXCOUNT', key, '[' .. word .. '\1', '(' .. word .. '\2')
  if not fewest or count < fewest then rarest, fewest = word, count end
end
local low = cursor == '' and '[' .. rarest .. '\1' or '(' .. rarest .. '\1' .. cursor
local high, chunk = '(' .. rarest .. '\2', #words == 1 and limit + 1 or 200
local matches, examined, last_id, is_exhausted = {}, 0, '', false
while examined < max_examined and #matches <= limit and not is_exhausted do
  local members = redis.call('ZRANGEBYLEX', key, low, high, 'LIMIT', 0, chunk)
  is_exhausted = #members < chunk
  examined = examined + #members
  for _, member in ipairs(members) do
    local matches_all = true
    low, last_id = '(' .. member, string.match(member, '\1(.*)$')
    for _, word in ipairs(words) do
      matches_all = matches_all and (word == rarest or redis.call('ZSCORE', key, word .. '\1' .. last_id))
      if not matches_all then break end
    end
    if matches_all then matches[#matches + 1] = last_id end
    if #matches > limit then break end
  end
end
local page = read_object_page(kind, matches, limit, max_bytes)
if page[1] == '' and not is_exhausted then page[1] = last_id end
return {'ok', page}

--# object_page: objects
-- Reads the objects that the members of a sorted set name, between two bounds.
-- ARGV: kind, field (declared name such as "i city", or empty), key (of the sorted set), low, high, limit (objects),
-- max_bytes.
-- Reply: {ok, page} (read_object_page); {indexing} while objects are indexed again; {undeclared} if the field is not
-- declared.
-- Repeat: safe; read-only.
local kind, field, key, low, high, limit, max_bytes = next_arg(), next_arg(), next_arg(), next_arg(), next_arg(), to_number(next_arg()), to_number(next_arg())
local err = check_kind_type(kind) or check_type(key, 'zset')
if err then return err end
if field ~= '' then
  if redis.call('HEXISTS', kind_key(kind), field) == 0 then return {'undeclared'} end
  if redis.call('HEXISTS', kind_key(kind), 'backfill') == 1 then return {'indexing'} end
end
local members = redis.call('ZRANGEBYLEX', key, low, high, 'LIMIT', 0, limit + 1)
return {'ok', read_object_page(kind, members, limit, max_bytes)}

--# object_ids: objects
-- Corrects the list of the objects of a kind: ids with an object are added, ids without an object are removed.
-- ARGV: kind, ids (list).
-- Reply: 1.
-- Repeat: safe; the result depends only on the objects that exist.
local kind = next_arg()
local ids = list_arg()
local err = check_kind_type(kind)
if err then return err end
for _, id in ipairs(ids) do
  if key_type(object_key(kind, id)) == 'hash' then
    redis.call('ZADD', kObjectKindsKey, '0', kind)
    redis.call('ZADD', ids_key(kind), '0', id)
  else
    redis.call('ZREM', ids_key(kind), id)
  end
end
return 1

--# object_kinds: objects
-- Lists the kinds, at most 1000.
-- ARGV: none.
-- Reply: {{kind, number of objects, {fields of the hash of the kind}}...}.
-- Repeat: safe; read-only.
local err = check_type(kObjectKindsKey, 'zset')
if err then return err end
local rows = {}
for i, kind in ipairs(redis.call('ZRANGE', kObjectKindsKey, 0, 999)) do
  err = check_kind_type(kind)
  if err then return err end
  rows[i] = {kind, redis.call('ZCARD', ids_key(kind)), redis.call('HKEYS', kind_key(kind))}
end
return rows
