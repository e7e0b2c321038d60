--# journal places ends
-- Reports in order. For each {word, text}: ok, stale, conflict, invalid. Then the heads of journals that it has written to.
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

-- The attempt has failed and another one follows. Its failure stays readable on the record until then.
local function retry(job, claim, fields, sum, after_ms)
  local due, detail = dec(now_ms + after_ms), detail_of(fields)
  redis.call('ZADD', 'mj:delayed', due, job)
  add_fact(claim.queue, job, claim, 'retry', 'c', claim.claim_id, 'e', claim.epoch, 'detail', detail, 'due', due)
  set_claim(job, claim, 'state', 'delayed', 'reason', 'retry', 'attempt', num(claim.attempt) + 1, 'deliveries', 0,
    'end', sum, 'waiting_since', dec(now_ms))
  redis.call('HDEL', 'mj:claim:' .. job, 'until_ms', 'beat', 'began')
  leave(job, claim, 'live')
  if type_of(job) == 'hash' then
    redis.call('HDEL', job, 'error', 'error_info', 'result', 'result_json', 'usage', 'layers', 'receipt', 'artifacts', 'lease_until_ms',
      'claim_id', 'runner_id')
    redis.call('HSET', job, unpack(fields))
    redis.call('HSET', job, 'status', 'dispatched', 'detail', 'retry_wait', 'updated_at', now_s)
  end
  claim.state = 'delayed'
  show_node(job, claim)
end

local function end_job(job, claim_id, token, words)  -- -1 or the pause before the next attempt, a digest of the fields, these
  local again, sum, fields = tonumber(table.remove(words, 1)), table.remove(words, 1), words
  local claim = read_claim(job)
  if not claim then return {'invalid', 'mj:claim:' .. job .. ' holds something that another client wrote: delete it'} end
  if claim.state ~= 'live' and owns(claim, claim_id, token) and claim['end'] then
    if claim['end'] == sum then return {'ok', ''} end
    return {'conflict', job .. ' has ended already, in another way'}
  end
  if not is_live(claim, claim_id, token) then return stale(job, 'an end', claim_id) end
  if again >= 0 and fields[2] == 'error' and not claim.cancel then
    retry(job, claim, fields, sum, again)
    return {'ok', ''}
  end
  local dead = detail_of(fields) == 'dead_letter' and add_dead(job, claim.queue or '', 'bad_record')
  finish(job, claim, fields, sum)
  if dead then redis.call('HSET', 'mj:claim:' .. job, 'dead', dead) end
  return {'ok', ''}
end

local function give_up(job, claim_id, token, words)  -- reason, ran
  local claim = read_claim(job)
  if owns(claim, claim_id, token) and claim.state == 'queued' and claim.reason == 'released' then return {'ok', ''} end
  if not is_live(claim, claim_id, token) then return stale(job, 'a release', claim_id) end
  local failed = release(job, claim, words[1], words[2] ~= '0')
  return failed and {'invalid', failed.err} or {'ok', ''}
end

local function mark(job, claim_id, token, words)  -- detail
  local claim = read_claim(job)
  if not is_live(claim, claim_id, token) then return stale(job, 'a mark', claim_id) end
  if type_of(job) == 'hash' then redis.call('HSET', job, 'detail', words[1], 'updated_at', now_s) end
  happened(job)
  return {'ok', ''}
end

local doing = {log = append_log, ['end'] = end_job, release = give_up, mark = mark}
local answers = {}
for i = 1, count do
  local kind, job, claim_id, token = arg(), arg(), arg(), arg()
  local answer = doing[kind](job, claim_id, token, list_arg())
  if answer.err then return answer end
  answers[i] = answer
end
answers[count + 1] = heads_now()
return answers
