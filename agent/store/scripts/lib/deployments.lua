-- Deployments of workflows ("world" in the names of keys).

-- Adds an entry to the inbox of a deployment and makes the deployment due. Returns the id of the entry.
local function post_to_inbox(context, deployment, fields)
  local id = redis.call('XADD', kDeploymentInboxKey .. deployment, '*', unpack(fields))
  redis.call('ZADD', kDeploymentsDueKey, 'LT', to_integer_text(now_ms), deployment)
  redis.call('PUBLISH', kDeploymentChannel, context .. ' ' .. deployment)
  return id
end
-- Adds the end of the job or flow that performs an effect to the inbox of its deployment. `effect` is
-- "<context> <deployment>", as stored in the field effect_of of the record.
local function notify_workflow(effect, kind, key)
  local context, deployment = string.match(effect, '^(%d+) (.+)$')
  if not deployment or not has_type(kDeploymentsKey, 'set') or redis.call('SISMEMBER', kDeploymentsKey, deployment) == 0 then return end
  local inbox = kDeploymentInboxKey .. deployment
  if reports_wrong_type(inbox, 'stream') or reports_wrong_type(kDeploymentsDueKey, 'zset') then
    return add_anomaly(to_printable(inbox) .. ' does not have the end of ' .. key .. ', for which a workflow waits')
  end
  post_to_inbox(context, deployment, {'kind', kind, 'key', key})
end
