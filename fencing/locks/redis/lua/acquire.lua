-- Acquires the lock of one resource and issues its fencing token; or takes a place in its queue.
--
-- KEYS[1]  lock       a string "token:holder:owner" that expires; absent while the lock is free
-- KEYS[2]  counter    the token issued last, a decimal string; may expire, see keep_counter
-- KEYS[3]  queue      a sorted set of who waits; see hand_over.lua
-- KEYS[4]  marks      who has given up; see given_back.lua
-- ARGV[1]  holder     nonce of this acquisition, hexadecimal
-- ARGV[2]  ttl        length of the lease, in milliseconds
-- ARGV[3]  floor      the token will be greater than this; "0" for no floor
-- ARGV[4]  owner      a label for people
-- ARGV[5]  keep       see keep_counter in issue.lua
-- ARGV[6]  record     who waits, as hand_over.lua says; absent or empty: nobody waits
-- ARGV[7]  last       "last": the waiting is over, so the record is taken out of the queue
-- ARGV[8]  place      the one it had in the queue, should it have lost it; absent or empty: none yet
--
-- Answers (the holder is echoed so that a connection out of step is noticed), as lists or as texts of
-- the same words:
--   {"granted", holder, token}              token: a decimal string
--   {"held", holder, left, token, owner}    by another, for `left` milliseconds; or
--                                         given back already, before this request arrived
--   {"held", holder, left, token, owner, place}   likewise, to who has a place in the queue
--   {"endless", holder}                     the lock's key has no expiry: none of ours
--   {"exhausted", holder}                   the counter stands at 2^53 - 1
--   {"garbled", holder}                     the counter is not a number from 0 upwards

-- In milliseconds, well above the time between two requests of a waiter: a forgotten queue ends.
local QUEUE_TTL = 30000

local record, last, place = ARGV[6], ARGV[7], ARGV[8]
local waits = record and record ~= ''

local value = redis.call('GET', lock)
if not value then
  -- When somebody waits for a lock that is free, its last lease was not released. Whoever asks
  -- first now is not the first who wanted it.
  value = hand_over(lock, counter, queue, record)
end
if value then
  local left = redis.call('PTTL', lock)
  local token, current, label = string.match(value, '^(%d+):(%x+):(.*)$')
  if current == holder then
    -- The answer to our first request was lost, or the lock was handed to us for a little while.
    -- Re-arm, for this request's trust counts from its own sending; but never shorten: it may be
    -- the older one, late, behind a renewal. Written even where it is equal: a WAIT waits for what
    -- its own connection has written.
    if left <= tonumber(ttl) then
      redis.call('PEXPIRE', lock, ttl)
    end
    keep_counter(counter, keep, redis.call('PTTL', counter))
    return {'granted', holder, token}
  end
  if left == -1 then
    return {'endless', holder}
  end
  if waits and last == 'last' then
    redis.call('ZREM', queue, record)
  elseif waits and not was_given_back(marks, holder) then
    local behind = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or 0
    if not place or place == '' then
      place = string.format('%.0f', behind + 1)
    end
    redis.call('ZADD', queue, 'NX', place, record)
    redis.call('PEXPIRE', queue, QUEUE_TTL)
    return {'held', holder, left, token or '', label or '', place}
  end
  return {'held', holder, left, token or '', label or ''}
end

if was_given_back(marks, holder) then
  return {'held', holder, 0, '', ''}
end

local kept = redis.call('PTTL', counter)
local token, trouble = next_token(counter, floor)
if not token then
  return {trouble, holder}
end
redis.call('SET', lock, token .. ':' .. holder .. ':' .. owner, 'PX', ttl)
keep_counter(counter, keep, kept)
if waits then
  redis.call('ZREM', queue, record)
end
return {'granted', holder, token}
