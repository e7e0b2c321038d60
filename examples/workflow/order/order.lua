-- A saga. The field pc of the state is the progress of the order; events and receipts move it.
--
--   Placed -> reserving -> (above LIMIT_CENTS: approving ->) paying -> paid
--                              after a failed charge: pausing -> paying, at most ATTEMPTS charges
--   refused, too late, cancelled, all charges failed: undoing -> failed

local LIMIT_CENTS = 50000            -- a person must approve a larger sum
local ATTEMPTS = 3                   -- maximum number of charges
local PAUSE_MS = 60 * 1000           -- before the second charge; twice this before the third
local DEADLINE_MS = 15 * 60 * 1000   -- for all charges together
local APPROVERS = array {1}

-- The bank accepts a charge with the same key only once.
local function payment_key(state) return 'order-' .. state.order.id end

local function charge(state)
  state.pc = 'paying'
  state.attempt = state.attempt + 1
  return {kind = 'payment/charge@1', ref = 'charge',
          params = {key = payment_key(state), card = state.order.card, cents = state.order.cents}}
end

local function begin_payment(state)
  return state, nil, {
    charge(state),
    {kind = 'sys/timer@1', ref = 'deadline', params = {after_ms = DEADLINE_MS}},
  }
end

local function fail(state)
  state.pc = 'failed'
  return state, {{schema = 'order/Ended@1', value = {id = state.order.id, ['end'] = 'failed', why = state.why}}}
end

-- Undoes all effects. The refund of the key also stops a charge that is still pending.
local function undo(state, why)
  local effects = {{kind = 'stock/release@1', ref = 'undo', params = {order = state.order.id}}}
  if state.attempt > 0 then
    effects[2] = {kind = 'payment/refund@1', ref = 'undo', params = {key = payment_key(state)}}
  end
  state.pc, state.why, state.undoing = 'undoing', why, #effects
  return state, nil, effects
end

-- Handlers of receipts, by the ref of the effect. Late receipts change nothing.
local on = {}

function on.reserve(state, receipt)
  if state.pc ~= 'reserving' then return state end
  if receipt.status ~= 'ok' then return undo(state, 'stock: ' .. receipt.payload.detail) end
  if not receipt.payload.reserved then
    state.why = 'not in stock'
    return fail(state)
  end
  if state.order.cents <= LIMIT_CENTS then return begin_payment(state) end
  state.pc = 'approving'
  return state, nil, {{kind = 'sys/approval@1', ref = 'approval', params = {
    title = 'Order ' .. state.order.id .. ' of ' .. state.order.cents // 100 .. ' EUR',
    approvers = APPROVERS, timeout_ms = 24 * 60 * 60 * 1000}}}
end

function on.approval(state, receipt)
  if state.pc ~= 'approving' then return state end
  if receipt.status ~= 'ok' then return undo(state, 'approval: ' .. receipt.status) end
  if not receipt.payload.approved then return undo(state, 'approval: refused') end
  return begin_payment(state)
end

function on.charge(state, receipt)
  if state.pc ~= 'paying' then return state end
  if receipt.status == 'ok' then
    state.pc = 'paid'
    return state, {{schema = 'order/Ended@1', value = {id = state.order.id, ['end'] = 'paid'}}},
      {{kind = 'sys/cancel@1', ref = 'over', params = {ref = 'deadline'}}}
  end
  if state.attempt >= ATTEMPTS then return undo(state, 'payment: ' .. receipt.payload.detail) end
  state.pc = 'pausing'
  return state, nil, {{kind = 'sys/timer@1', ref = 'pause', params = {after_ms = PAUSE_MS * state.attempt}}}
end

function on.pause(state)
  if state.pc ~= 'pausing' then return state end
  return state, nil, {charge(state)}
end

-- The receipt of sys/cancel@1 for the deadline.
function on.over(state) return state end

function on.deadline(state)
  if state.pc ~= 'paying' and state.pc ~= 'pausing' then return state end
  return undo(state, 'payment: too late')
end

function on.undo(state, receipt)
  if receipt.status ~= 'ok' then state.why = state.why .. '; ' .. receipt.effect .. ': ' .. receipt.payload.detail end
  state.undoing = state.undoing - 1
  if state.undoing > 0 then return state end
  return fail(state)
end

function step(state, event)
  local arm, value = event.value['$tag'], event.value['$value']
  if arm == 'Receipt' then return on[value.issuer_ref](state, value) end
  if arm == 'Placed' then
    if state ~= nil then return state end   -- a repeated order changes nothing
    return {pc = 'reserving', order = value, attempt = 0, undoing = 0}, nil,
      {{kind = 'stock/reserve@1', ref = 'reserve',
        params = {order = value.id, item = value.item, count = value.count}}}
  end
  -- Cancelled. An unknown or ended order has nothing to cancel.
  if state == nil then return nil end
  if state.pc == 'paid' or state.pc == 'failed' or state.pc == 'undoing' then return state end
  return undo(state, 'cancelled' .. (value.why and ': ' .. value.why or ''))
end
