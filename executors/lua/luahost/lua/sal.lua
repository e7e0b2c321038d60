-- Publishes the names of the System Abstraction Layer as globals and in tables.
local host, modules = ...
local kit = modules.base
local files, process, git, redis, text, net, mycelium =
  modules.files, modules.process, modules.git, modules.redis, modules.text, modules.net, modules.mycelium
local sal = {}

function sal.publish(globals)
  local os = globals.os
  for name, value in next, files do
    rawset(os, name, value)
    rawset(globals, name, value)
  end
  process.list, process.get = process.process_list, process.process_get
  git.clone, git.tree = git.git_clone, git.git_tree_new
  local tables = {process = process, git = git, redis = redis, text = text, net = net, mycelium = mycelium}
  for name, value in next, tables do rawset(globals, name, value) end
  for _, name in next, {"run", "run_command", "run_silent", "run_with_options", "new_run_options", "process_list",
      "process_get", "kill"} do
    rawset(globals, name, process[name])
  end
  for _, name in next, {"git_clone", "git_tree_new"} do rawset(globals, name, git[name]) end
  for _, name in next, {"dedent", "prefix", "name_fix", "path_fix"} do rawset(globals, name, text[name]) end
  for _, name in next, {"tcp_check", "http_check", "http_status", "http_get", "http_post"} do rawset(globals, name,
      net[name]) end
  for name, value in next, redis do
    if name ~= "connect" and name ~= "command" then rawset(globals, "redis_" .. name, value) end
  end
  for name, value in next, mycelium do rawset(globals, "mycelium_" .. name, value) end
  rawset(globals, "text_replacer_new", text.replacer)
  rawset(globals, "template_builder_open", text.template_open)
  rawset(globals, "sleep", globals.mycojobs.sleep)
end

return sal
