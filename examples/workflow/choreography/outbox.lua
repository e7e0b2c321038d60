-- Sends all letters. It has no key, so there is one instance.
function outbox(state, event)
  local arm, value = event.value['$tag'], event.value['$value']
  state = state or {sent = 0, lost = 0}
  if arm == 'Letter' then return state, nil, {{kind = 'mail/send@1', params = value}} end
  if value.status == 'ok' and value.payload.sent then
    state.sent = state.sent + 1
  else
    state.lost = state.lost + 1
  end
  return state
end
