-- Shared text: issues the tokens of a resource.
--
-- next_token(counter, floor)
--   counter  the key of the token issued last
--   floor    the token will be greater than this, a decimal string
-- Returns the token, a decimal string. Or nil and what is wrong:
--   "exhausted"   the counter stands at 2^53 - 1
--   "garbled"     the counter is not a number from 0 upwards
--
-- keep_counter(counter, keep, left)
--   keep     how long it is kept when nobody uses it, in milliseconds; "0" or nil: for ever
--   left     its PTTL before it was used
-- A counter that somebody keeps for ever is kept for ever, whoever else uses it.

local function next_token(counter, floor)
  local last = redis.call('GET', counter) or '0'
  if last ~= '0' and not string.match(last, '^[1-9]%d*$') then
    return nil, 'garbled'
  end
  -- A Lua number is a double: from 2^53 upwards it cannot count by one.
  if math.max(tonumber(last), tonumber(floor)) >= 9007199254740991 then
    return nil, 'exhausted'
  end
  if tonumber(floor) > tonumber(last) then
    redis.call('SET', counter, floor, 'KEEPTTL')
  end
  -- Formatted, because tostring() of the answer would be "1e+14" one day.
  return string.format('%.0f', redis.call('INCR', counter))
end

local function keep_counter(counter, keep, left)
  if not keep or keep == '0' then
    if left >= 0 then
      redis.call('PERSIST', counter)
    end
  elseif left ~= -1 and left < tonumber(keep) then
    redis.call('PEXPIRE', counter, keep)
  end
end

