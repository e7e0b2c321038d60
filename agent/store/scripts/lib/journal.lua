-- The dispatch journals, and what should not have been.
local function add_anomaly(text)
  local last = redis.call('XREVRANGE', 'mj:anomalies', '+', '-', 'COUNT', 1)[1]
  if last and last[2][2] == text then return end
  redis.call('XADD', 'mj:anomalies', 'MAXLEN', '~', 10000, '*', 'text', text)
end
local function add_dead(entry, queue, reason)  -- its id in the list of dead letters
  return redis.call('XADD', 'mj:dead', 'MAXLEN', '~', 100000, '*', 'key', string.sub(entry, 1, 1024), 'queue', queue,
    'reason', reason)
end

-- Calls a command on an index that doctor --rebuild can restore from the facts of its jobs. If another client has overwritten
-- the key, an anomaly names it, nil is returned, and the change of the job continues without that index.
local function call_index(command, key, ...)
  local answer = redis.pcall(command, key, ...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  if not string.find(answer.err, 'WRONGTYPE', 1, true) then error(answer) end
  add_anomaly(shown(key) .. ' is a ' .. type_of(key) .. ', which another client wrote: delete that key, then doctor --rebuild')
end
-- The same for a type that is checked in advance: an anomaly names a key that exists with another type.
local function report_type(key, is, want)
  if is == 'none' or is == want then return false end
  add_anomaly(shown(key) .. ' is a ' .. is .. ' where a ' .. want .. ' belongs: delete that key, then doctor --rebuild')
  return true
end
local function is_foreign(key, want) return report_type(key, type_of(key), want) end
local function has_type(key, want)
  local is = type_of(key)
  report_type(key, is, want)
  return is == want
end
local function find_claim(job)  -- nil: the key is not a hash, which is reported
  local claim = read_claim(job)
  if not claim then is_foreign('mj:claim:' .. job, 'hash') end
  return claim
end

local heads = {}  -- latest revision of each journal
-- Appends a fact to the queue's journal: its entry id is the revision. Notes the revision in `claim`, which the caller
-- writes with set_claim(). A journal that another client has overwritten is an anomaly, and the change goes on.
local function add_fact(queue, job, claim, kind, ...)
  local key = 'mj:journal:' .. queue
  local head = heads[queue]
  if not head then
    local last = redis.pcall('XREVRANGE', key, '+', '-', 'COUNT', '1')
    if last.err then return add_anomaly(shown(key) .. ' is a ' .. type_of(key) .. ' where a stream belongs: delete it') end
    head = last[1] and num(string.match(last[1][1], '^%d+')) or 0
    if head == 0 then redis.call('SADD', 'mj:queues', queue) end
  end
  local added = redis.pcall('XADD', key, dec(head + 1) .. '-0', 'f', kind, 'j', job, 'at', dec(now_ms), ...)
  if type(added) == 'table' and added.err then
    if not string.find(added.err, 'equal or smaller', 1, true) then error(added) end
    -- Facts of retired jobs have left the end of the journal.
    local info = to_table(redis.call('XINFO', 'STREAM', key))
    head = num(string.match(info['last-generated-id'], '^%d+'))
    redis.call('XADD', key, dec(head + 1) .. '-0', 'f', kind, 'j', job, 'at', dec(now_ms), ...)
  end
  heads[queue] = head + 1
  if claim then claim.revs = (claim.revs and claim.revs .. ' ' or '') .. dec(head + 1) end
end
local function heads_now()  -- {queue, revision, ...} of those that this call has written to
  local list = {}
  for queue, head in pairs(heads) do
    list[#list + 1] = queue
    list[#list + 1] = dec(head)
  end
  return list
end
-- Something has happened to the job: who lists jobs finds it first. Another client's key there hides jobs and stops none.
local function happened(job) call_index('ZADD', 'mj:jobs', dec(now_us), job) end
-- Writes fields of the claim, the revisions of its facts with them.
local function write_claim(job, claim, ...) redis.call('HSET', 'mj:claim:' .. job, 'revs', claim.revs or '', ...) end
local function set_claim(job, claim, ...)
  write_claim(job, claim, ...)
  happened(job)
end

local function last_seq(job)  -- of the job's log
  local key = 'mj:log:' .. job
  if redis.call('EXISTS', key) == 0 then return 0 end
  local last = (call_index('XREVRANGE', key, '+', '-', 'COUNT', '1') or {})[1]
  return last and num(string.match(last[1], '^%d+')) or 0
end

local function digest(fields)
  local parts = {}
  for i, text in ipairs(fields) do parts[i] = #text .. ':' .. text end
  return redis.sha1hex(table.concat(parts))
end
