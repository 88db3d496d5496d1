-- Gives a lock of redis-py's kind that is still its holder's another time to live.
--
-- KEYS[1]  lock     the lock's key: a string, redis-py's token
-- KEYS[2]  fence    the hash beside it; see acquire.lua
-- ARGV[1]  value    what the lock's key was set to
-- ARGV[2]  holder   nonce of the acquisition; "" where only the value is known
-- ARGV[3]  time     in milliseconds
-- ARGV[4]  how      "add" it to what is left; "set" it, which may shorten; "renew": set it unless
--                   more is left
--
-- Answers (the holder is echoed so that a connection out of step is noticed):
--   {"extended", holder, left}   left: what is left from now on, in milliseconds
--   {"other", holder}            it is free or another's; or there is no time to add to

local lock, fence = KEYS[1], KEYS[2]
local value, holder, time, how = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

if redis.pcall('GET', lock) ~= value then
  return {'other', holder}
end
if holder ~= '' and redis.call('HGET', fence, 'holder') ~= holder then
  return {'other', holder}
end
local left = redis.call('PTTL', lock)
if how == 'add' then
  if left < 0 then
    return {'other', holder}
  end
  time = left + time
elseif how == 'renew' and left >= time then
  return {'extended', holder, string.format('%.0f', left)}
end
-- Not tostring(): it would be "1e+14" one day.
local text = string.format('%.0f', time)
redis.call('PEXPIRE', lock, text)
return {'extended', holder, text}
