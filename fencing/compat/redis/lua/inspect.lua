-- Looks at a lock of redis-py's kind.
--
-- KEYS[1]  lock     the lock's key: a string, redis-py's token
-- KEYS[2]  fence    the hash beside it; see acquire.lua
-- ARGV[1]  value    what the lock's key was set to by who asks
-- ARGV[2]  holder   nonce of his acquisition
--
-- Answers (the holder is echoed so that a connection out of step is noticed):
--   {"free", holder, counter}          counter: the token issued last, a decimal string
--   {"mine", holder, counter, left}    left: what is left, in milliseconds; -1 without an end
--   {"other", holder, counter, left}   another's, of whichever kind

local lock, fence = KEYS[1], KEYS[2]
local value, holder = ARGV[1], ARGV[2]

local counter = redis.call('HGET', fence, 'token') or '0'
local left = redis.call('PTTL', lock)
if left == -2 then
  return {'free', holder, counter}
end
local mine = redis.pcall('GET', lock) == value and redis.call('HGET', fence, 'holder') == holder
return {mine and 'mine' or 'other', holder, counter, string.format('%.0f', left)}
