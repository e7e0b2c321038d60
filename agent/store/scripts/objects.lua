-- The object store of scripts: writes, declared fields, indexes and queries.
-- Conventions: the scripts have no KEYS. ARGV is listed in order; a list is a count followed by that many texts. `of`
-- is "<namespace>:<kind>". If a key has a wrong type, a script fails with MJTYPE before its first write. Scripts that
-- write for a job also reply {stale} if the claim is not live, and {busy, job} while another job is the writer; the job
-- waits for its turn then.

--# object_write: objects
-- Applies the operations of one write, all of them or none.
-- ARGV: job (key), claim_id, token, call (id of this call), count, then for each operation: verb (put, remove or
-- another, which only checks the version), of, id, version (expected; empty: any), rev (revision of the declared
-- fields), json, entries (of the indexes).
-- Reply: {ok, stamps}, where a stamp is "version,created_ms,updated_ms" and stamps are separated by ";"; {stale};
-- {busy, job}; {conflict, index, version}; {missing, index}; {schema, index} if rev is outdated; {full} if there are
-- too many kinds.
-- Repeat: safe; while the job is the writer, a repeat of its last call gets the stored reply.
local job, claim_id, token, call, count = arg(), arg(), arg(), arg(), to_number(arg())
local refused = writer_error(job, claim_id, token)
if refused then return refused end
if writer.job == job and writer.claim_id == claim_id and writer.call == call then return {'ok', writer.answer or ''} end

local ops, stamps, puts, new_kinds, kinds_seen = {}, {}, false, 0, {}
for i = 1, count do
  local op = {verb = arg(), of = arg(), id = arg(), version = arg(), rev = arg(), json = arg(), entries = arg()}
  local key = object_key(op.of, op.id)
  local err = check_type(key, 'hash') or check_kind_type(op.of)
  if err then return err end
  local is = redis.call('HMGET', key, 'version', 'created_ms', 'updated_ms', 'entries')
  local version = to_number(is[1])
  op.old, op.had = is[4] or '', version > 0
  if op.version ~= '' and to_number(op.version) ~= version then return {'conflict', i, version} end
  if op.verb == 'remove' and not op.had then return {'missing', i} end
  err = check_entry_types(op.of, op.old) or check_entry_types(op.of, op.entries)
  if err then return err end
  if op.verb == 'put' then
    puts = true
    if (redis.call('HGET', kind_key(op.of), 'rev') or '0') ~= op.rev then return {'schema', i} end
    if not kinds_seen[op.of] and not redis.call('ZSCORE', 'mj:osis:kinds', op.of) then new_kinds = new_kinds + 1 end
    kinds_seen[op.of] = true
    op.stamp = {to_integer_text(version + 1), op.had and is[2] or to_integer_text(now_ms), to_integer_text(now_ms)}
  else
    op.stamp = {to_integer_text(version), is[2] or '0', is[3] or '0'}
  end
  ops[i], stamps[i] = op, table.concat(op.stamp, ',')
end
if new_kinds > 0 and redis.call('ZCARD', 'mj:osis:kinds') + new_kinds > 1000 then return {'full'} end

local answer = table.concat(stamps, ';')
-- The answer is stored for a repeat. If there is no memory left, a call that only removes objects continues without
-- this.
if puts or writer.job ~= job or writer.claim_id ~= claim_id then
  acquire_writer(job, claim_id, call, answer)
else
  redis.pcall('HSET', kWriter, 'call', call, 'answer', answer)
end
for _, op in ipairs(ops) do
  local key = object_key(op.of, op.id)
  if op.verb == 'put' then
    redis.call('HSET', key, 'json', op.json, 'version', op.stamp[1], 'created_ms', op.stamp[2], 'updated_ms', op.stamp[3],
      'entries', op.entries)
    if not op.had then redis.call('ZADD', ids_key(op.of), '0', op.id) end
    redis.call('ZADD', 'mj:osis:kinds', '0', op.of)
    if redis.call('HEXISTS', kind_key(op.of), 'backfill') == 1 then  -- the indexes may not contain the old entries yet
      set_entries(op.of, op.id, op.old, '')
      op.old = ''
    end
    set_entries(op.of, op.id, op.old, op.entries)
  elseif op.verb == 'remove' then
    set_entries(op.of, op.id, op.old, '')
    redis.call('ZREM', ids_key(op.of), op.id)
    redis.call('DEL', key)
    if redis.call('ZCARD', ids_key(op.of)) == 0 and type_of(kind_key(op.of)) == 'none' then
      redis.call('ZREM', 'mj:osis:kinds', op.of)
    end
  end
