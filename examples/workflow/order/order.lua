-- A saga. The order's state says where it is (pc); what comes in says what follows.
--
--   Placed -> reserving -> (above the limit: approving ->) paying -> paid
--                              a charge fails: pausing -> paying again, three times in all
--   refused, too late, cancelled, no charge works: undoing -> failed

local LIMIT_CENTS = 50000            -- above it, a person must agree
local ATTEMPTS = 3                   -- of a charge
local PAUSE_MS = 60 * 1000           -- before the second one; before the third twice that
local DEADLINE_MS = 15 * 60 * 1000   -- for all charges together
local APPROVERS = array {1}

-- The service of the bank takes the same key once only, however often it is asked.
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

-- Everything that was done is undone. A charge may still be on its way: the refund of its key stops that, too.
local function undo(state, why)
  local effects = {{kind = 'stock/release@1', ref = 'undo', params = {order = state.order.id}}}
  if state.attempt > 0 then
    effects[2] = {kind = 'payment/refund@1', ref = 'undo', params = {key = payment_key(state)}}
  end
  state.pc, state.why, state.undoing = 'undoing', why, #effects
  return state, nil, effects
end

-- What follows from the receipt of an effect, by what the code called it (ref). Whatever comes too late is let be.
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

-- Nothing is left to be late for: the deadline is cancelled.
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
    if state ~= nil then return state end   -- the same order once more
    return {pc = 'reserving', order = value, attempt = 0, undoing = 0}, nil,
      {{kind = 'stock/reserve@1', ref = 'reserve',
        params = {order = value.id, item = value.item, count = value.count}}}
  end
  -- Cancelled. Of an order that has ended, or of none, nothing is left to cancel.
  if state == nil then return nil end
  if state.pc == 'paid' or state.pc == 'failed' or state.pc == 'undoing' then return state end
  return undo(state, 'cancelled' .. (value.why and ': ' .. value.why or ''))
end
