-- Acquires the lock of one resource and issues its fencing token.
--
-- KEYS[1]  lock       a string "token:holder:owner" that expires; absent while the lock is free
-- KEYS[2]  counter    the token issued last, a decimal string; never expires
-- ARGV[1]  holder     nonce of this acquisition, hexadecimal
-- ARGV[2]  ttl        length of the lease, in milliseconds
-- ARGV[3]  floor      the token will be greater than this; "0" for no floor
-- ARGV[4]  owner      a label for people
--
-- Answers (the holder is echoed so that a connection out of step is noticed):
--   {"granted", holder, token}              token: a decimal string
--   {"held", holder, left, token, owner}    by another, for `left` milliseconds
--   {"endless", holder}                     the lock's key has no expiry: none of ours
--   {"exhausted", holder}                   the counter stands at 2^53 - 1
--   {"garbled", holder}                     the counter is not a number from 0 upwards

local lock, counter = KEYS[1], KEYS[2]
local holder, ttl, floor, owner = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local value = redis.call('GET', lock)
if value then
  local left = redis.call('PTTL', lock)
  local token, current, label = string.match(value, '^(%d+):(%x+):(.*)$')
  if current == holder then
    -- The answer to our first request was lost. Re-arm, for this request's trust counts from its
    -- own sending; but never shorten: it may be the older one, late, behind a renewal.
    if left < tonumber(ttl) then
      redis.call('PEXPIRE', lock, ttl)
    end
    return {'granted', holder, token}
  end
  if left == -1 then
    return {'endless', holder}
  end
  return {'held', holder, left, token or '', label or ''}
end

local last = redis.call('GET', counter) or '0'
if last ~= '0' and not string.match(last, '^[1-9]%d*$') then
  return {'garbled', holder}
end
-- A Lua number is a double: from 2^53 upwards it cannot count by one.
if math.max(tonumber(last), tonumber(floor)) >= 9007199254740991 then
  return {'exhausted', holder}
end
if tonumber(floor) > tonumber(last) then
  redis.call('SET', counter, floor)
end
-- Scripts do not roll back: if SET fails after INCR, a token is skipped; the other way round one
-- would be issued twice.
redis.call('INCR', counter)
-- Read back, because tostring() of INCR's answer would be "1e+14" one day.
local token = redis.call('GET', counter)
redis.call('SET', lock, token .. ':' .. holder .. ':' .. owner, 'PX', ttl)
return {'granted', holder, token}