end
return {'ok', answer}

--# object_declare: objects
-- Adds declared fields to a kind. If the kind has objects, these must be indexed again with object_index.
-- ARGV: job (key), claim_id, token, of, most (maximum number of fields), names (list of "i <field>", indexed by value,
-- and "t <field>", indexed by words).
-- Reply: {ok, 1 if objects must be indexed}; {stale}; {busy, job}; {fields, present number} if there would be too many
-- fields; {full} if there are too many kinds.
-- Repeat: safe; declared fields are left unchanged.
local job, claim_id, token, of, most = arg(), arg(), arg(), arg(), to_number(arg())
local names = list_arg()
local refused = writer_error(job, claim_id, token) or check_kind_type(of)
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

acquire_writer(job, claim_id, '', '')
local rev = math.max(to_number(redis.call('HGET', key, 'rev')) + 1, now_us)
redis.call('ZADD', 'mj:osis:kinds', '0', of)
redis.call('HSET', key, 'rev', to_integer_text(rev), unpack(new))
if redis.call('ZCARD', ids_key(of)) > 0 then
  redis.call('HSET', key, 'backfill', '')
  indexing = 1
end
return {'ok', indexing}

--# object_index: objects
-- Indexes some objects of a kind again, with its present declared fields.
-- ARGV: of, rev (revision of the declared fields), after (position to continue from; empty: complete), items (list of
-- id, version from which the entries were computed, entries). An object with another version is skipped, since its
-- write has used the present fields.
-- Reply: 1; 0 if the declared fields have changed.
-- Repeat: safe; the entries of an object are replaced as a whole.
local of, rev, after = arg(), arg(), arg()
local items = list_arg()
local err = check_kind_type(of)
if err then return err end
local key = kind_key(of)
if redis.call('HGET', key, 'rev') ~= rev then return 0 end
for i = 1, #items, 3 do
  err = check_type(object_key(of, items[i]), 'hash')
    or check_entry_types(of, redis.call('HGET', object_key(of, items[i]), 'entries') or '') or check_entry_types(of, items[i + 2])
  if err then return err end
end
for i = 1, #items, 3 do
  local object = object_key(of, items[i])
  if redis.call('HGET', object, 'version') == items[i + 1] then
    local old = redis.call('HGET', object, 'entries') or ''
    redis.call('HSET', object, 'entries', items[i + 2])
    set_entries(of, items[i], old, '')  -- removes and adds all entries: the indexes may have been emptied
    set_entries(of, items[i], '', items[i + 2])
  end
end
if redis.call('HEXISTS', key, 'backfill') == 1 then
  if after == '' then redis.call('HDEL', key, 'backfill') else redis.call('HSET', key, 'backfill', after) end
end
return 1

--# object_reindex: objects
-- Empties indexes of a kind, so that object_index adds all objects again.
-- ARGV: of, fields (list of the indexes; an empty field is the index of words).
-- Reply: 1.
-- Repeat: safe; indexing begins again.
local of = arg()
local fields = list_arg()
local err = check_kind_type(of)
if err then return err end
local key = kind_key(of)
redis.call('HSET', key, 'rev', to_integer_text(math.max(to_number(redis.call('HGET', key, 'rev')) + 1, now_us)), 'backfill', '')
for _, field in ipairs(fields) do redis.call('UNLINK', entry_key(of, field)) end
return 1

--# object_release: objects
-- Ends the right of a claim to write, and its wait for this right.
-- ARGV: job (key), claim_id.
-- Reply: 1 if the claim was the writer, otherwise 0.
-- Repeat: safe; the reply is 0.
local job, claim_id = arg(), arg()
local err = check_type(kWriter, 'hash') or check_type(kWaiting, 'zset')
if err then return err end
redis.call('ZREM', kWaiting, job .. ' ' .. claim_id)
local is = redis.call('HMGET', kWriter, 'job', 'claim_id')
if is[1] ~= job or is[2] ~= claim_id then return 0 end
return redis.call('DEL', kWriter)

