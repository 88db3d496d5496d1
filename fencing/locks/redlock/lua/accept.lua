-- Accepts a token on this node, if it is larger than every token that was accepted here before.
--
-- KEYS[1]  lock       a string "token:holder:owner" that expires
-- KEYS[2]  counter    the largest token this node has accepted, a decimal string
-- ARGV[1]  holder     nonce of this round of an acquisition, hexadecimal
-- ARGV[2]  token      the one that is proposed, a decimal string
-- ARGV[3]  own        "own": only for a holder that has the lock here; absent: for any
--
-- Answers (the holder is echoed so that a connection out of step is noticed):
--   {"accepted", holder}        and the holder has the lock here; also to a repeated request
--   {"above", holder, counter}  the counter is not below the token; nothing was changed
--   {"absent", holder}          nobody holds the lock here; accepted unless `own` was asked for
--   {"other", holder}           another holder has it here; likewise
--   {"garbled", holder}         the counter is not a number from 0 upwards

local lock, counter = KEYS[1], KEYS[2]
local holder, proposed, own = unpack(ARGV)

local value = redis.call('GET', lock)
local token, current, owner = string.match(value or '', '^(%d+):(%x+):(.*)$')
local found = (current == holder and 'accepted') or (value and 'other') or 'absent'
if own == 'own' and found ~= 'accepted' then
  return {found, holder}
end

local last = redis.call('GET', counter) or '0'
if last ~= '0' and not string.match(last, '^[1-9]%d*$') then
  return {'garbled', holder}
end
if tonumber(last) < tonumber(proposed) then
  redis.call('SET', counter, proposed, 'KEEPTTL')
elseif not (found == 'accepted' and token == proposed) then
  return {'above', holder, last}
end
if found == 'accepted' then
  redis.call('SET', lock, proposed .. ':' .. holder .. ':' .. owner, 'KEEPTTL')
end
return {found, holder}
