-- Reports in order. For each {word, text}: ok, stale, conflict, invalid.
local count = num(arg())
local err = wrong_shared()
if err then return err end

local function stale(job, what, claim_id)
  add_anomaly(job .. ': ' .. what .. ' by claim ' .. shown(claim_id) .. ' came too late')
  return {'stale', ''}
end

local function append_log(job, claim_id, token, lines)
  local claim = read_claim(job)
  if not is_live(claim, claim_id, token) then return stale(job, 'output', claim_id) end
  local key = 'mj:log:' .. job
  local base, last = num(claim.log_base), last_seq(job)
  for i = 1, #lines, 4 do
    local seq = base + num(lines[i])
    if seq > last then
      local added = redis.pcall('XADD', key, dec(seq) .. '-0', 'ts', lines[i + 1], 'stream', lines[i + 2],
        'text', lines[i + 3])
      if type(added) == 'table' and added.err then
        if string.find(added.err, 'WRONGTYPE', 1, true) or string.find(added.err, 'equal or smaller', 1, true) then
          return {'invalid', key .. ' holds something that another client wrote: delete it'}
        end
        return added
      end
    end
  end
  return {'ok', ''}
end

local function end_job(job, claim_id, token, fields)
  local claim = read_claim(job)
  if not claim then return {'invalid', 'mj:claim:' .. job .. ' holds something that another client wrote: delete it'} end
  if claim.state == 'ended' and owns(claim, claim_id, token) then
    if claim['end'] == digest(fields) then return {'ok', ''} end
    return {'conflict', job .. ' has ended already, in another way'}
  end
  if not is_live(claim, claim_id, token) then return stale(job, 'an end', claim_id) end
  for i = 1, #fields, 2 do
    if fields[i] == 'detail' and fields[i + 1] == 'dead_letter' then add_dead(job, claim.queue or '', 'bad_record') end
  end
  finish(job, claim, fields, true)
  return {'ok', ''}
end

local function release(job, claim_id, token, words)  -- reason, ran
  local claim = read_claim(job)
  if owns(claim, claim_id, token) and claim.state == 'released' then return {'ok', ''} end
  if not is_live(claim, claim_id, token) then return stale(job, 'a release', claim_id) end
  local failed = give_back(job, claim, 'released', words[1])
  if failed then return {'invalid', failed.err} end
  if words[2] == '0' and not claim.cancel then
    local deliveries = math.max(0, num(claim.deliveries) - 1)
    redis.call('HSET', 'mj:claim:' .. job, 'deliveries', deliveries)
    if type_of(job) == 'hash' then redis.call('HSET', job, 'deliveries', deliveries) end
  end
  return {'ok', ''}
end

local doing = {log = append_log, ['end'] = end_job, release = release}
local answers = {}
for i = 1, count do
  local kind, job, claim_id, token = arg(), arg(), arg(), arg()
  local answer = doing[kind](job, claim_id, token, list_arg())
  if answer.err then return answer end
  answers[i] = answer
end
return answers
