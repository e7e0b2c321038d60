-- An order: reports the events of the shelf to the customer.
local function letter(state, text)
  return state, {{schema = 'shop/Letter@1', value = {to = state.mail, text = text}}}
end

function order(state, event)
  local arm, value = event.value['$tag'], event.value['$value']
  if arm == 'Placed' then return state or {pc = 'placed', mail = value.mail} end
  if arm == 'Short' then
    state.pc = 'waiting'
    return letter(state, 'order ' .. event.key .. ': ' .. value.item .. ' will come, ' .. value.missing .. ' short')
  end
  state.pc = 'ready'
  return letter(state, 'order ' .. event.key .. ' is ready')
end
