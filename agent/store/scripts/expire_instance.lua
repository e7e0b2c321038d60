--# journal places ends
-- An instance of a runner whose every process is gone: its jobs need not wait for their leases. Answers them.
local runner, instance = arg(), arg()
local err = wrong_shared()
if err then return err end
local jobs = {}
for _, job in ipairs(redis.call('ZRANGE', 'mj:leases', 0, -1)) do
  local claim = read_claim(job)
  if claim and claim.state == 'live' and claim.runner == runner and claim.instance == instance and instance ~= '' then
    if not give_back(job, claim, 'expired', 'its agent is gone') then jobs[#jobs + 1] = job end
  end
end
return jobs
