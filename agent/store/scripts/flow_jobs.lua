--#
-- {state, attempt, status, detail, error, result, started_ms, ended_ms, runner, result_json} of each, as far as 4 MiB go.
local answers, bytes = {}, 0
for i, job in ipairs(list_arg()) do
  if bytes > 4194304 then break end
  local claim, is = read_claim(job) or {}, type_of(job)
  local v = is == 'hash' and redis.call('HMGET', job, 'status', 'detail', 'error', 'started_ms', 'attempt', 'runner_id', 'ended_ms') or {}
  local state, status = claim.state or '', v[1] or ''
  if is ~= 'hash' and state ~= 'ended' then state = 'absent' end
  if state == 'ended' then status = claim.status or status end
  local over = state == 'ended' or (state == '' and (status == 'finished' or status == 'error'))
  local result = over and is == 'hash' and redis.call('HMGET', job, 'result', 'result_json') or {}
  bytes = bytes + #(result[1] or '') + #(result[2] or '') + 200
  answers[i] = {state, claim.attempt or v[5] or '0', status, state == 'ended' and claim.detail or v[2] or '', v[3] or '', result[1] or '',
    v[4] or '0', claim.ended_ms or v[7] or '0', claim.runner or v[6] or '0', result[2] or ''}
end
return answers
