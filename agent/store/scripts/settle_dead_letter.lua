--# journal places ends
-- Strikes a dead letter off the list, and with requeue runs its job or queues its entry again. Empty, missing, or why not.
local id, requeue = arg(), arg() == '1'
local err = wrong_shared()
if err then return err end
local letter = redis.call('XRANGE', 'mj:dead', id, id)[1]
if not letter then return 'missing' end
local fields = to_table(letter[2])
local job, queue = fields.key or '', fields.queue or ''
if requeue then
  local claim = is_job_key(job) and read_claim(job)
  if claim and claim.state then
    local why = reopen(job, claim)
    if why then return job .. ' ' .. why end
  elseif not claim or type_of(job) == 'string' or queue == '' then
    return shown(job) .. ' can never run: drop it'
  else
    err = wrong(queue, 'list')
    if err then return err end
    redis.call('LPUSH', queue, job)
  end
end
redis.call('XDEL', 'mj:dead', id)
return ''
