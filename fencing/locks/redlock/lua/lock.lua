-- Takes the lock of one resource on this node, and tells the node's counter.
--
-- KEYS[1]  lock       a string "token:holder:owner" that expires; absent while the lock is free.
--                     The token is 0 until a majority of the nodes has agreed on one.
-- KEYS[2]  counter    the largest token this node has accepted, a decimal string
-- KEYS[4]  marks      who has given up; see given_back.lua
-- ARGV[1]  holder     nonce of this round of an acquisition, hexadecimal
-- ARGV[2]  ttl        length of the lease, in milliseconds
-- ARGV[3]  owner      a label for people
--
-- Answers (the holder is echoed so that a connection out of step is noticed):
--   {"granted", holder, counter}                    "0": no token was accepted here yet
--   {"held", holder, left, token, other, owner}     by another holder, for `left` milliseconds
--   {"endless", holder}                             the lock's key has no expiry: none of ours
--   {"garbled", holder}                             the counter is not a number from 0 upwards
--   {"late", holder}                                it was given back before it was taken

-- The rounds of an acquisition have so many digits of their holders in common.
local STEM = 24

local lock, counter, marks = KEYS[1], KEYS[2], KEYS[4]
local holder, ttl, owner = unpack(ARGV)

local last = redis.call('GET', counter) or '0'
if last ~= '0' and not string.match(last, '^[1-9]%d*$') then
  return {'garbled', holder}
end
local value = redis.call('GET', lock)
if value then
  local left = redis.call('PTTL', lock)
  local token, current, label = string.match(value, '^(%d+):(%x+):(.*)$')
  if current == holder then
    -- The answer to our first request was lost. Re-arm, for this request's trust counts from its
    -- own sending; but never shorten: it may be the older one, late, behind a renewal.
    if left <= tonumber(ttl) then
      redis.call('PEXPIRE', lock, ttl)
    end
    return {'granted', holder, last}
  end
  if left == -1 then
    return {'endless', holder}
  end
  return {'held', holder, left, token or '', current or '', label or ''}
end
local stem = string.sub(holder, 1, STEM)
if was_given_back(marks, holder .. ' ') or was_given_back(marks, stem .. ' ') then
  return {'late', holder}
end
redis.call('SET', lock, '0:' .. holder .. ':' .. owner, 'PX', ttl)
return {'granted', holder, last}
