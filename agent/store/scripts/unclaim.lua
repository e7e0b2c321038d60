--# journal places ends
-- Claims that were made and whose answer was lost: nobody runs their jobs. Back to their queues, as if they had not been
-- taken. Answers how many.
local wanted = {}
for _, id in ipairs(list_arg()) do wanted[id] = true end
local err = wrong_shared()
if err then return err end
local back = 0
for _, job in ipairs(redis.call('ZRANGE', 'mj:leases', 0, -1)) do
  local key = 'mj:claim:' .. job
  local id = type_of(key) == 'hash' and redis.call('HGET', key, 'claim_id')
  if id and wanted[id] then
    local claim = read_claim(job)
    if claim and claim.state == 'live' and not release(job, claim, 'the answer to its claim was lost', false) then back = back + 1 end
  end
end
return back
