-- Shared text: releases a lock that nobody waits for; the beginning of release.lua, whose header says
-- what the keys and arguments are. As acquire_free.lua is to acquire.lua.

local lock, queue = KEYS[1], KEYS[3]
local holder, unknown, record = ARGV[1], ARGV[2], ARGV[3]

-- Who waits first, if anybody does; an error where the key is no queue.
local queued = redis.pcall('ZRANGE', queue, 0, 0)

if not unknown and not queued['err'] and not queued[1] then
  local value = redis.call('GET', lock)
  if value and string.match(value, '^%d+:(%x+):') == holder then
    redis.call('DEL', lock)
    return {'released', holder}
  end
end

