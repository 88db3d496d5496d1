-- Shared text: remembers which acquisitions were given back while their outcome was unknown.
--
-- The key is a string of holders, "holder holder ", the latest last; it expires. A request to
-- acquire that the network delivers after its caller has given up would take a lock of which nobody
-- knows; it finds its holder here.
--
-- note_given_back(marks, holder)
-- was_given_back(marks, holder)

-- In milliseconds: longer than a system goes on sending what was written to a connection that was
-- closed since.
local KEPT = 300000
-- In bytes: of 100 holders.
local LONGEST = 3300

local function note_given_back(marks, holder)
  local others = redis.pcall('GET', marks)
  local before = type(others) == 'string' and string.sub(others, -LONGEST) or ''
  redis.pcall('SET', marks, before .. holder .. ' ', 'PX', KEPT)
end

local function was_given_back(marks, holder)
  local holders = redis.pcall('GET', marks)
  return type(holders) == 'string' and string.find(holders, holder, 1, true) ~= nil
end

