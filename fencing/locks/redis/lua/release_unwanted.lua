-- Shared text: releases a lock that nobody waits for; the beginning of release.lua, whose header says
-- what the keys and arguments are. As acquire_free.lua is to acquire.lua.

local lock, queue = KEYS[1], KEYS[3]
local holder, unknown, record = ARGV[1], ARGV[2], ARGV[3]

if not unknown and redis.call('EXISTS', queue) == 0 then
  local value = redis.call('GET', lock)
  if value and string.match(value, '^%d+:(%x+):') == holder then
    redis.call('DEL', lock)
    return 'released ' .. holder
  end
end

