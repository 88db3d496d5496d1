-- Gives a lease that is still its holder's a token above a floor; its time goes on unchanged.
--
-- KEYS[1]  lock       a string "token:holder:owner" that expires
-- KEYS[2]  counter    the token issued last, a decimal string
-- ARGV[1]  holder     nonce of the acquisition, hexadecimal
-- ARGV[2]  floor      the new token will be greater than this, a decimal string
--
-- Answers (the holder is echoed so that a connection out of step is noticed):
--   {"raised", holder, token}   also when the token was above the floor before: a repeated request
--   {"absent", holder}          nobody holds the lock
--   {"other", holder}           another holder has it
--   {"exhausted", holder}       the counter stands at 2^53 - 1
--   {"garbled", holder}         the counter is not a number from 0 upwards

local lock, counter = KEYS[1], KEYS[2]
local holder, floor = ARGV[1], ARGV[2]

local value = redis.call('GET', lock)
if not value then
  return {'absent', holder}
end
local token, current, owner = string.match(value, '^(%d+):(%x+):(.*)$')
if current ~= holder then
  return {'other', holder}
end
if tonumber(token) > tonumber(floor) then
  return {'raised', holder, token}
end

local raised, trouble = next_token(counter, floor)
if not raised then
  return {trouble, holder}
end
redis.call('SET', lock, raised .. ':' .. holder .. ':' .. owner, 'KEEPTTL')
return {'raised', holder, raised}
