-- The object store of the job's context. Each call is sent to the agent; the script has no connection to the store.
local host, modules = ...
local kit, json = modules.base, modules.json
local find, format = string.find, string.format
local osis = {}
local last_call = 0
local PAGE = 100

local function call_agent(method, params)
  last_call = last_call + 1
  local call = kit.to_json(method, {id = last_call, method = method, params = params})
  local reply, problem = host.ask(call)
  if problem == "too_large" then
    kit.fail("too_large", "%s: the call has %d bytes, 2 MiB are the most", method, #call)
  end
  if not reply then kit.fail("unavailable", "%s: %s", method, problem) end
  local fine, answer = pcall(kit.from_json, reply)
  if not fine or type(answer) ~= "table" or answer.id ~= last_call then
    kit.fail("unavailable", "%s: the agent's message is not the answer to this call", method)
  end
  if type(answer.error) == "table" then
    error(kit.new_error(answer.error.code or "failed", format("%s: %s", method, tostring(answer.error.message)),
        "OsisError"), 0)
  end
  if type(answer.result) ~= "table" then kit.fail("unavailable", "%s: the agent answered without a result", method) end
  return answer.result
end

-- Kind and namespace of each kind object, which all calls contain.
local places = setmetatable({}, {__mode = "k"})
local function build_params(self, more)
  local place = places[self]
  if not place then kit.fail("invalid", "osis: call it with a colon, such as users:get(id)") end
  more = more or {}
  more.kind, more.namespace = place.kind, place.namespace
  return more
end

-- Converts a row to a script's object: the stored fields, and id, version, created_ms, updated_ms.
local function to_object(row)
  local object = row.object
  if type(object) ~= "table" then object = {} end
  for _, name in next, {"id", "version", "created_ms", "updated_ms"} do
    if row[name] ~= nil then object[name] = row[name] end
  end
  return object
end

-- Converts an object to the parameters of put. An object from get() may be stored unchanged: its version is then
-- checked.
local function to_put(self, api_name, object, options)
  options = kit.options(api_name, 2, options, {version = true})
  if kit.is_array(kit.table(api_name, 1, object)) then
    kit.fail("invalid", "%s: an object has fields, and is not a list", api_name)
  end
  local stored = {}
  for name, value in next, object do
    if name ~= "version" and name ~= "created_ms" and name ~= "updated_ms" then stored[name] = value end
  end
  local params = build_params(self, {object = stored})
  if options.version ~= nil then
    params.version = kit.whole(api_name .. ": version", 2, options.version, nil, 0, 1 << 53)
  elseif object.id ~= nil and object.version ~= nil then
    params.version = object.version
  end
  return params
end

local function to_delete(self, api_name, id, options)
  options = kit.options(api_name, 2, options, {version = true})
  local params = build_params(self, {id = kit.text(api_name, 1, id)})
  if options.version ~= nil then
    params.version = kit.whole(api_name .. ": version", 2, options.version, nil, 1, 1 << 53)
  end
  return params
end

local Kind = {__name = "kind", __metatable = false}
Kind.__index = Kind

-- Returns a copy with id, version and times. options: {version = n}; 0: the object must not exist.
function Kind:put(object, options)
  local params = to_put(self, "put", object, options)
  local row = call_agent("osis.put", params)
  return to_object({object = params.object, id = row.id, version = row.version, created_ms = row.created_ms,
      updated_ms = row.updated_ms})
end

function Kind:get(id)
  local fine, row = pcall(call_agent, "osis.get", build_params(self, {id = kit.text("get", 1, id)}))
  if fine then return to_object(row) end
  if type(row) == "table" and row.code == "not_found" then return nil end
  error(row, 0)
end

-- Returns true; false if the object did not exist.
function Kind:delete(id, options)
  local fine, problem = pcall(call_agent, "osis.delete", to_delete(self, "delete", id, options))
  if fine then return true end
  if type(problem) == "table" and problem.code == "not_found" then return false end
  error(problem, 0)
end

function Kind:count() return call_agent("osis.count", build_params(self)).count end

-- Returns an iterator over all pages of a method: for object in ... do.
local function pages(self, method, fields, options)
  options = kit.options(method, 2, options, {limit = true, after = true, page = true})
  local remaining = options.limit and kit.whole(method .. ": limit", 2, options.limit, nil, 1, 1 << 53) or math.huge
  local page = kit.whole(method .. ": page", 2, options.page, PAGE, 1, 1000)
  local after, rows, at, ended = options.after, {}, 0, false
  return function()
    if remaining <= 0 then return nil end
    while at >= #rows do
      if ended then return nil end
      local params = build_params(self, {after = after, limit = remaining < page and remaining or page})
      for name, value in next, fields do params[name] = value end
      local answer = call_agent(method, params)
      rows, at, after = answer.objects or {}, 0, answer.after
      ended = after == nil or after == kit.null or after == ""
    end
    at, remaining = at + 1, remaining - 1
    return to_object(rows[at])
  end
end

function Kind:list(options) return pages(self, "osis.list", {}, options) end

local function split(options, known)
  local fields, rest = {}, {}
  for name, value in next, options do
    if known[name] then fields[name] = value else rest[name] = value end
  end
  return fields, rest
end

-- find("email", "x@example.org") or find{field = "age", min = 18, max = 30}: returns an iterator like list().
function Kind:find(field, value, options)
  if type(field) == "table" then
    local fields, rest = split(field, {field = true, value = true, min = true, max = true})
    return pages(self, "osis.find", fields, rest)
  end
  if value == nil then
    kit.fail("invalid", "find: argument 2 is the value to find; for a range: find{field = %q, min = 1, max = 9}",
        tostring(field))
  end
  return pages(self, "osis.find", {field = kit.text("find", 1, field), value = value}, options)
end

function Kind:search(words, options)
  return pages(self, "osis.search", {text = kit.text("search", 1, words)}, options)
end

local function read_names(api_name, value)
  local names = json.array()
  if type(value) == "string" then value = {value} end
  for i, name in ipairs(kit.table(api_name, 2, value, {})) do names[i] = kit.text(api_name, i, name) end
  return names
end

-- index: fields for find; text: fields for search. Without both, existing declarations stay unchanged.
function osis.kind(name, options)
  options = kit.options("osis.kind", 2, options, {namespace = true, index = true, text = true})
  local kind = setmetatable({name = kit.text("osis.kind", 1, name)}, Kind)
  places[kind] = {kind = kind.name, namespace = kit.text("osis.kind: namespace", 2, options.namespace, "default")}
  if options.index or options.text then
    call_agent("osis.declare", build_params(kind, {index = read_names("osis.kind: index", options.index),
        text = read_names("osis.kind: text", options.text)}))
  end
  return kind
end

function osis.kinds(namespace) return call_agent("osis.kinds", {namespace = namespace}).kinds end

local Transaction = {__name = "transaction", __metatable = false}
Transaction.__index = Transaction
local operations = setmetatable({}, {__mode = "k"})

local function add(self, op, params)
  local list = operations[self]
  if not list then kit.fail("invalid", "osis.transaction: it has ended") end
  params.op = op
  list[#list + 1] = params
  return self
end

function Transaction:put(kind, object, options) return add(self, "put", to_put(kind, "put", object, options)) end
function Transaction:delete(kind, id, options) return add(self, "delete", to_delete(kind, "delete", id, options)) end
-- The transaction fails with conflict if the object has another version. version 0: the object must not exist.
function Transaction:check(kind, id, version)
  return add(self, "check", build_params(kind, {id = kit.text("check", 2, id), version = kit.whole("check", 3, version,
      nil, 0, 1 << 53)}))
end

-- Runs an atomic transaction. Collects the operations of the function, then sends them together; reads in between
-- return the previous state. Returns a list with {id, version, ...} for each operation.
function osis.transaction(action)
  if type(action) ~= "function" then
    kit.fail("invalid", "osis.transaction: argument 1 must be a function, not %s", type(action))
  end
  local transaction, list = setmetatable({}, Transaction), json.array()
  operations[transaction] = list
  local fine, problem = pcall(action, transaction)
  operations[transaction] = nil
  if not fine then error(problem, 0) end
  if #list == 0 then return {} end
  return call_agent("osis.transaction", {operations = list}).results
end

function osis.publish(globals) rawset(globals, "osis", osis) end

return osis
