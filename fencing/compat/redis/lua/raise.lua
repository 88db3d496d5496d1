-- Gives a lock that is still its holder's a fencing token above a floor; its time goes on unchanged.
--
-- KEYS[1]  lock     the lock's key: a string, redis-py's token
-- KEYS[2]  fence    the hash beside it; see acquire.lua
-- ARGV[1]  value    what the lock's key was set to
-- ARGV[2]  holder   nonce of the acquisition
-- ARGV[3]  floor    the new token will be greater than this, a decimal string
--
-- Answers (the holder is echoed so that a connection out of step is noticed):
--   {"raised", holder, token}   also when the token was above the floor before: a repeated request
--   {"other", holder}           it is free, or another's
--   {"exhausted", holder}       the counter would have to go above 2^53 - 1
--   {"garbled", holder}         the counter is not a number from 0 upwards

local lock, fence = KEYS[1], KEYS[2]
local value, holder, floor = ARGV[1], ARGV[2], ARGV[3]

if redis.pcall('GET', lock) ~= value or redis.call('HGET', fence, 'holder') ~= holder then
  return {'other', holder}
end
local last = redis.call('HGET', fence, 'token') or '0'
if not string.match(last, '^[1-9]%d*$') then
  return {'garbled', holder}
end
if tonumber(last) > tonumber(floor) then
  return {'raised', holder, last}
end
-- A Lua number is a double: from 2^53 upwards it cannot count by one.
if tonumber(floor) >= 9007199254740991 then
  return {'exhausted', holder}
end
redis.call('HSET', fence, 'token', floor)
redis.call('HINCRBY', fence, 'token', 1)
return {'raised', holder, redis.call('HGET', fence, 'token')}
