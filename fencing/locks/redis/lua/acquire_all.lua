-- Acquires the locks of several resources, all or none; like acquire.lua for each.
--
-- KEYS     of each resource its lock, counter, queue and marks, resource after resource
-- ARGV[1]  nonce      anything; comes back
-- ARGV[2]  ttl        length of the leases, in milliseconds
-- ARGV[3]  owner      a label for people
-- ARGV[4]  keep       see keep_counter in issue.lua
-- ARGV[5, 6, ...]     of each resource the holder (the nonce of its acquisition, hexadecimal)
--                     and the floor (its token will be greater than this; "0" for no floor)
--
-- Answers (the nonce is echoed so that a connection out of step is noticed), where `at` is the
-- place of a resource, from 0 on:
--   {"granted", nonce, token, token, ...}       decimal strings, in the order of the resources
--   {"held", nonce, at, left, token, owner}     the first that is another's, for `left`
--                                               milliseconds, or was given back already,
--                                               before this request arrived; nothing was taken
--   {"endless", nonce, at}                      its lock's key has no expiry; nothing was taken
--   {"exhausted", nonce, at}                    its counter stands at 2^53 - 1
--   {"garbled", nonce, at}                      its counter is not a number from 0 upwards
-- With the last two, locks may have been taken: give them back.

local nonce, ttl, owner, keep = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local tokens, left = {}, {}

for first = 1, #KEYS, 4 do
  local at = (first - 1) / 4
  local lock, counter, queue, marks = unpack(KEYS, first, first + 3)
  local holder = ARGV[5 + 2 * at]
  local value = redis.call('GET', lock)
  if not value then
    -- Those who wait for a lock that is free come before us.
    value = hand_over(lock, counter, queue)
  end
  if value then
    left[at] = redis.call('PTTL', lock)
    local token, current, label = string.match(value, '^(%d+):(%x+):(.*)$')
    if current == holder then
      tokens[at] = token -- the answer to our first request was lost
    elseif left[at] == -1 then
      return {'endless', nonce, at}
    else
      return {'held', nonce, at, left[at], token or '', label or ''}
    end
  elseif was_given_back(marks, holder) then
    return {'held', nonce, at, 0, '', ''}
  end
end

local answer = {'granted', nonce}
for first = 1, #KEYS, 4 do
  local at = (first - 1) / 4
  local lock, counter = KEYS[first], KEYS[first + 1]
  local holder, floor = ARGV[5 + 2 * at], ARGV[6 + 2 * at]
  if not tokens[at] then
    local kept = redis.call('PTTL', counter)
    local token, trouble = next_token(counter, floor)
    if not token then
      return {trouble, nonce, at}
    end
    keep_counter(counter, keep, kept)
    redis.call('SET', lock, token .. ':' .. holder .. ':' .. owner, 'PX', ttl)
    tokens[at] = token
  else
    if left[at] <= tonumber(ttl) then -- as in acquire.lua
      redis.call('PEXPIRE', lock, ttl)
    end
    keep_counter(counter, keep, redis.call('PTTL', counter))
  end
  answer[#answer + 1] = tokens[at]
end
return answer
