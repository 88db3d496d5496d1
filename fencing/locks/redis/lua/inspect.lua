-- Says what there is of one resource, or of several in one slot; changes nothing.
--
-- KEYS     of each resource its lock, its counter, its queue and its marks
-- ARGV[1]  nonce      anything; comes back
--
-- Answers (the nonce is echoed so that a connection out of step is noticed):
--   {"found", nonce, lock, left, counter, waiters, lock, left, counter, waiters, ...}
--     lock      the lock's value, "token:holder:owner"; empty when it is free
--     left      for how many milliseconds it is held; -1: without end
--     counter   the token issued last; empty when none was; "?" when it is no string
--     waiters   how many have a place in the queue

local nonce = ARGV[1]

local answer = {'found', nonce}
for first = 1, #KEYS, 4 do
  local lock, counter, queue = KEYS[first], KEYS[first + 1], KEYS[first + 2]
  local last = redis.pcall('GET', counter)
  answer[#answer + 1] = redis.call('GET', lock) or ''
  answer[#answer + 1] = redis.call('PTTL', lock)
  -- An error, which is a table, is that of a key that somebody else has written.
  answer[#answer + 1] = type(last) == 'table' and '?' or last or ''
  answer[#answer + 1] = redis.call('ZCARD', queue)
end
return answer
