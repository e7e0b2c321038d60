-- Deployments of workflows ("world" in names): journal, manifests, blobs and inbox. Facts, blobs and manifests are
-- opaque bytes here.
-- Conventions: the scripts have no KEYS. ARGV is listed in order; a list is a count followed by that many texts, and a
-- flag is "1" or "0". If a key has a wrong type, a script fails with MJTYPE before its first write, unless stated
-- otherwise.

--# world_put_manifest:
-- Stores a manifest under its hash, and registers the deployment.
-- ARGV: deployment, hash, text.
-- Reply: put; or other if another text is stored under this hash.
-- Repeat: safe; the same text is stored again.
local deployment, hash, text = next_arg(), next_arg(), next_arg()
local key = kDeploymentManifestsKey .. deployment
local err = check_type(key, 'hash') or check_type(kDeploymentsKey, 'set')
if err then return err end
local stored = redis.call('HGET', key, hash)
if stored and stored ~= text then return 'other' end
redis.call('HSET', key, hash, text)
redis.call('SADD', kDeploymentsKey, deployment)
return 'put'

--# world_read: dispatch_journal flows
-- Reads facts of a deployment and its head.
-- ARGV: deployment, after (height), max_facts.
-- Reply: {height, height of the latest snapshot, its hash, {facts after the given height}, hash of the manifest in
-- force}.
-- Repeat: safe; read-only.
local kMaxBytes, kPageFacts = 8388608, 16  -- a single fact may have several MiB
local deployment, after, max_facts = next_arg(), to_number(next_arg()), to_number(next_arg())
local journal, head_key = kDeploymentJournalKey .. deployment, kDeploymentHeadKey .. deployment
local err = check_type(journal, 'stream') or check_type(head_key, 'hash')
if err then return err end
local head = get_stream_head(journal)
if not head then return journal_head_error(journal) end
local head_fields = redis.call('HMGET', head_key, 'height', 'hash', 'manifest')
local facts, bytes = {}, 0
while after + #facts < head and #facts < max_facts and bytes < kMaxBytes do
  local page = redis.call('XRANGE', journal, to_integer_text(after + #facts + 1) .. '-0', '+', 'COUNT', to_integer_text(math.min(kPageFacts, max_facts - #facts)))
  if #page == 0 then break end
  for _, entry in ipairs(page) do
    if bytes >= kMaxBytes then break end
    local fact = to_table(entry[2]).f or ''
    facts[#facts + 1], bytes = fact, bytes + #fact
  end
end
return {to_integer_text(head), head_fields[1] or '0', head_fields[2] or '', facts, head_fields[3] or ''}

--# world_cell: dispatch_journal flows
-- Reads facts after the latest snapshot, without facts that are known to concern other instances only.
-- ARGV: deployment, instance, after (height), max_facts.
-- Reply: {height, height of the latest snapshot, its hash, height up to which facts were read, {height, fact, ...}}.
-- Repeat: safe; read-only.
local kMaxBytes, kPageFacts = 8388608, 16
local deployment, instance, after, max_facts = next_arg(), next_arg(), to_number(next_arg()), to_number(next_arg())
local journal, head_key, changes_key = kDeploymentJournalKey .. deployment, kDeploymentHeadKey .. deployment, kDeploymentChangesKey .. deployment
local err = check_type(journal, 'stream') or check_type(head_key, 'hash') or check_type(changes_key, 'hash')
if err then return err end
local head = get_stream_head(journal)
if not head then return journal_head_error(journal) end
local snapshot = redis.call('HMGET', head_key, 'height', 'hash')
local position = math.max(after, to_number(snapshot[1] or nil))
-- The list has the heights of all facts of the instance after `from`, up to `to`.
local listed = redis.call('HMGET', changes_key, 'from', 'to', instance)
local from, to, heights = head, head, {}
local listed_to = to_number(listed[2] or nil)
-- A list beyond the journal belongs to a journal that was deleted or replaced.
if listed[2] and listed_to <= head and listed[3] ~= '*' then from, to = to_number(listed[1] or nil), listed_to end
for text in string.gmatch(from < to and listed[3] or '', '%d+') do
  local height = to_number(text)
  if height > position and height > from and height <= to then heights[#heights + 1] = height end
end
local facts, bytes, next_listed = {}, 0, 1
local function add(entry, height)
  local fact = entry and to_table(entry[2]).f or ''
  facts[#facts + 1], facts[#facts + 2], bytes, position = to_integer_text(height), fact, bytes + #fact, height
end
while position < head and #facts < 2 * max_facts and bytes < kMaxBytes do
  if position >= from and position < to then
    local height = heights[next_listed]
    next_listed = next_listed + 1
    if height then
      add(redis.call('XRANGE', journal, to_integer_text(height) .. '-0', to_integer_text(height) .. '-0')[1], height)
    else
      position = to
    end
  else
    local last = position < from and from or head
    local page = redis.call('XRANGE', journal, to_integer_text(position + 1) .. '-0', to_integer_text(last) .. '-0', 'COUNT', to_integer_text(kPageFacts))
    if #page == 0 then break end
    for _, entry in ipairs(page) do
      if bytes < kMaxBytes then add(entry, position + 1) end
    end
  end
end
return {to_integer_text(head), snapshot[1] or '0', snapshot[2] or '', to_integer_text(position), facts}

--# world_facts: dispatch_journal flows
-- Reads facts of a deployment.
-- ARGV: deployment, heights (list).
-- Reply: the facts in the order of the heights, until they have 8 MiB; an empty text for a missing fact.
-- Repeat: safe; read-only.
local kMaxBytes, facts, bytes = 8388608, {}, 0
local journal, heights = kDeploymentJournalKey .. next_arg(), list_arg()
local err = check_type(journal, 'stream')
if err then return err end
for i, height in ipairs(heights) do
  if bytes >= kMaxBytes then break end
  local entry = redis.call('XRANGE', journal, height .. '-0', height .. '-0')[1]
  facts[i] = entry and to_table(entry[2]).f or ''
  bytes = bytes + #facts[i]
end
return facts

--# world_commit: dispatch_journal flows
-- Commits a change of a deployment at the height on which it is based, in one step, or nothing.
-- ARGV: context (id), deployment, base_height, due (ms; 0: not due), facts (list), blobs (list of hash, bytes, ...),
-- processed (list of inbox entries), snapshot (hash, or empty), manifest (hash that comes into force, or empty),
-- requires_empty (flag: only with an empty inbox), flag and list of the instances with a full mailbox (the list only if
-- the flag is 1), expected_applies (value of mj:deployment-applies on which the manifest was checked; "*": not
-- checked), changes (list of instance, heights of its facts in this commit, ...).
-- Reply: {done}; {conflict, height}; {busy, number of inbox entries}; {applied} if another manifest of the context has
-- come into force since the check.
-- Repeat: safe for a commit with facts; the reply is a conflict.
local context, deployment, base_height, due = next_arg(), next_arg(), to_number(next_arg()), to_number(next_arg())
local facts, blobs, processed, snapshot, manifest, requires_empty = list_arg(), list_arg(), list_arg(), next_arg(), next_arg(), next_arg() == '1'
local full_instances = next_arg() == '1' and list_arg()
local expected_applies, applies_key, changes = next_arg(), kDeploymentAppliesKey, list_arg()
local journal, inbox, blobs_key, full_key = kDeploymentJournalKey .. deployment, kDeploymentInboxKey .. deployment, kDeploymentBlobsKey .. deployment, kDeploymentFullKey .. deployment
local changes_key, kMaxChangesBytes, kMaxHeightsBytes = kDeploymentChangesKey .. deployment, 8388608, 16384
-- Lists the facts by instance, so that a reader of one instance does not read the facts of all others. A commit of an
-- earlier version lists nothing; the list then ends there until the next snapshot.
local function list_changes(height)
  if snapshot ~= '' then
    redis.call('UNLINK', changes_key)
    redis.call('HSET', changes_key, 'from', to_integer_text(height), 'to', to_integer_text(height))
    return
  end
  local listed = redis.call('HMGET', changes_key, 'from', 'to', 'bytes')
  if to_number(listed[2] or nil) > base_height then  -- the list of a journal that was deleted or replaced
    redis.call('UNLINK', changes_key)
    listed = {}
  end
  local bytes = to_number(listed[3] or nil)
  for _, text in ipairs(changes) do bytes = bytes + #text end
  if bytes > kMaxChangesBytes or base_height ~= (listed[2] and to_number(listed[2]) or 0) then return end
  for first = 1, #changes, 100 do
    local names, heights, fields = {}, {}, {}
    for i = first, math.min(first + 99, #changes), 2 do
      names[#names + 1], heights[#heights + 1] = changes[i], changes[i + 1]
    end
    for i, earlier in ipairs(redis.call('HMGET', changes_key, unpack(names))) do
      local all = earlier and earlier .. ' ' .. heights[i] or heights[i]
      if earlier == '*' or #all > kMaxHeightsBytes then all = '*' end
      fields[#fields + 1], fields[#fields + 2] = names[i], all
    end
    redis.call('HSET', changes_key, unpack(fields))
  end
  redis.call('HSET', changes_key, 'from', listed[1] or '0', 'to', to_integer_text(height), 'bytes', to_integer_text(bytes))
end
local err = check_type(journal, 'stream') or check_type(inbox, 'stream') or check_type(blobs_key, 'hash') or check_type(kDeploymentsDueKey, 'zset')
  or check_type(kDeploymentHeadKey .. deployment, 'hash') or check_type(full_key, 'set') or (manifest ~= '' and check_type(applies_key, 'hash'))
  or check_type(changes_key, 'hash')
if err then return err end
local head = get_stream_head(journal)
if not head then return journal_head_error(journal) end
if head ~= base_height then return {'conflict', to_integer_text(head)} end
local apply_count = manifest ~= '' and redis.call('HGET', applies_key, 'count') or ''
if manifest ~= '' and expected_applies ~= apply_count and expected_applies ~= '*' then return {'applied'} end
local waiting = redis.call('XLEN', inbox)
if requires_empty and waiting > 0 then return {'busy', to_integer_text(waiting)} end
for i = 1, #blobs, 2 do redis.call('HSET', blobs_key, blobs[i], blobs[i + 1]) end
for i, fact in ipairs(facts) do redis.call('XADD', journal, to_integer_text(base_height + i) .. '-0', 'f', fact) end
for i = 1, #processed, 100 do redis.call('XDEL', inbox, unpack(processed, i, math.min(i + 99, #processed))) end
if snapshot ~= '' then
  redis.call('HSET', kDeploymentHeadKey .. deployment, 'height', to_integer_text(base_height + #facts), 'hash', snapshot)
end
if manifest ~= '' then
  redis.call('HSET', kDeploymentHeadKey .. deployment, 'manifest', manifest)
  redis.call('HSET', applies_key, 'count', to_integer_text(to_number(apply_count) + 1))
end
if full_instances then
  redis.call('DEL', full_key)
  for i = 1, #full_instances, 100 do redis.call('SADD', full_key, unpack(full_instances, i, math.min(i + 99, #full_instances))) end
end
if redis.call('XLEN', inbox) > 0 then
  redis.call('ZADD', kDeploymentsDueKey, to_integer_text(now_ms), deployment)
elseif due > 0 then
  redis.call('ZADD', kDeploymentsDueKey, to_integer_text(due), deployment)
else
  redis.call('ZREM', kDeploymentsDueKey, deployment)
end
if #facts > 0 then
  list_changes(base_height + #facts)
  redis.call('PUBLISH', kDeploymentChannel, context .. ' ' .. deployment)
end
return {'done'}

--# world_post: deployments
-- Adds an event to the inbox of a deployment.
-- ARGV: context (id), deployment, max (number of inbox entries), manifest (hash by which the event was checked, or
-- empty), key (idempotency key, or empty), content (hash of the event), keep_ms (how long keys are kept), max_keys
-- (number of keys that are kept), targets (list of instances), fields (list).
-- Reply: {posted, id}; {repeated, id} for the same key and content; {used, id} for the same key with other content;
-- {none} if the deployment does not exist; {other} if another manifest is in force; {full} if the inbox is full; {busy,
-- index} with the index, from 0, of a target with a full mailbox.
-- Repeat: safe with an idempotency key, which is stored in the same step as the event.
local context, deployment, max, manifest, key, content, keep_ms, max_keys = next_arg(), next_arg(), to_number(next_arg()), next_arg(), next_arg(), next_arg(), to_number(next_arg()), to_number(next_arg())
local targets, fields = list_arg(), list_arg()
local full_key, keys_key, ages_key = kDeploymentFullKey .. deployment, kDeploymentEventKeysKey .. deployment, kDeploymentEventKeyTimesKey .. deployment
local kMaxForgottenBatch, kMaxInboxBytes, kMeasureMs, kEntryBytes = 20, 268435456, 1000, 100
local head_key, inbox = kDeploymentHeadKey .. deployment, kDeploymentInboxKey .. deployment
local function drop_event_keys(names)
  for _, name in ipairs(names) do
    redis.call('HDEL', keys_key, name)
    redis.call('ZREM', ages_key, name)
  end
end
local err = check_type(kDeploymentHeadKey .. deployment, 'hash') or check_type(kDeploymentsKey, 'set') or check_type(kDeploymentInboxKey .. deployment, 'stream') or check_type(kDeploymentsDueKey, 'zset')
  or check_type(full_key, 'set') or check_type(keys_key, 'hash') or check_type(ages_key, 'zset')
if err then return err end
if redis.call('SISMEMBER', kDeploymentsKey, deployment) == 0 then return {'none'} end
if key ~= '' then
  local id, stored_content = string.match(redis.call('HGET', keys_key, key) or '', '^(%d+%-%d+) (%S+)$')
  if id then return {stored_content == content and 'repeated' or 'used', id} end
end
local head = redis.call('HMGET', head_key, 'manifest', 'in_bytes', 'measured_ms')
local manifest_in_force = head[1]
if manifest ~= '' and manifest_in_force and manifest ~= manifest_in_force then return {'other'} end
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
  redis.call('HSET', head_key, 'in_bytes', to_integer_text(inbox_bytes), 'measured_ms', to_integer_text(now_ms))
  if inbox_bytes + bytes > kMaxInboxBytes then return {'full'} end
end
for i, target in ipairs(targets) do
  if redis.call('SISMEMBER', full_key, target) == 1 then return {'busy', to_integer_text(i - 1)} end
end
local id = post_to_inbox(context, deployment, fields)
redis.call('HSET', head_key, 'in_bytes', to_integer_text(inbox_bytes + bytes))
if key ~= '' then
  redis.call('HSET', keys_key, key, id .. ' ' .. content)
  redis.call('ZADD', ages_key, to_integer_text(now_ms), key)
  drop_event_keys(redis.call('ZRANGEBYSCORE', ages_key, '-inf', to_integer_text(math.max(0, now_ms - keep_ms)), 'LIMIT', '0', to_integer_text(kMaxForgottenBatch)))
  local excess = redis.call('ZCARD', ages_key) - max_keys
  if excess > 0 then drop_event_keys(redis.call('ZRANGE', ages_key, 0, math.min(excess, kMaxForgottenBatch) - 1)) end
end
return {'posted', id}

--# world_mail:
-- Reads the oldest entries of the inbox.
-- ARGV: deployment, max_entries, max_bytes, cursor (id; empty: begin).
-- Reply: entries in the form of XRANGE, until they have max_bytes bytes.
-- Repeat: safe; read-only.
local inbox, max_entries, max_bytes, cursor = kDeploymentInboxKey .. next_arg(), to_number(next_arg()), to_number(next_arg()), next_arg()
local err = check_type(inbox, 'stream')
if err then return err end
local entries, bytes, start = {}, 0, cursor == '' and '-' or '(' .. cursor
while #entries < max_entries and bytes < max_bytes do
  local page = redis.call('XRANGE', inbox, start, '+', 'COUNT', '8')
  if #page == 0 then break end
  for _, entry in ipairs(page) do
    if #entries >= max_entries or bytes >= max_bytes then break end
    for _, text in ipairs(entry[2]) do bytes = bytes + #text end
    entries[#entries + 1], start = entry, '(' .. entry[1]
  end
end
return entries

--# world_due:
-- Returns the deployments that are due.
-- ARGV: max.
-- Reply: {{deployments...}, ms until the next one, or 0 if some are due or none is registered}.
-- Repeat: safe; read-only.
local max = next_arg()
local err = check_type(kDeploymentsDueKey, 'zset')
if err then return err end
local due = redis.call('ZRANGEBYSCORE', kDeploymentsDueKey, '-inf', to_integer_text(now_ms), 'LIMIT', 0, max)
local next_due = redis.call('ZRANGE', kDeploymentsDueKey, 0, 0, 'WITHSCORES')[2]
return {due, next_due and #due == 0 and to_integer_text(math.max(1, to_number(next_due) - now_ms)) or '0'}

--# world_glance:
-- Checks deployments for lost notifications.
-- ARGV: count, then for each deployment: deployment, keys of the jobs and flows that perform its effects (list).
-- Reply: {time in ms, {{number of inbox entries, due time in ms or 0, {positions, from 0, of the keys of jobs and flows
-- that have ended or do not exist}}...}}.
-- Repeat: safe; read-only.
local rows = {}
local err = check_type(kDeploymentsDueKey, 'zset')
if err then return err end
for _ = 1, to_number(next_arg()) do
  local deployment, ended_positions = next_arg(), {}
  for position, effect_ref in ipairs(list_arg()) do
    -- Any client may write to the record, so the record counts only if there is no claim or mark with a state.
    local mark, record_type = state_key(effect_ref), key_type(effect_ref)
    local state = key_type(mark) == 'hash' and redis.call('HGET', mark, 'state')
    local status = not state and record_type == 'hash' and redis.call('HGET', effect_ref, 'status')
    if record_type == 'none' or state == kJobStateEnded or status == kJobStatusFinished or status == kJobStatusError then
      ended_positions[#ended_positions + 1] = position - 1
    end
  end
  local inbox, due = kDeploymentInboxKey .. deployment, redis.call('ZSCORE', kDeploymentsDueKey, deployment)
  rows[#rows + 1] = {key_type(inbox) == 'stream' and redis.call('XLEN', inbox) or 0, due and to_integer_text(math.max(1, to_number(due))) or '0', ended_positions}
end
return {to_integer_text(now_ms), rows}

--# world_collect: dispatch_journal flows
-- Deletes blobs to which no fact refers.
-- ARGV: deployment, base_height, hashes (list).
-- Reply: gone; or conflict if the height has changed, since the new facts may refer to one of the blobs.
-- Repeat: safe; deleted blobs are ignored.
local deployment, base_height, hashes = next_arg(), to_number(next_arg()), list_arg()
local journal, blobs_key = kDeploymentJournalKey .. deployment, kDeploymentBlobsKey .. deployment
local err = check_type(journal, 'stream') or check_type(blobs_key, 'hash')
if err then return err end
if get_stream_head(journal) ~= base_height then return 'conflict' end
for i = 1, #hashes, 100 do redis.call('HDEL', blobs_key, unpack(hashes, i, math.min(i + 99, #hashes))) end
return 'gone'

--# world_places: dispatch_journal flows
-- Inspects the keys of a deployment.
-- ARGV: deployment.
-- Reply: {height, height of the latest snapshot, its hash, hash of the manifest in force, 1 if it is registered, due
-- time in ms or 0, number of inbox entries, time in ms, {instances with a full mailbox}}.
-- Repeat: safe; read-only.
local deployment = next_arg()
local journal, head_key, inbox, full_key = kDeploymentJournalKey .. deployment, kDeploymentHeadKey .. deployment, kDeploymentInboxKey .. deployment, kDeploymentFullKey .. deployment
local err = check_type(journal, 'stream') or check_type(head_key, 'hash') or check_type(inbox, 'stream') or check_type(full_key, 'set') or check_type(kDeploymentsKey, 'set')
  or check_type(kDeploymentsDueKey, 'zset')
if err then return err end
local head = get_stream_head(journal)
if not head then return journal_head_error(journal) end
local head_fields = redis.call('HMGET', head_key, 'height', 'hash', 'manifest')
local due = redis.call('ZSCORE', kDeploymentsDueKey, deployment)
return {to_integer_text(head), to_integer_text(to_number(head_fields[1])), head_fields[2] or '', head_fields[3] or '', redis.call('SISMEMBER', kDeploymentsKey, deployment),
  due and to_integer_text(math.max(1, to_number(due))) or '0', redis.call('XLEN', inbox), to_integer_text(now_ms), redis.call('SMEMBERS', full_key)}

--# world_repair: dispatch_journal flows deployments
-- Applies repair steps to a deployment if its height is the one that the inspection has found. The steps are chosen in
-- inspect/deployment_invariants.cpp.
-- ARGV: context (id), deployment, height, count, then three texts for each step: its name in step_handlers and
-- its two arguments.
-- Reply: done; or moved if the height has changed, and nothing was written.
-- Repeat: safe; a repeated `notice` adds a second entry to the inbox, and an effect is settled only once.
local context, deployment, height, count = next_arg(), next_arg(), to_number(next_arg()), to_number(next_arg())
local head_key, full_key = kDeploymentHeadKey .. deployment, kDeploymentFullKey .. deployment
local err = check_type(kDeploymentJournalKey .. deployment, 'stream') or check_type(head_key, 'hash') or check_type(full_key, 'set') or check_type(kDeploymentsKey, 'set')
  or check_type(kDeploymentsDueKey, 'zset') or check_type(kDeploymentInboxKey .. deployment, 'stream')
if err then return err end
if get_stream_head(kDeploymentJournalKey .. deployment) ~= height then return 'moved' end
local step_handlers = {
  list = function() redis.call('SADD', kDeploymentsKey, deployment) end,
  due = function()
    redis.call('ZADD', kDeploymentsDueKey, to_integer_text(now_ms), deployment)
    redis.call('PUBLISH', kDeploymentChannel, context .. ' ' .. deployment)
  end,
  head = function(value) redis.call('HSET', head_key, 'manifest', value) end,
  snapshot = function() redis.call('HDEL', head_key, 'height', 'hash') end,
  open = function(value) redis.call('SREM', full_key, value) end,
  notice = function(value, effect_ref) post_to_inbox(context, deployment, {'kind', value, 'key', effect_ref}) end,
  mark = function(_, effect_ref)
    if has_type(effect_ref, 'hash') then redis.call('HSET', effect_ref, 'effect_of', context .. ' ' .. deployment) end
  end,
}
for _ = 1, count do
  local kind, value, effect_ref = next_arg(), next_arg(), next_arg()
  step_handlers[kind](value, effect_ref)
end
return 'done'