--# object_search: objects
-- Finds the objects that contain all of the words, in the order of their ids. The ids of the rarest word are checked
-- against the other words.
-- ARGV: of, after (id; empty: begin), limit (objects), max_bytes, most (ids to examine in one call), words (list).
-- Reply: {ok, page} (page_of); {indexing} while objects are indexed again; {undeclared} if no field is indexed by
-- words.
-- Repeat: safe; read-only.
local of, after, limit, max_bytes, most = arg(), arg(), to_number(arg()), to_number(arg()), to_number(arg())
local words = list_arg()
local key = entry_key(of, '')
local err = check_kind_type(of) or check_type(key, 'zset')
if err then return err end
local declared = false
for _, name in ipairs(redis.call('HKEYS', kind_key(of))) do declared = declared or string.sub(name, 1, 2) == 't ' end
if not declared then return {'undeclared'} end
if redis.call('HEXISTS', kind_key(of), 'backfill') == 1 then return {'indexing'} end

local rarest, fewest
for _, word in ipairs(words) do
  local count = redis.call('ZLEXCOUNT', key, '[' .. word .. '\1', '(' .. word .. '\2')
  if not fewest or count < fewest then rarest, fewest = word, count end
end
local low = after == '' and '[' .. rarest .. '\1' or '(' .. rarest .. '\1' .. after
local high, chunk = '(' .. rarest .. '\2', #words == 1 and limit + 1 or 200
local matching, looked_at, seen, all_seen = {}, 0, '', false
while looked_at < most and #matching <= limit and not all_seen do
  local members = redis.call('ZRANGEBYLEX', key, low, high, 'LIMIT', 0, chunk)
  all_seen = #members < chunk
  looked_at = looked_at + #members
  for _, member in ipairs(members) do
    local all = true
    low, seen = '(' .. member, string.match(member, '\1(.*)$')
    for _, word in ipairs(words) do
      all = all and (word == rarest or redis.call('ZSCORE', key, word .. '\1' .. seen))
      if not all then break end
    end
    if all then matching[#matching + 1] = seen end
    if #matching > limit then break end
  end
end
local page = page_of(of, matching, limit, max_bytes)
if page[1] == '' and not all_seen then page[1] = seen end
return {'ok', page}

--# object_page: objects
-- Reads the objects that the members of a sorted set name, between two bounds.
-- ARGV: of, field (declared name such as "i city", or empty), key (of the sorted set), low, high, limit (objects),
-- max_bytes.
-- Reply: {ok, page} (page_of); {indexing} while objects are indexed again; {undeclared} if the field is not declared.
-- Repeat: safe; read-only.
local of, field, key, low, high, limit, max_bytes = arg(), arg(), arg(), arg(), arg(), to_number(arg()), to_number(arg())
local err = check_kind_type(of) or check_type(key, 'zset')
if err then return err end
if field ~= '' then
  if redis.call('HEXISTS', kind_key(of), field) == 0 then return {'undeclared'} end
  if redis.call('HEXISTS', kind_key(of), 'backfill') == 1 then return {'indexing'} end
end
local members = redis.call('ZRANGEBYLEX', key, low, high, 'LIMIT', 0, limit + 1)
return {'ok', page_of(of, members, limit, max_bytes)}

--# object_ids: objects
-- Corrects the list of the objects of a kind: ids with an object are added, ids without an object are removed.
-- ARGV: of, ids (list).
-- Reply: 1.
-- Repeat: safe; the result depends only on the objects that exist.
local of = arg()
local ids = list_arg()
local err = check_kind_type(of)
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

--# object_kinds: objects
-- Lists the kinds, at most 1000.
-- ARGV: none.
-- Reply: {{of, number of objects, {fields of the hash of the kind}}...}.
-- Repeat: safe; read-only.
local err = check_type('mj:osis:kinds', 'zset')
if err then return err end
local all = {}
for i, of in ipairs(redis.call('ZRANGE', 'mj:osis:kinds', 0, 999)) do
  err = check_kind_type(of)
  if err then return err end
  all[i] = {of, redis.call('ZCARD', ids_key(of)), redis.call('HKEYS', kind_key(of))}
end
return all
