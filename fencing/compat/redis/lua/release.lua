-- Releases a lock of redis-py's kind that is still its holder's.
--
-- KEYS[1]  lock     the lock's key: a string, redis-py's token
-- KEYS[2]  fence    the hash beside it; see acquire.lua
-- ARGV[1]  value    what the lock's key was set to
-- ARGV[2]  holder   nonce of the acquisition; "" where only the value is known
-- ARGV[3]  unknown  "1" when it is not known whether the lock was acquired at all: a request of
--                   this holder that is still on its way shall not acquire it any more; else "0"
--
-- Answers (the holder is echoed so that a connection out of step is noticed):
--   {"released", holder}   also to a repeated request, whose first answer was lost
--   {"other", holder}      it is free, or another's

local lock, fence = KEYS[1], KEYS[2]
local value, holder, unknown = ARGV[1], ARGV[2], ARGV[3]

if holder == '' then
  if redis.pcall('GET', lock) ~= value then
    return {'other', holder}
  end
  redis.call('DEL', lock)
  return {'released', holder}
end
if redis.pcall('GET', lock) == value and redis.call('HGET', fence, 'holder') == holder then
  redis.call('DEL', lock)
elseif unknown ~= '1' then
  local before = redis.call('HGET', fence, 'released') == holder
  return {before and 'released' or 'other', holder}
end
redis.call('HSET', fence, 'released', holder)
return {'released', holder}
