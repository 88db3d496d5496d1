-- Acquires a lock of redis-py's kind and issues its fencing token.
--
-- KEYS[1]  lock     the lock's key: a string, redis-py's token; absent while the lock is free
-- KEYS[2]  fence    a hash beside it; never expires. Its fields:
--                     token     the fencing token issued last, a decimal string
--                     holder    nonce of the acquisition it was issued to
--                     released  nonce of the acquisition that was given back last
-- ARGV[1]  value    what the lock's key is set to
-- ARGV[2]  holder   nonce of this acquisition, hexadecimal
-- ARGV[3]  ttl      length of the lock, in milliseconds; "" for one that does not expire
--
-- Answers (the holder is echoed so that a connection out of step is noticed):
--   {"granted", holder, token}   token: a decimal string
--   {"held", holder}             by another; or given back already, before this request arrived
--   {"exhausted", holder}        the counter stands at 2^53 - 1
--   {"garbled", holder}          the counter is not a number from 0 upwards

local lock, fence = KEYS[1], KEYS[2]
local value, holder, ttl = ARGV[1], ARGV[2], ARGV[3]

-- pcall: a key of another type is somebody's lock to SET NX, and so it is here.
local found = redis.pcall('GET', lock)
if found then
  -- The value does not tell whose it is: callers may choose it, and choose the same one.
  if found == value and redis.call('HGET', fence, 'holder') == holder then
    -- The answer to our first request was lost. Re-arm, for trust in the lock counts from the
    -- sending of this one; but never shorten: it may be the older one, late, behind an extension.
    if ttl ~= '' and redis.call('PTTL', lock) < tonumber(ttl) then
      redis.call('PEXPIRE', lock, ttl)
    end
    return {'granted', holder, redis.call('HGET', fence, 'token')}
  end
  return {'held', holder}
end
-- The caller has given up, and his giving back has overtaken this request.
if redis.call('HGET', fence, 'released') == holder then
  return {'held', holder}
end

local last = redis.call('HGET', fence, 'token') or '0'
if last ~= '0' and not string.match(last, '^[1-9]%d*$') then
  return {'garbled', holder}
end
-- A Lua number is a double: from 2^53 upwards it cannot count by one.
if tonumber(last) >= 9007199254740991 then
  return {'exhausted', holder}
end
-- Scripts do not roll back: if SET fails after HINCRBY, a token is skipped; the other way round one
-- would be issued twice.
redis.call('HINCRBY', fence, 'token', 1)
redis.call('HSET', fence, 'holder', holder)
if ttl == '' then
  redis.call('SET', lock, value)
else
  redis.call('SET', lock, value, 'PX', ttl)
end
-- Read back, because tostring() of HINCRBY's answer would be "1e+14" one day.
return {'granted', holder, redis.call('HGET', fence, 'token')}
