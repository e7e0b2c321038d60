--# journal places ends
-- Met, or with a reason: never. 0: the job does not wait for them.
local job, impossible = arg(), arg()
local err = wrong_shared()
if err then return err end
local claim = read_claim(job)
if not claim or claim.state ~= 'prerequisites' then return 0 end
if impossible ~= '' then
  finish(job, claim, failure('prerequisite', impossible), false)
else
  set_claim(job, claim, 'prerequisites', 'met')
  enqueue(job, claim, 'prerequisite', false)
end
return 1
