-- Inspection and repair of flows, catalogs and schedules.
-- Conventions: the scripts have no KEYS. ARGV is listed in order; a list is a count followed by that many texts. If a
-- key has a wrong type, a script fails with MJTYPE before its first write, unless stated otherwise.

--# flow_places: flows
-- Inspects the mark of a flow and its entries in all indexes.
-- ARGV: flow (id).
-- Reply: {state of the mark or empty, 1 if in mj:flows:active, due time in ms or empty, 1 if in mj:flows:ended, 1 if in
-- the catalog, revision, number of waiting events, time in ms, 1 if a checkpoint exists, 1 if the key of its events is
-- not a list, fields that identify the flow (identity_fields), 1 if in the catalog of its name, 1 if its definition has
-- it as a user, 1 if its idempotency key is registered (each also 1 if the flow has no name, definition or key), its
-- row in the catalog, its row in the catalog of its name}.
-- Repeat: safe; read-only.
local flow = next_arg()
local err = check_flow_types(flow) or check_type(kFlowCatalogKey, 'stream')
if err then return err end
local mark, events = read_mark(flow), kFlowEventsKey .. flow
local function has_row(key, row)
  local entry = to_number(row) > 0 and key_type(key) == 'stream' and redis.call('XRANGE', key, to_integer_text(to_number(row)), to_integer_text(to_number(row)), 'COUNT', 1)[1]
  return entry and to_table(entry[2]).flow == flow and 1 or 0
end
local fields = mark or {}
local name, hash, key = fields.name or '', fields.definition or '', fields.key or ''
local users, names = kDefinitionUsersKey .. hash, kFlowIdempotencyKey .. (fields.caller or '0')
local in_name_catalog = name == '' and 1 or has_row(kFlowNameCatalogKey .. name, fields.index_row)
local in_users = (hash == '' or key_type(users) == 'set' and redis.call('SISMEMBER', users, 'flow:' .. flow) == 1) and 1 or 0
local has_key_entry = (key == '' or key_type(names) == 'hash' and redis.call('HEXISTS', names, key) == 1) and 1 or 0
return {fields.state or '', redis.call('ZSCORE', kFlowsActiveKey, flow) and 1 or 0, redis.call('ZSCORE', kFlowsDueKey, flow) or '',
  redis.call('ZSCORE', kFlowsEndedKey, flow) and 1 or 0, has_row(kFlowCatalogKey, fields.row), to_integer_text(get_revision(flow) or 0),
  key_type(events) == 'list' and redis.call('LLEN', events) or 0, to_integer_text(now_ms), redis.call('EXISTS', kFlowCheckpointKey .. flow),
  check_type(events, 'list') and 1 or 0, mark and identity_fields(flow, mark) or {}, in_name_catalog, in_users, has_key_entry, to_integer_text(to_number(fields.row)),
  to_integer_text(to_number(fields.index_row))}

--# flow_waits: flows
-- Checks whether this flow is registered for the ends of other flows.
-- ARGV: flow (id), awaited_flows (list of ids).
-- Reply: for each other flow {state of its mark or empty, 1 if this flow is in the set of flows that wait for its end}.
-- Repeat: safe; read-only.
local flow, replies = next_arg(), {}
for i, awaited_flow in ipairs(list_arg()) do
  local mark = key_type(kFlowKey .. awaited_flow) == 'hash' and read_mark(awaited_flow)
  local waits_key = kFlowDependentsKey .. awaited_flow
  replies[i] = {mark and mark.state or '', key_type(waits_key) == 'set' and redis.call('SISMEMBER', waits_key, flow) or 0}
end
return replies

--# flow_repair: dispatch_journal flows
-- Applies repair steps to a flow if its revision and the state of its mark are those that the inspection has found. The
-- steps are chosen in inspect/invariants.cpp.
-- ARGV: flow (id), expected (revision), state (of the mark; empty: there is no mark, and the first step writes it),
-- count, then for each step: kind (set_mark, set_record, enter or leave), index (a name in kIndexes), fields (list of
-- name, value, ...).
-- Reply: empty if the steps were applied; moved if the flow has changed, and nothing was written.
-- Repeat: safe; a repeated `enter` of a catalog adds a second row, which flow_catalog_drop removes after the next
-- inspection.
local flow, expected, state, count = next_arg(), to_number(next_arg()), next_arg(), to_number(next_arg())
local steps = {}
for i = 1, count do steps[i] = {kind = next_arg(), index = next_arg(), fields = list_arg()} end
local err = check_flow_types(flow) or check_type(kFlowCatalogKey, 'stream') or check_type(kAnomaliesKey, 'stream')
if err then return err end
local mark = read_mark(flow) or {state = ''}
if mark.state ~= state or get_revision(flow) ~= expected then return 'moved' end

