-- The shelf of one item: orders are served in the order of their arrival.
local function serve(state, item, events)
  while state.queue[1] and state.queue[1].count <= state.count do
    local first = table.remove(state.queue, 1)
    state.count = state.count - first.count
    events[#events + 1] = {schema = 'stock/Reserved@1', value = {order = first.order, item = item}}
  end
  return state, events
end

function shelf(state, event)
  local arm, value = event.value['$tag'], event.value['$value']
  state = state or {count = 0, queue = array {}}
  if arm == 'Delivered' then
    state.count = state.count + value.count
    return serve(state, event.key, {})
  end
  state.queue[#state.queue + 1] = {order = value.order, count = value.count}
  local first = #state.queue == 1
  local _, events = serve(state, event.key, {})
  if #events == 0 then
    events[1] = {schema = 'stock/Short@1',
                 value = {order = value.order, item = event.key, missing = value.count - (first and state.count or 0)}}
  end
  return state, events
end