-- The functions that add the flow to each index and remove it.
local events_key, checkpoint_key = kFlowEventsKey .. flow, kFlowCheckpointKey .. flow
local function remove_from_zset(key) return function() redis.call('ZREM', key, flow) end end
local function add_row(key, field)
  local row = not reports_wrong_type(key, 'stream') and get_stream_head(key)
  if not row then return add_anomaly(to_printable(key) .. ' cannot store flow ' .. flow .. ': delete that key') end
  redis.call('XADD', key, to_integer_text(row + 1) .. '-0', 'flow', flow, 'at', mark.created_ms or '0', 'name', mark.name or '')
  redis.call('HSET', kFlowKey .. flow, field, to_integer_text(row + 1))
end
local kIndexes = {
  active = {function() redis.call('ZADD', kFlowsActiveKey, flow, flow) end, remove_from_zset(kFlowsActiveKey)},
  ended = {function() redis.call('ZADD', kFlowsEndedKey, mark.ended_ms or to_integer_text(now_ms), flow) end, remove_from_zset(kFlowsEndedKey)},
  due = {function() redis.call('ZADD', kFlowsDueKey, to_integer_text(now_ms), flow) end, remove_from_zset(kFlowsDueKey)},
  events = {nil, function() if check_type(events_key, 'list') then redis.call('DEL', events_key) end end},
  checkpoint = {nil, function() redis.call('DEL', checkpoint_key) end},
  catalog = {function() add_row(kFlowCatalogKey, 'row') end},
  index = {function() add_row(kFlowNameCatalogKey .. mark.name, 'index_row') end},
  users = {function()
    local users = kDefinitionUsersKey .. mark.definition
    if not reports_wrong_type(users, 'set') then redis.call('SADD', users, 'flow:' .. flow) end
  end},
  keys = {function()
    local names = kFlowIdempotencyKey .. (mark.caller or '0')
    if not reports_wrong_type(names, 'hash') then redis.call('HSETNX', names, mark.key, flow .. ' ' .. (mark.print or kAnyFingerprint)) end
  end},
}
local step_handlers = {
  set_mark = function(step)
    redis.call('HSET', kFlowKey .. flow, unpack(step.fields))
    mark = read_mark(flow)
  end,
  set_record = function(step) redis.call('HSET', 'flow:' .. flow, unpack(step.fields)) end,
  enter = function(step) kIndexes[step.index][1]() end,
  leave = function(step) kIndexes[step.index][2]() end,
}
for _, step in ipairs(steps) do step_handlers[step.kind](step) end
return ''

--# flow_catalog: flows
-- Reads a page of a catalog.
-- ARGV: key (of the catalog), cursor (entry id; empty: begin), max.
-- Reply: {{id, {name, value, ...}}...}.
-- Repeat: safe; read-only.
local key, cursor, max = next_arg(), next_arg(), to_number(next_arg())
local err = check_type(key, 'stream')
if err then return err end
return redis.call('XRANGE', key, cursor == '' and '-' or '(' .. cursor, '+', 'COUNT', max)

--# flow_catalog_drop: flows
-- Removes an invalid entry, or a second entry of the same flow, from a catalog.
-- ARGV: key (of the catalog), id (of the entry), field (the flow as the entry has it).
-- Reply: 1 if the entry was removed; 0 if it is the entry of the flow, or does not exist.
-- Repeat: safe; the reply is 0.
local key, id, field = next_arg(), next_arg(), next_arg()
local err = check_type(key, 'stream')
if err then return err end
local flow = string.match(field, '^%d+$')
err = flow and check_type(kFlowKey .. flow, 'hash')
if err then return err end
local mark = flow and read_mark(flow)
if mark and id == to_integer_text(to_number(key == kFlowCatalogKey and mark.row or mark.index_row)) .. '-0' then return 0 end
return redis.call('XDEL', key, id)

--# flow_schedule_places: flows
-- Inspects a schedule.
-- ARGV: name.
-- Reply: {1 if the schedule exists, 1 if mj:schedules has its name, 1 if its definition has it as a user, hash of its
-- definition}.
-- Repeat: safe; read-only.
local name = next_arg()
local key = kScheduleKey .. name
local err = check_type(key, 'hash') or check_type(kSchedulesKey, 'set')
if err then return err end
local hash = redis.call('HGET', key, 'definition_hash') or ''
local users = kDefinitionUsersKey .. hash
return {redis.call('EXISTS', key), redis.call('SISMEMBER', kSchedulesKey, name),
  key_type(users) == 'set' and redis.call('SISMEMBER', users, 'schedule:' .. name) or 0, hash}

--# flow_schedule_repair: flows
-- Adds a schedule to mj:schedules and to the users of its definition, or removes the name of a schedule that does not
-- exist.
-- ARGV: name.
-- Reply: 1, or the number of removed names.
-- Repeat: safe; the result is the same.
local name = next_arg()
local key = kScheduleKey .. name
local err = check_type(key, 'hash') or check_type(kSchedulesKey, 'set')
if err then return err end
local hash = redis.call('HGET', key, 'definition_hash')
if not hash then return redis.call('SREM', kSchedulesKey, name) end
err = check_definition_type(hash)
if err then return err end
redis.call('SADD', kSchedulesKey, name)
redis.call('SADD', kDefinitionUsersKey .. hash, 'schedule:' .. name)
return 1
